"""A chart as SVG: a panel of a page, whose style sheet gives it colours, so that dark mode reaches them; or a file."""

from __future__ import annotations

import math
import re
import textwrap
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path

from complete_mue.chart import LOOKS, Axis, Dot, Drawn, Panel, Picture, look_of
from complete_mue.storage import write_text

_WIDTH, _HEIGHT = 420, 310
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 10, 24, 46
_FOCUS_DOTS = 12  # of a line without markers: enough to read it with the keyboard
_MANY = 12  # panels of a file, from where they stand in three columns
_GAP, _LINE, _LETTER = 24, 18, 7.0  # pixels: between panels, of a line of text, of a letter
_TITLE = 56  # letters above a panel
_LIGHT = {"ink": "#1c2024", "soft": "#5d666f", "grid": "#eceef0"}
_LIGHT |= {f"c{number}": look.colour for number, look in enumerate(LOOKS)}
_CROSS = '<path class="cross" d="M-4,-4L4,4M-4,4L4,-4"/>'


@cache
def chart_css() -> str:
    """How panels look, by the colours that a page names."""
    return files("complete_mue").joinpath("chart.css").read_text(encoding="utf-8")


def _light_css() -> str:
    """The same for a file, in light mode and without variables, which few programs but browsers know."""
    css = chart_css().replace("--c:", "color:").replace("var(--c)", "currentColor")
    return re.sub(r"var\(--(\w+)\)", lambda found: _LIGHT[found[1]], css)


def style_class(style: int) -> str:
    """The CSS classes of a line: its colour, and its dashes where colours come round again."""
    return f"s{look_of(style)} d{max(style - 1, 0) // (len(LOOKS) - 1) % 3}"


def marker(style: int) -> str:
    """A small SVG of a line's marker, for legends."""
    return f'<svg class="key" viewBox="-6 -6 12 12" aria-hidden="true">{_mark(style)}</svg>'


def _mark(style: int) -> str:
    return f'<path class="mark" d="{LOOKS[look_of(style)].path}"/>'


def panel_svg(picture: Picture, panel: Panel, name: str) -> str:
    """One panel for a page; ``name`` is unique there."""
    title = f"{picture.title}{f', {panel.title}' if panel.title else ''}"
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return f'<svg class="chart" {size} role="group" aria-label="{escape(title)}">{_panel(picture, panel, name)}</svg>'


def write_svg(picture: Picture, path: Path, columns: int | None = None) -> Path:
    """Draw a picture into a file, its panels side by side or at most ``columns`` in a row, three where they are many;
    the file appears whole or not at all."""
    count = len(picture.panels)
    wide = 3 if count > _MANY else min(count, columns or count)
    alone = f": {_whose(picture.panels[0].title)}" if count == 1 and picture.panels[0].title else ""
    total = wide * (_WIDTH + _GAP)
    parts, y = list[str](), float(_GAP)
    for text in filter(None, (picture.where, picture.title + alone)):
        lines = textwrap.wrap(text, int(total / _LETTER))
        parts += _centred(lines, total / 2, y)
        y += _LINE * len(lines)
    y += _GAP / 2
    for first in range(0, count, wide):
        row = picture.panels[first : first + wide]
        titles = [textwrap.wrap(_whose(panel.title), _TITLE) if count > 1 else [] for panel in row]
        y += _LINE * max(map(len, titles))
        for number, (panel, title) in enumerate(zip(row, titles, strict=True)):
            x = number * (_WIDTH + _GAP) + _GAP / 2
            parts += _centred(title, x + (_LEFT + _WIDTH) / 2, y - _LINE * len(title))
            inside = _panel(picture, panel, f"p{first + number}", bare=True)
            parts.append(f'<g transform="translate({x:g} {y:g})">{inside}</g>')
        y += _HEIGHT + _GAP
    legend, y = _legend(picture, total, y)
    size = f'width="{total:g}" height="{y:g}" viewBox="0 0 {total:g} {y:g}"'
    write_text(
        path,
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" {size} font-family="system-ui,sans-serif" '
        f'font-size="12.5"><title>{escape(picture.title + alone)}</title><style>{_light_css()}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join([*parts, *legend])}</svg>\n',
    )
    return path


