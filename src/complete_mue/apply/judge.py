"""From what was measured along an axis to a verdict per role: slopes with error bars, and who is to blame.

An update's effect is a product of two parts:  change = (lr · fan-in · E|x| · multipliers) · formula.  The first is what
a setup decides, the second what the data decides: the share of inputs and steps that agree. On data without structure
it falls with the root of the fan-in, and every change with it. So a change that moves no more than the formulas do
says nothing about the setup.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from complete_mue.apply.measure import Measured, Observed, typical
from complete_mue.layout import Role

OK, MOVES, UNSURE = "ok", "moves", "cannot tell"


@dataclass(frozen=True)
class Slope:
    """A slope on log axes with its error: two standard errors over the seeds; 0 of one seed, where none is known."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:+.2f}" + (f"±{self.error:.2f}" if self.error else "")

    def verdict(self, expected: float, tolerance: float) -> str:
        """``moves`` if surely off, ``cannot tell`` if the error is too wide to say."""
        off = abs(self.value - expected)
        if off > tolerance:
            return UNSURE if off - self.error <= tolerance else MOVES
        return OK if self.error <= tolerance else UNSURE


@dataclass(frozen=True)
class RoleVerdict:
    """One role along one axis; ``points`` are means over the seeds, ``expected`` is the plan's slope of the size."""

    role: str
    tensor: str
    points: tuple[Measured, ...]
    size_slope: float
    size_error: float
    expected: float
    change_slope: float
    change_error: float
    formula_slope: float | None
    verdict: str
    why: str

    @property
    def ok(self) -> bool:
        """Nothing is surely wrong."""
        return self.verdict != MOVES


def judge_roles(
    axis: str,
    xs: Sequence[float],
    seeds: Sequence[Sequence[Observed]],
    expected: Mapping[Role, float],
    tolerance: float,
    planned: Mapping[Role, float] | None = None,
) -> tuple[RoleVerdict, ...]:
    """A verdict for every role that all models have. ``seeds`` holds the models of the axis, once for each seed.

    ``expected`` is the slope of a role's size by the plan; ``planned`` is how far its change may go with the learning
    rate, where the plan moves that along the axis.
    """
    first = seeds[0][0]
    roles = [role for role in first.roles if all(role in o.roles for line in seeds for o in line)]
    formulas = {role: _formula(role, xs, seeds) for role in roles}
    moved = [value.value for value in formulas.values() if value is not None and math.isfinite(value.value)]
    data = (min(0.0, *moved), max(0.0, *moved)) if moved else (0.0, 0.0)
    verdicts = []
    for role in roles:
        points = [[o.roles[role] for o in line] for line in seeds]
        should, rate, formula = expected.get(role, 0.0), (planned or {}).get(role, 0.0), formulas[role]
        size = slope_of(xs, [[point.size for point in line] for line in points])
        change = slope_of(xs, [[point.change for point in line] for line in points])
        found = {OK: list[str](), MOVES: list[str](), UNSURE: list[str]()}
        words = f"size ~ {axis}^{size}" + (f" (should be {should:+.2f})" if should else "")
        found[size.verdict(should, tolerance)].append(words)
        words = f"change ~ {axis}^{change}" + (f" (the plan's learning rates: {rate:+.2f})" if rate else "")
        left = _beyond(change, (min(0.0, rate), max(0.0, rate)))
        blame = left.verdict(0.0, tolerance)
        # What the data may have done to this change, its own updates' share or that of the layers before it.
        if blame == MOVES and _beyond(left, data).verdict(0.0, tolerance) != MOVES:
            blame = UNSURE
            words += f", but so do updates on this data (formula from {data[0]:+.2f} to {data[1]:+.2f})"
        found[blame].append(words)
        verdict = next(state for state in (MOVES, UNSURE, OK) if found[state])
        verdicts.append(
            RoleVerdict(
                role=role.value,
                tensor=first.tensors[role],
                points=tuple(typical(list(place)) for place in zip(*points, strict=True)),
                size_slope=size.value,
                size_error=size.error,
                expected=should,
                change_slope=change.value,
                change_error=change.error,
                formula_slope=None if formula is None else formula.value,
                verdict=verdict,
                why="" if verdict == OK else "; ".join(found[verdict]),
            )
        )
    return tuple(verdicts)


def _formula(role: Role, xs: Sequence[float], seeds: Sequence[Sequence[Observed]]) -> Slope | None:
    values = [[o.roles[role].formula for o in line] for line in seeds]
    known = [[value for value in line if value is not None] for line in values]
    return slope_of(xs, known) if all(len(line) == len(xs) for line in known) else None


def _beyond(slope: Slope, span: tuple[float, float]) -> Slope:
    """What is left of a slope outside a span around 0."""
    return Slope(slope.value - min(max(slope.value, span[0]), span[1]), slope.error)


def slope_of(xs: Sequence[float], seeds: Sequence[Sequence[float]]) -> Slope:
    """Least-squares slope of log y against log x; infinite where a value is zero or not finite."""
    if any(not y > 0 or not math.isfinite(y) for line in seeds for y in line):
        return Slope(math.inf, 0.0)
    u = [math.log(x) for x in xs]
    logs = [[math.log(y) for y in line] for line in seeds]
    middle = statistics.fmean(u)
    spread = sum((x - middle) ** 2 for x in u)
    means = [statistics.fmean(column) for column in zip(*logs, strict=True)]
    value = sum((x - middle) * y for x, y in zip(u, means, strict=True)) / spread
    if len(seeds) == 1:
        return Slope(value, 0.0)
    squares = sum((y - mean) ** 2 for line in logs for y, mean in zip(line, means, strict=True))
    variance = squares / ((len(seeds) - 1) * len(xs))  # of one seed at one point, pooled over the points
    return Slope(value, 2 * math.sqrt(variance / len(seeds) / spread))
