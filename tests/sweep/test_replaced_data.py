"""A sweep knows what its data holds: replaced data is another point, moved data the same one."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

from complete_mue.errors import RunError
from complete_mue.lab.data import prepare
from complete_mue.lab.recipes import recipe
from complete_mue.lab.records import read_sweep
from complete_mue.lab.records.pack import pack_sweeps
from complete_mue.lab.sweep.executor import Here, Job
from complete_mue.lab.sweep.grid import Scan, Sweep, Target, pinned_sweep
from complete_mue.lab.sweep.known import Known
from complete_mue.lab.sweep.request import settled
from complete_mue.lab.sweep.run import run
from small_sweeps import base, losses


def prepared(folder: Path, letters: str) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    source = folder.with_suffix(".txt")
    source.write_text(letters * (4000 // len(letters)))
    prepare(source, folder, progress=False, workers=1)
    return folder


def sweep_on(source: Path | str, *values: float) -> Sweep:
    config = base(f"task.source={source}")
    return Sweep(
        "test", "Test", "axis", "tiny", (Target("dense", None, config),), (Scan("lr", values or (1e-3, 4e-3)),)
    )


class Counting(Here):
    """Counts the runs it is given."""

    runs = 0

    def start(self, job: Job) -> None:
        self.runs += len(job.configs)
        super().start(job)


def go(sweep: Sweep, folder: Path, **options: object) -> tuple[int, list[str]]:
    """How many runs were trained, and what was warned."""
    executor, warnings = Counting(), list[str]()
    run(sweep, folder, executor, replicas=lambda point: 2, warn=warnings.append, **options)  # type: ignore[arg-type]
    return executor.runs, warnings


def test_replaced_and_moved_data(tmp_path: Path) -> None:
    data = prepared(tmp_path / "data", "abc ")
    assert go(sweep_on(data), tmp_path / "one", request={"figure": "x"}) == (2, [])
    records = read_sweep(tmp_path / "one").outcomes.values()
    assert {record.data for record in records} == set(pinned_sweep(sweep_on(data)).sources.values())
    assert settled(tmp_path / "one", {"figure": "x"}) == sorted(losses(tmp_path / "one"))
    shutil.move(data, tmp_path / "moved")
    assert settled(tmp_path / "one", {"figure": "x"}), "nothing is left to train, so nothing is missing"
    assert go(sweep_on(tmp_path / "moved"), tmp_path / "one") == (0, [])
    prepared(data, "xyz ")
    assert settled(tmp_path / "one", {"figure": "x"}) is None
    with pytest.raises(RunError, match=rf"on other data: {data} held text-.* now holds text-"):
        go(sweep_on(data), tmp_path / "one")
    assert go(sweep_on(data), tmp_path / "two", known=Known([tmp_path / "one"])) == (2, [])
    assert not set(losses(tmp_path / "one")) & set(losses(tmp_path / "two"))
    pack_sweeps([tmp_path / "one"], tmp_path / "packed")
    assert str(tmp_path) not in next((tmp_path / "packed").iterdir()).read_text()
    assert go(sweep_on(tmp_path / "moved"), tmp_path / "three", known=Known([tmp_path / "packed"])) == (0, [])
    assert losses(tmp_path / "three") == losses(tmp_path / "one")


def as_before(folder: Path, sweep: Sweep) -> None:
    """Turn a sweep's folder into one of before: ids by path, no word of what the data held."""
    old = {point.id: point.config.unpinned.fingerprint for point in pinned_sweep(sweep).points}
    plan = json.loads((folder / "sweep.json").read_text())
    plan["points"] = [{**point, "id": old[point["id"]]} for point in plan["points"]]
    (folder / "sweep.json").write_text(json.dumps({**plan, "request": {}}))
    for path in list((folder / "ledger").iterdir()):
        record = json.loads(path.read_text())
        path.unlink()
        record |= {"id": old[record["id"]]}
        del record["data"]
        (folder / "ledger" / f"{record['id']}.json").write_text(json.dumps(record))


def test_records_of_before_are_taken_over_on_request_alone(tmp_path: Path) -> None:
    sweep = sweep_on(prepared(tmp_path / "data", "abc "))
    go(sweep, tmp_path / "one")
    before = sorted(losses(tmp_path / "one").values())
    as_before(tmp_path / "one", sweep)
    with pytest.raises(RunError, match="--trust-known"):
        go(sweep, tmp_path / "one")
    runs, warnings = go(sweep, tmp_path / "two", known=Known([tmp_path / "one"]))
    assert runs == 2
    assert "2 points" in warnings[0]
    assert "--trust-known" in warnings[0]
    assert len(warnings) == 1
    assert go(sweep, tmp_path / "three", known=Known([tmp_path / "one"], trusted=True)) == (0, [])
    taken = read_sweep(tmp_path / "three").outcomes.values()
    assert sorted(record.loss for record in taken) == before
    assert {record.known_as for record in taken} == set(losses(tmp_path / "one"))
    assert {record.data for record in taken} == {None}


def test_points_of_drawn_sources_have_the_ids_of_before() -> None:
    config = recipe("dit_tiny")
    sweep = Sweep("t", "T", "a", "tiny", (Target("dense", None, config),), (Scan("lr", (1e-3,)),))
    assert [point.id for point in pinned_sweep(sweep).points] == [point.id for point in sweep.points]


def test_data_that_is_not_here_is_not_taken_on_trust(tmp_path: Path) -> None:
    sweep = sweep_on(prepared(tmp_path / "data", "abc "))
    go(sweep, tmp_path / "one")
    as_before(tmp_path / "one", sweep)
    shutil.move(tmp_path / "data", tmp_path / "moved")
    runs, warnings = go(sweep, tmp_path / "two", known=Known([tmp_path / "one"]))
    assert runs >= 2
    assert "not on this machine" in warnings[0]
    assert {record.status for record in read_sweep(tmp_path / "two").outcomes.values()} == {"failed"}


def test_a_worker_whose_data_is_another_fails(tmp_path: Path) -> None:
    data = prepared(tmp_path / "data", "abc ")
    sweep = pinned_sweep(sweep_on(data))
    held = sweep.sources[str(data)]
    other = dataclasses.replace(sweep.targets[0].config.task, data=f"{held[:-1]}x")
    configs = (dataclasses.replace(sweep.targets[0].config, task=other),)
    executor = Here()
    executor.start(Job(1, configs))
    (end,) = executor.events(60)
    assert "replaced" in end.outcome.error  # type: ignore[union-attr]
