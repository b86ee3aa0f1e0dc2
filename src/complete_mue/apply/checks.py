"""Does a training setup follow its plan? Coordinate check, update sizes, realized optimizer, routing at init.

Along an axis (width, depth, activated experts, …) a correct setup keeps every role's activations, and their change over
the first steps, of one size. A slope on log axes shows which role grows or fades. What activations cannot see (weight
decay, eps, betas, schedulers) is measured on the optimizer (``realized``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from complete_mue.apply.axes import Point, axis_points, small_reference
from complete_mue.apply.bind import Binding, bind
from complete_mue.apply.observe import Observation, observe
from complete_mue.apply.realized import Finding, realized
from complete_mue.apply.setup import Setup, built
from complete_mue.layout import Reference, Role
from complete_mue.layout.numbers import count
from complete_mue.plan.plan import Plan
from complete_mue.plan.transfer import transfer
from complete_mue.rules.catalog import Rules

TOLERANCE = 0.3
# Roles whose product is judged by the output of their residual branch, which includes every multiplier.
_BRANCH = (Role.ATTENTION_OUT, Role.DENSE_DOWN, Role.EXPERT_DOWN)
_DOWN = (Role.DENSE_DOWN, Role.SHARED_DOWN, Role.EXPERT_DOWN)


@dataclass(frozen=True)
class Measured:
    """One role at one point: size at init, change after each step, update size against the paper's formula."""

    size: float
    changes: tuple[float, ...]  # after 1, 2, …, k steps
    formula: float  # E|dW x| / (lr * fan-in * E|x|) of one step; constant along every axis (Eq. base-update-scale)
    uneven: float  # largest over smallest expert's update; 1 without experts

    @property
    def change(self) -> float:
        """After all steps."""
        return self.changes[-1]


@dataclass(frozen=True)
class RoleVerdict:
    """One role along one axis."""

    role: str
    points: tuple[Measured, ...]
    size_slope: float
    change_slope: float
    formula_slope: float
    ok: bool
    why: str


@dataclass(frozen=True)
class Routing:
    """Routing at initialization: F = a E[sum pi^2], and how uneven the load is."""

    x: float
    forward_factor: float
    load_variation: float


@dataclass(frozen=True)
class AxisCheck:
    """One axis: where the points lie, and a verdict per role."""

    axis: str
    xs: tuple[float, ...]
    roles: tuple[RoleVerdict, ...]
    routing: tuple[Routing, ...]

    @property
    def ok(self) -> bool:
        """Every role holds."""
        return all(role.ok for role in self.roles)


@dataclass(frozen=True)
class CheckResult:
    """All axes and all findings."""

    rules: str
    steps: int
    tolerance: float
    axes: tuple[AxisCheck, ...]
    findings: tuple[Finding, ...] = field(default_factory=tuple)

    @property
    def ok(self) -> bool:
        """Nothing to complain about."""
        return not self.findings and all(axis.ok for axis in self.axes)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"ok": self.ok, **asdict(self)}


def check(
    build: Callable[[Plan], Setup],
    axes: Iterable[str] | str = "width",
    *,
    reference: Reference | None = None,
    points: Iterable[Point] | None = None,
    rules: Rules | str = "complete_mue",
    steps: int = 4,
    tolerance: float = TOLERANCE,
    progress: Callable[[str], None] = lambda text: None,
) -> CheckResult:
    """Walk ``build(plan)`` along the axes and compare what it does with what the plan says.

    ``points`` replaces the built-in shapes of a single axis, for a model of one's own (with its ``reference``).
    """
    count("steps", steps)
    reference = reference or small_reference()
    axes = [axes] if isinstance(axes, str) else list(axes)
    results, findings, seen = [], [], set()
    for axis in axes:
        line = list(points) if points is not None else axis_points(axis)
        observed = []
        for point in line:
            progress(f"{axis} {point.x:g}")
            plan = transfer(reference, point.shape, point.budget, rules=rules, betas="hold")
            for finding in realized(build, plan):
                key = (finding.what, finding.where.split(".")[-1])
                if key not in seen:
                    seen.add(key)
                    findings.append(finding)
            observed.append(_measure(build, plan, steps))
        results.append(_judge(axis, line, observed, tolerance))
    return CheckResult(Rules.named(rules).name, steps, tolerance, tuple(results), tuple(findings))


@dataclass(frozen=True)
class _Observed:
    roles: dict[Role, Measured]
    forward_factor: float
    load_variation: float


