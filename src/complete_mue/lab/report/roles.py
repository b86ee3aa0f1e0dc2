"""What a role probe says: how far each role's optimum lies from the plan's value, and what the plan's value costs.

Where one role was scanned on layouts of several sparsities, the optimum is fitted as a power of N / a.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from complete_mue.lab.report.curves import Curve
from complete_mue.lab.report.labels import label
from complete_mue.lab.report.verdict import Line, judge, verdict_line


def is_role(hyper: str) -> bool:
    """Whether a scan is of some roles alone: ``expert_up.lr``."""
    return "." in hyper


def condition(target: str) -> str:
    """What a target changes besides the layout, as its name says: ``64e8a@16,router.score=softmax``."""
    return ", ".join(part for part in target.split(",") if "=" in part)


def judged(curve: Curve, unit: str) -> Curve:
    """The curve with its drift from the plan's own value, which is known exactly."""
    if curve.optimum is not None and curve.optimum.open is None:
        drift = math.log2(curve.optimum.value / curve.transferred)
        curve = dataclasses.replace(curve, drift=drift, drift_error=curve.optimum_error)
    return judge(curve, unit, None)


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
        if not condition(curve.target)
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
        kept = [curve for curve in group if curve.held]
        if len(group) > 1:
            names = ", ".join(label(curve.hyper) for curve in kept)
            text = f"{target} by {rules}: the plan's value held for {len(kept) or 'none'} of {len(group)} roles"
            lines.append(Line("good" if len(kept) == len(group) else "note", f"{text}{': ' if kept else ''}{names}."))
        lines += [verdict_line(c, f"{target} by {rules}, {label(c.hyper)}") for c in group if not c.held]
    return lines
