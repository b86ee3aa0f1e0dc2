"""Loss against one hyperparameter for one target under one rule set: optimum, drift and regret with their errors.

Drift is log2 of the target's optimum minus log2 of the reference's. Regret is the target's loss at the transferred
value minus its best measured loss (both means over seeds); the fitted minimum never enters, so on the grid it is never
below zero. A transferred value off the grid is read off the local quadratic, and counts as measured.

Errors are one standard error, from the seeds: the means are drawn again with the seeds' noise 200 times, with a fixed
random state, and everything is computed anew, so that an optimum that hops between grid values shows. What a seed adds
to all values alike moves neither optimum nor regret and is taken out first. Two seeds tell the noise of one curve
badly, so half of its variance is taken from the scan's other curves. A lopsided curve moves the parabola's minimum,
seeds or not: what of that bias is beyond the noise is added.
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from complete_mue.report.fit import Optimum, loss_at, optimum_of
from complete_mue.report.records import Outcome, Point

_DRAWS = 200
_NEAR = 2.5  # octaves


@dataclass(frozen=True)
class ValuePoint:
    """One value of the hyperparameter: mean and standard deviation over its finished seeds."""

    value: float
    loss: float | None
    std: float | None
    seeds: int
    diverged: bool  # any seed diverged
    missing: int  # seeds without a result: not run yet, or failed
    losses: tuple[tuple[int, float], ...]  # (seed, loss)


@dataclass(frozen=True)
class Curve:
    """One line of the picture. Fields are None where the records do not say."""

    hyper: str
    rules: str
    target: str
    transferred: float
    points: tuple[ValuePoint, ...]
    optimum: Optimum | None = None
    noise: float | None = None  # standard deviation of one run around its seed's level, near the optimum
    optimum_error: float | None = None  # octaves
    transferred_loss: float | None = None
    spread: float | None = None  # standard deviation over seeds at the transferred value
    transferred_diverged: bool = False
    regret: float | None = None
    regret_error: float | None = None
    drift: float | None = None
    drift_error: float | None = None
    status: str = ""
    says: str = ""

    @property
    def complete(self) -> bool:
        """Whether every planned run of the curve has a result."""
        return not any(point.missing for point in self.points)


def close(a: float, b: float) -> bool:
    """Two values of a hyperparameter that are meant to be the same."""
    return math.isclose(a, b, rel_tol=1e-6)


def value_points(points: Iterable[tuple[Point, Outcome | None]]) -> tuple[ValuePoint, ...]:
    """Average over seeds, by value."""
    values: dict[float, list[tuple[Point, Outcome | None]]] = {}
    for point, outcome in points:
        same = next((value for value in values if close(value, point.value)), point.value)
        values.setdefault(same, []).append((point, outcome))
    return tuple(_value_point(value, values[value]) for value in sorted(values))


def _value_point(value: float, runs: list[tuple[Point, Outcome | None]]) -> ValuePoint:
    losses = sorted((p.seed, o.loss) for p, o in runs if o is not None and o.loss is not None)
    return ValuePoint(
        value=value,
        loss=statistics.fmean(loss for _, loss in losses) if losses else None,
        std=statistics.stdev(loss for _, loss in losses) if len(losses) > 1 else None,
        seeds=len(losses),
        diverged=any(o is not None and o.status == "diverged" for _, o in runs),
        missing=sum(o is None or o.status == "failed" for _, o in runs),
        losses=tuple(losses),
    )


def fit_curve(
    hyper: str, rules: str, target: str, transferred: float, points: Sequence[ValuePoint], noise: float | None = None
) -> Curve:
    """The curve through the points. ``noise`` is that of the scan's other curves: it steadies what this curve's own
    seeds say, and stands in where they say nothing."""
    known = _known(points)
    values = [point.value for point in known]
    losses = [None if point.diverged else point.loss for point in known]
    here = next((point for point in known if close(point.value, transferred)), None)
    at = here.value if here else transferred
    bare = Curve(
        hyper, rules, target, transferred, tuple(points),
        spread=here.std if here and not here.diverged else None,
        transferred_diverged=here.diverged if here else False,
    )  # fmt: skip
    if all(loss is None for loss in losses):
        return bare
    noise = _steadied(curve_noise(points), noise)
    errors = None if noise is None else [noise / math.sqrt(max(point.seeds, 1)) for point in known]
    optimum_error = regret_error = None
    if errors is not None:
        optimum_error, regret_error = _errors(f"{hyper} {rules} {target}", values, losses, errors, at)
    return dataclasses.replace(
        bare,
        optimum=optimum_of(values, losses, errors),
        noise=noise,
        optimum_error=optimum_error,
        transferred_loss=loss_at(at, values, losses),
        regret=_regret(values, losses, at),
        regret_error=regret_error,
    )


def _steadied(own: float | None, others: float | None) -> float | None:
    if own is None or others is None:
        return others if own is None else own
    return math.sqrt((own * own + others * others) / 2)


def curve_noise(points: Sequence[ValuePoint]) -> float | None:
    """The seeds' noise near the optimum, where it matters: far away, close to divergence, it is larger."""
    known = [point for point in _known(points) if not point.diverged]
    if not known:
        return None
    best = min(known, key=lambda point: point.loss or 0.0)
    return seed_noise([point for point in known if abs(math.log2(point.value / best.value)) <= _NEAR])


