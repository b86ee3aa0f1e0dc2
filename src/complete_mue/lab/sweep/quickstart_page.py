"""The quickstart's report: one HTML page, its numbers as JSON, and its pictures as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from complete_mue.chart_svg import write_svg
from complete_mue.lab.report.html_page import figure_html, page_html, verdict_html
from complete_mue.lab.sweep.quickstart_parts import Part, word
from complete_mue.storage import write_json, write_text

TITLE = "Complete-muE quickstart"
ABOUT = "Tune one small dense model, transfer its hyperparameters to any MoE: does it hold, here and now?"


def write_page(parts: Sequence[Part], advice: Sequence[str], facts: dict[str, Any], folder: Path) -> Path:
    """Write quickstart.html, quickstart.json and the pictures; the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {"format": 1, **facts, "verdict": verdict_of(parts), "parts": [_numbers(part) for part in parts]}
    write_json(folder / "quickstart.json", data)
    body = "".join(_section(number, part) for number, part in enumerate(parts, start=1))
    body += f"<section><h2>Next</h2>{''.join(f'<p>{escape(line)}</p>' for line in advice)}</section>"
    page = folder / "quickstart.html"
    write_text(page, page_html(TITLE, ABOUT, "", body, "mue quickstart", data))
    for part in parts:
        if part.picture is not None:
            write_svg(part.picture, folder / f"{part.name}.svg", columns=3)
    return page


def verdict_of(parts: Sequence[Part]) -> dict[str, str]:
    """``held`` or ``missed`` by part, axis and rule set."""
    return {
        f"{part.name}, {axis}, {rules}": word(held)
        for part in parts
        for axis, by in part.held.items()
        for rules, held in by.items()
    }


def _numbers(part: Part) -> dict[str, Any]:
    return {"name": part.name, "headings": part.headings, "rows": part.rows, "says": [line.text for line in part.lines]}


def _section(number: int, part: Part) -> str:
    drawn = "" if part.picture is None else f'<div class="pictures">{figure_html(part.picture, f"p{number}")}</div>'
    return (
        f'<section><h2>{number}. {escape(part.title)}</h2><p class="soft">{escape(part.about)}</p>'
        f"{verdict_html(part.lines)}{drawn}{_table(part)}</section>"
    )


def _table(part: Part) -> str:
    if not part.rows:
        return ""
    head = "".join(f'<th scope="col" class="l">{escape(text)}</th>' for text in part.headings)
    rows = "".join(f"<tr>{''.join(_cell(text) for text in row)}</tr>" for row in part.rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(part.title)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    return f'<td class="l {text if text in ("held", "missed") else ""}">{escape(text)}</td>'
