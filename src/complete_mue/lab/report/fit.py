"""Where a loss curve has its minimum: a local quadratic in log2 of the hyperparameter.

Through how many points? Around a minimum with a cubic term c and a quadratic term a (per grid step), a parabola through
three points misses the minimum by c / 2a, one through five by 1.7 c / a; noise moves the first by 0.35 σ / a and the
second by 0.16 σ / a. So five points win where noise rules and three where the curve is lopsided, as loss against lr is.
Five are used only where the curve lets them: the parabola is convex, its minimum lies beside the best point, and its
residuals are within the noise (if known) or within a tenth of the rise over one step, which holds the bias under 0.07
steps. Otherwise three points; they are convex by the choice of the middle one. Where both can be drawn, a third of the
way between their minima (0.4 c / a) says how far a lopsided curve may have moved the one that was taken. Its loss is
checked against the parabola on the minimum's side: beside a steep rise on the other side, three points fall too far.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from complete_mue.errors import RunError

Edge = Literal["low", "high", "both"]
Method = Literal["5 points", "3 points", "grid"]

BASIN_NATS = 0.01
_RESIDUAL = 0.1  # of the rise over one grid step
_Vertex = tuple[float, float, float, Method, float]  # log2 value, loss, curvature, method, bias
_NOISE = math.sqrt(5.99 / 2)  # 95 % of the residuals of five noisy points on a parabola (two degrees of freedom)


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
    """A minimum: fitted (``value``, ``loss``) and measured (``best_value``, ``best_loss``).

    ``open``: the best value is at the edge of the grid, so the optimum may lie beyond. An edge beside a diverged value
    is closed, and ``diverges`` says on which side; the optimum is then the grid value itself (``method`` "grid").
    ``step`` is the grid's spacing around the best value in octaves; ``bias``, too: by how much the minimum may be off
    because the curve is no parabola, and ``loss_bias`` its loss.
    """

    value: float
    loss: float
    best_value: float
    best_loss: float
    open: Edge | None
    diverges: Literal["above", "below", "both"] | None
    method: Method
    step: float
    bias: float
    loss_bias: float
    basin: Basin

    @property
    def log2(self) -> float:
        """The optimum in octaves."""
        return math.log2(self.value)


def optimum_of(
    values: Sequence[float],
    losses: Sequence[float | None],
    errors: Sequence[float] | None = None,
    nats: float = BASIN_NATS,
) -> Optimum:
    """The minimum of losses measured at ``values``. A loss that is None, NaN or infinite marks a run that diverged.

    ``errors`` are standard errors of the losses, where known; they only help to choose between three points and five.
    """
    grid, ys, noises = _sorted(values, losses, errors)
    noise = statistics.median(noises) if noises else 0.0
    finished = [i for i, y in enumerate(ys) if math.isfinite(y)]
    if not finished:
        raise RunError(f"no optimum: all {len(grid)} values diverged; scan smaller values")
    xs = [math.log2(value) for value in grid]
    best = min(finished, key=lambda i: (ys[i], abs(2 * i - len(ys) + 1)))  # of equals, the one amid the grid
    below, above = _reach(ys, best)
    fitted = _vertex(xs, ys, noise, best, min(below, above, 2)) if below and above else None
    x, loss, _, method, bias = fitted or (xs[best], ys[best], 0.0, "grid", 0.0)
    other = _beyond(xs, ys, noises, best, x, (below, above)) if fitted else None
    loss_bias = ((ys[best] if other is None else other) - loss) / 2
    if other is not None and other - loss > 2 * noise:
        loss = other
    wall_below, wall_above = below == 0 and best > 0, above == 0 and best < len(ys) - 1
    return Optimum(
        value=2.0**x if fitted else grid[best],
        loss=loss,
        best_value=grid[best],
        best_loss=ys[best],
        open=_sides(below == 0 and not wall_below, above == 0 and not wall_above, "low", "high"),
        diverges=_sides(wall_below, wall_above, "below", "above"),
        method=method,
        step=max((abs(xs[j] - xs[best]) for j in (best - 1, best + 1) if 0 <= j < len(xs)), default=0.0),
        bias=bias,
        loss_bias=loss_bias,
        basin=_basin(grid, ys, best, (below, above), fitted, nats),
    )


def loss_at(value: float, values: Sequence[float], losses: Sequence[float | None]) -> float | None:
    """The loss at ``value``: measured if it is on the grid, else by the quadratic through the three nearest finished
    points around it (a line where there are two); None outside what was measured, or beside a diverged value."""
    grid, ys, _ = _sorted(values, losses)
    if value in grid:
        y = ys[grid.index(value)]
        return y if math.isfinite(y) else None
    right = next((i for i, x in enumerate(grid) if x > value), None)
    if not right or not (math.isfinite(ys[right - 1]) and math.isfinite(ys[right])):
        return None
    x = math.log2(value)
    xs = [math.log2(v) for v in grid]
    pair = [right - 1, right]
    third = [i for i in (right - 2, right + 1) if 0 <= i < len(grid) and math.isfinite(ys[i])]
    pair += sorted(third, key=lambda i: abs(xs[i] - x))[:1]
    return sum(ys[i] * math.prod((x - xs[j]) / (xs[i] - xs[j]) for j in pair if j != i) for i in pair)


def _sorted(
    values: Sequence[float], losses: Sequence[float | None], errors: Sequence[float] | None = None
) -> tuple[list[float], list[float], list[float]]:
    if len(values) != len(losses) or (errors is not None and len(errors) != len(values)):
        raise RunError(f"{len(values)} values with {len(losses)} losses: give one loss (and error) for each value")
    if not values or any(not math.isfinite(value) or value <= 0 for value in values):
        raise RunError(f"values {list(values)}: give at least one, all above zero")
    if len(set(values)) < len(values):
        raise RunError(f"values {list(values)}: give each value once, with the mean loss of its seeds")
    order = sorted(range(len(values)), key=lambda i: values[i])
    ys = [math.nan if (loss := losses[i]) is None or not math.isfinite(loss) else float(loss) for i in order]
    return [float(values[i]) for i in order], ys, [errors[i] for i in order] if errors else []


def _sides(low: bool, high: bool, low_name: Any, high_name: Any) -> Any:
    return "both" if low and high else low_name if low else high_name if high else None


def _reach(ys: list[float], best: int) -> tuple[int, int]:
    """How many finished points stand on either side of the best one before a diverged one or the edge."""
    below = next((best - 1 - i for i in range(best - 1, -1, -1) if not math.isfinite(ys[i])), best)
    above = next((i - best - 1 for i in range(best + 1, len(ys)) if not math.isfinite(ys[i])), len(ys) - 1 - best)
    return below, above


def _vertex(xs: list[float], ys: list[float], noise: float, best: int, wings: int) -> _Vertex | None:
    """The parabola's minimum; None where the points are level."""
    inner, _ = _minimum(xs, ys, best, 1)
    outer, residual = _minimum(xs, ys, best, 2) if wings == 2 else (None, math.inf)
    bias = (outer[0] - inner[0]) / 3 if inner and outer else 0.0
    if outer is not None:
        step = (xs[best + 1] - xs[best - 1]) / 2
        if residual <= max(_RESIDUAL * outer[2] * step * step, _NOISE * noise):
            return (*outer, "5 points", bias)
    return (*inner, "3 points", bias) if inner else None


