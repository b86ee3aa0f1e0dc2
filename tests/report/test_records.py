"""Damaged records become one error that names the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from complete_mue.errors import FileError
from complete_mue.lab.records import RecordError, find_sweeps, read_sweep
from complete_mue.lab.records.store import outcome_of
from complete_mue.lab.report.summary import summarize

Write = Callable[..., Path]


def change(path: Path, key: str, value: Any) -> None:
    data = json.loads(path.read_text())
    inner = data
    *parents, last = key.split(".")
    for part in parents:
        inner = inner[int(part) if part.isdigit() else part]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    path.write_text(json.dumps(data))


def test_a_sweep_is_read(sweep_folder: Write) -> None:
    sweep = read_sweep(sweep_folder())
    assert (sweep.plan.name, sweep.reference) == ("synthetic", "dense")
    assert (len(sweep.plan.targets), len(sweep.plan.points)) == (4, 84)
    assert len(sweep.outcomes) == 84
    outcome = sweep.outcomes["dense-complete_mue-tuned-0"]
    assert outcome.status == "finished"
    assert len(outcome.curve.step) == len(outcome.curve.loss) == 100


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("format", 2, "format is 2"),
        ("title", ..., "`title`"),
        ("title", "two\nlines", "title is"),
        ("targets.1.active", "\ud800", "ud800"),
        ("task", "lmm", "did you mean 'lm'"),
        ("request", 7, "request is 7"),
        ("reference.target", "dens", "reference.target is 'dens'"),
        ("reference.hyper.lr", "high", "reference.hyper"),
        ("reference.hyper.lr", 1e-300, "hyper 'lr' is 1e-300"),
        ("reference.hyper", [], "reference.hyper"),
        ("targets", [], "targets"),
        ("targets.1.stable", [320, 16], "(320, 16)"),
        ("targets.1.stable", [16], "targets[1].stable"),
        ("targets.1.active", 0, "targets[1].active is 0"),
        ("targets.1.name", "dense", "targets[1].name is 'dense'"),
        ("targets.1.x", True, "targets[1].x is True"),
        ("points.3.target", "8e3a", "points[3].target is '8e3a'"),
        ("points.3.hyper", "momentum", "points[3].hyper is 'momentum'"),
        ("points.3.value", -1, "points[3].value is -1"),
        ("points.3.value", 10**400, "points[3].value is 1000"),
        ("points.3.id", "../../secret", "points[3].id is '../../secret'"),
        ("points.3.id", "secret\n", "points[3].id is"),
        ("points.1.seed", 0, "points[1].id is"),
        ("points.1.seed", None, "points[1].seed is None"),
        ("points.1.seed", 10**40, "points[1].seed is 1000"),
    ],
)
def test_a_damaged_sweep(sweep_folder: Write, key: str, value: Any, says: str) -> None:
    folder = sweep_folder(seeds=2)
    change(folder / "sweep.json", key, value)
    with pytest.raises(RecordError) as problem:
        read_sweep(folder)
    assert str(folder / "sweep.json") in str(problem.value)
    assert says in str(problem.value)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("format", "1", "format is '1'"),
        ("id", "other", "id is 'other'"),
        ("status", "done", "status is 'done'"),
        ("loss", None, "loss"),
        ("loss", float("nan"), "loss is nan"),
        ("loss", "1.7", "loss is '1.7'"),
        ("curve.step", [4, 8], "curve: 2 steps but 100 losses"),
        ("curve.step", [4] * 100, "curve: step"),
        ("curve.loss", ["x"] * 100, "curve.loss[0] is 'x'"),
        ("curve", 7, "curve is 7"),
        ("first", {}, "first"),
        ("load_variation", -0.1, "load_variation is -0.1"),
    ],
)
def test_a_damaged_record(sweep_folder: Write, key: str, value: Any, says: str) -> None:
    folder = sweep_folder()
    path = folder / "ledger" / "8e2a-complete_mue-tuned-0.json"
    change(path, key, value)
    with pytest.raises(RecordError) as problem:
        summarize(folder)
    assert str(path) in str(problem.value)
    assert says in str(problem.value)
    assert "delete it" in str(problem.value)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 100_000])
def test_what_is_no_json_object(sweep_folder: Write, text: bytes) -> None:
    folder = sweep_folder()
    for path in (folder / "ledger" / "8e2a-complete_mue-tuned-0.json", folder / "sweep.json"):
        path.write_bytes(text)
        with pytest.raises(FileError, match=str(path)):
            summarize(folder)


def test_optional_fields_may_be_missing(sweep_folder: Write) -> None:
    folder = sweep_folder()
    for path in (folder / "ledger").glob("*.json"):
        for key in ("first", "curve", "load_variation", "seconds", "error"):
            change(path, key, ...)
    summary = summarize(folder)
    assert all(run.speedup is None and run.first == () for run in summary.runs)
    assert summary.scans[0].curves[1].status == "held"


def test_where_sweeps_are_found(sweep_folder: Write, tmp_path: Path) -> None:
    one, two = sweep_folder("one"), sweep_folder("two")
    assert find_sweeps(one) == (one,)
    assert find_sweeps(tmp_path) == (one, two)
    with pytest.raises(FileError, match="no such folder"):
        find_sweeps(tmp_path / "none")
    with pytest.raises(FileError, match=r"sweep\.json"):
        find_sweeps(one / "ledger")
    with pytest.raises(FileError, match=r"no sweep\.json there"):
        read_sweep(tmp_path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
RECORD = {
    "format": 1, "id": "a", "status": "finished", "loss": 1.5, "diverged": None, "error": None, "steps": 4,
    "seconds": 1.0, "curve": {"step": [2, 4], "loss": [2.0, 1.5]}, "first": [3.0, 2.0], "load_variation": 0.1,
}  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(changes=st.dictionaries(st.sampled_from(sorted(RECORD)), json_values, min_size=1, max_size=3))
def test_any_change_reads_or_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**RECORD, **changes}))
    outcome = refused = None
    try:
        outcome = outcome_of(json.loads(path.read_text()), "a", path)
    except FileError as problem:
        refused = str(problem)
    if outcome is None:
        assert str(path) in (refused or "")
    else:
        assert (outcome.loss is not None) == (outcome.status == "finished")
        assert len(outcome.curve.step) == len(outcome.curve.loss)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    key=st.sampled_from(["name", "task", "reference", "targets", "points", "axis", "format"]),
    value=json_values,
    cut=st.integers(0, 400),
)
def test_any_damage_to_the_sweep_is_one_error(tmp_path: Path, key: str, value: Any, cut: int) -> None:
    target = {
        "name": "dense", "x": None, "active": 1, "total": 1, "width": 1, "depth": 1, "batch_tokens": 1, "steps": 4,
        "stable": [1, 3],
    }  # fmt: skip
    point = {"id": "a", "target": "dense", "rules": "complete_mue", "hyper": "lr", "value": 1.0, "seed": 0}
    sweep = {
        "format": 1, "name": "n", "title": "t", "task": "lm", "scale": "tiny", "command": "c", "axis": "x",
        "reference": {"target": "dense", "hyper": {"lr": 1.0}}, "targets": [target], "points": [point],
    }  # fmt: skip
    text = json.dumps({**sweep, key: value})
    for damaged in (text, text[:cut]):
        (tmp_path / "sweep.json").write_text(damaged)
        refused = "sweep.json"
        try:
            summarize(tmp_path)
        except FileError as problem:
            refused = str(problem)
        assert "sweep.json" in refused
