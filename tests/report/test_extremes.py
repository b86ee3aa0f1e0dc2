"""Numbers at the ends of what a float holds, at every place of a sweep's files: a report, or our own error."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from complete_mue.errors import FileError, MueError
from complete_mue.lab.records.pack import pack_sweeps
from complete_mue.lab.report import summarize
from complete_mue.lab.report.html_page import report_html
from complete_mue.lab.report.tables import csv_text
from complete_mue.lab.report.write import report_markdown, write_report
from complete_mue.lab.sweep.request import settled

Write = Callable[..., Path]
FEW = (1e-300, 1e300, 9e99)
MANY = (5e-324, 1.7e308, -1e300, 1e-100, 1e100, 1e-99, 10**15, 10**99, 0, -1)
EXTREMES = [*FEW, *(pytest.param(value, marks=pytest.mark.slow) for value in MANY)]


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where numbers stand; of a long list, its first two."""
    if isinstance(data, dict | list):
        entries = list(data.items() if isinstance(data, dict) else enumerate(data[:2]))
        for key, value in entries:
            yield from places(value, (*path, key))
    elif isinstance(data, int | float) and not isinstance(data, bool):
        yield path


def put(data: Any, path: tuple[Any, ...], value: float) -> Any:
    changed = copy.deepcopy(data)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


def reported(folder: Path) -> None:
    """All that a report is made of; only our own errors may come out of it."""
    try:
        summary = summarize(folder)
        report_html([summary])
        report_markdown([summary])
        csv_text((summary,))
    except MueError:
        return


@pytest.fixture
def small(sweep_folder: Write) -> Path:
    return sweep_folder(drifts={"8e2a": 0.1}, grid=(0.004, 0.008, 0.016), seeds=1)


@pytest.mark.parametrize("value", EXTREMES)
@pytest.mark.parametrize("grid", [(0.004, 0.008, 0.016), (0.008,)], ids=["scan", "scaling"])
def test_extreme_numbers_in_the_plan(sweep_folder: Write, grid: tuple[float, ...], value: float) -> None:
    folder = sweep_folder(drifts={"8e2a": 0.1}, grid=grid, seeds=1)
    path = folder / "sweep.json"
    sweep = json.loads(path.read_text())
    for target, x in zip(sweep["targets"], (1e-99, 1e99), strict=True):
        target["places"] = [{"title": "a", "label": "b", "x": x}]
    for place in places(sweep):
        path.write_text(json.dumps(put(sweep, place, value)))
        reported(folder)


@pytest.mark.parametrize("value", EXTREMES)
def test_extreme_numbers_in_a_record(small: Path, value: float) -> None:
    path = small / "ledger" / "8e2a-complete_mue-tuned-0.json"
    record = json.loads(path.read_text())
    for place in places(record):
        path.write_text(json.dumps(put(record, place, value)))
        reported(small)


@pytest.mark.parametrize("value", [1e-300, 1e300])
def test_a_place_on_an_axis_that_cannot_be_drawn_is_named(small: Path, value: float) -> None:
    path = small / "sweep.json"
    sweep = json.loads(path.read_text())
    path.write_text(json.dumps(put(sweep, ("targets", 1, "x"), value)))
    with pytest.raises(FileError, match=r"targets\[1\].*x is 1e[-+]300.* 1e\+100"):
        summarize(small)


def test_numbers_within_the_limits_are_drawn(small: Path, tmp_path: Path) -> None:
    path = small / "sweep.json"
    sweep = json.loads(path.read_text())
    for number, value in ((0, 1e-99), (1, 9e99)):
        sweep["targets"][number]["x"] = value
        sweep["targets"][number]["places"] = [{"title": "a", "label": "b", "x": value}]
    path.write_text(json.dumps(sweep))
    for number, record in enumerate(sorted((small / "ledger").iterdir())):
        data = json.loads(record.read_text())
        record.write_text(json.dumps(data | {"loss": 9e99 / (number + 1)}))
    assert write_report([summarize(small)], tmp_path / "out")


@pytest.mark.parametrize("points", [None, 1, {}, "x", [None], [[]], [{}], [{"id": None}], [{"id": ["a"]}]])
def test_points_that_are_none_are_named(small: Path, tmp_path: Path, points: Any) -> None:
    path = small / "sweep.json"
    sweep = json.loads(path.read_text())
    (packed,) = pack_sweeps([small], tmp_path / "packed")
    head, *lines = packed.read_text().splitlines()
    packed.write_text("\n".join([json.dumps(json.loads(head) | {"points": points}, separators=(",", ":")), *lines]))
    with pytest.raises(FileError, match="points"):
        pack_sweeps([small], tmp_path / "packed")
    path.write_text(json.dumps(sweep | {"points": points}))
    with pytest.raises(FileError, match="points"):
        settled(small, {})
