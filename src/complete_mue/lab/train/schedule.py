"""Warmup-stable-decay, and the window over which a run's loss is reported.

The fractions are the paper's: decay 20 % of runs to 50k steps, 15 % at 100k, 10 % at 200k; last-window losses over 1k
of 25k steps, 1.5k of 50k, 2k of 100k and 200k; in between, by the logarithm of the steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from complete_mue.errors import ShapeError
from complete_mue.layout.numbers import count, real

LONGEST_WARMUP = 1000
_DECAY = ((50_000, 0.20), (100_000, 0.15), (200_000, 0.10))
_WINDOW = ((25_000, 0.04), (50_000, 0.03), (100_000, 0.02), (200_000, 0.01))


def decay_fraction(steps: int) -> float:
    """Share of the run that decays."""
    return _between(steps, _DECAY)


def last_window(steps: int) -> int:
    """Last steps whose mean loss is the run's result."""
    return max(1, round(steps * _between(steps, _WINDOW)))


def _between(steps: int, table: tuple[tuple[int, float], ...]) -> float:
    lengths, shares = zip(*table, strict=True)
    return float(np.interp(np.log(steps), np.log(lengths), shares))


@dataclass(frozen=True)
class Schedule:
    """lr factor over the steps: linear warmup, constant, linear decay to zero."""

    steps: int
    warmup: int
    decay: int

    def __post_init__(self) -> None:
        count("steps", self.steps)
        count("warmup", self.warmup, least=0)
        count("decay", self.decay, least=0)
        if self.warmup + self.decay > self.steps:
            raise ShapeError(
                f"warmup = {self.warmup} and decay = {self.decay} of steps = {self.steps}: "
                "give at most all steps to the two together"
            )

    @classmethod
    def wsd(cls, steps: int, warmup: float = 0.04) -> Schedule:
        """The paper's: warmup of 1k steps (in short runs a share ``warmup``), decay by ``decay_fraction``."""
        share = real("warmup", warmup, positive=False)
        return cls(steps, min(round(steps * share), LONGEST_WARMUP), round(steps * decay_fraction(steps)))

    def factor(self, step: int) -> float:
        """What every group's lr is multiplied by at a step (from 0)."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        left = self.steps - step
        return max(0.0, left / (self.decay + 1)) if left <= self.decay else 1.0

    @property
    def stable(self) -> range:
        """The steps at full learning rate."""
        return range(self.warmup, self.steps - self.decay)
