"""The report's tables, once as data, then for the terminal, for Markdown and as CSV; the page draws the same data.

Every number in a cell carries the path of its value in the report's JSON, so the two can be compared.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from complete_mue.lab.report.curves import Curve
from complete_mue.lab.report.labels import label, short_count, with_unit
from complete_mue.lab.report.summary import Scan, Summary, TransferredRun
from complete_mue.tabular import escaped, markdown_table, terminal_table

if TYPE_CHECKING:
    from rich.table import Table as RichTable


@dataclass(frozen=True)
class Piece:
    """Text of a cell, or a number of it with its value and its path in the sweep's JSON."""

    text: str
    value: float | None = None
    path: str = ""


Cell = tuple[Piece, ...]


@dataclass(frozen=True)
class Row:
    """Cells, the status that colours them, and a short form of the last cell for narrow places."""

    cells: tuple[Cell, ...]
    status: str = ""
    short: str | None = None


@dataclass(frozen=True)
class Table:
    """A titled table; ``left`` columns hold words, the others numbers; ``wide`` ones are left out on a terminal."""

    title: str
    headings: tuple[str, ...]
    left: frozenset[int]
    rows: tuple[Row, ...]
    wide: frozenset[int] = frozenset()


def tables(summary: Summary) -> tuple[Table, ...]:
    """One table per scanned hyperparameter, then the runs at the transferred values, if there are any; of a role probe,
    one table with a row per role."""
    if summary.probe:
        return (role_table(summary),)
    scans = tuple(scan_table(summary, scan, f"scans.{i}") for i, scan in enumerate(summary.scans))
    return (*scans, runs_table(summary)) if summary.runs else scans


def scan_table(summary: Summary, scan: Scan, path: str) -> Table:
    """Optimum, drift, regret and what they mean, per rule set and target."""
    headings = (
        "rules", "layout", "optimum", "drift (octaves)", with_unit("regret", summary.unit), "basin", "seed spread",
        "verdict",
    )  # fmt: skip
    rows = tuple(
        Row(
            _scan_cells(curve, f"{path}.curves.{j}", curve.target == summary.reference),
            curve.status,
            f"{curve.verdict}{_wall(curve)}",
        )
        for j, curve in enumerate(scan.curves)
    )
    title = f"{label(scan.hyper).capitalize()}: transferred value {scan.tuned:.3g}"
    return Table(title, headings, frozenset({0, 1, len(headings) - 1}), rows, frozenset({5, 6}))


def role_table(summary: Summary) -> Table:
    """Per layout, rule set and role: how far its optimum is from the plan's value, and what that value costs."""
    headings = (
        "rules", "layout", "role", "optimum (octaves)", with_unit("plan's cost", summary.unit), "verdict",
    )  # fmt: skip
    places = {target.name: (target.x or 0.0, i) for i, target in enumerate(summary.targets)}
    found = [
        (curve, f"scans.{i}.curves.{j}") for i, scan in enumerate(summary.scans) for j, curve in enumerate(scan.curves)
    ]
    rows = tuple(
        Row(
            (
                (Piece(curve.rules),),
                (Piece(curve.target),),
                (Piece(curve.hyper),),
                drift_cell(curve, path),
                regret_cell(curve, path),
                (Piece(curve.verdict),),
            ),
            curve.status,
        )
        for curve, path in sorted(found, key=lambda pair: (pair[0].rules, places[pair[0].target]))
    )
    return Table("One role at a time, all others at the plan's value", headings, frozenset({0, 1, 2, 5}), rows)


def _wall(curve: Curve) -> str:
    return f", diverges {curve.optimum.diverges}" if curve.optimum and curve.optimum.diverges else ""


