"""A feed-forward block as SVG: always-active branches, groups, experts; those that one token activates are lit.

Which experts light up is only an example: a router chooses them anew for every token. Colours come from the page's
style sheet by class, so the picture follows light and dark.
"""

from __future__ import annotations

import math
import random
from html import escape

from complete_mue.layout.notation import FeedForward, RoutedGroup

WIDTH = 480
_MARGIN, _GAP, _TITLE = 12, 10, 18
_MOST_BRANCHES, _MOST_GROUPS, _MOST_EXPERTS = 3, 16, 256


def block_svg(block: FeedForward, output: float, route_scale: float, name: str) -> str:
    """The picture of one block; ``output`` is A and ``route_scale`` r, as the plan has them."""
    parts: list[str] = []
    y = 34.0
    if block.branches:
        drawn, y = _branches(block, y)
        parts += drawn
    if block.groups:
        drawn, y = _groups(block.groups, y)
        parts += drawn
    formula = _formula(block, output, route_scale)
    height = y + 58
    parts = [
        _text(WIDTH / 2, 12, "token x"),
        _arrow(18, 30),
        *parts,
        _arrow(y + 2, y + 16),
        _text(WIDTH / 2, y + 34, formula, "formula"),
        _text(WIDTH / 2, y + 52, "A: output multiplier" + (", r: route scale" if block.groups else "")),
    ]
    return (
        f'<svg class="block" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(name)}: '
        f'{escape(describe(block))}. {escape(formula)}">{"".join(parts)}</svg>'
    )


def describe(block: FeedForward) -> str:
    """The picture in a sentence."""
    if not block.groups:
        return f"a dense block of width {block.active_width}"
    groups = f" in {len(block.groups)} groups" if len(block.groups) > 1 else ""
    routed = f"{block.active} of {block.experts} experts{groups} lit"
    if not block.branches:
        return routed
    number = len(block.branches)
    return f"{number} {'branch' if number == 1 else 'branches'} always active, {routed}"


def _formula(block: FeedForward, output: float, route_scale: float) -> str:
    if not block.groups:
        return f"y = A · FFN(x),   A = {output:.4g}"
    shared = "shared + " if block.branches else ""
    return f"y = A · ( {shared}r · Σ π · expert ),   A = {output:.4g},  r = {route_scale:.4g}"


def _branches(block: FeedForward, y: float) -> tuple[list[str], float]:
    """Bars across the picture: every token passes through them."""
    word = "shared" if block.groups else "dense"
    shown = block.branches[:_MOST_BRANCHES]
    left = len(block.branches) - len(shown)
    width = (WIDTH - 2 * _MARGIN - _GAP * (len(shown) - 1)) / len(shown)
    parts = []
    for place, branch in enumerate(shown):
        x = _MARGIN + place * (width + _GAP)
        more = f" (+{left} more)" if left and place == len(shown) - 1 else ""
        parts.append(f'<rect class="lit" x="{x:g}" y="{y:g}" width="{width:g}" height="34" rx="6"/>')
        parts.append(_text(x + width / 2, y + 21.5, f"{word} · {branch} wide{more}", "on-lit"))
    return parts, y + 34 + _GAP


def _groups(groups: tuple[RoutedGroup, ...], y: float) -> tuple[list[str], float]:
    """A panel of squares per group."""
    shown = groups[:_MOST_GROUPS]
    columns = 1 if len(shown) == 1 else 2 if len(shown) <= 3 else 4
    panel = (WIDTH - 2 * _MARGIN - _GAP * (columns - 1)) / columns
    parts: list[str] = []
    for start in range(0, len(shown), columns):
        line = shown[start : start + columns]
        bottoms = []
        for place, group in enumerate(line):
            drawn, bottom = _group(group, start + place, _MARGIN + place * (panel + _GAP), y, panel)
            parts += drawn
            bottoms.append(bottom)
        y = max(bottoms) + _GAP
    if len(groups) > len(shown):
        parts.append(_text(WIDTH / 2, y + 8, f"and {len(groups) - len(shown)} more groups"))
        y += _TITLE
    return parts, y


def _group(group: RoutedGroup, number: int, x: float, y: float, width: float) -> tuple[list[str], float]:
    inner = width - 12
    drawn = min(group.experts, _MOST_EXPERTS)
    columns = _columns(drawn, inner)
    step = min(inner / columns, 30.0)
    side = step - (2 if step < 16 else 4)
    rows = math.ceil(drawn / columns)
    left = x + 6 + (inner - columns * step) / 2 + (step - side) / 2
    top = y + _TITLE + 6
    bottom = top + rows * step + (_TITLE if drawn < group.experts else 4)
    title = f"{group.active} of {group.experts} · {group.expert_width} wide"
    if len(title) * 6.2 > width:
        title = f"{group.active} of {group.experts}"
    parts = [f'<rect class="group" x="{x:g}" y="{y:g}" width="{width:g}" height="{bottom - y:g}" rx="6"/>']
    parts.append(_text(x + width / 2, y + 15, title))
    lit = _example(drawn, min(group.active, drawn), number)
    for expert in range(drawn):
        row, column = divmod(expert, columns)
        parts.append(
            f'<rect class="{"lit" if expert in lit else "idle"}" x="{left + column * step:.4g}" '
            f'y="{top + row * step:.4g}" width="{side:.4g}" height="{side:.4g}" rx="{min(4.0, side / 4):.3g}"/>'
        )
    if drawn < group.experts:
        parts.append(_text(x + width / 2, bottom - 5, f"{drawn} of {group.experts} drawn"))
    return parts, bottom


def _columns(count: int, width: float) -> int:
    """As few rows as fit squares of about 11 units, and full rows where a divisor is near."""
    most = max(1, int(width // 11))
    if count <= most:
        return count
    full = [columns for columns in range(most, max(1, most // 2), -1) if count % columns == 0]
    return full[0] if full else most


def _example(count: int, active: int, group: int) -> set[int]:
    """An example of a router's choice, scattered but always the same."""
    return set(random.Random(group + 1).sample(range(count), active))


def _text(x: float, y: float, text: str, kind: str = "label") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="middle">{escape(text)}</text>'


def _arrow(top: float, bottom: float) -> str:
    x = WIDTH / 2
    return f'<path class="arrow" d="M{x:g} {top:g}V{bottom:g}m-4 -4l4 4l4 -4"/>'
