"""Does a training setup follow its plan? Coordinate check, realized optimizer, what one forward shows, update effects.

Along an axis (width, depth, activated experts, …) a correct setup keeps every role's activations, and their change over
the first steps, of one size. A slope on log axes shows which role grows or fades (``judge``). What activations cannot
see (weight decay, eps, betas, schedulers, clipping) is measured on the optimizer (``realized``), what an axis cannot
show (norm gains, routing sums, the embedding's scale) on one forward (``judged``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from complete_mue.apply.bind import bind
from complete_mue.apply.effect import Effect
from complete_mue.apply.forward_check import tied, ties
from complete_mue.apply.judge import UNSURE, RoleVerdict, judge_roles, slope_of
from complete_mue.apply.measure import Observed, measure
from complete_mue.apply.observe import any_number
from complete_mue.apply.optimizer_check import Finding, realized
from complete_mue.apply.setup import Setup, built
from complete_mue.errors import MueError, RunError
from complete_mue.layout import Reference, Role
from complete_mue.layout.axes import AXES, LAYOUT, LAYOUT_AXES, Point, axis_lines, small_reference
from complete_mue.layout.numbers import count, real
from complete_mue.plan.plan import Plan
from complete_mue.plan.transfer import transfer
from complete_mue.rules.catalog import DEFAULT_RULES, Rules

TOLERANCE, STEPS, SEEDS = 0.3, 4, 3
# What a dense reference has in the place of roles that it does not have.
_COUNTERPARTS = {
    Role.EXPERT_UP: Role.DENSE_UP,
    Role.EXPERT_DOWN: Role.DENSE_DOWN,
    Role.SHARED_UP: Role.DENSE_UP,
    Role.SHARED_DOWN: Role.DENSE_DOWN,
}


@dataclass(frozen=True)
class Routing:
    """Routing at initialization: F = a E[sum pi^2], and how uneven the load is."""

    x: float
    forward_factor: float
    load_variation: float


@dataclass(frozen=True)
class RoleEffect:
    """One role's update effect at the points of an axis, and its change over that of the reference's counterpart."""

    role: str
    counterpart: str
    effects: tuple[Effect, ...]
    ratios: tuple[float | None, ...]


@dataclass(frozen=True)
class AxisCheck:
    """One axis: where the points lie, and a verdict per role."""

    axis: str
    xs: tuple[float, ...]
    roles: tuple[RoleVerdict, ...]
    routing: tuple[Routing, ...]
    effects: tuple[RoleEffect, ...] = ()

    @property
    def ok(self) -> bool:
        """No role surely moves."""
        return all(role.ok for role in self.roles)

    @property
    def unsure(self) -> tuple[RoleVerdict, ...]:
        """Roles of which the check cannot tell."""
        return tuple(role for role in self.roles if role.verdict == UNSURE)


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
    seeds: int
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
    rules: Rules | str = DEFAULT_RULES,
    steps: int = STEPS,
    seeds: int = SEEDS,
    tolerance: float = TOLERANCE,
    update_effect: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> CheckResult:
    """Walk ``build(plan)`` along the axes and compare what it does with what the plan says.

    ``axes=None`` walks every axis whose models ``build`` can make and names the others in ``not_walked``. ``layout``
    is that of the axes that do not vary it (``width``, ``depth``, ``batch_steps``), such as ``"8e2a"`` for a model
    without shared experts. ``points`` replaces the built-in shapes of a single axis, for models of one's own: a
    ``Point(x, shape, budget)`` each, with their ``reference``. Slopes have error bars from ``seeds``.
    ``update_effect`` measures on fresh tokens how much each role's update changes its own output, against the
    reference's.
    """
    count("steps", steps)
    count("seeds", seeds)
    real("tolerance", tolerance, positive=False)
    rules, reference = Rules.named(rules), reference or small_reference()
    names = [axes] if isinstance(axes, str) else list(AXES if axes is None else axes)
    results, not_walked = [], list[NotWalked]()
    walk = _Walk(build, rules, steps, seeds, tolerance, update_effect, progress)
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
        results.append(walk.axis(axis, line, plans))
    if not results:
        first, *others = not_walked
        more = f" (and {len(others)} other axes)" if others else ""
        raise RunError(f"build(plan) can make no axis: {first.axis}: {first.reason}{more}; give points= of your own")
    return CheckResult(rules.name, steps, seeds, tolerance, tuple(results), walk.findings(), tuple(not_walked))


def _cannot_make(build: Callable[[Plan], Setup], plans: list[Plan]) -> MueError | None:
    """Why ``build`` cannot make one of these models; None if it makes them all."""
    try:
        for plan in plans:
            setup = built(build, plan)
            bind(setup.model, plan, setup.family)
    except MueError as problem:
        return problem
    return None


@dataclass
class _Walk:
    """Keeps the findings of all models, one of each kind; a tie counts where no other width was seen to bear it."""

    build: Callable[[Plan], Setup]
    rules: Rules
    steps: int
    seeds: int
    tolerance: float
    effects: bool
    progress: Callable[[str], None]
    found: dict[tuple[str, str], Finding] = field(default_factory=dict)
    tied: dict[tuple[str, ...], set[bool]] = field(default_factory=dict)

    def findings(self) -> tuple[Finding, ...]:
        return (*self.found.values(), *(tied(names) for names, own in self.tied.items() if own == {True}))

    def axis(self, axis: str, line: Sequence[Point], plans: Sequence[Plan]) -> AxisCheck:
        """All models of an axis, once for each seed."""
        observed: list[list[Observed]] = [[] for _ in range(self.seeds)]
        for point, plan in zip(line, plans, strict=True):
            self.progress(f"{axis} {point.x:g}")
            findings, rates = realized(self.build, plan)
            setup = built(self.build, plan)
            for names in ties(setup.model, setup.family):
                self.tied.setdefault(names, set()).add(plan.ratios.width == 1)
            for seed, models in enumerate(observed):
                models.append(self.measure(plan, rates, seed))
            for finding in (*findings, *observed[0][-1].findings):
                self.found.setdefault((finding.what, any_number(finding.where)), finding)
        xs, first = [point.x for point in line], observed[0]
        expected = {Role.READOUT: slope_of(xs, [[_readout_size(plan) for plan in plans]]).value}
        rate = slope_of(xs, [[_sparsity_rate(plan) for plan in plans]]).value
        planned = dict.fromkeys((Role.EXPERT_UP, Role.EXPERT_DOWN), rate)  # down's output moves with its input
        roles = judge_roles(axis, xs, observed, expected, self.tolerance, planned)
        routing = tuple(Routing(x, o.forward_factor, o.load_variation) for x, o in zip(xs, first, strict=True))
        effects = tuple(self.ratios(first, plans)) if self.effects else ()
        return AxisCheck(axis, tuple(xs), roles, routing, effects)

    def measure(self, plan: Plan, rates: dict[str, float], seed: int = 0) -> Observed:
        """One model, one seed."""
        return measure(self.build, plan, rates, steps=self.steps, seed=seed, effects=self.effects and not seed)

    def ratios(self, line: Sequence[Observed], plans: Sequence[Plan]) -> Iterable[RoleEffect]:
        """Effects at every point over those of the reference: of the first point, where none can be built."""
        own = plans[0].reference
        plan = transfer(own, own.shape, own.budget, rules=self.rules, betas="hold")
        base = line[0].effects
        if _cannot_make(self.build, [plan]) is None:
            base = self.measure(plan, realized(self.build, plan)[1]).effects
        for role in line[0].effects:
            like = role if role in base else _COUNTERPARTS.get(role, role)
            effects = [o.effects.get(role) for o in line]
            rates = [plan.hyper.lr / own.hyper.lr for plan in plans]
            ratios = tuple(
                effect.change / rate / base[like].change if effect and like in base and base[like].change else None
                for effect, rate in zip(effects, rates, strict=True)
            )
            yield RoleEffect(role.value, like.value, tuple(effect for effect in effects if effect), ratios)


def _readout_size(plan: Plan) -> float:
    """The initial size of logits by the plan: it may fall with the width, where their updates do not."""
    row = plan.unfold().row(Role.READOUT)
    return (row.init_std or 0.0) * row.multiplier * plan.shape.width**0.5


def _sparsity_rate(plan: Plan) -> float:
    """What the rules multiply the learning rate of sparse experts' up projections with, beside the scaling of size."""
    powers = plan.rules.table[Role.EXPERT_UP].lr.powers
    return plan.ratios.sparsity ** float(sum(power for symbol, power in powers if symbol == "S"))
