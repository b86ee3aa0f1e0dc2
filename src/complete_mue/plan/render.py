"""A plan as a terminal table, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from complete_mue.layout.tensors import Role
from complete_mue.plan.row import ROW_COLUMNS, Row
from complete_mue.rules.catalog import READINGS
from complete_mue.tabular import markdown_table, short_count, terminal_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from complete_mue.plan.plan import Plan

WIDTH = 80
_HEADINGS = ("role", "multiplier", "init std", "lr", "weight decay", "eps")
_TIED = re.compile(r" (?=[×\d(])|(?<=×) ")
# Roles that many models do not have, and whose settings are another's: not a row each, unless they differ.
_AS = {Role.BIAS: Role.NORM, Role.MODULATION: Role.ATTENTION_IN}


def headline(plan: Plan) -> list[tuple[str, str]]:
    """Label and text: shapes, ratios, global settings, the SDE verdict, and how far to trust them."""
    r, h, main, ours, theirs = plan.ratios, plan.hyper, plan.shape.main, plan.shape, plan.reference.shape
    outside = ", ".join(plan.trust.outside)
    routed = f"density {main.density:.4g}, route scale {plan.block_route_scale:.4g}, " if main.groups else ""
    form = "folded" if plan != plan.unfold() else "multiplier"
    others = sum(bool(kind.groups) for kind in ours.kinds) - 1
    layout = f"{main} and {others} other{'s' * (others > 1)}" if others > 0 else str(main)
    return [
        ("plan", f"{theirs.main} (d={theirs.width}, L={theirs.depth}) → {layout} (d={ours.width}, L={ours.depth})"),
        ("rules", f"{_rules(plan)}, {form} form"),
        (
            "target",
            f"active width {main.active_width}, {routed}active {short_count(ours.parameters.active)} of "
            f"{short_count(ours.parameters.total)} weights",
        ),
        (
            "ratios",
            f"ρ_d={r.width:.4g}  ρ_L={r.depth:.4g}  ρ_H={r.active_width:.4g}  ρ_B={r.batch:.4g}  ρ_D={r.tokens:.4g}  "
            + (f"ρ_S={r.sparsity:.4g}  " if plan.rules.scales_sparsity else "")
            + f"s={r.schedule:.4g}",
        ),
        (
            "global",
            f"lr {h.lr:.4g}, weight decay {h.weight_decay:.4g}, eps {h.eps:.4g}, "
            f"betas {beta(h.betas[0])} {beta(h.betas[1])}",
        ),
        *([("heads", heads)] if (heads := attention(plan)) else []),
        ("SDE", str(plan.sde)),
        ("trust", plan.trust.line),
        *([("WARNING", f"outside what was measured: {outside}; check lr at a size between")] if outside else []),
        *([("WARNING", plan.trust.advice)] if plan.trust.advice else []),
        *(("note", text) for text in plan.shape.notes),
    ]


def attention(plan: Plan) -> str:
    """What attention's logits are multiplied by, where that is not 1/sqrt(head_dim)."""
    scale, size = plan.attention_scale, plan.shape.head_dim
    if scale is None or size is None or math.isclose(scale, size**-0.5):
        return ""
    return (
        f"attention logits × {scale:.4g}, not 1/√head_dim = {size**-0.5:.4g}: "
        f"heads of {size}, the reference's of {plan.reference.shape.head_dim}"
    )


def _rules(plan: Plan) -> str:
    rules = plan.rules
    readings = [f"{name} fixed" for name in READINGS if getattr(rules, name) == "fixed" and name not in rules.idle]
    if rules.forward_factor != 1:
        readings.append(f"forward factor {rules.forward_factor:.4g}")
    return ", ".join([rules.name, *readings])


def beta(value: float) -> str:
    """A beta with as many digits as its distance from 1 needs for four of its own."""
    return f"{value:.{max(4, 3 - math.floor(math.log10(1 - value)))}f}".rstrip("0")


def _name(plan: Plan, row: Row) -> str:
    several = sum(other.role is row.role for other in plan.rows) > 1
    return f"{row.role.value} ({row.block})" if several else row.role.value


