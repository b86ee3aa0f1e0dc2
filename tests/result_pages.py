"""What tests of the pages of results read: tables on a page, and records behind them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from complete_mue.lab.report.curves import Curve, ValuePoint

ROOT = Path(__file__).parents[1]


def table(page: str, name: str) -> list[list[str]]:
    """The rows of a named table of a page in docs."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").split(f"<!-- table: {name} -->")[1].strip()
    lines = [line for line in text.split("\n\n")[0].splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]


def cells(curves: Sequence[Curve], value: str) -> list[list[str]]:
    """A table of losses, a row per learning rate; with a mark where a seed is missing."""

    def cell(point: ValuePoint) -> str:
        return "–" if point.loss is None else f"{point.loss:.4f}" + "¹" * bool(point.missing)

    columns = [[cell(point) for point in curve.points] for curve in curves]
    return [list(row) for row in zip([value.format(point.value) for point in curves[0].points], *columns, strict=True)]


def paired(higher: ValuePoint, lower: ValuePoint) -> tuple[float, float]:
    """By how much one ends higher: mean over paired seeds, and its standard error."""
    ours, theirs = dict(higher.losses), dict(lower.losses)
    differ = [ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()]
    return statistics.fmean(differ), statistics.stdev(differ) / len(differ) ** 0.5
