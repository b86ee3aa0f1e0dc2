"""A panel as inline SVG. Colours and lines come from the page's style sheet, so dark mode reaches them."""

from __future__ import annotations

import math
from html import escape

from complete_mue.lab.report.pictures import LOOKS, Axis, Dot, Drawn, Panel, Picture, look_of

_WIDTH, _HEIGHT = 420, 310
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 10, 24, 46
_FOCUS_DOTS = 12  # of a line without markers: enough to read it with the keyboard


def style_class(style: int) -> str:
    """The CSS class of a line's colour."""
    return f"s{look_of(style)}"


def marker(style: int) -> str:
    """A small SVG of a line's marker, for legends."""
    shape = LOOKS[look_of(style)].path
    return f'<svg class="key" viewBox="-6 -6 12 12" aria-hidden="true"><path class="mark" d="{shape}"/></svg>'


def panel_svg(picture: Picture, panel: Panel, name: str) -> str:
    """One panel; ``name`` is unique on the page."""
    title = f"{picture.title}{f', {panel.title}' if panel.title else ''}"
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="group" aria-label="{escape(title)}">',
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
        parts.append(
            f'<text class="guide-label" x="{x:.1f}" y="{_TOP - 10}" text-anchor="{anchor}">'
            f"transferred {escape(panel.guide[1])}</text>"
        )
    parts += [_line(picture, panel, line, name) for line in panel.lines]
    return "".join([*parts, "</svg>"])


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


def _line(picture: Picture, panel: Panel, line: Drawn, clip: str) -> str:
    places = [(_x(panel.x, dot.x), _y(picture.y, dot.y)) for dot in line.dots]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<g class="line {style_class(line.style)}" data-name="{escape(line.name)}">']
    if line.joined:
        parts.append(f'<polyline clip-path="url(#{clip})" points="{path}"/>')
    mark = LOOKS[look_of(line.style)].path
    shown = [(dot, place) for dot, place in zip(line.dots, places, strict=True) if dot.y <= picture.y.high]
    if not line.markers:
        every = max(1, math.ceil(len(shown) / _FOCUS_DOTS))
        shown = shown[::every]
    for dot, (x, _) in shown if line.markers else []:
        if dot.error:
            top, bottom = (_y(picture.y, min(dot.y + sign * dot.error, picture.y.high)) for sign in (1, -1))
            parts.append(f'<path class="bar" clip-path="url(#{clip})" d="M{x:.1f},{top:.1f}V{bottom:.1f}"/>')
    first = True
    # The ring comes first: under the points, which stay in reach of the pointer, and first for the keyboard.
    if line.minimum is not None and line.minimum.y <= picture.y.high:
        x, y = _x(panel.x, line.minimum.x), _y(picture.y, line.minimum.y)
        parts.append(_dot(line.minimum, x, y, '<circle class="ring" r="7.5"/>', "", first))
        first = False
    for dot, (x, y) in shown:
        parts.append(_dot(dot, x, y, f'<path class="mark" d="{mark}"/>', "" if line.markers else " faint", first))
        first = False
    for dot in line.diverged:
        x = _x(panel.x, dot.x) + (line.style % len(LOOKS) - 2) * 4
        cross = '<path class="cross" d="M-4,-4L4,4M-4,4L4,-4"/>'
        parts.append(_dot(dot, x, _TOP + 7, cross, "", first))
        first = False
    return "".join([*parts, "</g>"])


def _dot(dot: Dot, x: float, y: float, shape: str, more: str, first: bool) -> str:
    """A mark with its words; the first of a line is a tab stop, arrow keys reach the others."""
    return (
        f'<g class="dot{more}" transform="translate({x:.1f} {y:.1f})" tabindex="{0 if first else -1}" role="img" '
        f'aria-label="{escape(dot.says)}"><circle class="hit" r="9"/>{shape}</g>'
    )


def _x(axis: Axis, value: float) -> float:
    return _LEFT + axis.place(value) * (_WIDTH - _LEFT - _RIGHT)


def _y(axis: Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - axis.place(value) * (_HEIGHT - _TOP - _BOTTOM)
