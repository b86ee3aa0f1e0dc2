"""The report as one HTML page that needs nothing else: verdict first, then pictures, tables, and how it was made.

The report's JSON is in the page: ``<script type="application/json" id="report">``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from complete_mue.chart import Picture
from complete_mue.chart_svg import chart_css, marker, panel_svg, style_class
from complete_mue.lab.report.estimator import WINDOW
from complete_mue.lab.report.labels import TASKS
from complete_mue.lab.report.pictures import pictures
from complete_mue.lab.report.summary import Summary
from complete_mue.lab.report.tables import Row, Table, tables
from complete_mue.lab.report.verdict import DRIFT_GOAL, LEGEND, REGRET_GOAL, Line
from complete_mue.tabular import counted

FORMAT = 1
STYLE, SCRIPT = (files(__package__).joinpath(name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
STYLE += chart_css()
_READ = {"good": "Held: ", "bad": "Missed: ", "open": "Open: ", "note": "Note: "}


def report_dict(summaries: Sequence[Summary]) -> dict[str, Any]:
    """The report's JSON: the summaries and the goals they were held against."""
    return {
        "format": FORMAT,
        "goals": {"drift": DRIFT_GOAL, "regret": REGRET_GOAL},
        "sweeps": [summary.to_dict() for summary in summaries],
    }


def report_html(summaries: Sequence[Summary]) -> str:
    """The whole page."""
    title = summaries[0].title if len(summaries) == 1 else f"Transfer report, {len(summaries)} sweeps"
    links = "".join(f'<a href="#sweep-{i}">{escape(s.title)}</a>' for i, s in enumerate(summaries))
    nav = f'<nav aria-label="Sweeps">{links}</nav>' if len(summaries) > 1 else ""
    body = "".join(_section(i, summary, len(summaries) == 1) for i, summary in enumerate(summaries))
    about = "Hyperparameters tuned once on a small dense model, transferred to every layout: did they hold?"
    return page_html(title, about, nav, body + _notes(), "mue report", report_dict(summaries))


def page_html(title: str, about: str, nav: str, body: str, command: str, data: dict[str, Any]) -> str:
    """A page that needs nothing else, with its numbers in it as JSON."""
    embedded = json.dumps(data, ensure_ascii=False)
    for character in "<>&\u2028\u2029":  # nothing in the data can end the script element
        embedded = embedded.replace(character, f"\\u{ord(character):04x}")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header><h1>{escape(title)}</h1>
<p class="soft">{escape(about)}</p>
{nav}</header>
<main>{body}</main>
<footer>Made by <code>{command}</code> of Complete-muE. All numbers are also in this page as JSON.</footer>
<div id="tip" aria-hidden="true"></div>
<script type="application/json" id="report">{embedded}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _section(number: int, summary: Summary, alone: bool) -> str:
    heading = "" if alone else f"<h2>{escape(summary.title)}</h2>"
    p = summary.progress
    state = ", ".join([f"{p.finished} of {p.runs} runs finished", *p.troubles])
    drawn = "".join(figure_html(picture, f"f{number}-{i}") for i, picture in enumerate(pictures(summary)))
    listed = "".join(_table(table) for table in tables(summary))
    return (
        f'<section id="sweep-{number}">{heading}'
        f'<p class="soft">{escape(TASKS[summary.task])}, scale {escape(summary.scale)}, reference '
        f"{escape(summary.reference)}; {state}; {counted(p.seeds, 'seed')}.</p>"
        f'{verdict_html(summary.verdict)}<div class="pictures">{drawn}</div><h3>Numbers</h3>{listed}'
        f"<h3>How it was made</h3><pre><code>{escape(summary.command)}</code></pre></section>"
    )


