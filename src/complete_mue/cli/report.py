"""`mue report`."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from complete_mue.cli.app import app
from complete_mue.errors import FileError

if TYPE_CHECKING:
    from rich.console import Console

    from complete_mue.report.summary import Summary


@app.command("report")
def report_command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders that `mue sweep` wrote, or one that holds several.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the report. Default: DIR itself, if one is given.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report's JSON instead of tables.")] = False,
    open_: Annotated[bool, typer.Option("--open", help="Open report.html in the browser.")] = False,
) -> None:
    """Show whether the transfer held: optimum, drift and regret of every layout, in words, tables and pictures.

    Reads finished and unfinished sweeps alike and says what is missing. Writes report.html (one page, works offline),
    report.json, report.csv, report.md, and PNGs where matplotlib is installed.

    Example:  mue report runs/activated
    """
    from rich.console import Console

    from complete_mue.report.files import write_report
    from complete_mue.report.html import report_dict
    from complete_mue.report.plots import can_plot
    from complete_mue.report.records import find_sweeps
    from complete_mue.report.summary import summarize

    console, notes = Console(highlight=False, markup=False), Console(stderr=True, highlight=False, markup=False)
    if out is None and len(folders) > 1:
        raise FileError(f"{len(folders)} folders: say where the report goes with --out")
    found = dict.fromkeys(sweep for folder in folders for sweep in find_sweeps(folder))
    with notes.status("reading records") as status:
        summaries = []
        for sweep in found:
            status.update(f"reading {sweep}")
            summaries.append(summarize(sweep))
    folder = out or folders[0]
    with notes.status("writing") as status:
        written = write_report(summaries, folder, lambda path: status.update(f"wrote {path.name}"))
    notes.print(f"wrote {written[1]} and {len(written) - 1} files beside it")
    if not can_plot():
        notes.print("no PNGs: they need matplotlib (pip install 'complete-mue[plots]')")
    if json:
        print(jsonlib.dumps(report_dict(summaries), indent=1))
    else:
        for summary in summaries:
            console.print(f"\n{summary.title}", style="bold")
            show(summary, console)
    if open_:
        import webbrowser

        if not webbrowser.open((folder / "report.html").resolve().as_uri()):
            raise FileError(f"no browser could be opened here; open {folder / 'report.html'} yourself")


def show(summary: Summary, console: Console) -> None:
    """A sweep's verdict in words, then its tables."""
    from complete_mue.report.tables import rich_table, tables

    for line in summary.verdict:
        console.print(line.text, style={"good": "green", "bad": "red", "open": "yellow"}.get(line.kind, ""))
    for table in tables(summary):
        console.print(rich_table(table))
