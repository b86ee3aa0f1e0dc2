"""`mue report`."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from complete_mue.cli.app import app, console
from complete_mue.errors import FileError

if TYPE_CHECKING:
    from rich.console import Console

    from complete_mue.lab.report.summary import Summary


@app.command("report")
def report_command(
    places: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Sweep folders, packed sweeps, or a folder that holds several."),
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for the report. Default: DIR, if there is only one.")] = None,
    pack: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write every sweep as one file, FOLDER/TASK-NAME.jsonl, to keep. `mue report` reads it like the "
            "sweep's folder. Parts of one sweep are joined.",
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.md",
            help="Write all sweeps on one Markdown page, with pictures next to it. In an existing page, only the part "
            "between <!-- generated: NAME --> and <!-- end --> is replaced.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report's JSON instead of tables.")] = False,
    open_: Annotated[bool, typer.Option("--open", help="Open report.html in the browser.")] = False,
) -> None:
    """Show whether the transfer held, in words and pictures.

    Gives every layout's optimum, its drift (how far it moved) and its regret (what the transferred value costs), and
    says what is missing from an unfinished sweep. Writes report.html (one page, works offline), report.json,
    report.csv, report.md, and the pictures as SVG. With --pack or --page it writes those instead; add --out to get
    both.

    Example:  mue report runs/activated
    """
    from complete_mue.lab.records import find_sweeps, read_sweep
    from complete_mue.lab.report.html_page import report_dict
    from complete_mue.lab.report.summary import summarize

    terminal, notes = console(), console(stderr=True)
    instead = pack is not None or page is not None
    if page is not None and page.suffix != ".md":
        raise FileError(f"--page {page}: give a name that ends in .md")
    if out is None and open_ and instead:
        raise FileError("--open shows report.html: say where to write it with --out")
    if out is None and not instead and (len(places) > 1 or places[0].is_file()):
        for place in places:
            if place.is_file():
                read_sweep(place)  # says what it is, if it is no packed sweep
        what = f"{len(places)} folders" if len(places) > 1 else f"{places[0]} is a packed sweep"
        raise FileError(f"{what}: say where to write the report with --out")
    found = list(dict.fromkeys(sweep for place in places for sweep in find_sweeps(place)))
    if pack is not None:
        from complete_mue.lab.records.pack import pack_sweeps

        with notes.status("packing"):
            found = pack_sweeps(found, pack)
        for path in found:
            notes.print(f"packed {path} ({path.stat().st_size / 1000:,.0f} kB)")
    with notes.status("reading records") as status:
        summaries = []
        for sweep in found:
            status.update(f"reading {sweep}")
            summaries.append(summarize(sweep))
    if page is not None:
        from complete_mue.lab.report.markdown_page import write_article

        with notes.status("drawing"):
            written = write_article(list(zip(summaries, found, strict=True)), page)
        drawn = len(written) - 1
        notes.print(f"wrote {page} and {drawn} picture{'' if drawn == 1 else 's'} next to it")
    folder = out or (None if instead else places[0])
    if folder is not None:
        from complete_mue.lab.report.write import write_report

        with notes.status("writing"):
            written = write_report(summaries, folder)
        notes.print(f"wrote {written[1]} and {len(written) - 1} files next to it")
    if json:
        print(jsonlib.dumps(report_dict(summaries), indent=1))
    else:
        for summary in summaries:
            terminal.print(f"\n{summary.title}", style="bold")
            show(summary, terminal)
    if open_ and folder is not None:
        import webbrowser

        if not webbrowser.open((folder / "report.html").resolve().as_uri()):
            raise FileError(f"no browser could be opened here; open {folder / 'report.html'} yourself")


def show(summary: Summary, terminal: Console) -> None:
    """A sweep's verdict in words, then its tables."""
    from complete_mue.lab.report.tables import rich_table, tables

    for line in summary.verdict:
        terminal.print(line.text, style={"good": "green", "bad": "red", "open": "yellow"}.get(line.kind, ""))
    for table in tables(summary):
        terminal.print(rich_table(table))
