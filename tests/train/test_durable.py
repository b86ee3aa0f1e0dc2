"""Nothing lost: damaged and stray checkpoints, replaced data, full disks, odd files in a run's directory."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from complete_mue.cli import main  # noqa: E402
from complete_mue.errors import FileError, MueError, RunError  # noqa: E402
from complete_mue.lab.data import TextData, prepare  # noqa: E402
from complete_mue.lab.recipes import recipe  # noqa: E402
from complete_mue.lab.train.checkpoint import Checkpoint  # noqa: E402
from complete_mue.lab.train.config import RunConfig, override, pinned, read_config  # noqa: E402
from complete_mue.lab.train.loop import Result, advice, train  # noqa: E402
from complete_mue.lab.train.run_folder import read_metrics  # noqa: E402
from complete_mue.lab.train.sample import load_run  # noqa: E402

SMALL = (
    "shape.width=16", "shape.depth=1", "shape.head_dim=8", "betas=hold", "budget.steps=12", "checkpoint_every=3",
    "task.sequence=16", "budget.batch_tokens=32", "device=cpu",
)  # fmt: skip


def config_of(*more: str) -> RunConfig:
    return override(recipe("lm_tiny"), *SMALL, *more)


def steps_of(run: Path) -> list[int]:
    return [found.step for found in Checkpoint.listed(run)]


def cut(run: Path, step: int, file: str = "model.safetensors") -> None:
    path = run / "checkpoints" / f"step-{step:08d}" / file
    path.write_bytes(path.read_bytes()[:-9])


def go(run: Path, *more: str, until: int | None = None, **how: bool) -> tuple[Result | None, list[str]]:
    """Train, or until a step is reported; what was warned."""
    warnings: list[str] = []

    def stop(line: dict[str, object]) -> None:
        if until is not None and line["step"] >= until:  # type: ignore[operator]
            raise KeyboardInterrupt

    try:
        return train(config_of(*more), run, report=stop, warn=warnings.append, **how), warnings
    except KeyboardInterrupt:
        return None, warnings


def mue(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of a command."""
    monkeypatch.setattr(sys, "argv", ["mue", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


# -- what is kept --------------------------------------------------------------------------------------------------


def test_rotation_keeps_what_was_just_written(tmp_path: Path) -> None:
    go(tmp_path, "keep=3")
    assert steps_of(tmp_path) == [12, 9, 6]
    cut(tmp_path, 12)
    cut(tmp_path, 9)
    _, warnings = go(tmp_path, "keep=2", "log_every=1", until=9, resume=True)
    assert "step-00000012" in warnings[0]
    assert "step-00000009" in warnings[1]
    assert "step 6" in warnings[1]
    assert 9 in steps_of(tmp_path), "written again by the resumed run"
    assert go(tmp_path, resume=True)[0] == Result("finished", 12, pytest.approx(read_loss(tmp_path)))
    assert steps_of(tmp_path) == [12, 9]
    assert not go(tmp_path, resume=True)[1], "both are sound"


def read_loss(run: Path) -> float:
    return float(json.loads((run / "result.json").read_text())["loss"])


def test_stray_and_later_checkpoints_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-00000099").mkdir(parents=True)
    with pytest.raises(RunError, match=r"step-00000099.*state\.json.*--restart"):
        go(tmp_path, "keep=1", resume=True)
    (tmp_path / "checkpoints" / "step-00000099").rmdir()
    go(tmp_path, "keep=1", "log_every=1", until=4)
    (tmp_path / "checkpoints" / "step-00000099").mkdir()
    result, _ = go(tmp_path, "keep=1", resume=True)
    assert result is not None
    assert result.status == "finished"
    assert steps_of(tmp_path) == [99, 12]
    assert load_run(tmp_path)[2] == 12


def test_a_resume_that_starts_over_says_so(tmp_path: Path) -> None:
    result, warnings = go(tmp_path, resume=True)
    assert result is not None
    assert result.status == "finished"
    assert warnings == [f"nothing to resume in {tmp_path}: starting at step 1"]
    shutil.rmtree(tmp_path / "checkpoints")
    again, warnings = go(tmp_path, resume=True)
    assert again == result
    (said,) = warnings
    assert said.endswith("step 1; it holds config.json and metrics.jsonl of an earlier run, but no checkpoint")
    assert go(tmp_path, resume=True)[1] == []


def test_damage_within_a_run_is_seen_when_the_next_is_written(tmp_path: Path) -> None:
    def hurt(line: dict[str, object]) -> None:
        if line["step"] == 6:
            cut(tmp_path, 6, "optimizer.safetensors")

    train(config_of("keep=2", "log_every=1", "budget.steps=9"), tmp_path, report=hurt)
    assert steps_of(tmp_path) == [9, 6, 3], "6 is damaged, so 3 stays"


def test_a_copied_checkpoint_is_not_that_of_its_new_step(tmp_path: Path) -> None:
    go(tmp_path, "log_every=1", until=7)
    folder = tmp_path / "checkpoints"
    shutil.copytree(folder / "step-00000006", folder / "step-00000008")
    result, warnings = go(tmp_path, resume=True)
    assert "step-00000008 (its state.json is that of step 6" in warnings[0]
    whole, _ = go(tmp_path / "whole")
    assert result == whole


# -- resume --------------------------------------------------------------------------------------------------------


def test_a_resume_that_can_use_no_checkpoint_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    go(tmp_path)
    before = read_metrics(tmp_path)
    cut(tmp_path, 12)
    cut(tmp_path, 9, "state.json")
    with pytest.raises(RunError, match=r"step-00000012 \(model.*checksum.*step-00000009 \(.*state\.json"):
        go(tmp_path, resume=True)
    assert read_metrics(tmp_path) == before
    assert steps_of(tmp_path) == [12, 9]
    with pytest.raises(RunError, match="--restart"):
        go(tmp_path)
    assert mue(monkeypatch, "train", "--restart", "--out", str(tmp_path)) == 0
    assert "before-1" in "".join(capsys.readouterr().err.split())
    assert steps_of(tmp_path / "before-1") == [12, 9]
    assert read_metrics(tmp_path / "before-1") == before
    assert [line["loss"] for line in read_metrics(tmp_path)] == [line["loss"] for line in before]
    go(tmp_path, restart=True)
    assert steps_of(tmp_path / "before-2") == steps_of(tmp_path) == [12, 9]
    assert mue(monkeypatch, "train", "--restart", "--resume", "--out", str(tmp_path)) == 2


def test_a_read_error_is_no_reason_to_start_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go(tmp_path)

    def failing(path: Path) -> str:
        raise FileError(f"{path}: Input/output error")

    monkeypatch.setattr("complete_mue.lab.train.checkpoint_folder.sha256", failing)
    monkeypatch.setattr("complete_mue.lab.train.checkpoint_folder._sound", {})
    with pytest.raises(RunError, match="Input/output error"):
        go(tmp_path, resume=True)
    monkeypatch.undo()
    assert not go(tmp_path, resume=True)[1]
    assert len(read_metrics(tmp_path)) == 12


def test_lines_of_metrics_are_moved_not_lost(tmp_path: Path) -> None:
    go(tmp_path)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 11, "lo')
    lines = (tmp_path / "metrics.jsonl").read_bytes().splitlines()
    cut(tmp_path, 12)
    go(tmp_path, "log_every=1", until=9, resume=True)
    assert (tmp_path / "metrics-cut.jsonl").read_bytes().splitlines() == lines[9:]
    assert (tmp_path / "metrics.jsonl").read_bytes().splitlines()[:9] == lines[:9]


# -- data ----------------------------------------------------------------------------------------------------------


def prepared(folder: Path, letters: str) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    source = folder.with_suffix(".txt")
    source.write_text(letters * (4000 // len(letters)))
    prepare(source, folder, progress=False, workers=1)
    return folder


def test_replaced_data_is_noticed(tmp_path: Path) -> None:
    data = prepared(tmp_path / "data", "abc ")
    first = pinned(config_of(f"task.source={data}")).task.data
    go(tmp_path / "run", f"task.source={data}", "log_every=1", until=7)
    state = json.loads((tmp_path / "run/checkpoints/step-00000006/state.json").read_text())
    assert state["data"] == first == read_config(tmp_path / "run" / "config.json").task.data
    shutil.move(data, tmp_path / "kept")
    second = pinned(config_of(f"task.source={prepared(data, 'xyz ')}")).task.data
    assert first != second
    known = (tmp_path / "run" / "config.json").read_bytes()
    for _ in range(2):  # with the config's own words, then by the checkpoints alone
        with pytest.raises(RunError, match=rf"{first}.*{second}"):
            go(tmp_path / "run", f"task.source={data}", resume=True)
        (tmp_path / "run" / "config.json").unlink(missing_ok=True)
    (tmp_path / "run" / "config.json").write_bytes(known)
    with pytest.raises(RunError, match=rf"{second}.*{first}"):
        train(read_config(tmp_path / "run" / "config.json"), tmp_path / "run", resume=True)
    moved, warnings = go(tmp_path / "run", f"task.source={tmp_path / 'kept'}", resume=True)
    assert moved is not None
    assert (moved.status, warnings) == ("finished", [])  # the same data at another path is the same run


def test_fingerprints_go_by_content_and_those_of_before_are_known(tmp_path: Path) -> None:
    one, two = prepared(tmp_path / "one", "abc "), prepared(tmp_path / "there" / "two", "abc ")
    here, there = (pinned(config_of(f"task.source={folder}")) for folder in (one, two))
    assert here.fingerprint == there.fingerprint != here.unpinned.fingerprint
    assert here.unpinned.fingerprint != there.unpinned.fingerprint
    assert here.is_known_as(here.unpinned.fingerprint)
    assert not here.is_known_as(there.unpinned.fingerprint)
    pictures, text = (dataclasses.replace(recipe(name), rules="complete_mue") for name in ("dit_tiny", "lm_tiny"))
    assert pinned(pictures).fingerprint == pictures.fingerprint == "474dc46bb7dfa2ef"
    assert pinned(recipe("lm_tiny")).task.data.startswith("stdlib-")
    assert text.fingerprint == "9d23b2aa252644be", "as before data was part of it"


def test_runs_of_before_go_on_with_a_word(tmp_path: Path) -> None:
    go(tmp_path, "log_every=1", until=7)
    config = config_of()
    for path in (tmp_path / "checkpoints").glob("*/state.json"):
        state = json.loads(path.read_text())
        del state["data"]
        path.write_text(json.dumps({**state, "fingerprint": config.unpinned.fingerprint}))
    data = json.loads((tmp_path / "config.json").read_text())
    del data["task"]["data"]
    (tmp_path / "config.json").write_text(json.dumps(data))
    result, warnings = go(tmp_path, resume=True)
    assert result is not None
    assert result.status == "finished"
    assert "its data" in warnings[0]
    assert len(warnings) == 1


# -- odd files and full disks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "looping link", "link"])
def test_what_is_in_the_way_of_a_checkpoint_is_named_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run" / "checkpoints" / "step-00000006"
    path.parent.mkdir(parents=True)
    if kind == "file":
        path.write_text("mine")
    elif kind == "looping link":
        path.symlink_to(path)
    else:
        path.symlink_to(tmp_path)
    with pytest.raises(RunError, match=r"step-00000006: is .*move it away"):
        go(tmp_path / "run")
    assert not read_metrics(tmp_path / "run")
    path.unlink()

    def meanwhile(line: dict[str, object]) -> None:
        if line["step"] == 4:
            path.write_text("mine")

    with pytest.raises(RunError, match=r"step-00000006: .*folder.*resume"):
        train(config_of("log_every=1"), tmp_path / "run", report=meanwhile)
    assert path.read_text() == "mine"
    assert steps_of(tmp_path / "run") == [3]


def test_checkpoints_do_not_follow_a_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(elsewhere)
    with pytest.raises(MueError, match="checkpoints: is a link"):
        go(tmp_path / "run")
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("file", ["state.json", "model.safetensors"])
def test_a_pipe_in_a_checkpoint_does_not_hang(tmp_path: Path, file: str) -> None:
    go(tmp_path)
    path = tmp_path / "checkpoints" / "step-00000012" / file
    path.unlink()
    os.mkfifo(path)
    old = signal.signal(signal.SIGALRM, lambda number, frame: pytest.fail("it hangs"))
    signal.alarm(30)
    try:
        _, warnings = go(tmp_path, resume=True)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
    assert f"{file}: not a plain file" in warnings[0]


def test_a_line_of_metrics_without_a_loss(tmp_path: Path) -> None:
    result, _ = go(tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    for line in ('{"step": 2}', '{"step": 3, "loss": "x"}', '{"step": 4, "loss": null}', "[" * 100_000):
        (tmp_path / "metrics.jsonl").write_text("\n".join([line, *lines]) + "\n")
        cut(tmp_path, 12)
        assert go(tmp_path, resume=True)[0] == result


def test_lost_lines_of_metrics_do_not_change_the_loss(tmp_path: Path) -> None:
    result, _ = go(tmp_path)
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert go(tmp_path, resume=True) == (result, [])  # it had ended, and was recorded
    (tmp_path / "result.json").unlink()
    unknown, warnings = go(tmp_path, resume=True)
    assert unknown == Result("finished", 12, None)
    assert "loss is not known" in warnings[0]


@pytest.mark.parametrize("call", ["pwrite", "ftruncate"])
def test_a_full_disk_at_the_lock_is_our_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(RunError, match="No space left on device"):
        go(tmp_path)


# -- messages ------------------------------------------------------------------------------------------------------


def test_a_diverged_run_says_what_to_try(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("clip=none", "warmup=0", "reference.hyper.lr=1e30")
    result, warnings = go(tmp_path, *keys)
    assert result is not None
    assert result.status == "diverged"
    for word in ("reference.hyper.lr=2.5e+29", "clip=1", "warmup=0.04", "metrics.jsonl"):
        assert word in warnings[0]
    assert "precision" not in warnings[0]
    assert "clip" not in advice(config_of())
    assert "qk_norm=true" in advice(config_of())
    assert "qk_norm" not in advice(config_of("qk_norm=true"))
    assert "precision=float32" in advice(config_of("precision=bfloat16"))
    assert mue(monkeypatch, "train", "lm_tiny", *SMALL, *keys, "--out", str(tmp_path / "two")) == 3
    assert "reference.hyper.lr=2.5e+29" in "".join(capsys.readouterr().err.split())


def test_a_shard_cut_under_a_reader_is_an_error(tmp_path: Path) -> None:
    """Were it mapped into memory, SIGBUS would end this process."""
    folder = prepared(tmp_path / "data", "abc ")
    data = TextData(folder, sequence=16, rows=200)
    data.batch(0)
    os.truncate(folder / "train-00000.bin", 100)
    with pytest.raises(FileError, match=r"train-00000\.bin: ends"):
        data.batch(0)


def test_dataclasses_of_tasks_take_what_the_data_holds() -> None:
    config = config_of()
    with pytest.raises(RunError, match=r"task\.data = 3"):
        dataclasses.replace(config.task, data=3)
