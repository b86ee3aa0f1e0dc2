"""The trainer's benchmark: both loops run in one run, records read back, memory and mistakes speak plainly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from complete_mue.errors import RunError
from complete_mue.lab.bench import train as bench
from in_process import mue

SMALL = (
    "shape.width=16", "shape.depth=2", "shape.head_dim=8", "task.sequence=16", "budget.batch_tokens=32", "log_every=2",
)  # fmt: skip


def test_the_trainer_and_the_minimal_loop_in_turns(tmp_path: Path) -> None:
    result = bench.compare(overrides=SMALL, turns=3)
    assert [row.what for row in result.rows] == [bench.TRAINER, bench.MINIMAL]
    assert all(0 < row.fastest_ms <= row.ms_per_step <= row.slowest_ms for row in result.rows)
    assert result.steps == 6
    trainer, minimal = result.rows
    assert result.slowdown == pytest.approx(trainer.ms_per_step / minimal.ms_per_step)
    assert trainer.tokens_per_second == pytest.approx(32 / trainer.ms_per_step * 1e3)
    record = json.loads(result.write(tmp_path).read_text())
    assert record["slowdown"] == result.slowdown
    assert record["rows"][0]["what"] == "trainer"
    console = Console(width=160, record=True, quiet=True)
    console.print(result.table())


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # CPUs without bfloat16 units say so
def test_a_recipe_measured(tmp_path: Path) -> None:
    said: list[str] = []
    overrides = (*SMALL, "precision=bfloat16", "accumulate=2", "recompute=1")
    result = bench.measure("lm_tiny:8e2a", overrides, steps=2, warm_up=1, device="cpu", report=said.append)
    (row,) = result.rows
    assert row.mfu is None  # a CPU's peak is not known
    assert row.tokens_per_step == 32
    assert result.slowdown is None
    assert result.loss is not None
    assert 0 < result.loss < 100
    assert len(said) == 2
    assert json.loads(result.write(tmp_path).read_text())["parameters"]["all"] > 0


def test_the_overhead_is_that_of_the_cpu(tmp_path: Path) -> None:
    for option in (("--device", "cuda"), ("--profile",)):
        assert "are for a RECIPE" in mue("bench", "train", *option, cwd=tmp_path).stderr


def test_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match=r"task\.epochs=repeat"):
        bench.measure("lm_tiny", (*SMALL, "budget.batch_tokens=8388608"), steps=9, device="cpu")

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried")

    monkeypatch.setattr(bench.Trainer, "step", full)
    with pytest.raises(RunError, match=r"accumulate .*1.*recompute.* 2"):
        bench.measure("lm_tiny", SMALL, steps=1, device="cpu")
