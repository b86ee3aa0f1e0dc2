"""Convergence speedup: how many steps the reference takes for each step of the target, to the same loss.

If the target runs r times as fast, its loss is the reference's with time stretched: L_target(t) = L_reference(r t), a
shift by log r on a logarithmic axis of steps. So both curves are smoothed on that axis with one bandwidth: whatever
bias the smoothing has then shifts along and cancels. Only the stable phase counts: warmup and decay depend on the
schedule.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from complete_mue.errors import RunError

_CELL = 0.01  # finest resolution in log step; finer data is averaged first
_BANDWIDTH = 0.1  # of the smoothing, in log step
_LEVELS = 41
_MARGIN = 0.05  # of the common range of losses left out at both ends, where the smoothing is one-sided


@dataclass(frozen=True)
class Speedup:
    """At each loss level: steps of the reference over steps of the target. Empty where no level is reached by both."""

    loss: tuple[float, ...]
    ratio: tuple[float, ...]
    reference_steps: tuple[float, ...]
    target_steps: tuple[float, ...]

    @property
    def median(self) -> float | None:
        """The middle ratio over the levels."""
        return statistics.median(self.ratio) if self.ratio else None


def speedup_curves(
    steps_a: Sequence[float],
    losses_a: Sequence[float],
    steps_b: Sequence[float],
    losses_b: Sequence[float],
    stable: tuple[int, int] | tuple[tuple[int, int], tuple[int, int]],
) -> Speedup:
    """Speedup of run b over run a (the reference), at loss levels that both reach in their stable phase.

    ``steps`` are the times of the losses (for means over bins: the bins' middles); ``stable`` is the first and
    one past the last step at full learning rate, of both runs or as a pair, one for each.
    """
    first, second = stable
    phases = (first, second) if isinstance(first, tuple) and isinstance(second, tuple) else (stable, stable)
    a = _smooth(steps_a, losses_a, phases[0])
    b = _smooth(steps_b, losses_b, phases[1])
    if len(a) < 2 or len(b) < 2:
        return Speedup((), (), (), ())
    top, bottom = min(a[0][1], b[0][1]), max(a[-1][1], b[-1][1])
    if top <= bottom:
        return Speedup((), (), (), ())
    margin = _MARGIN * (top - bottom)
    top, bottom = top - margin, bottom + margin
    levels = tuple(top + (bottom - top) * i / (_LEVELS - 1) for i in range(_LEVELS))
    reference, target = tuple(_reached(a, y) for y in levels), tuple(_reached(b, y) for y in levels)
    return Speedup(levels, tuple(r / t for r, t in zip(reference, target, strict=True)), reference, target)


def bin_middles(ends: Sequence[int]) -> tuple[float, ...]:
    """The middle of each bin, from the ends (exclusive) of bins that begin at step 0."""
    return tuple((start + end) / 2 for start, end in zip((0, *ends), ends, strict=False))


def _smooth(steps: Sequence[float], losses: Sequence[float], stable: object) -> list[tuple[float, float]]:
    """(log step, loss), smoothed by local lines and made to fall: the least loss reached so far."""
    if len(steps) != len(losses):
        raise RunError(f"{len(steps)} steps with {len(losses)} losses: give one loss for each step")
    assert isinstance(stable, tuple)
    cells: dict[int, list[tuple[float, float]]] = {}
    for step, loss in zip(steps, losses, strict=True):
        if stable[0] <= step < stable[1] and step > 0 and math.isfinite(loss):
            cells.setdefault(math.floor(math.log(step) / _CELL), []).append((math.log(step), loss))
    points = [
        (statistics.fmean(x for x, _ in cell), statistics.fmean(y for _, y in cell), len(cell))
        for _, cell in sorted(cells.items())
    ]
    falling: list[tuple[float, float]] = []
    start = 0
    for at, _, _ in points:
        while points[start][0] < at - 4 * _BANDWIDTH:
            start += 1
        loss = _local_line(points, start, at)
        if not falling or loss < falling[-1][1]:
            falling.append((at, loss))
    return falling


def _local_line(points: list[tuple[float, float, int]], start: int, at: float) -> float:
    w0 = w1 = w2 = y0 = y1 = 0.0
    for x, y, n in points[start:]:
        d = x - at
        if d > 4 * _BANDWIDTH:
            break
        w = n * math.exp(-0.5 * (d / _BANDWIDTH) ** 2)
        w0, w1, w2, y0, y1 = w0 + w, w1 + w * d, w2 + w * d * d, y0 + w * y, y1 + w * d * y
    spread = w0 * w2 - w1 * w1
    return (w2 * y0 - w1 * y1) / spread if spread > 1e-9 * w0 * w0 * _BANDWIDTH**2 else y0 / w0


def _reached(falling: list[tuple[float, float]], level: float) -> float:
    """The step at which the falling curve comes down to ``level``, between its points by a line in log step."""
    low, high = 0, len(falling) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if falling[middle][1] > level else (low, middle)
    (x0, y0), (x1, y1) = falling[low], falling[high]
    return math.exp(x0 + (x1 - x0) * (y0 - level) / (y0 - y1))
