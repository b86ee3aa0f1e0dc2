"""Why a row has the numbers it has: formula, numbers, result, reason, column by column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from complete_mue.layout.reference import Base
from complete_mue.layout.tensors import VECTOR_ROLES
from complete_mue.plan.row import Multiplier, Row
from complete_mue.rules.layer_table import COLUMNS, Reason, reason_for
from complete_mue.rules.ratios import symbols

if TYPE_CHECKING:
    from complete_mue.plan.plan import Plan

_TITLES = {
    "output": "output multiplier A",
    "route_scale": "route scale r",
    "residual": "residual multiplier",
    "init_std": "init std",
    "lr": "learning rate",
    "weight_decay": "weight decay",
    "eps": "AdamW eps",
}

_AS_TRIED = Reason("wd moves with the number of steps although lr does not: so it was tried", "docs/results/steps.md")


def explain(plan: Plan, row: Row) -> str:
    """The derivation of one row."""
    kind = next((kind for kind in plan.shape.kinds if plan.shape.label(kind) == row.block), plan.shape.main)
    values = symbols(plan.reference, plan.shape, plan.ratios, kind, row.role)
    values["F"] = plan.rules.forward_factor
    rule, base = plan.rules.table[row.role], plan.reference.base(row.role)
    lines = [f"{row.role.value}" + (f" in {row.block}" if row.block else "") + f" (rules: {plan.rules.name})"]
    if row.block:
        lines.append(
            f"  active width H = {kind.active_width}, d = {plan.shape.width}: ρ_H = {values['H']:.6g}"
            + (f"; activated experts a = {kind.active}" if kind.groups else "")
        )
    for column in COLUMNS:
        start = getattr(base, column)
        if start is None or (column == "weight_decay" and row.role in VECTOR_ROLES and start == 0):
            continue
        cell = getattr(rule, column)
        if column in ("output", "route_scale", "residual") and not cell.powers and start == 1:
            continue
        result = start * getattr(row.factors, column)
        lines.append(
            f"  {_TITLES[column]} = {start:.6g}"
            + (f" × {cell} = {start:.6g} × {cell.numbers(values)}" if cell.powers else "")
            + f" = {result:.6g}"
        )
        for symbol, power in cell.powers:
            reason = reason_for(column, symbol, power)
            if (column, symbol, plan.rules.duration) == ("weight_decay", "s", "fixed"):
                reason = _AS_TRIED
            lines.append(f"      {reason.words} [{reason.equation}]")
    if row.role in VECTOR_ROLES:
        lines.append("  not decayed and not drawn at random: gains start at 1, biases at 0")
    if row.folded != Multiplier():
        lines.append(_folded(row, base))
    return "\n".join(lines)


def _folded(row: Row, base: Base) -> str:
    m = row.folded.total
    std = "" if base.init_std is None or row.init_std is None else f"std × m = {row.init_std:.6g}, "
    return (
        f"  folded: the forward multiplier m = {m:.6g} moves into the parameter group: {std}lr × m = {row.lr:.6g}, "
        f"wd / m = {row.weight_decay:.6g}, eps / m = {row.eps:.6g}\n"
        "      AdamW cannot tell the two forms apart [scale symmetry of AdamW]"
    )
