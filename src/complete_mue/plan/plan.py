"""A plan: one frozen row per role and block kind, with everything a trainer needs and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from complete_mue.errors import TransferError
from complete_mue.layout.reference import Hyper, Reference, Tuned
from complete_mue.layout.shape import Budget, ModelShape
from complete_mue.layout.tensors import FEED_FORWARD_ROLES, Role
from complete_mue.rules.catalog import Rules
from complete_mue.rules.ratios import Ratios
from complete_mue.rules.sde import LoadSde, Sde, sde_with_load

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Betas = Literal["transfer", "hold"]


@dataclass(frozen=True)
class Multiplier:
    """What stands before a tensor's contribution: output multiplier A, route scale r, residual multiplier."""

    output: float = 1.0
    route_scale: float = 1.0
    residual: float = 1.0

    @property
    def total(self) -> float:
        """The whole factor."""
        return self.output * self.route_scale * self.residual


@dataclass(frozen=True)
class Factors:
    """Target value over reference value, column by column; all 1 where target = reference."""

    output: float
    route_scale: float
    residual: float
    init_std: float
    lr: float
    weight_decay: float
    eps: float


@dataclass(frozen=True)
class Row:
    """The settings of one role (in one kind of block, for feed-forward roles)."""

    role: Role
    block: str
    forward: Multiplier  # applied by the model's forward pass
    folded: Multiplier  # already inside init_std, lr, weight_decay and eps
    init_std: float | None
    lr: float
    weight_decay: float
    eps: float
    factors: Factors
    because: str

    @property
    def multiplier(self) -> float:
        """The whole forward factor: output multiplier x route scale x residual."""
        return self.forward.total

    @property
    def output(self) -> float:
        """A, the output multiplier that the forward applies."""
        return self.forward.output

    @property
    def route_scale(self) -> float:
        """r, on the normalized routed sum."""
        return self.forward.route_scale

    @property
    def residual(self) -> float:
        """1 / rho_L, on the residual branch."""
        return self.forward.residual

    @property
    def numbers(self) -> tuple[float, ...]:
        """All values of the row, for comparison."""
        forward = (self.output, self.route_scale, self.residual)
        return (*forward, self.init_std or 0.0, self.lr, self.weight_decay, self.eps)


