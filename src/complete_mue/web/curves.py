"""Curves as SVG on logarithmic axes, with the present point marked.

Colours come from the page's style sheet by class, a curve's by its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 430, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 22, 28, 46


@dataclass(frozen=True)
class Line:
    """What one rule set gives along the axis: x and value."""

    rules: str
    points: tuple[tuple[float, float], ...]


def curves_svg(lines: list[Line], here: float, x_name: str, y_name: str, title: str) -> str:
    """One picture, both axes logarithmic; ``here`` is the present point, which has a ring and its value."""
    xs = sorted({x for line in lines for x, _ in line.points})
    ys = [y for line in lines for _, y in line.points]
    if not ys:
        return _svg(f"{title}: none", [_text(WIDTH / 2, HEIGHT / 2, f"no {title}", "middle")])
    place_x = _scale(xs[0], xs[-1], _LEFT, WIDTH - _RIGHT)
    place_y = _scale(min(ys) / 1.3, max(ys) * 1.3, HEIGHT - _BOTTOM, _TOP)
    parts = [_text(6, 14, y_name, "start")]
    for y in ticks(min(ys) / 1.3, max(ys) * 1.3):
        parts.append(f'<path class="grid" d="M{_LEFT} {place_y(y):.1f}H{WIDTH - _RIGHT}"/>')
        parts.append(_text(_LEFT - 6, place_y(y) + 4, f"{y:.4g}", "end"))
    for x in _thinned(xs, here):
        parts.append(_text(place_x(x), HEIGHT - _BOTTOM + 18, f"{x:.6g}", "middle"))
    parts.append(f'<path class="axis" d="M{_LEFT} {HEIGHT - _BOTTOM}H{WIDTH - _RIGHT}"/>')
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 8, x_name, "middle"))
    parts.append(f'<path class="here" d="M{place_x(here):.1f} {_TOP}V{HEIGHT - _BOTTOM}"/>')
    for number, line in enumerate(lines):
        where = [(place_x(x), place_y(y)) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in where)
        parts.append(f'<polyline class="line c{number % 6}" points="{path}"/>')
        for (x, y), (at_x, at_y) in zip(line.points, where, strict=True):
            said = escape(f"{line.rules}: {y:.4g} at {x:.6g}")
            shown = f'class="dot c{number % 6}" cx="{at_x:.1f}" cy="{at_y:.1f}" r="3"'
            parts.append(f"<circle {shown}><title>{said}</title></circle>")
    parts += _present(lines[0], here, place_x, place_y)
    now = dict(lines[0].points).get(here)
    return _svg(f"{title} against {x_name}" + (f"; the target: {now:.4g} at {here:.6g}" if now else ""), parts)


def _present(
    line: Line, here: float, place_x: Callable[[float], float], place_y: Callable[[float], float]
) -> list[str]:
    value = dict(line.points).get(here)
    if value is None:
        return []
    x, y = place_x(here), place_y(value)
    left = x > WIDTH - 130
    return [
        f'<circle class="now" data-x="{here!r}" data-y="{value!r}" cx="{x:.1f}" cy="{y:.1f}" r="6.5"/>',
        _text(x - 11 if left else x + 11, y - 9, f"{value:.4g}", "end" if left else "start", "value"),
    ]


def ticks(low: float, high: float) -> list[float]:
    """Round numbers between two: decades where three fit, else 1, 2, 5, else finer; at most eight."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 2, 5), (1, 2, 3, 5, 7), (1, 1.2, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)):
        found = [float(f"{step}e{decade}") for decade in decades for step in steps]
        found = [tick for tick in found if low <= tick <= high]
        if len(found) >= 3:
            break
    return found[:: math.ceil(len(found) / 8)] if found else []


def _thinned(xs: list[float], here: float) -> list[float]:
    """At most seven, the present one among them."""
    step = math.ceil(len(xs) / 7)
    return xs[xs.index(here) % step :: step] if here in xs else xs[::step]


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = math.log(high / low) or 1.0
    middle = (start + end) / 2 if high == low else start
    return lambda value: middle + math.log(value / low) / span * (end - start)


def _svg(label: str, parts: list[str]) -> str:
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}"'
    return f'<svg class="plot" {box}>{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "label") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
