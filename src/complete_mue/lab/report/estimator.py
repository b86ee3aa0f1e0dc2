"""Where a loss curve has its minimum, what another value costs, and how well the runs tell both. All pages use this.

A parabola in log2 of the value, by least squares around the best one; where that has no say (at an edge, beside a run
that diverged or a cliff, in a flat basin), the best value stands in. Errors are a bootstrap over the noise of the runs.
Each step, with its reason, is in docs/report.md under "The estimator".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from complete_mue.errors import RunError

Edge = Literal["low", "high", "both"]
Array = NDArray[np.float64]

WINDOW = 1.5  # octaves
CLIFF = 0.3  # in loss, above the best
BASIN_NATS = 0.01
_ROUNDED = 0.05  # octaves by which a grid's values may be rounded
_SCAN_FREEDOM = 6  # the noise differs between curves, by a third or so
_DRAWS = 1000


@dataclass(frozen=True)
class Basin:
    """Values whose loss stays within ``nats`` of the best; an open side reaches beyond the scanned grid."""

    low: float
    high: float
    low_open: bool
    high_open: bool
    nats: float = BASIN_NATS

    def __str__(self) -> str:
        return f"{'… ' * self.low_open}{self.low:.3g} to {self.high:.3g}{' …' * self.high_open}"


@dataclass(frozen=True)
class Optimum:
    """A minimum: estimated (``value``, ``loss``) and measured (``best_value``, ``best_loss``).

    ``open``: the best value is at the edge of the grid. ``diverges``: on which side of it a run diverged. ``fitted``:
    whether it is a parabola's minimum, or the best value itself. ``cliff``: the first value at most an octave above the
    best where the loss is higher by more than ``CLIFF``, or a run diverged.
    """

    value: float
    loss: float
    best_value: float
    best_loss: float
    open: Edge | None
    diverges: Literal["above", "below", "both"] | None
    fitted: bool
    basin: Basin
    cliff: float | None

    @property
    def log2(self) -> float:
        """The optimum in octaves."""
        return math.log2(self.value)


@dataclass(frozen=True)
class Noise:
    """The variance of one run's loss, and the degrees of freedom it rests on."""

    variance: float
    freedom: int

    def beside(self, scan: Noise | None) -> Noise:
        """Averaged with that of a scan's curves."""
        if scan is None:
            return self
        weight = min(_SCAN_FREEDOM, scan.freedom)
        freedom = self.freedom + weight
        return Noise((self.freedom * self.variance + weight * scan.variance) / freedom, freedom)


@dataclass(frozen=True)
class Runs:
    """The runs of one curve, by rising value: ``table[seed, value]`` holds losses, NaN where there is none."""

    values: tuple[float, ...]
    x: Array  # octaves
    table: Array
    means: Array  # over seeds, NaN where a run diverged
    seeds: Array
    best: int
    near: NDArray[np.intp]  # the window around the best value


@dataclass(frozen=True)
class Estimate:
    """An optimum, the regret of one value, and their errors (the optimum's in octaves)."""

    optimum: Optimum
    regret: float | None
    optimum_error: float | None = None
    regret_error: float | None = None


def optimum_of(values: Sequence[float], losses: Sequence[float | None]) -> Optimum:
    """The minimum of losses measured at ``values``. A loss that is None, NaN or infinite marks a run that diverged."""
    if len(values) != len(losses):
        raise RunError(f"{len(values)} values with {len(losses)} losses: give one loss for each value")
    if len(set(values)) < len(values):
        raise RunError(f"values {list(values)}: give each value once, with the mean loss of its seeds")
    return estimate(runs_of(values, [losses])).optimum


def runs_of(values: Sequence[float], losses: Sequence[Sequence[float | None]]) -> Runs:
    """Runs at ``values``, a row of losses for each seed, None where a run diverged or is missing."""
    if not values or any(not math.isfinite(value) or value <= 0 for value in values):
        raise RunError(f"values {list(values)}: give at least one, all above zero")
    order = np.argsort(values, kind="stable")
    table = np.array([[math.nan if y is None else y for y in row] for row in losses], dtype=float)[:, order]
    table[~np.isfinite(table)] = math.nan
    if np.isnan(table).all():
        raise RunError(f"no optimum: all {len(values)} values diverged; scan smaller values")
    rising = tuple(float(values[i]) for i in order)
    return _runs(rising, table - _levels(_runs(rising, table))[:, None])


def _runs(values: tuple[float, ...], table: Array) -> Runs:
    x, there = np.log2(np.array(values)), np.isfinite(table)
    with np.errstate(invalid="ignore"):
        means = np.where(there, table, 0.0).sum(axis=0) / there.sum(axis=0)
    best = int(_best(means[None])[0])
    return Runs(values, x, table, means, there.sum(axis=0), best, _window(x, means, best))