def _known(points: Sequence[ValuePoint]) -> list[ValuePoint]:
    return [point for point in points if point.diverged or point.loss is not None]


def seed_noise(points: Sequence[ValuePoint]) -> float | None:
    """Standard deviation of one run, less what its seed adds to every value alike; None with a single seed."""
    seeds = {tuple(seed for seed, _ in point.losses) for point in points}
    if len(seeds) == 1 and len(points) > 1 and len(next(iter(seeds))) > 1:
        table = [[loss for _, loss in point.losses] for point in points]
        columns = [statistics.fmean(column) for column in zip(*table, strict=True)]
        centre = statistics.fmean(columns)
        rest = sum(
            (loss - statistics.fmean(row) - column + centre) ** 2
            for row in table
            for loss, column in zip(row, columns, strict=True)
        )
        return math.sqrt(rest / ((len(table) - 1) * (len(columns) - 1)))
    several = [point for point in points if point.std is not None]
    freedom = sum(point.seeds - 1 for point in several)
    return math.sqrt(sum((p.seeds - 1) * (p.std or 0.0) ** 2 for p in several) / freedom) if freedom else None


def _regret(values: Sequence[float], losses: Sequence[float | None], at: float) -> float | None:
    here = loss_at(at, values, losses)
    best = min(loss for loss in losses if loss is not None)
    return None if here is None else max(0.0, here - best)


def _errors(
    name: str, values: list[float], losses: list[float | None], errors: list[float], at: float
) -> tuple[float, float | None]:
    """Standard errors of log2 of the optimum and of the regret. A minimum that no parabola was put through (a wall of
    divergence, level points) is known to half a grid step at best."""
    state = random.Random(name)
    middle, regret = optimum_of(values, losses, errors), _regret(values, losses, at)
    doubled = [error * math.sqrt(2.0) for error in errors]  # a draw has the noise of the means and its own
    moves, changes, biases = [], [], []
    for _ in range(_DRAWS):
        drawn = [
            None if loss is None else loss + error * state.gauss(0.0, 1.0)
            for loss, error in zip(losses, errors, strict=True)
        ]
        found = optimum_of(values, drawn, doubled)
        moves.append(found.log2 - middle.log2)
        biases.append(found.bias)
        again = _regret(values, drawn, at)
        if regret is not None and again is not None:
            changes.append(again - regret)
    beyond = math.sqrt(max(0.0, middle.bias**2 - statistics.pvariance(biases)))
    floor = middle.step / 2 if middle.method == "grid" else beyond
    return math.hypot(_rms(moves), floor), _rms(changes) if changes else None


def _rms(values: list[float]) -> float:
    return math.sqrt(statistics.fmean(value * value for value in values))
