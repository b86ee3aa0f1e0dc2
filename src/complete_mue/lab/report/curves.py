"""Loss against one hyperparameter for one target under one rule set: its runs, value by value, and what
`estimator` makes of them.

Drift is log2 of the target's optimum minus log2 of the reference's. Each curve's errors are its own: at the same seed
and value, what two models' runs scatter by has nothing in common in docs/results (a correlation of 0.05 ± 0.06).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from complete_mue.lab.records import Outcome, PlannedPoint
from complete_mue.lab.report.estimator import Noise, Optimum, Runs, estimate, noise_of, pooled, runs_of


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


def close(a: float, b: float) -> bool:
    """Two values of a hyperparameter that are meant to be the same."""
    return math.isclose(a, b, rel_tol=1e-6)


def value_points(points: Iterable[tuple[PlannedPoint, Outcome | None]]) -> tuple[ValuePoint, ...]:
    """Average over seeds, by value."""
    values: dict[float, list[tuple[PlannedPoint, Outcome | None]]] = {}
    for point, outcome in points:
        same = next((value for value in values if close(value, point.value)), point.value)
        values.setdefault(same, []).append((point, outcome))
    return tuple(_value_point(value, values[value]) for value in sorted(values))


def _value_point(value: float, runs: list[tuple[PlannedPoint, Outcome | None]]) -> ValuePoint:
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


@dataclass(frozen=True)
class Curve:
    """One line of the picture. Fields are None where the records do not say."""

    hyper: str
    rules: str
    target: str
    transferred: float
    points: tuple[ValuePoint, ...]
    optimum: Optimum | None = None
    noise: float | None = None  # standard deviation of one run, less its seed's level, near the optimum
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
    why: str = ""  # what it says, less the numbers above
    runs: str = ""  # names its runs: the same in another sweep that shares them

    @property
    def held(self) -> bool:
        """Whether the transferred value does: the loss is what it could be, even if a flat basin hides the optimum."""
        return self.status in ("held", "flat")

    @property
    def verdict(self) -> str:
        """The status as people read it."""
        return "held, flat" if self.status == "flat" else self.status

    @property
    def scanned(self) -> bool:
        """Whether it has more than one value: one alone says nothing about where the optimum is."""
        return len(self.points) > 1

    @property
    def diverges(self) -> bool:
        """Whether a run diverged at every value."""
        return all(point.diverged for point in self.points)

    @property
    def at_transferred(self) -> ValuePoint | None:
        """The runs at the transferred value, if it was scanned."""
        return next((point for point in self.points if close(point.value, self.transferred)), None)

    @property
    def gaps(self) -> tuple[float, ...]:
        """Values that lack a seed where it matters: the transferred one, the best, and those beside it."""
        values = [point.value for point in self.points]
        near = {values.index(point.value) for point in (self.at_transferred,) if point is not None}
        if self.optimum is not None:
            best = values.index(self.optimum.best_value)
            near |= {best - 1, best, best + 1}
        return tuple(p.value for i, p in enumerate(self.points) if i in near and p.missing and not p.diverged)


def scan_noise(curves: Iterable[Sequence[ValuePoint]]) -> Noise | None:
    """That of a scan's curves together; None of a single curve, and with a single seed."""
    runs = [found for points in curves if (found := _runs(points)) is not None]
    return pooled([noise for one in runs if (noise := noise_of(one)) is not None])


def fit_curve(
    hyper: str, rules: str, target: str, transferred: float, points: Sequence[ValuePoint], scan: Noise | None = None
) -> Curve:
    """The curve through the points. ``scan`` is the noise of the scan's curves together."""
    curve = Curve(hyper, rules, target, transferred, tuple(points))
    here, runs = curve.at_transferred, _runs(points)
    if here is not None:
        spread = None if here.diverged else here.std
        curve = dataclasses.replace(curve, spread=spread, transferred_diverged=here.diverged)
    if runs is None:
        return curve
    own = noise_of(runs)
    noise = scan if own is None else own.beside(scan)
    found = estimate(runs, transferred, noise)
    there = here.loss if here else None if found.regret is None else found.optimum.loss + found.regret
    return dataclasses.replace(
        curve,
        optimum=found.optimum,
        noise=None if noise is None else math.sqrt(noise.variance),
        optimum_error=found.optimum_error,
        transferred_loss=None if curve.transferred_diverged else there,
        regret=found.regret if curve.scanned else None,
        regret_error=found.regret_error if curve.scanned else None,
    )


def _runs(points: Sequence[ValuePoint]) -> Runs | None:
    """A table by seed and value, as the estimator takes it; None where no value has a loss."""
    known = [point for point in points if point.diverged or point.loss is not None]
    seeds = sorted({seed for point in known if not point.diverged for seed, _ in point.losses})
    if not seeds:
        return None
    losses = [{} if point.diverged else dict(point.losses) for point in known]
    return runs_of([point.value for point in known], [[found.get(seed) for found in losses] for seed in seeds])
