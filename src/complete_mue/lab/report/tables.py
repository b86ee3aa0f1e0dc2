"""The report's tables, once as data, then for the terminal, for Markdown and as CSV; the page draws the same data."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from complete_mue.lab.report.curves import Curve
from complete_mue.lab.report.estimator import Optimum
from complete_mue.lab.report.labels import label, with_unit
from complete_mue.lab.report.summary import Scan, Summary
from complete_mue.tabular import escaped, markdown_table, short_count, terminal_table

if TYPE_CHECKING:
    from rich.table import Table as RichTable


@dataclass(frozen=True)
class Row:
    """Cells, the status that colours them, and a short form of the last cell for narrow places."""

    cells: tuple[str, ...]
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
    scans = tuple(scan_table(summary, scan) for scan in summary.scans)
    return (*scans, runs_table(summary)) if summary.runs else scans


def scan_table(summary: Summary, scan: Scan) -> Table:
    """Optimum, drift, regret and what they mean, per rule set and target."""
    more = {
        "basin": [str(c.optimum.basin).replace(" to ", " – ") if c.optimum else "–" for c in scan.curves],
        "seed spread": [number(c.spread, ".4f") for c in scan.curves],
    }
    return _curves_table(summary, scan, more, frozenset({5, 6}))


def axis_table(summary: Summary, scan: Scan) -> Table:
    """The same with the loss at the transferred value and the load variation, for a page of many sweeps."""
    loads = {(run.rules, run.target): run.load_variation for run in summary.runs}
    more = {
        with_unit("loss at the transferred value", summary.unit): [
            "diverged" if c.transferred_diverged else number(c.transferred_loss, ".4f", c.spread) for c in scan.curves
        ],
        "load variation": [number(loads.get((curve.rules, curve.target)), ".2f") for curve in scan.curves],
    }
    return _curves_table(summary, scan, more)


def _curves_table(
    summary: Summary, scan: Scan, more: dict[str, list[str]], wide: frozenset[int] = frozenset()
) -> Table:
    """A row per curve: optimum, drift, regret, ``more`` columns and the verdict."""
    headings = ("rules", "layout", "optimum", "drift (octaves)", with_unit("regret", summary.unit), *more, "verdict")
    rows = []
    for place, curve in enumerate(scan.curves):
        rules = "" if curve.target == summary.reference else curve.rules
        best = curve.optimum
        optimum = f"{bound(best)}{best.value:.3g}" if best else "–"
        numbers = (optimum, drift(curve), regret(curve), *(column[place] for column in more.values()))
        short = curve.verdict + (f", diverges {best.diverges}" if best and best.diverges else "")
        verdict = f"{short}: {curve.why}" if curve.why else short
        rows.append(Row((rules, curve.target, *numbers, verdict), curve.status, short))
    title = f"{label(scan.hyper).capitalize()}: transferred value {scan.tuned:.3g}"
    return Table(title, headings, frozenset({0, 1, len(headings) - 1}), tuple(rows), wide)


def role_table(summary: Summary) -> Table:
    """Per layout, rule set and role: how far its optimum is from the plan's value, and what that value costs."""
    headings = (
        "rules", "layout", "role", "optimum (octaves)", with_unit("plan's cost", summary.unit), "verdict",
    )  # fmt: skip
    places = {target.name: (target.x or 0.0, i) for i, target in enumerate(summary.targets)}
    curves = [curve for scan in summary.scans for curve in scan.curves]
    rows = tuple(
        Row((c.rules, c.target, c.hyper, drift(c), regret(c), c.verdict), c.status)
        for c in sorted(curves, key=lambda c: (c.rules, places[c.target]))
    )
    return Table("One role at a time, all others at the plan's value", headings, frozenset({0, 1, 2, 5}), rows)


def runs_table(summary: Summary) -> Table:
    """Every target at the transferred values: size, loss, speedup, load balance."""
    headings = (
        "rules", "layout", "active", "total", with_unit("loss", summary.unit), "seeds", "speedup", "load variation",
    )  # fmt: skip
    rows = []
    for run in summary.runs:
        target = summary.target(run.target)
        loss = number(run.loss, ".4f", run.spread)
        if run.diverged:
            loss = "diverged" if run.loss is None else f"{loss}, a seed diverged"
        cells = (
            "" if run.target == summary.reference else run.rules, run.target, short_count(target.active),
            short_count(target.total), loss, str(run.seeds), number(run.speedup_median, ".2f", run.speedup_spread),
            number(run.load_variation, ".2f"),
        )  # fmt: skip
        rows.append(Row(cells, "missed" if run.diverged else ""))
    return Table("At the transferred values", headings, frozenset({0, 1}), tuple(rows), frozenset({5}))


def number(value: float | None, form: str, error: float | None = None) -> str:
    """A number, with its error where that is known; a dash where the records do not say."""
    if value is None:
        return "–"
    return format(value, form) + ("" if error is None else f" ± {format(error, form.lstrip('+'))}")


def bound(optimum: Optimum | None) -> str:
    """The sign before what an open edge makes a bound."""
    return {"low": "≤ ", "high": "≥ "}.get(optimum.open or "", "") if optimum else ""


def drift(curve: Curve) -> str:
    """Drift with its error."""
    return ("" if curve.drift is None else bound(curve.optimum)) + number(curve.drift, "+.2f", curve.drift_error)


def regret(curve: Curve) -> str:
    """Regret with its error; beside an open edge it is at least that."""
    least = "≥ " if bound(curve.optimum) and curve.regret is not None else ""
    return least + number(curve.regret, ".4f", curve.regret_error)


# -- for the terminal, for Markdown, as CSV ----------------------------------------------------------------


def rich_table(table: Table) -> RichTable:
    """For the terminal, the layouts under their rule set."""
    from rich.text import Text

    colours = {"held": "green", "flat": "green", "missed": "red"}
    colours |= dict.fromkeys(("open", "unclear", "unfinished"), "yellow")
    shown = [i for i in range(1, len(table.headings)) if i not in table.wide]
    headings = ["\n".join(heading.rsplit(" ", 1)) for heading in table.headings]
    left = [headings[i] for i in table.left]
    drawn = terminal_table((headings[i] for i in shown), left, table.title, padding=(0, 1, 0, 0))
    for column in drawn.columns:
        column.no_wrap, column.overflow = column.justify == "right", "fold"  # numbers stay whole, names are not cut
    previous = ""
    for row in table.rows:
        rules = row.cells[0]
        if rules != previous:
            drawn.add_section()
            drawn.add_row(Text(rules, style="bold"))
        previous = rules
        first, *texts = (row.cells[i] for i in shown)
        texts[-1] = texts[-1] if row.short is None else row.short
        drawn.add_row(
            f"  {first}" if rules else first, *map(Text, texts[:-1]), Text(texts[-1], colours.get(row.status, ""))
        )
    return drawn


def markdown(table: Table) -> str:
    """A Markdown table under its title."""
    words = [table.headings[i] for i in table.left]
    rows = (row.cells for row in table.rows)
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
