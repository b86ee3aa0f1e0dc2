"""What a sweep takes, on paper, against steps that were measured on one NVIDIA H200."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from complete_mue.cli import app
from complete_mue.lab.bench import sweep as bench
from complete_mue.lab.recipes import recipe
from complete_mue.lab.sweep.cost import saturating, step_seconds, sweep_seconds
from complete_mue.lab.sweep.figures import base_config
from complete_mue.lab.sweep.request import SweepRequest
from complete_mue.lab.train.config import override
from complete_mue.lab.train.gpus import GPUS

RECORDS = Path(__file__).parents[2] / "docs/results/sweep/sweep.json"
RECORDED = [row for row in json.loads(RECORDS.read_text(encoding="utf-8"))["rows"] if row["recorded"]]


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: f"{row['layout']}-{row['replicas']}")
def test_steps_as_they_were_measured_within_a_third(row: dict[str, float]) -> None:
    base, *changes = bench._ON_GPU
    config = override(recipe(f"{base}:{row['layout']}"), *changes)
    assert 1e3 * step_seconds(config, row["replicas"]) == pytest.approx(row["ms_per_step"], rel=1 / 3)


def test_the_benchmark_times_what_sweeps_of_scale_small_train() -> None:
    base, *changes = bench._ON_GPU
    timed, swept = override(recipe(f"{base}:dense"), *changes), base_config("lm", "small")
    assert (timed.shape, timed.budget.batch_tokens) == (swept.shape, swept.budget.batch_tokens)
    assert timed.task == override(swept, "task.epochs=repeat").task


def test_the_probe_as_it_was_measured() -> None:
    """docs/sweep.md: 237 seconds, 49 ms a step."""
    sweep = SweepRequest("roles", "lm", "small", targets=["64e2a"], seeds=4, per_octave=1).sweep()
    assert 1e3 * step_seconds(sweep.points[0].config, 66) == pytest.approx(49, rel=0.1)
    assert sweep_seconds(sweep.points, replicas=66) == pytest.approx(237, rel=0.1)


@pytest.mark.parametrize(
    "change", ["shape.depth=8", "shape.width=256", "budget.batch_tokens=32768", "shape.feed_forward=64e8a@16"]
)
def test_more_takes_longer(change: str) -> None:
    config = base_config("lm", "small")
    assert step_seconds(override(config, change), 4) > step_seconds(config, 4)


def test_captions_and_slower_memory_take_longer() -> None:
    config = base_config("dit", "small")
    assert step_seconds(config, 4) > step_seconds(override(config, "task.text_length=8"), 4)
    slowest, *_, fastest = sorted(GPUS, key=lambda name: GPUS[name].bandwidth)
    assert step_seconds(config, 4, slowest) > step_seconds(config, 4, f"NVIDIA {fastest}")


def test_a_large_run_is_a_program_of_its_own() -> None:
    config = base_config("lm", "small")
    assert saturating(config) == 32
    assert saturating(override(config, "budget.batch_tokens=4194304")) == 1
    moe = override(config, "shape.feed_forward=64e2a@16")
    alone, full, twice = (step_seconds(moe, count) / count for count in (1, 32, 64))
    assert twice > 0.95 * full
    assert alone > 3 * full


def test_text_that_is_not_here_counts_as_bytes() -> None:
    config = base_config("lm", "small")
    assert step_seconds(override(config, "task.source=nowhere"), 4) == step_seconds(config, 4)
    known, unknown = (
        CliRunner().invoke(app, ["sweep", "activated", "--dry-run", *words]).output
        for words in ((), ("--set", "task.source=nowhere"))
    )
    assert "That is for bytes, since the vocabulary is not known: nowhere: no such folder" in unknown
    assert "for bytes" not in known


@pytest.mark.parametrize(
    ("here", "said"),
    [
        ("", "one NVIDIA H200"),
        ("NVIDIA H100 80GB HBM3", "this NVIDIA H100 80GB HBM3"),
        ("NVIDIA X1", "one NVIDIA H200"),
    ],
)
def test_a_dry_run_speaks_of_this_gpu_where_its_speed_is_known(
    here: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("complete_mue.cli.sweep._gpu", lambda: here)
    result = CliRunner().invoke(app, ["sweep", "activated", "--dry-run"])
    assert result.output.splitlines()[-1].endswith(f"about 1 min on {said}")