def _beyond(
    xs: list[float], ys: list[float], noises: list[float], best: int, x: float, reach: tuple[int, int]
) -> float | None:
    """The minimum's loss by the parabola through the best point and the two beyond it, on the minimum's side; None
    where there are no two, or the farther one scatters too much."""
    side = 1 if x > xs[best] else -1
    window = [best, best + side, best + 2 * side]
    if x == xs[best] or reach[side == 1] < 2 or (noises and noises[window[2]] > 2 * noises[best]):
        return None
    curvature, slope, _, _ = parabola([xs[i] - xs[best] for i in window], [ys[i] for i in window])
    return ys[best] - (slope * slope / (4 * curvature) if slope * side < 0 < curvature else 0.0)


def _minimum(
    xs: list[float], ys: list[float], best: int, wings: int
) -> tuple[tuple[float, float, float] | None, float]:
    """(log2 value, loss, curvature) of the parabola around the best point, if its minimum lies beside that; residual"""
    window = range(best - wings, best + wings + 1)
    curvature, slope, height, residual = parabola([xs[i] - xs[best] for i in window], [ys[i] for i in window])
    at = -slope / (2 * curvature) if curvature > 0 else math.inf
    if not xs[best - 1] <= xs[best] + at <= xs[best + 1]:
        return None, residual
    return (xs[best] + at, height - curvature * at * at, curvature), residual


def parabola(xs: list[float], ys: list[float]) -> tuple[float, float, float, float]:
    """Least squares: (curvature, slope, height) at x = 0, and the residuals' rms per degree of freedom."""
    n = len(xs)
    s1, s2, s3, s4 = (sum(x**k for x in xs) for k in (1, 2, 3, 4))
    floor = min(ys)  # differences only: losses share most of their digits
    rights = [sum(x**k * (y - floor) for x, y in zip(xs, ys, strict=True)) for k in (2, 1, 0)]
    a, b, c = _solve([[s4, s3, s2], [s3, s2, s1], [s2, s1, float(n)]], rights)
    rest = sum((a * x * x + b * x + c - (y - floor)) ** 2 for x, y in zip(xs, ys, strict=True))
    return a, b, c + floor, math.sqrt(rest / max(n - 3, 1))


def _solve(matrix: list[list[float]], right: list[float]) -> tuple[float, float, float]:
    """Cramer's rule for 3 x 3; the points are distinct, so the determinant is not zero."""

    def determinant(m: list[list[float]]) -> float:
        return (
            m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1])
            - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
            + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0])
        )

    whole = determinant(matrix)
    columns = (
        [[r if j == k else v for j, v in enumerate(row)] for row, r in zip(matrix, right, strict=True)]
        for k in range(3)
    )
    a, b, c = (determinant(m) / whole for m in columns)
    return a, b, c


def _basin(
    grid: list[float], ys: list[float], best: int, reach: tuple[int, int], fitted: _Vertex | None, nats: float
) -> Basin:
    """Where the loss crosses the level on either side: beside the best point by the parabola, farther out by lines."""
    level = ys[best] + nats
    xs = [math.log2(value) for value in grid]

    def crossing(direction: int, reach: int) -> tuple[float, bool]:
        if fitted is not None and level > fitted[1]:
            at = fitted[0] + direction * math.sqrt((level - fitted[1]) / fitted[2])
            if xs[best - 1] <= at <= xs[best + 1]:
                return 2.0**at, False
        for i in range(best, best + direction * reach, direction):
            here, there = ys[i], ys[i + direction]
            if there > level:
                share = (level - here) / (there - here)
                return 2.0 ** ((1 - share) * xs[i] + share * xs[i + direction]), False
        last = best + direction * reach
        return grid[last], not 0 <= last + direction < len(grid)

    (low, low_open), (high, high_open) = crossing(-1, reach[0]), crossing(+1, reach[1])
    optimum = 2.0 ** fitted[0] if fitted else grid[best]
    return Basin(min(low, optimum, grid[best]), max(high, optimum, grid[best]), low_open, high_open, nats)
