"""What a tool must be told, role by role: a plan's rows, with all folded that the tool does not multiply itself."""

from __future__ import annotations

import textwrap
from collections.abc import Collection
from dataclasses import dataclass, replace

from complete_mue.errors import TransferError
from complete_mue.layout.notation import FeedForward
from complete_mue.layout.tensors import Role
from complete_mue.plan.fold import fold
from complete_mue.plan.plan import Plan
from complete_mue.plan.render import headline
from complete_mue.plan.row import Multiplier, Row

WIDTH = 118
CLIPPING = (
    "Gradient clipping: a folded weight carries its multiplier, so its gradient is 1/multiplier of the other form's: "
    "larger where the multiplier is below one. "
    "A plain global norm is not the norm of the multiplier form; "
    "take the norm over gradient times multiplier, or do not clip."
)


@dataclass(frozen=True)
class Setting:
    """One role's values; ``layers`` is None where they hold in every layer."""

    role: Role
    row: Row
    layers: tuple[int, ...] | None

    @property
    def name(self) -> str:
        """Unique among a plan's settings: the role, and the block kind where kinds differ."""
        return self.role.value if self.layers is None else f"{self.role.value} ({self.row.block})"

    @property
    def folded(self) -> float:
        """The multiplier inside the values: what a gradient is weighted with in a clipping norm."""
        return self.row.folded.total


def settings(plan: Plan, roles: Collection[Role], *, native_route_scale: bool) -> tuple[Setting, ...]:
    """The folded rows of these roles, in the plan's order; the route scale stays out where the tool applies it."""
    found: list[Setting] = []
    labels = [plan.shape.label(block) for block in plan.shape.blocks]
    plan = plan.unfold()
    for role in dict.fromkeys(row.role for row in plan.rows if row.role in roles):
        rows = [_folded(row, native_route_scale) for row in plan.rows if row.role is role]
        if all(row.numbers == rows[0].numbers for row in rows):
            found.append(Setting(role, rows[0], None))
            continue
        for row in rows:
            layers = tuple(layer for layer, label in enumerate(labels) if label == row.block)
            found.append(Setting(role, row, layers))
    return tuple(found)


def _folded(row: Row, native_route_scale: bool) -> Row:
    forward = replace(row.forward, route_scale=1.0) if native_route_scale else row.forward
    return fold(replace(row, forward=forward))


def as_part_of(setting: Setting, product: Setting) -> Setting:
    """A bias that is scaled with another role's product: it folds that role's multiplier."""
    forward = Multiplier(output=product.folded)
    return Setting(setting.role, fold(replace(setting.row, forward=forward, block=product.row.block)), product.layers)


def behind(setting: Setting, factor: float) -> Setting:
    """The same role where the model's forward already multiplies its product with a factor: it is taken out."""
    forward = Multiplier(output=1 / factor)
    return Setting(setting.role, fold(replace(setting.row, forward=forward)), setting.layers)


def layer_pattern(layers: tuple[int, ...] | None) -> str:
    """A regular expression for the layer number."""
    return r"\d+" if layers is None else f"(?:{'|'.join(map(str, layers))})"


# -- what the routing of a block needs -----------------------------------------------------------------------------


def route_scale(plan: Plan, kind: FeedForward, tool: str) -> float:
    """r of a kind of block; a tool has equal groups of equal experts, and other blocks are an error."""
    if len(set(kind.groups)) > 1:
        raise TransferError(
            f"{tool} cannot express the layout {kind.with_widths!r}: its experts have one width and its groups one "
            "size; use equal groups, such as '128e8a4g1s', or apply the plan to a PyTorch model of your own"
        )
    return plan.unfold().row(Role.EXPERT_DOWN, plan.shape.label(kind)).route_scale


def check_attention_scale(plan: Plan, tool: str) -> None:
    """Refuse heads that grow with the width: these tools divide attention logits by sqrt(head_dim)."""
    scale, head_dim = plan.attention_scale, plan.shape.head_dim
    if scale is None or head_dim is None or abs(scale * head_dim**0.5 - 1) < 1e-9:
        return
    raise TransferError(
        f"{tool} divides attention logits by sqrt(head_dim), but heads of {head_dim} against the reference's "
        f"{plan.reference.shape.head_dim} need the factor {scale:.6g}: keep the head size fixed and add heads"
    )


def header(plan: Plan, tool: str, form: str, checked: str, use: str) -> list[str]:
    """The lines every export begins with: the plan's headline, the form, what was checked, how to use it."""
    lines = [f"Complete-muE plan for {tool}, made by `mue plan REFERENCE.toml TARGET.toml --export {tool}`."]
    lines.append("")
    for text in (
        *(f"{label}: {text}" for label, text in headline(plan.fold())),
        f"Form: {form}",
        f"Checked against: {checked}",
    ):
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return [*lines, "", *use.splitlines(), "", *textwrap.wrap(CLIPPING, WIDTH)]
