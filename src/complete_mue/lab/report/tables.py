"""The report's tables, once as data, then for the terminal, for Markdown and as CSV; the page draws the same data.

Every number in a cell carries the path of its value in the report's JSON, so the two can be compared.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from complete_mue.lab.report.curves import Curve
from complete_mue.lab.report.labels import label, short_count, with_unit
from complete_mue.lab.report.summary import Scan, Summary
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

    def cells(curve: Curve, place: str) -> tuple[Cell, ...]:
        return _basin_cell(curve, place), (_number(curve.spread, ".4f", f"{place}.spread"),)

    return _curves_table(summary, scan, path, ("basin", "seed spread"), cells, frozenset({5, 6}))


def axis_table(summary: Summary, scan: Scan, path: str) -> Table:
    """The same with the loss at the transferred value and the load variation, for a page of many sweeps."""
    loads = {(run.rules, run.target): run.load_variation for run in summary.runs}

    def cells(curve: Curve, place: str) -> tuple[Cell, ...]:
        load = loads.get((curve.rules, curve.target))
        return loss_cell(curve, place), (Piece("–" if load is None else f"{load:.2f}"),)

    more = (with_unit("loss at the transferred value", summary.unit), "load variation")
    return _curves_table(summary, scan, path, more, cells)


def _curves_table(
    summary: Summary,
    scan: Scan,
    path: str,
    more: tuple[str, ...],
    cells: Callable[[Curve, str], tuple[Cell, ...]],
    wide: frozenset[int] = frozenset(),
) -> Table:
    """A row per curve: optimum, drift, regret, ``more`` and the verdict."""
    headings = ("rules", "layout", "optimum", "drift (octaves)", with_unit("regret", summary.unit), *more, "verdict")
    rows = []
    for number, curve in enumerate(scan.curves):
        place = f"{path}.curves.{number}"
        rules = "" if curve.target == summary.reference else curve.rules
        numbers = optimum_cell(curve, place), drift_cell(curve, place), regret_cell(curve, place), *cells(curve, place)
        row = ((Piece(rules),), (Piece(curve.target),), *numbers, verdict_cell(curve))
        rows.append(Row(row, curve.status, f"{curve.verdict}{_wall(curve)}"))
    title = f"{label(scan.hyper).capitalize()}: transferred value {scan.tuned:.3g}"
    return Table(title, headings, frozenset({0, 1, len(headings) - 1}), tuple(rows), wide)


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


def _basin_cell(curve: Curve, path: str) -> Cell:
    if curve.optimum is None:
        return (Piece("–"),)
    basin, path = curve.optimum.basin, f"{path}.optimum.basin"
    low, high = _number(basin.low, ".3g", f"{path}.low"), _number(basin.high, ".3g", f"{path}.high")
    return Piece("… " * basin.low_open), low, Piece(" – "), high, Piece(" …" * basin.high_open)


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
    return Table("At the transferred values", headings, frozenset({0, 1}), tuple(rows), frozenset({5}))


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
    """For the terminal, the layouts under their rule set."""
    from rich import box
    from rich.text import Text

    colours = {"held": "green", "flat": "green", "missed": "red"}
    colours |= dict.fromkeys(("open", "unclear", "unfinished"), "yellow")
    shown = [i for i in range(1, len(table.headings)) if i not in table.wide]
    headings = ["\n".join(heading.rsplit(" ", 1)) for heading in table.headings]
    style = {"box": box.SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)}
    drawn = terminal_table((headings[i] for i in shown), [headings[i] for i in table.left], table.title, **style)
    for column in drawn.columns:
        column.no_wrap, column.overflow = column.justify == "right", "fold"  # numbers stay whole, names are not cut
    previous = ""
    for row in table.rows:
        rules = plain(row.cells[0])
        if rules != previous:
            drawn.add_section()
            drawn.add_row(Text(rules, style="bold"))
        previous = rules
        first, *texts = (plain(row.cells[i]) for i in shown)
        texts[-1] = texts[-1] if row.short is None else row.short
        drawn.add_row(
            f"  {first}" if rules else first, *map(Text, texts[:-1]), Text(texts[-1], colours.get(row.status, ""))
        )
    return drawn


def markdown(table: Table) -> str:
    """A Markdown table under its title."""
    rows = ([plain(cell) for cell in row.cells] for row in table.rows)
    words = [table.headings[i] for i in table.left]
    return f"**{escaped(table.title)}**\n\n{markdown_table(table.headings, words, rows)}"


_COLUMNS = (
    "sweep", "hyper", "rules", "layout", "transferred", "optimum", "optimum_loss", "open", "drift", "drift_error",
    "regret", "regret_error", "transferred_loss", "spread", "status", "speedup", "speedup_spread", "load_variation",
)  # fmt: skip


def csv_text(summaries: tuple[Summary, ...]) -> str:
    """One line per curve, and one per target at the transferred values (``hyper`` empty), numbers in full."""
    out = io.StringIO()
    writer = csv.DictWriter(out, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for summary in summaries:
        for record in (curve for scan in summary.scans for curve in scan.curves):
            best = record.optimum
            found = {"optimum": best.value, "optimum_loss": best.loss, "open": best.open} if best else {"optimum": None}
            writer.writerow({**vars(record), "sweep": summary.name, "layout": record.target, **found})
        for run in summary.runs:
            named = {"transferred_loss": run.loss, "speedup": run.speedup_median}
            status = "diverged" if run.diverged else ""
            writer.writerow({**vars(run), "sweep": summary.name, "layout": run.target, **named, "status": status})
    return out.getvalue()
