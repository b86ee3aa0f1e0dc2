"""Multiplier form <-> folded form.

AdamW cannot tell (multiplier m, std, lr, wd, eps) from (1, m std, m lr, wd / m, eps / m): both give the same
function at every step. Folding lets an unmodified model train exactly as the multiplier form does.
"""

from __future__ import annotations

from dataclasses import replace

from complete_mue.plan.row import Multiplier, Row


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