def noise_of(runs: Runs) -> Noise | None:
    """How runs in the window scatter around the parabola and their seeds' levels; None if nothing tells, as with a
    single seed."""
    near, table = runs.near, runs.table[:, runs.near]
    x, there = runs.x[near] - runs.x[runs.best], np.isfinite(table)
    fit = np.polyfit(x, runs.means[near], min(2, len(near) - 1), w=np.sqrt(runs.seeds[near]))
    freedom = int(there.sum() - len(fit) - (there.any(axis=1).sum() - 1))
    if len(table) < 2 or freedom < 1:
        return None
    return Noise(float(np.nansum((table - np.polyval(fit, x)) ** 2)) / freedom, freedom)


def pooled(noises: Sequence[Noise]) -> Noise | None:
    """The noise of several curves together; None of a single one, which its own noise describes."""
    freedom = sum(noise.freedom for noise in noises)
    total = sum(noise.variance * noise.freedom for noise in noises)
    return Noise(total / freedom, freedom) if len(noises) > 1 else None


def estimate(runs: Runs, transferred: float = 0.0, noise: Noise | None = None) -> Estimate:
    """The optimum and the regret of ``transferred``, with errors where the noise is known."""
    here = math.log2(transferred) if transferred > 0 else math.nan
    found = _estimates(runs, runs.means[None], here)
    at, loss, curvature, regret = (float(one[0]) for one in (found.at, found.loss, found.curvature, found.regret))
    optimum, known = _optimum(runs, at, loss, curvature), None if math.isnan(regret) else regret
    if noise is None:
        return Estimate(optimum, known)
    state = np.random.RandomState(0)  # its numbers are the same in every version of numpy
    variance = noise.variance * noise.freedom / state.chisquare(noise.freedom, (_DRAWS, 1))
    scale = np.sqrt(variance / np.maximum(runs.seeds, 1))
    drawn = _estimates(runs, runs.means + scale * state.standard_normal((_DRAWS, len(runs.x))), here)
    anywhere = 0.0 if optimum.fitted else _width(runs) / 4
    regret_error = None if known is None else _error(drawn.regret - regret)
    return Estimate(optimum, known, math.hypot(_error(drawn.at - at), anywhere), regret_error)


def _width(runs: Runs) -> float:
    """Of the window, its walls included."""
    low, high = max(runs.near[0] - 1, 0), min(runs.near[-1] + 1, len(runs.x) - 1)
    walls = _is_wall(runs.means, runs.best)
    ends = [i if walls[i] else j for i, j in ((low, runs.near[0]), (high, runs.near[-1]))]
    return float(runs.x[ends[1]] - runs.x[ends[0]])


def _error(misses: Array) -> float:
    return float(np.nanquantile(np.abs(misses), 0.95)) / 2


@dataclass(frozen=True)
class _Estimates:
    """One entry per row of means; no curvature where the best value stands in, NaN for a regret not known."""

    at: Array
    loss: Array
    curvature: Array
    regret: Array


def _estimates(runs: Runs, means: Array, here: float) -> _Estimates:
    """The estimator, for many rows of means at once: those with the same best value share a window."""
    x, best = runs.x, _best(means)
    at, loss = x[best], means[np.arange(len(means)), best]
    curvature, there = np.zeros(len(means)), _loss_at(x, means, here)
    regret = np.maximum(there - loss, 0.0)
    for middle in np.unique(best):
        near, rows = _window(x, means[0], middle), np.flatnonzero(best == middle)
        if not near[0] < middle < near[-1]:
            continue
        floor = loss[rows]  # losses share most of their digits
        heights = (means[np.ix_(rows, near)] - floor[:, None]).T
        a, b, c = np.polyfit(x[near] - x[middle], heights, 2, w=np.sqrt(runs.seeds[near]))
        with np.errstate(all="ignore"):
            vertex = x[middle] - b / (2 * a)
            good = (a > 0) & (vertex >= x[near[0]]) & (vertex <= x[near[-1]])
            lowest = floor + c - b * b / (4 * a)
            height = lowest + a * (here - vertex) ** 2
        if len(near) == 3:
            lowest = np.maximum(lowest, _least(x, means[rows], middle, vertex > x[middle]))
        if not x[near[0]] <= here <= x[near[-1]]:
            height = there[rows]
        cost = np.maximum(height - lowest, 0.0)
        kept = rows[good]
        at[kept], loss[kept], curvature[kept], regret[kept] = vertex[good], lowest[good], a[good], cost[good]
    return _Estimates(at, loss, curvature, regret)


