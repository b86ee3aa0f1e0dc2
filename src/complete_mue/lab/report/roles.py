"""What a role probe says: how far each role's optimum lies from the plan's value, and what the plan's value costs.

The estimator is plain. Losses are averaged over the seeds that every value has, and a parabola in log2 of the value is
fitted by least squares to all values within two octaves of the best one. Its vertex is the optimum; its height at the
plan's value, less that at the vertex, is the cost. Errors are a jackknife over seeds: everything again without each
seed in turn, in the same window. What a seed adds to all values alike cancels.

Where one role was scanned on layouts of several sparsities, the optimum is fitted as a power of N / a.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from complete_mue.lab.report.curves import Curve
from complete_mue.lab.report.fit import parabola
from complete_mue.lab.report.labels import label
from complete_mue.lab.report.values import ValuePoint
from complete_mue.lab.report.verdict import Line, judge

_WINDOW = 2.0  # octaves on either side of the best value


def is_role(hyper: str) -> bool:
    """Whether a scan is of some roles alone: ``expert_up.lr``."""
    return "." in hyper


def judged(curve: Curve, unit: str) -> Curve:
    """The curve with drift and cost against the plan's own value."""
    found = around_plan(curve.points, curve.transferred)
    if found is not None and curve.optimum is not None and curve.optimum.open is None:
        curve = dataclasses.replace(
            curve,
            optimum=dataclasses.replace(curve.optimum, value=curve.transferred * 2.0**found.octaves),
            drift=found.octaves,
            drift_error=found.octaves_error,
            regret=found.cost,
            regret_error=found.cost_error,
        )
    return dataclasses.replace(curve, **vars(judge(curve, unit, None)))


@dataclass(frozen=True)
class Found:
    """An optimum in octaves from the plan's value, and what that value costs; errors are None with one seed."""

    octaves: float
    cost: float
    octaves_error: float | None = None
    cost_error: float | None = None


def around_plan(points: Sequence[ValuePoint], plan: float) -> Found | None:
    """The estimator above; None where no parabola with a minimum among the values can be drawn."""
    finished = [point for point in points if point.losses and not point.diverged]
    if not finished:
        return None
    seeds = sorted(set.intersection(*({seed for seed, _ in point.losses} for point in finished)))
    places = [math.log2(point.value / plan) for point in finished]
    table = [[dict(point.losses)[seed] for seed in seeds] for point in finished]
    if not seeds:
        return None
    best = places[min(range(len(table)), key=lambda i: statistics.fmean(table[i]))]
    near = [i for i, place in enumerate(places) if abs(place - best) <= _WINDOW]
    xs, rows = [places[i] for i in near], [table[i] for i in near]
    whole = _vertex(xs, rows, None)
    if whole is None or len(seeds) == 1:
        return whole
    without = [_vertex(xs, rows, left_out) for left_out in range(len(seeds))]
    if any(found is None for found in without):
        return None
    kept = [found for found in without if found is not None]
    return dataclasses.replace(
        whole,
        octaves_error=_jackknife([found.octaves for found in kept]),
        cost_error=_jackknife([found.cost for found in kept]),
    )


def _vertex(xs: Sequence[float], rows: Sequence[Sequence[float]], left_out: int | None) -> Found | None:
    if len(xs) < 3:
        return None
    means = [statistics.fmean(loss for k, loss in enumerate(row) if k != left_out) for row in rows]
    curvature, slope, _, _ = parabola(list(xs), means)
    if curvature <= 0 or not min(xs) <= (at := -slope / (2 * curvature)) <= max(xs):
        return None
    return Found(at, curvature * at * at)


def changes(curve: Curve) -> list[tuple[float, float, float | None]]:
    """(octaves from the plan's value, change of the loss, its standard error), paired by seed with the plan's value."""
    middle = curve.at_transferred
    if middle is None or middle.diverged:
        return []
    own, found = dict(middle.losses), []
    for point in curve.points:
        pairs = [loss - own[seed] for seed, loss in point.losses if seed in own]
        if pairs and not point.diverged:
            error = statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else None
            found.append((math.log2(point.value / curve.transferred), statistics.fmean(pairs), error))
    return found


def _jackknife(values: Sequence[float]) -> float:
    """The standard error from estimates that each leave one seed out."""
    middle, n = statistics.fmean(values), len(values)
    return math.sqrt((n - 1) / n * sum((value - middle) ** 2 for value in values))


@dataclass(frozen=True)
class Power:
    """optimum / plan's value = (N / a)^exponent, by weighted least squares through 1 at N / a = 1.

    ``misfit`` is chi squared per degree of freedom; above 1 it widens the error.
    """

    hyper: str
    rules: str
    exponent: float
    error: float
    low: float
    high: float
    layouts: tuple[str, ...]
    misfit: float


def power_of(curves: Sequence[Curve], sparsity: dict[str, float | None]) -> Power | None:
    """The power law through the curves of one role and rule set; None with fewer than three sparsities above 1.

    Targets that change more than the layout (``KEY=VALUE``) test the law and take no part in its fit.
    """
    fits = [
        (curve, math.log2(sparse), curve.drift, curve.drift_error)
        for curve in curves
        if (sparse := sparsity.get(curve.target)) and curve.drift is not None and curve.drift_error
        if "=" not in curve.target
    ]
    if len({x for _, x, _, _ in fits if x > 0}) < 3:
        return None
    weight = sum(x * x / e**2 for _, x, _, e in fits)
    exponent = sum(x * y / e**2 for _, x, y, e in fits) / weight
    misfit = sum(((y - exponent * x) / e) ** 2 for _, x, y, e in fits) / (len(fits) - 1)
    xs = [2.0**x for _, x, _, _ in fits]
    return Power(
        hyper=fits[0][0].hyper,
        rules=fits[0][0].rules,
        exponent=exponent,
        error=math.sqrt(max(1.0, misfit) / weight),
        low=min(xs),
        high=max(xs),
        layouts=tuple(curve.target for curve, *_ in fits),
        misfit=misfit,
    )


def role_lines(curves: Sequence[Curve], powers: Sequence[Power], unit: str) -> list[Line]:
    """Per layout and rule set: which roles keep the plan's value, and which want another."""
    lines = []
    for power in powers:
        text = f"{label(power.hyper)}: its optimum goes as (N/a)^({power.exponent:.2f} ± {power.error:.2f}) for N/a "
        text += f"from {power.low:g} to {power.high:g} by {power.rules}, over {', '.join(power.layouts)}."
        lines.append(Line("note", text))
    groups: dict[tuple[str, str], list[Curve]] = {}
    for curve in curves:
        groups.setdefault((curve.target, curve.rules), []).append(curve)
    for (target, rules), group in groups.items():
        kept = [curve for curve in group if curve.served]
        if len(group) > 1:
            names = ", ".join(label(curve.hyper) for curve in kept)
            text = f"{target} by {rules}: {len(kept)} of {len(group)} roles keep the plan's value"
            lines.append(Line("good" if len(kept) == len(group) else "note", f"{text}{': ' if kept else ''}{names}."))
        for curve in group:
            if not curve.served:
                kind = "bad" if curve.status == "missed" else "open"
                lines.append(Line(kind, f"{target} by {rules}, {label(curve.hyper)}: {curve.says}."))
    return lines
