"""Metrics beside metrics.jsonl: TensorBoard where it is installed, W&B where it is asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from complete_mue.errors import RunError
from complete_mue.lab.recipes import recipe
from complete_mue.lab.train.config import override
from complete_mue.lab.train.loop import train
from complete_mue.lab.train.run_folder import _numbers, read_metrics

SMALL = (
    "shape.width=16", "shape.depth=1", "shape.head_dim=8", "betas=hold", "budget.steps=3", "task.sequence=16",
    "budget.batch_tokens=32", "log_every=1",
)  # fmt: skip
WANDB = (*SMALL, "wandb=complete-mue-test")


def test_wandb_is_named_when_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(RunError, match=r"complete-mue\[logging\]"):
        train(override(recipe("lm_tiny"), *WANDB), tmp_path)


def test_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    command = [sys.executable, "-m", "complete_mue", "train", "lm_tiny", *WANDB, "--out", str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (record,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    assert record.stat().st_size > 0


def test_numbers_of_a_line() -> None:
    line = {"step": 3, "loss": 1.5, "grad_norm": None, "update_ratio": {"router": 0.1}, "load": [[1.0]]}
    assert _numbers(line) == {"loss": 1.5, "update_ratio/router": 0.1}


@pytest.mark.tools
def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(override(recipe("lm_tiny"), *SMALL), tmp_path)
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    expected: dict[str, list[tuple[int, object]]] = {}
    for line in read_metrics(tmp_path):
        for key, number in _numbers(line).items():
            expected.setdefault(key, []).append((line["step"], pytest.approx(number, rel=1e-6)))
    assert len(expected["loss"]) == 3
    read = {key: [(e.step, e.value) for e in board.Scalars(key)] for key in board.Tags()["scalars"]}
    assert read == expected


# Something happens to TensorBoard's files after the third step of a run.
ACCIDENT = """
import json, os, shutil, sys
from pathlib import Path
from complete_mue.lab.recipes import recipe
from complete_mue.lab.train.config import override
from complete_mue.lab.train.loop import train

run, what, warnings = Path(sys.argv[1]), sys.argv[2], []

def report(line):
    if line["step"] != 2:
        return
    (file,) = (run / "tensorboard").iterdir()
    if what == "folder removed":
        shutil.rmtree(run / "tensorboard")
    elif what == "thread killed":  # any that opens the file again
        sys.addaudithook(lambda event, given: sys.exit() if event == "open" and "tfevents" in str(given[0]) else None)
    else:
        (number,) = [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if os.path.realpath(fd) == str(file)]
        os.dup2(os.open("/dev/full", os.O_WRONLY), number)

result = train(override(recipe("lm_tiny"), *sys.argv[3:]), run, report=report, warn=warnings.append)
print(json.dumps([result.status, warnings]))
"""


@pytest.mark.tools
@pytest.mark.parametrize(
    ("what", "warned"),
    [
        ("folder removed", 0),
        ("thread killed", 0),
        pytest.param("disk full", 1, marks=pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")),
    ],
)
def test_a_run_goes_on_without_tensorboard(tmp_path: Path, what: str, warned: int) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    command = [sys.executable, "-c", ACCIDENT, str(tmp_path.resolve()), what, *SMALL, "budget.steps=30"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # a hang is a failure
    assert done.returncode == 0, done.stderr
    status, warnings = json.loads(done.stdout)
    assert status == "finished"
    assert [line["step"] for line in read_metrics(tmp_path)] == list(range(30))
    assert len(warnings) == warned
    assert all("goes on without TensorBoard" in text for text in warnings)


@pytest.mark.tools
def test_a_run_starts_without_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    (tmp_path / "tensorboard").write_text("a file where its folder would be")
    warnings: list[str] = []
    assert train(override(recipe("lm_tiny"), *SMALL), tmp_path, warn=warnings.append).status == "finished"
    (text,) = warnings
    assert text.startswith(str(tmp_path / "tensorboard"))
