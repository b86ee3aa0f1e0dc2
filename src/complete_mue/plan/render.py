"""A plan as a terminal table, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from complete_mue.plan.row import Row
from complete_mue.plan.table import PlanTable
from complete_mue.tabular import terminal_table

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 100
_HEADINGS = ("role", "multiplier", "init std", "lr", "weight decay", "eps", "multiplier is")


def headline(plan: PlanTable) -> list[str]:
    """Shape, ratios, global settings and the SDE verdict, a line each, at most ``WIDTH`` columns wide."""
    r, h, main = plan.ratios, plan.hyper, plan.shape.main
    form = "folded" if plan != plan.unfold() else "multiplier"
    parameters = plan.shape.parameters
    return [
        f"{plan.reference.shape.main} (d={plan.reference.shape.width}, L={plan.reference.shape.depth}) → "
        f"{main} (d={plan.shape.width}, L={plan.shape.depth}), {form} form, "
        f"rules {plan.rules.name}",
        f"active width H={main.active_width}  density {main.density:.4g}  route scale {plan.block_route_scale:.6g}  "
        f"parameters {_short(parameters.active)} active, {_short(parameters.total)} total",
        f"ratios  ρ_d={r.width:.4g}  ρ_L={r.depth:.4g}  ρ_H={r.active_width:.4g}  ρ_B={r.batch:.4g}  "
        f"ρ_D={r.tokens:.4g}  s={r.schedule:.4g}",
        f"global  lr {h.lr:.6g}  weight decay {h.weight_decay:.6g}  eps {h.eps:.3g}  "
        f"betas ({h.betas[0]:.6g}, {h.betas[1]:.6g})",
        f"SDE  {plan.sde}",
        *(f"note  {text}" for text in plan.shape.notes),
    ]


def _short(count: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)


def _name(plan: PlanTable, row: Row) -> str:
    several = sum(other.role is row.role for other in plan.rows) > 1
    return f"{row.role.value} ({row.block})" if several else row.role.value


def _parts(row: Row) -> str:
    names = (("A", row.output), ("r", row.route_scale), ("1/ρ_L", row.residual))
    return " × ".join(f"{name} {value:.4g}" for name, value in names if value != 1) or "–"


def _cells(plan: PlanTable, row: Row) -> tuple[str, ...]:
    std = "–" if row.init_std is None else f"{row.init_std:.6g}"
    numbers = f"{row.lr:.6g}", f"{row.weight_decay:.6g}", f"{row.eps:.4g}"
    return (_name(plan, row), f"{row.multiplier:.6g}", std, *numbers, _parts(row))


def to_rich(plan: PlanTable) -> Iterator[str | Table]:
    """Headlines and a table, for a terminal of 100 columns."""
    yield "\n".join(headline(plan))
    table = terminal_table(_HEADINGS, ("role", "multiplier is"))
    for column in table.columns:
        column.no_wrap, column.overflow = column.justify == "right", "fold"
    for row in plan.rows:
        table.add_row(*_cells(plan, row))
    yield table


def to_text(plan: PlanTable) -> str:
    """The terminal table as plain text."""
    from rich.console import Console

    console = Console(width=WIDTH, file=io.StringIO(), highlight=False, markup=False)
    console.print(plan)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(text.rstrip() for text in console.file.getvalue().splitlines()).rstrip()


def to_markdown(plan: PlanTable) -> str:
    """Headlines as a list, then the table with a reason per row."""
    cells = [(*_cells(plan, row)[:6], row.because) for row in plan.rows]
    headings = (*_HEADINGS[:6], "because")
    lines = [f"- {text}" for text in headline(plan)]
    lines += ["", "| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join(lines + ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in cells])


def to_csv(plan: PlanTable) -> str:
    """One line per row, numbers in full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = (
        "role",
        "block",
        "multiplier",
        "output",
        "route_scale",
        "residual",
        "init_std",
        "lr",
        "weight_decay",
        "eps",
        "because",
    )
    writer.writerow(columns)
    for row in plan.rows:
        values = [getattr(row, column) for column in columns]
        writer.writerow(
            ["" if value is None else repr(value) if isinstance(value, float) else str(value) for value in values]
        )
    return out.getvalue()
