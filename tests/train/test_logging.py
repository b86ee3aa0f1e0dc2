"""Metrics beside metrics.jsonl: W&B where it is asked for, and a plain word where it is missing."""

from __future__ import annotations

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
from complete_mue.lab.train.run_folder import _numbers

SMALL = (
    "shape.width=16", "shape.depth=1", "shape.head_dim=8", "betas=hold", "budget.steps=3", "task.sequence=16",
    "budget.batch_tokens=32", "log_every=1", "wandb=complete-mue-test",
)  # fmt: skip


def test_wandb_is_named_when_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(RunError, match=r"complete-mue\[logging\]"):
        train(override(recipe("lm_tiny"), *SMALL), tmp_path)


def test_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    command = [sys.executable, "-m", "complete_mue", "train", "lm_tiny", *SMALL, "--out", str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (record,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    assert record.stat().st_size > 0


def test_numbers_of_a_line() -> None:
    line = {"step": 3, "loss": 1.5, "grad_norm": None, "update_ratio": {"router": 0.1}, "load": [[1.0]]}
    assert _numbers(line) == {"loss": 1.5, "update_ratio/router": 0.1}
