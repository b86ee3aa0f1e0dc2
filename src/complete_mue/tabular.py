"""Tables and counts for people: on a terminal, by rich, and in Markdown."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def terminal_table(headings: Iterable[str], words: Container[str], title: str | None = None, **style: Any) -> Table:
    """An empty table: columns headed by one of ``words`` stand to the left, the others hold numbers. Only the headings
    are ruled off, unless ``style``, which is rich's, says otherwise."""
    from rich import box
    from rich.table import Table

    style = {"box": box.SIMPLE_HEAD, "pad_edge": False, "title_justify": "left", **style}
    table = Table(title=title, **style)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in words else "right")
    return table


def markdown_table(headings: Sequence[str], words: Container[str], rows: Iterable[Sequence[str]]) -> str:
    """A whole table, a line per row."""
    rule = ["---" if heading in words else "---:" for heading in headings]
    return "".join(f"| {' | '.join(map(escaped, row))} |\n" for row in (headings, rule, *rows))


def short_count(n: float) -> str:
    """Three digits: ``12.3k``, ``1.5M``, ``6.3B``."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if float(f"{n:.3g}") >= size:
            return f"{float(f'{n:.3g}') / size:g}{letter}"
    return f"{n:g}"


def counted(number: int, noun: str) -> str:
    """``1 run``, ``1,200 runs``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def escaped(text: str) -> str:
    """Names as they are, where Markdown would read them as its own: on one line, without markup, HTML or links."""
    return re.sub(r"([\\`*\[\]{}|])", r"\\\1", " ".join(text.split())).replace("<", "&lt;")