@dataclass(frozen=True)
class Plan:
    """Hyperparameters of a target, transferred from a reference."""

    reference: Reference
    shape: ModelShape
    budget: Budget
    rules: Rules
    betas: Betas
    ratios: Ratios
    hyper: Hyper  # the target's global lr, weight decay, eps, betas; init_std is the reference's
    rows: tuple[Row, ...]  # roles that the shape has
    absent: tuple[Row, ...]  # feed-forward roles it has not: needed to go on from here to another shape
    sde: Sde

    def row(self, role: Role | str, block: str | None = None) -> Row:
        """The row of a role; ``block`` chooses where several kinds of block differ."""
        role = Role.parse(role)
        found = [row for row in self.rows if row.role is role and block in (None, row.block)]
        if len(found) == 1 or (found and all(row.numbers == found[0].numbers for row in found)):
            return found[0]
        if found:
            kinds = ", ".join(repr(row.block) for row in found)
            raise TransferError(f"role {role.value!r} has several rows: name the block kind, one of {kinds}")
        roles = ", ".join(dict.fromkeys(row.role.value for row in self.rows))
        where = "" if block is None else f" in a block {block!r}"
        raise TransferError(f"no row for role {role.value!r}{where} in this plan: its roles are {roles}")

    # -- the same run, written otherwise ----------------------------------------------------------------------

    def fold(self) -> Plan:
        """The same training run without any multiplier in the forward pass."""
        from complete_mue.plan.fold import fold

        return self._with_rows(fold)

    def unfold(self) -> Plan:
        """Back to multiplier form."""
        from complete_mue.plan.fold import unfold

        return self._with_rows(unfold)

    def _with_rows(self, change: Any) -> Plan:
        return replace(self, rows=tuple(map(change, self.rows)), absent=tuple(map(change, self.absent)))

    @property
    def is_folded(self) -> bool:
        """No row needs a multiplier in the forward pass."""
        return all(row.forward == Multiplier() for row in self.rows)

    def as_reference(self) -> Reference:
        """The target as a reference of its own, each role with its settings: transfers compose through it."""
        tuned = {}
        for row in reversed((*self.unfold().rows, *self.unfold().absent)):
            tuned[row.role] = Tuned(
                output=row.output,
                route_scale=row.route_scale if row.role is Role.EXPERT_DOWN else None,
                residual=row.residual,
                init_std=row.init_std,
                lr=row.lr,
                weight_decay=row.weight_decay,
                eps=row.eps,
            )
        return Reference(self.shape, self.budget, self.hyper, tuned=tuned)

    def isclose(self, other: Plan, tolerance: float = 1e-12) -> bool:
        """Same roles and, up to rounding, the same numbers, globally and in every row."""
        mine, theirs = (
            {(row.role, row.block): row.numbers for row in plan.rows}
            | {("global", ""): (p.lr, p.weight_decay, p.eps, *p.betas)}
            for plan, p in ((self, self.hyper), (other, other.hyper))
        )
        return mine.keys() == theirs.keys() and all(
            math.isclose(a, b, rel_tol=tolerance) for key in mine for a, b in zip(mine[key], theirs[key], strict=True)
        )

    def sde_with_load(self, load: Sequence[float]) -> LoadSde:
        """sigma0 of each expert under a measured load (each expert's share of the tokens; sums to active)."""
        return sde_with_load(self.reference, self.shape, self.budget, self.hyper, load)

    @property
    def attention_scale(self) -> float | None:
        """Factor on attention logits: sqrt(head_dim*) / head_dim, which is 1/sqrt(head_dim) for heads of fixed size.

        None where the shapes leave the head size open: keep the reference's head size and its 1/sqrt(head_dim).
        """
        ours, theirs = self.shape.head_dim, self.reference.shape.head_dim
        return None if ours is None or theirs is None else math.sqrt(theirs) / ours

    # -- for people and machines --------------------------------------------------------------------------------

    def explain(self, role: Role | str | None = None) -> str:
        """Derive a role's numbers in words and symbols; without a role, every row's."""
        from complete_mue.plan.explain import explain

        roles = [Role.parse(role)] if role is not None else list(dict.fromkeys(row.role for row in self.rows))
        return "\n\n".join(explain(self, row) for r in roles for row in self._rows_of(r))

    def _rows_of(self, role: Role) -> list[Row]:
        found = [row for row in self.rows if row.role is role]
        return found or [self.row(role)]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; ``Plan.from_dict`` reads it back without loss."""
        from complete_mue.plan.data import plan_to_dict

        return plan_to_dict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """Read back what ``to_dict`` wrote."""
        from complete_mue.plan.data import plan_from_dict

        return plan_from_dict(data)

    def to_json(self, indent: int | None = 2) -> str:
        """JSON text; ``Plan.from_json`` reads it back without loss."""
        from complete_mue.plan.data import plan_to_json

        return plan_to_json(self, indent)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read back what ``to_json`` wrote."""
        from complete_mue.plan.data import plan_from_json

        return plan_from_json(text)

    def to_markdown(self) -> str:
        """A Markdown table."""
        from complete_mue.plan.export import to_markdown

        return to_markdown(self)

    def to_csv(self) -> str:
        """Comma-separated values, one line per row, full precision."""
        from complete_mue.plan.export import to_csv

        return to_csv(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from complete_mue.plan.export import to_rich

        yield from to_rich(self)

    def __str__(self) -> str:
        from complete_mue.plan.export import to_text

        return to_text(self)


def block_roles(shape: ModelShape) -> list[tuple[Role, str]]:
    """The feed-forward roles that a shape has, each with the label of its kind of block."""
    found: list[tuple[Role, str]] = []
    for kind in shape.kinds:
        if kind.is_dense:
            roles = [Role.DENSE_UP, Role.DENSE_DOWN]
        else:
            shared = [Role.SHARED_UP, Role.SHARED_DOWN] if kind.branches else []
            roles = [*shared, Role.EXPERT_UP, Role.EXPERT_DOWN, Role.ROUTER]
        found += [(role, shape.label(kind)) for role in roles]
    return found


OTHER_ROLES = tuple(role for role in Role if role not in FEED_FORWARD_ROLES)
