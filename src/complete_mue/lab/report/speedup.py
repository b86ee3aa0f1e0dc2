"""Convergence speedup: how many steps the reference takes for each step of the target, to the same loss.

If the target runs r times as fast, its loss is the reference's with time stretched: L_target(t) = L_reference(r t), a
shift by log r on a logarithmic axis of steps. So both curves are smoothed on that axis with one bandwidth: whatever
bias the smoothing has then shifts along and cancels. The losses compared lie evenly on that axis, too: evenly in loss
they would crowd where it falls fast, in the first steps. Only the stable phase counts: warmup and decay depend on the
schedule.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from complete_mue.errors import RunError

Array = NDArray[Any]

_CELL = 0.01  # finest resolution in log step; finer data is averaged first
_BANDWIDTH = 0.1  # of the smoothing, in log step
_LEVELS = 41
_MARGIN = _BANDWIDTH  # in log step, left out at both ends of the curve, where the smoothing is one-sided


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
    phases = np.broadcast_to(np.array(stable), (2, 2))
    (at_a, a), (at_b, b) = _smooth(steps_a, losses_a, phases[0]), _smooth(steps_b, losses_b, phases[1])
    if len(a) < 2 or len(b) < 2 or min(a[0], b[0]) <= max(a[-1], b[-1]):
        return Speedup((), (), (), ())
    losses = np.sort(np.concatenate([a, b]))[::-1]
    losses = losses[(losses <= min(a[0], b[0])) & (losses >= max(a[-1], b[-1]))]
    middle = (_reached(at_a, a, losses) + _reached(at_b, b, losses)) / 2  # in log step: even levels for both alike
    if middle[-1] - middle[0] <= 2 * _MARGIN:
        return Speedup((), (), (), ())
    levels = np.interp(np.linspace(middle[0] + _MARGIN, middle[-1] - _MARGIN, _LEVELS), middle, losses)
    reference, target = np.exp(_reached(at_a, a, levels)), np.exp(_reached(at_b, b, levels))
    return Speedup(*(tuple(found.tolist()) for found in (levels, reference / target, reference, target)))


def bin_middles(ends: Sequence[int]) -> tuple[float, ...]:
    """The middle of each bin, from the ends (exclusive) of bins that begin at step 0."""
    return tuple((start + end) / 2 for start, end in zip((0, *ends), ends, strict=False))


def _smooth(steps: Sequence[float], losses: Sequence[float], stable: Array) -> tuple[Array, Array]:
    """Log steps and losses, smoothed by local lines and made to fall: the least loss reached so far."""
    if len(steps) != len(losses):
        raise RunError(f"{len(steps)} steps with {len(losses)} losses: give one loss for each step")
    at, loss = np.array(steps, dtype=float), np.array(losses, dtype=float)
    kept = (stable[0] <= at) & (at < stable[1]) & (at > 0) & np.isfinite(loss)
    x, y = np.log(at[kept]), loss[kept]
    _, cell, count = np.unique(np.floor(x / _CELL), return_inverse=True, return_counts=True)
    x, y = (np.bincount(cell, weights=values) / count for values in (x, y))
    smooth = _local_lines(x, y, count)
    falls = smooth < np.concatenate([[math.inf], np.minimum.accumulate(smooth)[:-1]])
    return x[falls], smooth[falls]


def _local_lines(x: Array, y: Array, count: Array) -> Array:
    """At every x the height of the line through the points around it, those nearby counting most."""
    d = x - x[:, None]
    w = np.where(np.abs(d) <= 4 * _BANDWIDTH, count * np.exp(-0.5 * (d / _BANDWIDTH) ** 2), 0.0)
    w0, w1, w2, y0, y1 = (part.sum(axis=1) for part in (w, w * d, w * d * d, w * y, w * d * y))
    spread = w0 * w2 - w1 * w1
    lone = spread <= 1e-9 * w0 * w0 * _BANDWIDTH**2
    return np.where(lone, y0 / w0, (w2 * y0 - w1 * y1) / np.where(lone, 1.0, spread))


def _reached(x: Array, falling: Array, levels: Array) -> Array:
    """The log steps at which the falling curve comes down to ``levels``, by lines between its points."""
    return np.interp(levels, falling[::-1], x[::-1])