def _scan_cells(curve: Curve, path: str, reference: bool) -> tuple[Cell, ...]:
    best = curve.optimum
    basin: Cell = (Piece("–"),)
    if best:
        basin = (
            Piece("… " if best.basin.low_open else ""),
            _number(best.basin.low, ".3g", f"{path}.optimum.basin.low"),
            Piece(" – "),
            _number(best.basin.high, ".3g", f"{path}.optimum.basin.high"),
            Piece(" …" if best.basin.high_open else ""),
        )
    return (
        (Piece("" if reference else curve.rules),),
        (Piece(curve.target),),
        optimum_cell(curve, path),
        drift_cell(curve, path),
        regret_cell(curve, path),
        basin,
        (_number(curve.spread, ".4f", f"{path}.spread"),),
        verdict_cell(curve),
    )


def _bound(curve: Curve) -> str:
    """The sign before what an open edge makes a bound."""
    return {"low": "≤ ", "high": "≥ "}.get(curve.optimum.open or "", "") if curve.optimum else ""


def optimum_cell(curve: Curve, path: str = "") -> Cell:
    """The fitted optimum."""
    if curve.optimum is None:
        return (Piece("–"),)
    return (Piece(_bound(curve)), _number(curve.optimum.value, ".3g", f"{path}.optimum.value"))


def drift_cell(curve: Curve, path: str = "") -> Cell:
    """Drift with its error."""
    drift = _with_error(curve.drift, curve.drift_error, "+.2f", ".2f", f"{path}.drift")
    return drift if curve.drift is None else (Piece(_bound(curve)), *drift)


def regret_cell(curve: Curve, path: str = "") -> Cell:
    """Regret with its error."""
    regret = _with_error(curve.regret, curve.regret_error, ".4f", ".4f", f"{path}.regret")
    return (Piece("≥ "), *regret) if _bound(curve) and curve.regret is not None else regret


def loss_cell(curve: Curve, path: str = "") -> Cell:
    """Loss at the transferred value, with its standard deviation over seeds."""
    if curve.transferred_diverged:
        return (Piece("diverged"),)
    where = f"{path}.transferred_loss"
    return _with_error(curve.transferred_loss, curve.spread, ".4f", ".4f", where, f"{path}.spread")


def verdict_cell(curve: Curve) -> Cell:
    """Whether the transfer held, and why not."""
    why = f": {curve.why}" if curve.why else ""
    return (Piece(f"{curve.verdict}{_wall(curve)}{why}"),)


def runs_table(summary: Summary) -> Table:
    """Every target at the transferred values: size, loss, speedup, load balance."""
    headings = (
        "rules", "layout", "active", "total", with_unit("loss", summary.unit), "seeds", "speedup", "load variation",
    )  # fmt: skip
    rows = []
    for i, run in enumerate(summary.runs):
        path = f"runs.{i}"
        place = next(j for j, target in enumerate(summary.targets) if target.name == run.target)
        target = summary.targets[place]
        loss = _with_error(run.loss, run.spread, ".4f", ".4f", f"{path}.loss", f"{path}.spread")
        if run.diverged:
            loss = (Piece("diverged"),) if run.loss is None else (*loss, Piece(", a seed diverged"))
        cells: tuple[Cell, ...] = (
            (Piece("" if run.target == summary.reference else run.rules),),
            (Piece(run.target),),
            (Piece(short_count(target.active), target.active, f"targets.{place}.active"),),
            (Piece(short_count(target.total), target.total, f"targets.{place}.total"),),
            loss,
            (Piece(str(run.seeds), run.seeds, f"{path}.seeds"),),
            _with_error(
                run.speedup_median, run.speedup_spread, ".2f", ".2f", f"{path}.speedup_median", f"{path}.speedup_spread"
            ),
            (_number(run.load_variation, ".2f", f"{path}.load_variation"),),
        )
        rows.append(Row(cells, "missed" if run.diverged else ""))
    return Table("At the transferred values", headings, frozenset({0, 1}), tuple(rows))


def _number(value: float | None, form: str, path: str) -> Piece:
    return Piece("–") if value is None else Piece(format(value, form), value, path)


