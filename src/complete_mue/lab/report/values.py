"""The runs of one curve, value by value: means over seeds, and how far the seeds move them.

A run's loss is the curve's, plus what its seed adds to every value alike, plus a slope of its seed's own (one seed
likes larger values), plus noise of its own. The first moves neither optimum nor regret and is taken out. The slope
moves them more than independent noise of its size would, so it is told apart. Values near the best count alone: far
away, close to divergence, runs scatter more. One value that scatters far more than the others would swamp them: it is
left out of the curve's noise and keeps its own.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from complete_mue.lab.records import Outcome, PlannedPoint

_NEAR = 2.5  # octaves
_WILD = 4.0  # times the typical noise
_SEVERAL = 3  # curves that tell what a value does in all of them


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
class Noise:
    """Variances: of one run around its seed's line, and of that line's slope, less what the noise alone would give it
    (so an estimate may be below zero). ``wild`` values scatter more."""

    run: float
    slope: float = 0.0
    wild: tuple[tuple[float, float], ...] = ()

    def at(self, value: float) -> float:
        """Standard deviation of one run at that value."""
        return math.sqrt(max(self.run, dict(self.wild).get(value, 0.0)))

    def wilder(self, value: float) -> bool:
        """Whether runs at that value scatter more than the others."""
        return self.at(value) > math.sqrt(self.run)

    def steadied(self, scan: Noise | None) -> Noise:
        """Two seeds tell the noise of one curve badly: half of it is taken from the scan's curves, and all of the
        slope, which one curve hardly shows."""
        if scan is None:
            return self
        wild = dict(sorted((*self.wild, *scan.wild), key=lambda pair: pair[1]))  # the larger of two comes last
        return Noise((self.run + scan.run) / 2, max(self.slope, scan.slope), tuple(wild.items()))


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


def scan_noise(curves: Iterable[Sequence[ValuePoint]]) -> Noise | None:
    """That of a scan's curves together; None with a single seed."""
    shown = [seen for points in curves if (seen := _near(points))]
    if not shown:
        return None
    typical = _typical(shown)
    found = [_noise(near, typical) for near in shown]
    run = statistics.median(noise.run for noise in found)
    values: dict[float, list[_Seen]] = {}
    for one in (one for near in shown for one in near):
        values.setdefault(one.value, []).append(one)
    scatter = ((value, _typical([[one] for one in seen])) for value, seen in values.items() if len(seen) >= _SEVERAL)
    wild = tuple(pair for pair in scatter if pair[1] > _WILD**2 * max(run, typical))
    return Noise(run, statistics.fmean(noise.slope for noise in found), wild)


def curve_noise(points: Sequence[ValuePoint], scan: Noise | None = None) -> Noise | None:
    """What the seeds of one curve say, steadied by those of its scan."""
    near = _near(points)
    if not near:
        return scan
    return _noise(near, max(_typical([near]), scan.run if scan else 0.0)).steadied(scan)


@dataclass(frozen=True)
class _Seen:
    """One value: what each seed adds to its mean, and the scatter of that (a variance) less each seed's level."""

    value: float
    rest: tuple[float, ...]
    scatter: float


def _near(points: Sequence[ValuePoint]) -> list[_Seen]:
    """The values near the best that have the same seeds, at least two."""
    known = [point for point in points if point.loss is not None and not point.diverged]
    if not known:
        return []
    best = min(known, key=lambda point: point.loss or 0.0)
    near = [point for point in known if abs(math.log2(point.value / best.value)) <= _NEAR]
    seeds = Counter(tuple(seed for seed, _ in point.losses) for point in near).most_common(1)[0][0]
    if len(seeds) < 2:
        return []
    alike = [point for point in near if tuple(seed for seed, _ in point.losses) == seeds]
    rows = [tuple(loss - (point.loss or 0.0) for _, loss in point.losses) for point in alike]
    levels = [statistics.median(column) for column in zip(*rows, strict=True)]
    scatter = [sum((d - level) ** 2 for d, level in zip(row, levels, strict=True)) / (len(seeds) - 1) for row in rows]
    return [_Seen(point.value, row, found) for point, row, found in zip(alike, rows, scatter, strict=True)]


def _typical(curves: Sequence[Sequence[_Seen]]) -> float:
    """The variance of one run, whatever a few wild values do: from the middle scatter, a chi squared's median. The
    least of each curve is left out: taking out the seeds' levels leaves nothing of one value."""
    seen = [one for near in curves for one in sorted(near, key=lambda one: one.scatter)[1:] or near]
    freedom = statistics.fmean(len(one.rest) - 1 for one in seen)
    return statistics.median(one.scatter for one in seen) / (1 - 2 / (9 * freedom)) ** 3


def _noise(near: Sequence[_Seen], typical: float) -> Noise:
    calm = [seen for seen in near if seen.scatter <= _WILD**2 * typical]
    wild = tuple((seen.value, seen.scatter) for seen in near if seen not in calm)
    if not calm:
        return Noise(typical, 0.0, wild)
    run, slope = _around_lines([math.log2(seen.value) for seen in calm], [seen.rest for seen in calm])
    return Noise(run, slope, wild)


def _around_lines(xs: Sequence[float], rows: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Variance around each seed's own line, and of the slopes beyond what that explains."""
    freedom = len(rows[0]) - 1
    if len(xs) == 1:
        return sum(d * d for d in rows[0]) / freedom, 0.0
    middle = statistics.fmean(xs)
    width = sum((x - middle) ** 2 for x in xs)
    slopes, rest = [], 0.0
    for column in zip(*rows, strict=True):
        level = statistics.fmean(column)
        slopes.append(sum((x - middle) * d for x, d in zip(xs, column, strict=True)) / width if len(xs) > 2 else 0.0)
        rest += sum((d - level - slopes[-1] * (x - middle)) ** 2 for x, d in zip(xs, column, strict=True))
    run = rest / (freedom * max(len(xs) - 2, 1))
    return run, sum(slope * slope for slope in slopes) / freedom - run / width if len(xs) > 2 else 0.0