def _measure(build: Callable[[Plan], Setup], plan: Plan, steps: int) -> _Observed:
    setup = built(build, plan)
    model, binding = setup.model, bind(setup.model, plan, setup.family)
    start = {b.name: b.parameter.detach().clone() for b in binding}
    with observe(model, binding) as before, torch.no_grad():
        setup.loss(model, 0)
    after: list[Observation] = []
    for step in range(steps):
        setup.optimizer.zero_grad()
        setup.loss(model, step).backward()
        setup.optimizer.step()
        if setup.scheduler is not None:
            setup.scheduler.step()
        with observe(model, binding, start) as seen, torch.no_grad():
            setup.loss(model, 0)
        after.append(seen)
    roles = {
        role: _role(role, plan, binding, before, after)
        for role in dict.fromkeys(b.spec.role for b in binding)
        if any(b.name in before.products for b in binding if b.spec.role is role)
    }
    factor, variation = _routing(before, plan.shape.main.experts)
    return _Observed(roles, factor, variation)


def _role(role: Role, plan: Plan, binding: Binding, before: Observation, after: list[Observation]) -> Measured:
    # Sizes are stated at the reference's residual multiplier and global learning rate, so that depth and batch compare.
    depth, lr = plan.ratios.depth, plan.hyper.lr / plan.reference.hyper.lr
    members = [b for b in binding if b.spec.role is role and b.name in before.products]
    formulas, uneven = [], [1.0]
    for b in members:
        seen = after[0].products[b.name]
        fan_in = b.parameter.shape[b.spec.axes.index(b.spec.fan_in)] if b.spec.fan_in else 1
        predicted = b.row.lr * fan_in * seen.mean_input
        formulas.append(seen.change / predicted if predicted else math.nan)
        moved = [expert.change for expert in after[-1].experts.get(b.name, {}).values() if expert.entries]
        uneven += [max(moved) / min(moved)] if len(moved) > 1 and min(moved) > 0 else []
    if role in _BRANCH and any(key[0] is role for key in before.branches):
        keys = [key for key in before.branches if key[0] is role]
        size = _mean([_rms(before.branches[key]) * depth for key in keys])
        changes = [_mean([_rms(a.branches[key] - before.branches[key]) * depth for key in keys]) for a in after]
    else:
        scale = [b.spec.multiplier * (depth if role is Role.SHARED_DOWN else 1.0) for b in members]
        size = _mean([before.products[b.name].size * m for b, m in zip(members, scale, strict=True)])
        changes = [_mean([a.products[b.name].change * m for b, m in zip(members, scale, strict=True)]) for a in after]
    return Measured(size, tuple(change / lr for change in changes), _mean(formulas), max(uneven))


def _routing(seen: Observation, experts: int) -> tuple[float, float]:
    """F = a E[sum pi^2] and the load's coefficient of variation, averaged over layers; 1 and 0 without routers."""
    factors, variations = [1.0], [0.0]
    for weights, index in seen.routing.values():
        shares = weights.double() / weights.double().sum(-1, keepdim=True)
        factors.append(float(index.shape[-1] * shares.square().sum(-1).mean()))
        load = torch.bincount(index.flatten(), minlength=experts).double()
        variations.append(float(load.std(correction=0) / load.mean()))
    return _mean(factors[1:] or factors), _mean(variations[1:] or variations)


def _judge(axis: str, line: list[Point], observed: list[_Observed], tolerance: float) -> AxisCheck:
    xs = [point.x for point in line]
    verdicts = []
    for role in observed[0].roles:
        points = [o.roles[role] for o in observed if role in o.roles]
        if len(points) < len(line):
            continue
        size, change, formula = (
            slope(xs, [getattr(p, name) for p in points]) for name in ("size", "change", "formula")
        )
        complaints = []
        # A readout's initial size may fall with the width (its updates do not); nothing may grow.
        if size > tolerance or (size < -tolerance and role is not Role.READOUT):
            complaints.append(f"size ~ {axis}^{size:+.2f}")
        if not abs(change) <= tolerance:
            complaints.append(f"change ~ {axis}^{change:+.2f}")
        if role in _DOWN and not abs(formula) <= tolerance:
            complaints.append(f"update against A·lr·H·E|u| ~ {axis}^{formula:+.2f}")
        verdicts.append(
            RoleVerdict(role.value, tuple(points), size, change, formula, not complaints, "; ".join(complaints))
        )
    routing = tuple(Routing(x, o.forward_factor, o.load_variation) for x, o in zip(xs, observed, strict=True))
    return AxisCheck(axis, tuple(xs), tuple(verdicts), routing)


def slope(xs: list[float], ys: list[float]) -> float:
    """Least-squares slope of log y against log x; infinite where a value is zero or not finite."""
    if any(not y > 0 or not math.isfinite(y) for y in ys):
        return math.inf
    u, v = [math.log(x) for x in xs], [math.log(y) for y in ys]
    mean_u, mean_v = _mean(u), _mean(v)
    return sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True)) / sum((a - mean_u) ** 2 for a in u)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _rms(x: torch.Tensor) -> float:
    return float(x.double().square().mean().sqrt())