def _least(x: Array, means: Array, best: int, above: NDArray[np.bool_]) -> Array:
    """The least loss that a convex curve can have beside the best value: where the lines through the two values on
    either side meet. Minus infinity where there are no two."""
    least = np.full(len(means), -math.inf)
    for side, rows in ((1, above), (-1, ~above)):
        far, next_, before = best + 2 * side, best + side, best - side
        if 0 <= far < len(x) and not np.isnan(means[0, far]):
            rise = (means[rows, next_] - means[rows, far]) / (x[next_] - x[far])
            fall = (means[rows, best] - means[rows, before]) / (x[best] - x[before])
            with np.errstate(all="ignore"):
                step = (means[rows, next_] - means[rows, best] - rise * (x[next_] - x[best])) / (fall - rise)
                least[rows] = means[rows, best] + np.where(step * side > 0, fall * step, 0.0)
    return np.minimum(least, means[:, best])


def _levels(runs: Runs) -> Array:
    """What each seed adds to every value alike, near the best one; zero on average."""
    table = runs.table[:, runs.near]
    seed, value = np.nonzero(np.isfinite(table))
    design = np.hstack([np.eye(table.shape[1])[value], np.eye(len(table))[seed]])
    levels = np.linalg.lstsq(design, table[seed, value], rcond=None)[0][table.shape[1] :]
    seen = np.isin(np.arange(len(levels)), seed)
    return np.where(seen, levels - levels[seen].mean(), 0.0)


def _best(means: Array) -> NDArray[np.intp]:
    """The lowest of each row; of equals, the one nearest the grid's middle."""
    order = np.argsort(np.abs(np.arange(means.shape[1]) - (means.shape[1] - 1) / 2), kind="stable")
    return order[np.nanargmin(means[:, order], axis=1)]


def _window(x: Array, means: Array, best: int) -> NDArray[np.intp]:
    """The values near the best one, up to a wall on either side."""
    walls = np.flatnonzero(_is_wall(means, best))
    low, high = walls[walls < best].max(initial=-1), walls[walls > best].min(initial=len(x))
    near = np.arange(low + 1, high)
    return near[np.abs(x[near] - x[best]) <= WINDOW + _ROUNDED]


def _is_wall(means: Array, best: int) -> NDArray[np.bool_]:
    """Where a run diverged, or the loss is far above the best: a curve that falls off a cliff is no parabola there."""
    return np.isnan(means) | (means > means[best] + CLIFF)


def _loss_at(x: Array, means: Array, here: float) -> Array:
    """The mean at a value, between two values by a line; NaN outside the grid and beside a wall."""
    same = np.flatnonzero(np.abs(x - here) < 1e-5)
    if len(same):
        return means[:, same[0]]
    right = int(np.searchsorted(x, here))
    if not 0 < right < len(x):
        return np.full(len(means), math.nan)
    share = (here - x[right - 1]) / (x[right] - x[right - 1])
    return (1 - share) * means[:, right - 1] + share * means[:, right]


def _optimum(runs: Runs, at: float, loss: float, curvature: float) -> Optimum:
    best, last, walls = runs.best, len(runs.values) - 1, _is_wall(runs.means, runs.best)
    close = (runs.x > runs.x[best]) & (runs.x <= runs.x[best] + 1 + _ROUNDED)
    below, above = (bool(np.isnan(runs.means[i])) for i in (max(best - 1, 0), min(best + 1, last)))
    return Optimum(
        value=2.0**at if curvature else runs.values[best],
        loss=loss,
        best_value=runs.values[best],
        best_loss=float(runs.means[best]),
        open=_sides(best == 0, best == last, "low", "high"),
        diverges=_sides(below, above, "below", "above"),
        fitted=curvature > 0,
        basin=_basin(runs, at, loss, curvature),
        cliff=next((runs.values[i] for i in np.flatnonzero(walls & close)), None),
    )


def _sides(low: bool, high: bool, low_name: Any, high_name: Any) -> Any:
    return "both" if low and high else low_name if low else high_name if high else None


def _basin(runs: Runs, at: float, loss: float, curvature: float) -> Basin:
    """Where the loss crosses the level on either side: in the window by the parabola, farther out by lines."""
    x, means, level = runs.x, runs.means, runs.means[runs.best] + BASIN_NATS
    reach = math.sqrt(max(level - loss, 0.0) / curvature) if curvature else math.inf

    def crossing(side: int) -> tuple[float, bool]:
        end = runs.near[0] if side < 0 else runs.near[-1]
        if reach <= side * (x[end] - at):
            return 2.0 ** (at + side * reach), False
        i = end if curvature else runs.best
        while 0 <= i + side < len(x) and not np.isnan(means[i + side]):
            if means[i + side] > level:
                share = min(max((level - means[i]) / (means[i + side] - means[i]), 0.0), 1.0)
                return float(2.0 ** ((1 - share) * x[i] + share * x[i + side])), False
            i += side
        return runs.values[i], not 0 <= i + side < len(x)

    (low, low_open), (high, high_open) = crossing(-1), crossing(+1)
    inside = 2.0**at, runs.values[runs.best]
    return Basin(min(low, *inside), max(high, *inside), low_open, high_open)
