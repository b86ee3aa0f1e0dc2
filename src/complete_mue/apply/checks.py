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

from complete_mue.apply.axes import AXES, LAYOUT, LAYOUT_AXES, Point, axis_lines, small_reference
from complete_mue.apply.bind import Binding, bind
from complete_mue.apply.observe import Observation, any_number, observe, unseen
from complete_mue.apply.realized import Finding, realized
from complete_mue.apply.setup import Setup, built
from complete_mue.errors import MueError, RunError
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
    """One role at one point: size at init, change after each step, update size against the paper's formula.

    ``formula`` is E|dW x| / (lr * fan-in * E|x|) after all steps, constant along every axis (Eq. base-update-scale);
    None where no product was seen. After one step alone it still falls with the fan-in: signs that agree by chance
    add up to its root, and outweigh what the inputs have in common.
    """

    size: float
    changes: tuple[float, ...]  # after 1, 2, …, k steps
    formula: float | None
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
    formula_slope: float | None
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
class NotWalked:
    """An axis whose models the setup cannot make, and why."""

    axis: str
    reason: str


@dataclass(frozen=True)
class CheckResult:
    """All axes that were walked, those that could not be, and all findings."""

    rules: str
    steps: int
    tolerance: float
    axes: tuple[AxisCheck, ...]
    findings: tuple[Finding, ...] = field(default_factory=tuple)
    not_walked: tuple[NotWalked, ...] = field(default_factory=tuple)

    @property
    def ok(self) -> bool:
        """Nothing to complain about."""
        return not self.findings and all(axis.ok for axis in self.axes)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"ok": self.ok, **asdict(self)}


def check(
    build: Callable[[Plan], Setup],
    axes: Iterable[str] | str | None = "width",
    *,
    layout: str | None = None,
    reference: Reference | None = None,
    points: Iterable[Point] | None = None,
    rules: Rules | str = "complete_mue",
    steps: int = 4,
    tolerance: float = TOLERANCE,
    progress: Callable[[str], None] = lambda text: None,
) -> CheckResult:
    """Walk ``build(plan)`` along the axes and compare what it does with what the plan says.

    ``axes=None`` walks every axis whose models ``build`` can make and names the others in ``not_walked``. ``layout``
    is that of the axes that do not vary it (``width``, ``depth``, ``batch``), such as ``"8e2a"`` for a model without
    shared experts. ``points`` replaces the built-in shapes of a single axis, for models of one's own: a ``Point(x,
    shape, budget)`` each, with their ``reference``.
    """
    count("steps", steps)
    rules, reference = Rules.named(rules), reference or small_reference()
    names = [axes] if isinstance(axes, str) else list(AXES if axes is None else axes)
    results, findings, not_walked = [], dict[tuple[str, str], Finding](), []
    for axis, line in axis_lines(names, layout, None if points is None else list(points)).items():
        plans = [transfer(reference, point.shape, point.budget, rules=rules, betas="hold") for point in line]
        progress(f"{axis}: building")
        problem = _cannot_make(build, plans)
        if problem is not None:
            reason = " ".join(str(problem).split())
            if axis in LAYOUT_AXES and layout is None and points is None:
                reason += f"; this axis has layout {LAYOUT}, give another with layout= (--layout), such as 8e2a"
            if axes is not None:
                raise type(problem)(f"{axis}: {reason}") from problem
            not_walked.append(NotWalked(axis, reason))
            continue
        observed = []
        for point, plan in zip(line, plans, strict=True):
            progress(f"{axis} {point.x:g}")
            found = realized(build, plan)
            now, not_checked = _measure(build, plan, steps)
            observed.append(now)
            for finding in (*found, *not_checked):
                findings.setdefault((finding.what, any_number(finding.where)), finding)
        results.append(_judge(axis, line, observed, tolerance))
    if not results:
        first, *others = not_walked
        more = f" (and {len(others)} other axes)" if others else ""
        raise RunError(f"build(plan) can make no axis: {first.axis}: {first.reason}{more}; give points= of your own")
    return CheckResult(rules.name, steps, tolerance, tuple(results), tuple(findings.values()), tuple(not_walked))


