"""A plan: one frozen row per role and block kind, with everything a trainer needs and why; and the algebra on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from complete_mue.errors import TransferError
from complete_mue.layout.reference import TUNABLE, Hyper, Reference, Tuned
from complete_mue.layout.shape import Budget, ModelShape
from complete_mue.layout.tensors import Role
from complete_mue.plan.explain import explain
from complete_mue.plan.fold import because, fold, unfold
from complete_mue.plan.plan_json import read_dict, read_json, to_dict, to_json
from complete_mue.plan.render import to_csv, to_markdown, to_rich, to_text
from complete_mue.plan.row import Multiplier, Row
from complete_mue.rules.catalog import Rules
from complete_mue.rules.measured import Trust, trust
from complete_mue.rules.ratios import Ratios
from complete_mue.rules.sde import LoadSde, Sde, sde_with_load

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Betas = Literal["transfer", "hold"]


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
        return self._with_rows(fold, folded=True)

    def unfold(self) -> Plan:
        """Back to multiplier form."""
        return self._with_rows(unfold, folded=False)

    def _with_rows(self, change: Callable[[Row], Row], *, folded: bool) -> Plan:
        def changed(row: Row) -> Row:
            return replace(change(row), because=because(self.rules.table[row.role], folded=folded))

        return replace(self, rows=tuple(map(changed, self.rows)), absent=tuple(map(changed, self.absent)))

    @property
    def is_folded(self) -> bool:
        """No row needs a multiplier in the forward pass."""
        return all(row.forward == Multiplier() for row in self.rows)

    def as_reference(self) -> Reference:
        """The target as a reference of its own, each role with its settings: transfers compose through it. Heads whose
        size the target leaves open are the reference's."""
        plan, tuned = self.unfold(), {}
        for row in reversed((*plan.rows, *plan.absent)):
            own = [name for name in TUNABLE if name != "route_scale" or row.role is Role.EXPERT_DOWN]
            tuned[row.role] = Tuned(**{name: getattr(row, name) for name in own})
        shape, scale, before = self.shape, self.attention_scale, self.reference
        if scale is None and before.shape.head_dim is not None:  # left open: heads and their factor stay as they were
            shape = replace(shape, head_dim=before.shape.head_dim).counted(shape.parameters)
            scale = before.attention_scale
        return Reference(shape, self.budget, self.hyper, tuned=tuned, attention_scale=scale)

    def isclose(self, other: Plan, tolerance: float = 1e-12) -> bool:
        """Same roles and, up to rounding, the same numbers, globally and in every row; head sizes may be left open."""
        mine, theirs = (
            {(row.role, row.block): row.numbers for row in plan.rows}
            | {("global", ""): (p.lr, p.weight_decay, p.eps, *p.betas)}
            for plan, p in ((self, self.hyper), (other, other.hyper))
        )
        if self.attention_scale and other.attention_scale:
            mine["attention", ""], theirs["attention", ""] = (self.attention_scale,), (other.attention_scale,)
        return mine.keys() == theirs.keys() and all(
            math.isclose(a, b, rel_tol=tolerance) for key in mine for a, b in zip(mine[key], theirs[key], strict=True)
        )

    def sde_with_load(self, load: Sequence[float]) -> LoadSde:
        """sigma0 of each expert under a measured load (each expert's share of the tokens; sums to active)."""
        return sde_with_load(self.reference, self.shape, self.ratios, self.hyper, load)

    @property
    def trust(self) -> Trust:
        """How far this transfer reaches beyond what was measured."""
        return trust(self.rules, self.shape, self.ratios)

    @property
    def attention_scale(self) -> float | None:
        """Factor on attention logits: ``sqrt(head_dim*) / head_dim``, so ``1/sqrt(head_dim)`` for heads of fixed size.

        A reference that had a factor of its own counts by that one instead of ``1/sqrt(head_dim*)``.
        None where the shapes leave the head size open: keep the reference's head size and its 1/sqrt(head_dim).
        """
        ours, theirs = self.shape.head_dim, self.reference.shape.head_dim
        return None if ours is None or theirs is None else self.attention_scale_of(ours, theirs)

    def attention_scale_of(self, ours: int, theirs: int) -> float:
        """The same for heads of size ``ours``, where the reference's are of size ``theirs``."""
        own = self.reference.attention_scale
        return (own * theirs if own else math.sqrt(theirs)) / ours

    @property
    def block_route_scale(self) -> float:
        """r of the main block, in either form; 1 for a dense target."""
        found = [row for row in self.rows if row.role is Role.EXPERT_DOWN]
        return found[-1].route_scale * found[-1].folded.route_scale if found else 1.0

    # -- explained, printed, written ----------------------------------------------------------------------------

    def explain(self, role: Role | str | None = None) -> str:
        """Derive a role's numbers in words and symbols; without a role, every row's."""
        roles = [Role.parse(role)] if role is not None else list(dict.fromkeys(row.role for row in self.rows))
        return "\n\n".join(explain(self, row) for r in roles for row in self._rows_of(r))

    def _rows_of(self, role: Role) -> list[Row]:
        found = [row for row in self.rows if row.role is role]
        return found or [self.row(role)]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; ``Plan.from_dict`` reads it back without loss."""
        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """Read back what ``to_dict`` wrote."""
        return cls(**read_dict(data))

    def to_json(self, indent: int | None = 2) -> str:
        """JSON text; ``Plan.from_json`` reads it back without loss."""
        return to_json(self, indent)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read back what ``to_json`` wrote."""
        return cls(**read_json(text))

    def to_markdown(self) -> str:
        """A Markdown table."""
        return to_markdown(self)

    def to_csv(self) -> str:
        """Comma-separated values, one line per row, full precision."""
        return to_csv(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from to_rich(self, options.max_width)

    def __str__(self) -> str:
        return to_text(self)