def _cells(plan: Plan, row: Row) -> tuple[str, ...]:
    std = "–" if row.init_std is None else f"{row.init_std:.4g}"
    multiplier, *rest = (f"{value:.4g}" for value in (row.multiplier, row.lr, row.weight_decay, row.eps))
    return (_name(plan, row), multiplier, std, *rest)


def _parts(plan: Plan, rows: list[Row]) -> list[str]:
    """What the multipliers are made of, with the roles that have them."""
    found: dict[str, list[str]] = {}
    for row in rows:
        names = (("A", row.output), ("r", row.route_scale), ("1/ρ_L", row.residual))
        parts = " × ".join(f"{name} {value:.4g}" for name, value in names if value != 1)
        found.setdefault(parts, []).append(_name(plan, row))
    return [f"{parts} ({', '.join(roles)})" for parts, roles in found.items() if parts]


def _shown(plan: Plan) -> tuple[list[Row], list[str]]:
    """The rows to print, and notes on those left out: roles that have another's settings where a model has them."""
    numbers = {row.role: row.numbers for row in plan.rows}
    same = [role for role, other in _AS.items() if numbers.get(role) == numbers.get(other)]
    notes = [f"{role.value} as {_AS[role].value}" for role in same]
    return [row for row in plan.rows if row.role not in same], notes


def _table(plan: Plan) -> tuple[list[str], list[list[str]], list[str]]:
    """Headings, cells, and notes: of multipliers, of columns with one value throughout, of rows left out."""
    rows, same = _shown(plan)
    cells = [_cells(plan, row) for row in rows]
    columns = {name: [row[n] for row in cells] for n, name in enumerate(_HEADINGS)}
    values = {name: {*column} - {"–"} for name, column in columns.items()}
    every = [f"{name} {next(iter(values[name]), '–')}" for name in _HEADINGS[1:] if len(values[name]) < 2]
    kept = {name: column for name, column in columns.items() if name == "role" or len(values[name]) > 1}
    notes = {
        "multipliers": _parts(plan, rows) if "multiplier" in kept else [],
        "every role": every,
        "where the model has them": same,
    }
    body = [list(row) for row in zip(*kept.values(), strict=True)]
    return list(kept), body, [f"{label}: {', '.join(texts)}" for label, texts in notes.items() if texts]


def to_rich(plan: Plan, width: int = WIDTH) -> Iterator[RenderableType]:
    """Headlines, a table and its notes, no wider than ``width``."""
    yield "\n".join(_filled(f"{label:8}{text}", width, indent=8) for label, text in headline(plan))
    headings, cells, notes = _table(plan)
    yield _rich_table(headings, cells)
    if notes:
        yield "\n".join(_filled(note, width, indent=2) for note in notes)


def _filled(text: str, width: int, indent: int) -> str:
    """A paragraph that keeps a name and its number on one line."""
    tied = _TIED.sub("\0", text)
    lines = textwrap.fill(tied, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")


def _rich_table(headings: list[str], cells: list[list[str]]) -> Table:
    table = terminal_table(headings, ("role",))
    for column in table.columns:
        column.no_wrap = column.justify == "right"
        column.overflow = "fold"  # the ends of two layouts' names are where they differ
    for row in cells:
        table.add_row(*row)
    return table


def to_text(plan: Plan) -> str:
    """The terminal table as plain text."""
    from rich.console import Console

    out = io.StringIO()
    Console(width=WIDTH, file=out, markup=False, color_system=None, force_jupyter=False).print(plan)
    return "\n".join(text.rstrip() for text in out.getvalue().splitlines()).rstrip()


def to_markdown(plan: Plan) -> str:
    """Headlines as a list, then the table with a reason per row."""
    rows, same = _shown(plan)
    cells = [(*_cells(plan, row), row.because) for row in rows]
    lines = [f"- {label}: {text}" for label, text in headline(plan)]
    lines += [f"- where the model has them: {', '.join(same)}"] if same else []
    table = markdown_table((*_HEADINGS, "because"), ("role", "because"), cells)
    return "\n".join([*lines, "", table.removesuffix("\n")])


def to_csv(plan: Plan) -> str:
    """One line per row, numbers in full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(ROW_COLUMNS)
    writer.writerows([getattr(row, column) for column in ROW_COLUMNS] for row in plan.rows)
    return out.getvalue()