def _with_error(
    value: float | None, error: float | None, form: str, error_form: str, path: str, error_path: str = ""
) -> Cell:
    if value is None or error is None:
        return (_number(value, form, path),)
    return (
        _number(value, form, path),
        Piece(" ± "),
        _number(error, error_form, error_path or f"{path}_error"),
    )


def plain(cell: Cell) -> str:
    """A cell as text."""
    return "".join(piece.text for piece in cell).strip()


# -- for the terminal, for Markdown, as CSV ----------------------------------------------------------------


def rich_table(table: Table) -> RichTable:
    """For the terminal."""
    from rich import box
    from rich.text import Text

    colours = {
        "held": "green",
        "flat": "green",
        "missed": "red",
        "open": "yellow",
        "unclear": "yellow",
        "unfinished": "yellow",
    }
    shown = [i for i in range(len(table.headings)) if i not in table.wide]
    headings = [heading.replace(" (", "\n(") for heading in table.headings]
    style = {"box": box.SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)}
    drawn = terminal_table((headings[i] for i in shown), [headings[i] for i in table.left], table.title, **style)
    drawn.columns[0].no_wrap = True
    previous = None
    for row in table.rows:
        rules = plain(row.cells[0])
        if previous is not None and rules != previous:
            drawn.add_section()
        texts = [plain(row.cells[i]) for i in shown]
        texts[0] = "" if rules == previous else rules
        texts[-1] = texts[-1] if row.short is None else row.short
        previous = rules
        drawn.add_row(*map(Text, texts[:-1]), Text(texts[-1], style=colours.get(row.status, "")))
    return drawn


def markdown(table: Table) -> str:
    """A Markdown table under its title."""
    rows = ([plain(cell) for cell in row.cells] for row in table.rows)
    words = [table.headings[i] for i in table.left]
    return f"**{escaped(table.title)}**\n\n{markdown_table(table.headings, words, rows)}"


_COLUMNS: dict[str, Callable[[Curve], object]] = {
    "hyper": lambda c: c.hyper,
    "rules": lambda c: c.rules,
    "layout": lambda c: c.target,
    "transferred": lambda c: c.transferred,
    "optimum": lambda c: c.optimum.value if c.optimum else None,
    "optimum_loss": lambda c: c.optimum.loss if c.optimum else None,
    "open": lambda c: c.optimum.open if c.optimum else None,
    "drift": lambda c: c.drift,
    "drift_error": lambda c: c.drift_error,
    "regret": lambda c: c.regret,
    "regret_error": lambda c: c.regret_error,
    "transferred_loss": lambda c: c.transferred_loss,
    "spread": lambda c: c.spread,
    "status": lambda c: c.status,
}
_RUN_COLUMNS: dict[str, Callable[[TransferredRun], object]] = {
    "rules": lambda r: r.rules,
    "layout": lambda r: r.target,
    "transferred_loss": lambda r: r.loss,
    "spread": lambda r: r.spread,
    "speedup": lambda r: r.speedup_median,
    "speedup_spread": lambda r: r.speedup_spread,
    "load_variation": lambda r: r.load_variation,
    "status": lambda r: "diverged" if r.diverged else "",
}


def csv_text(summaries: tuple[Summary, ...]) -> str:
    """One line per curve, and one per target at the transferred values (``hyper`` empty), numbers in full."""
    names = ["sweep", *dict.fromkeys((*_COLUMNS, *_RUN_COLUMNS))]
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for summary in summaries:
        writer.writerows({"sweep": summary.name, **row} for row in _records(summary))
    return out.getvalue()


def _records(summary: Summary) -> Iterator[dict[str, object]]:
    for scan in summary.scans:
        for curve in scan.curves:
            yield {name: read(curve) for name, read in _COLUMNS.items()}
    for run in summary.runs:
        yield {name: read_run(run) for name, read_run in _RUN_COLUMNS.items()}
