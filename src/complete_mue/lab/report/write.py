"""A report on disk: report.html, report.json, report.csv, report.md, and the pictures as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from complete_mue.chart_svg import write_svg
from complete_mue.lab.records.pack import safe_name
from complete_mue.lab.report.html_page import report_dict, report_html
from complete_mue.lab.report.labels import code
from complete_mue.lab.report.pictures import pictures
from complete_mue.lab.report.summary import Summary
from complete_mue.lab.report.tables import csv_text, markdown, tables
from complete_mue.storage import make_folder, remove_parts, write_json, write_text
from complete_mue.tabular import escaped


def report_markdown(summaries: Sequence[Summary]) -> str:
    """Verdict and tables as Markdown, to paste into an issue or a README."""
    parts = []
    for summary in summaries:
        parts += [f"## {escaped(summary.title)}", "", *(f"- {escaped(line.text)}" for line in summary.verdict), ""]
        parts += [markdown(table) for table in tables(summary)]
        parts += [f"Made with {code(summary.command)}.", ""]
    return "\n".join(parts)


def write_report(summaries: Sequence[Summary], folder: Path) -> list[Path]:
    """Write all files into ``folder`` (made if missing)."""
    make_folder(folder)
    remove_parts(folder)
    write_json(folder / "report.json", report_dict(summaries))
    written = [folder / "report.json"]
    texts = {
        "report.html": report_html(summaries),
        "report.md": report_markdown(summaries),
        "report.csv": csv_text(tuple(summaries)),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
        written.append(folder / name)
    names = [summary.name for summary in summaries]
    for number, summary in enumerate(summaries, start=1):
        shared = f"-{number}" if names.count(summary.name) > 1 else ""
        for picture in pictures(summary):
            name = f"report-{safe_name(summary.name)}{shared}-{picture.key}.svg"
            written.append(write_svg(picture, folder / name))
    return written