def _centred(lines: list[str], x: float, y: float) -> list[str]:
    return [
        f'<text class="name" x="{x:g}" y="{y + number * _LINE:g}" text-anchor="middle">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]


def _legend(picture: Picture, total: float, y: float) -> tuple[list[str], float]:
    """Lines and signs with their names, centred, in as many rows as they take; and where they end."""
    lines = {line.name: line for panel in picture.panels for line in panel.lines}
    entries = [(_sign(line), _whose(name)) for name, line in lines.items()]
    rows: list[list[tuple[str, str, float]]] = [[]]
    for sign, text in [*entries, *_signs(picture)]:
        width = 44 + _LETTER * len(text)
        if rows[-1] and sum(w for _, _, w in rows[-1]) + width > total:
            rows.append([])
        rows[-1].append((sign, text, width))
    parts = []
    for row in rows:
        x = (total - sum(width for _, _, width in row)) / 2
        for sign, text, width in row:
            parts.append(
                f'<g transform="translate({x + 14:g} {y:g})">{sign}<text x="17" y="4">{escape(text)}</text></g>'
            )
            x += width
        y += _LINE + 2
    return parts, y


def _sign(line: Drawn) -> str:
    stroke = '<polyline points="-11,0 11,0"/>' if line.joined else ""
    mark = _mark(line.style) if line.markers else ""
    return f'<g class="line {style_class(line.style)}">{stroke}{mark}</g>'


def _signs(picture: Picture) -> list[tuple[str, str]]:
    """What the legend says of signs that belong to no line alone."""
    lines = [line for panel in picture.panels for line in panel.lines]
    guides = {"transferred value" if panel.guide[1] else "the plan's value" for panel in picture.panels if panel.guide}
    found = [('<line class="guide" x1="-11" x2="11"/>', text) for text in sorted(guides)]
    if any(line.minimum is not None for line in lines):
        found.append(('<circle class="ring soft" r="6"/>', "fitted minimum"))
    if any(line.diverged for line in lines):
        found.append((_CROSS.replace("cross", "cross soft"), "diverged"))
    return found


def _whose(name: str) -> str:
    """A rule set's name, with whose it is; any other name as it is."""
    return name + {"complete_mue_sparse": " (ours)", "complete_mue": " (the paper's)"}.get(name, "")


def _panel(picture: Picture, panel: Panel, name: str, *, bare: bool = False) -> str:
    """A panel's inside; ``bare`` leaves out what only a page needs: words at the dots, and their places."""
    parts = [
        f'<clipPath id="{name}"><rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH - _LEFT - _RIGHT}" '
        f'height="{_HEIGHT - _TOP - _BOTTOM}"/></clipPath>',
        *_axes(panel.x, picture.y),
    ]
    if picture.level is not None:
        y = _y(picture.y, picture.level)
        parts.append(f'<line class="guide" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    if panel.guide is not None:
        x = _x(panel.x, panel.guide[0])
        anchor = "end" if x > _WIDTH * 0.75 else "start" if x < _WIDTH * 0.25 else "middle"
        parts.append(f'<line class="guide" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{_HEIGHT - _BOTTOM}"/>')
        said = f"transferred {escape(panel.guide[1])}" if panel.guide[1] else ""
        parts.append(f'<text class="guide-label" x="{x:.1f}" y="{_TOP - 10}" text-anchor="{anchor}">{said}</text>')
    parts += [_line(picture, panel, line, name, bare) for line in panel.lines]
    return "".join(parts)


def _axes(x: Axis, y: Axis) -> list[str]:
    parts = []
    for value, text in y.ticks:
        at = _y(y, value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 7}" y="{at + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    for value, text in x.ticks:
        at = _x(x, value)
        parts.append(
            f'<line class="tick" x1="{at:.1f}" x2="{at:.1f}" y1="{_HEIGHT - _BOTTOM}" y2="{_HEIGHT - _BOTTOM + 4}"/>'
        )
        parts.append(f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 17}" text-anchor="middle">{escape(text)}</text>')
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{_HEIGHT - _BOTTOM}" y2="{_HEIGHT - _BOTTOM}"/>'
        f'<text class="name" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">'
        f"{escape(x.label)}</text>"
        f'<text class="name" transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">'
        f"{escape(y.label)}</text>"
    )
    return parts


def _line(picture: Picture, panel: Panel, line: Drawn, clip: str, bare: bool) -> str:
    places = [(_x(panel.x, dot.x), _y(picture.y, dot.y)) for dot in line.dots]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    name = "" if bare else f' data-name="{escape(line.name)}"'
    parts = [f'<g class="line {style_class(line.style)}"{name}>']
    if line.joined:
        parts.append(f'<polyline clip-path="url(#{clip})" points="{path}"/>')
    shown = [(dot, place) for dot, place in zip(line.dots, places, strict=True) if dot.y <= picture.y.high]
    if not line.markers:
        shown = [] if bare else shown[:: max(1, math.ceil(len(shown) / _FOCUS_DOTS))]
    for dot, (x, _) in shown if line.markers else []:
        if dot.error:
            top, bottom = (_y(picture.y, min(dot.y + sign * dot.error, picture.y.high)) for sign in (1, -1))
            parts.append(f'<path class="bar" clip-path="url(#{clip})" d="M{x:.1f},{top:.1f}V{bottom:.1f}"/>')
    marks: list[tuple[Dot, float, float, str, str]] = []
    # The ring comes first: under the points, which stay in reach of the pointer, and first for the keyboard.
    if line.minimum is not None and line.minimum.y <= picture.y.high:
        x, y = _x(panel.x, line.minimum.x), _y(picture.y, line.minimum.y)
        marks.append((line.minimum, x, y, '<circle class="ring" r="7.5"/>', ""))
    marks += [(dot, x, y, _mark(line.style), "" if line.markers else " faint") for dot, (x, y) in shown]
    for dot in line.diverged:
        marks.append((dot, _x(panel.x, dot.x) + (line.style % len(LOOKS) - 2) * 4, _TOP + 7, _CROSS, ""))
    for number, (dot, x, y, drawn, more) in enumerate(marks):
        place = f'transform="translate({x:.1f} {y:.1f})"'
        parts.append(f"<g {place}>{drawn}</g>" if bare else _dot(dot, place, drawn, more, first=number == 0))
    return "".join([*parts, "</g>"])


def _dot(dot: Dot, place: str, shape: str, more: str, *, first: bool) -> str:
    """A mark with its words; the first of a line is a tab stop, arrow keys reach the others."""
    return (
        f'<g class="dot{more}" {place} tabindex="{0 if first else -1}" role="img" '
        f'aria-label="{escape(dot.says)}"><circle class="hit" r="9"/>{shape}</g>'
    )


def _x(axis: Axis, value: float) -> float:
    return _LEFT + axis.place(value) * (_WIDTH - _LEFT - _RIGHT)


def _y(axis: Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - axis.place(value) * (_HEIGHT - _TOP - _BOTTOM)
