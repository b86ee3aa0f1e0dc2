"""Multiplier form <-> folded form.

AdamW cannot tell (multiplier m, std, lr, wd, eps) from (1, m std, m lr, wd / m, eps / m): both give the same
function at every step. Folding lets an unmodified model train exactly as the multiplier form does.
"""

from __future__ import annotations

from dataclasses import replace

from complete_mue.plan.row import Multiplier, Row
from complete_mue.rules.layer_table import COLUMNS, LayerRule, reason_for

_WORDS = {
    "output": "A ×", "route_scale": "route scale ×", "residual": "residual ×",
    "init_std": "std ×", "lr": "lr ×", "weight_decay": "wd ×", "eps": "eps ×",
}  # fmt: skip


def fold(row: Row) -> Row:
    """Move the forward multipliers into init std, lr, weight decay and eps."""
    return _moved(row, row.forward.total, forward=Multiplier(), folded=_product(row.folded, row.forward))


def unfold(row: Row) -> Row:
    """Take folded multipliers out again and leave them to the forward pass."""
    return _moved(row, 1 / row.folded.total, forward=_product(row.forward, row.folded), folded=Multiplier())


def _moved(row: Row, m: float, *, forward: Multiplier, folded: Multiplier) -> Row:
    return replace(
        row,
        forward=forward,
        folded=folded,
        init_std=None if row.init_std is None else row.init_std * m,
        lr=row.lr * m,
        weight_decay=row.weight_decay / m,
        eps=row.eps / m,
    )


def _product(one: Multiplier, other: Multiplier) -> Multiplier:
    return Multiplier(one.output * other.output, one.route_scale * other.route_scale, one.residual * other.residual)


def because(rule: LayerRule, *, folded: bool = False) -> str:
    """One line: the factors of a row against the reference in the same form, and the equations they come from."""
    cells = {column: getattr(rule, column) for column in COLUMNS}
    sources = dict.fromkeys(
        reason_for(name, symbol, power).equation for name, cell in cells.items() for symbol, power in cell.powers
    )
    m = rule.output * rule.route_scale * rule.residual
    if folded and m.powers:
        moved = {"init_std": m, "lr": m, "weight_decay": m.inverse, "eps": m.inverse}
        cells = {name: cells[name] * factor for name, factor in moved.items()}
        sources["scale symmetry of AdamW"] = None
    changed = [f"{_WORDS[name]} {cell}" for name, cell in cells.items() if cell.powers]
    return f"{', '.join(changed)} [{'; '.join(sources)}]" if changed else "unchanged by the rules"