def verdict_html(lines: Sequence[Line]) -> str:
    """One card for each thing the sentences are about; the first sentence leads it."""
    cards = []
    for about, group in itertools.groupby(lines, key=lambda line: line.about):
        for first, *rest in [list(group)] if about else [[line] for line in group]:
            more = f"<ul>{''.join(f'<li>{_sentence(line)}</li>' for line in rest)}</ul>" if rest else ""
            cards.append(f'<li class="{first.kind}">{_sentence(first)}{more}</li>')
    return f'<ul class="verdict" aria-label="Verdict">{"".join(cards)}</ul>'


def _sentence(line: Line) -> str:
    sign = f'<b class="sign {line.kind}-sign" role="img" aria-label="{_READ[line.kind]}">{line.sign}</b>'
    return f"{sign}{escape(line.text)}"


def figure_html(picture: Picture, name: str) -> str:
    """A picture with its legend; ``name`` is unique on the page."""
    lines = {line.name: line.style for panel in picture.panels for line in panel.lines}
    legend = "".join(
        f'<button type="button" class="{style_class(style)}" aria-pressed="true" data-name="{escape(text)}">'
        f"{marker(style)}{escape(text)}</button>"
        for text, style in lines.items()
    )
    panels = "".join(
        f"<div>{f'<h4>{escape(panel.title)}</h4>' if len(picture.panels) > 1 else ''}"
        f"{panel_svg(picture, panel, f'{name}-{i}')}</div>"
        for i, panel in enumerate(picture.panels)
    )
    return (
        f"<div{' class=wide' if len(picture.panels) > 1 else ''}><h3>{escape(picture.title)}</h3><figure>"
        f'<div class="legend" role="group" aria-label="Show or hide">{legend}</div><div class="panels">{panels}</div>'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure></div>"
    )


def _table(table: Table) -> str:
    """Rows under their rule set; the layout heads each row and stays in sight where the table scrolls."""
    columns = range(1, len(table.headings))
    head = "".join(f'<th scope="col"{_left(table, i)}>{escape(table.headings[i])}</th>' for i in columns)
    rows, rules = [], ""
    for row in table.rows:
        if row.cells[0] != rules:
            rules = row.cells[0]
            span = f'<th scope="rowgroup" class="l group" colspan="{len(columns)}"><span>{escape(rules)}</span></th>'
            rows.append(f"<tr>{span}</tr>")
        rows.append(f"<tr>{''.join(_td(table, row, i) for i in columns)}</tr>")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}"><table>'
        f"<caption>{escape(table.title)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _td(table: Table, row: Row, column: int) -> str:
    cell = row.cells[column]
    if column == 1:
        return f'<th scope="row" class="l">{escape(cell)}</th>'
    if column in table.left:
        status = "open-s" if row.status == "open" else row.status
        tag, colon, why = cell.partition(":")
        return f'<td class="l w {status}"><b>{escape(tag)}</b>{colon}{escape(why)}</td>'
    return f"<td>{escape(cell)}</td>"


def _left(table: Table, column: int) -> str:
    return ' class="l"' if column in table.left else ""


def _notes() -> str:
    notes = {
        "optimum": f"minimum of a parabola in log2 by least squares, within {WINDOW} octaves of the best value. “≥” or "
        "“≤”: the best value is at the grid's edge, and the optimum may lie beyond.",
        "drift": f"log2 of the layout's optimum minus log2 of the reference's. Goal: at most {DRIFT_GOAL} octaves.",
        "regret": "the layout's loss at the transferred value minus its least, both by the parabola. "
        f"Goal: at most {REGRET_GOAL}.",
        "basin": "values whose loss is within 0.01 of the best; “…” where that reaches beyond the grid.",
        "verdict": LEGEND,
        "speedup": "steps of the reference over steps of the layout to the same smoothed loss in the stable phase, "
        "median along the logarithm of the steps; none where the batch differs from the reference's.",
        "load variation": "standard deviation over mean of the tokens per expert; 0 is perfect balance.",
    }
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in notes.items())
    return f"<h3>What the words mean</h3><dl>{items}</dl>"