def _cannot_make(build: Callable[[Plan], Setup], plans: list[Plan]) -> MueError | None:
    """Why ``build`` cannot make one of these models; None if it makes them all."""
    try:
        for plan in plans:
            setup = built(build, plan)
            bind(setup.model, plan, setup.family)
    except MueError as problem:
        return problem
    return None


@dataclass(frozen=True)
class _Observed:
    roles: dict[Role, Measured]
    forward_factor: float
    load_variation: float


def _measure(build: Callable[[Plan], Setup], plan: Plan, steps: int) -> tuple[_Observed, list[Finding]]:
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
        changes = {b.name: b.parameter.detach() - start[b.name] for b in binding}
        with observe(model, binding, changes) as seen, torch.no_grad():
            setup.loss(model, 0)
        after.append(seen)
    roles = {
        role: _role(role, plan, binding, before, after)
        for role in dict.fromkeys(b.spec.role for b in binding)
        if any(before.saw(b) for b in binding if b.spec.role is role) or _branches(role, before)
    }
    factor, variation = _routing(before, plan.shape.main.experts)
    return _Observed(roles, factor, variation), _not_checked(binding, before)


def _branches(role: Role, seen: Observation) -> list[tuple[Role, int]]:
    """The residual branches by whose output a role is judged."""
    return [key for key in seen.branches if key[0] is role and role in _BRANCH]


def _not_checked(binding: Binding, seen: Observation) -> list[Finding]:
    """Nothing is known of a matrix that was never seen, so nothing may be called right."""
    advice = (
        "was never seen in a product, so its activations and updates are not checked: compute it with torch's own "
        "matrix products (transformers: model.set_experts_implementation('eager'), our models: kernel='reference'), "
        "or freeze what the loss does not use"
    )
    return [Finding("product", any_number(b.name), f"{b.spec.role.value} {advice}") for b in unseen(binding, seen)]


def _role(role: Role, plan: Plan, binding: Binding, before: Observation, after: list[Observation]) -> Measured:
    # Sizes are stated at the reference's residual multiplier and global learning rate, so that depth and batch compare.
    depth, lr = plan.ratios.depth, plan.hyper.lr / plan.reference.hyper.lr
    members = [b for b in binding if b.spec.role is role and before.saw(b)]
    formulas, uneven = [], [1.0]
    for b in members:
        seen = after[-1].products[b.name]
        fan_in = b.parameter.shape[b.spec.axes.index(b.spec.fan_in)] if b.spec.fan_in else 1
        predicted = b.row.lr * fan_in * seen.mean_input
        formulas.append(seen.change / predicted if predicted else math.nan)
        moved = [expert.change for expert in after[-1].experts.get(b.name, {}).values() if expert.entries]
        uneven += [max(moved) / min(moved)] if len(moved) > 1 and min(moved) > 0 else []
    if keys := _branches(role, before):
        size = _mean([_rms(before.branches[key]) * depth for key in keys])
        changes = [_mean([_rms(a.branches[key] - before.branches[key]) * depth for key in keys]) for a in after]
    else:
        scale = [b.spec.multiplier * (depth if role is Role.SHARED_DOWN else 1.0) for b in members]
        size = _mean([before.products[b.name].size * m for b, m in zip(members, scale, strict=True)])
        changes = [_mean([a.products[b.name].change * m for b, m in zip(members, scale, strict=True)]) for a in after]
    formula = _mean(formulas) if formulas else None
    return Measured(size, tuple(change / lr for change in changes), formula, max(uneven))


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
        size, change = slope(xs, [p.size for p in points]), slope(xs, [p.change for p in points])
        formulas = [p.formula for p in points if p.formula is not None]
        formula = slope(xs, formulas) if len(formulas) == len(xs) else None
        complaints = []
        # A readout's initial size may fall with the width (its updates do not); nothing may grow.
        if size > tolerance or (size < -tolerance and role is not Role.READOUT):
            complaints.append(f"size ~ {axis}^{size:+.2f}")
        if not abs(change) <= tolerance:
            complaints.append(f"change ~ {axis}^{change:+.2f}")
        if role in _DOWN and formula is not None and not abs(formula) <= tolerance:
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
