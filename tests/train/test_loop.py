"""Runs that are cut short, disturbed or damaged end with the same numbers as the undisturbed one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import complete_mue as mue
from quick import quick

torch = pytest.importorskip("torch")

from complete_mue.errors import RunError  # noqa: E402
from complete_mue.lab.recipes import RECIPES, recipe  # noqa: E402
from complete_mue.lab.train import checkpoint  # noqa: E402
from complete_mue.lab.train.config import RunConfig, override  # noqa: E402
from complete_mue.lab.train.loop import train  # noqa: E402
from complete_mue.lab.train.run_folder import read_metrics  # noqa: E402
from complete_mue.lab.train.sample import load_run  # noqa: E402
from complete_mue.storage import exclusive  # noqa: E402
from in_process import mue as mue_here  # noqa: E402

SMALL = ("shape.width=16", "shape.depth=2", "shape.head_dim=8", "betas=hold", "budget.steps=24", "checkpoint_every=5")
TEXT = (*SMALL, "task.sequence=32", "budget.batch_tokens=128")
PICTURES = (*SMALL, "task.size=16", "task.patch=4", "budget.batch_tokens=64")
RUNS = {
    "lm dense": ("lm_tiny", *TEXT),
    "lm moe": ("lm_tiny:8e2a1s", *TEXT, "router.balance_loss=0.01"),
    "lm bias": ("lm_tiny:8e4a2g", *TEXT, "router.selection_bias=true", "bias_rate=0.01", "accumulate=2"),
    "lm copies": ("lm_tiny:8e2a", *TEXT, "precision=bfloat16", "accumulate=2"),
    "dit moe": ("dit_tiny:8e2a1s", *PICTURES),
}


def config_of(name: str, *more: str) -> RunConfig:
    base, *overrides = (*RUNS[name], *more)
    return override(recipe(base), *overrides)


def ending(run: Path) -> tuple[list[float], dict[str, torch.Tensor]]:
    losses = [line["loss"] for line in read_metrics(run)]
    return losses, load_run(run)[1].state_dict()


def assert_same_ending(one: Path, other: Path) -> None:
    (losses, weights), (other_losses, other_weights) = ending(one), ending(other)
    assert losses == other_losses
    assert weights.keys() == other_weights.keys()
    for name, weight in weights.items():
        assert torch.equal(weight, other_weights[name]), name


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # CPUs without bfloat16 units say so
@pytest.mark.parametrize("name", quick(RUNS, "lm moe", "dit moe"))
def test_a_run_in_two_parts_is_the_same_run(name: str, tmp_path: Path) -> None:
    config = config_of(name)
    whole = train(config, tmp_path / "whole")
    assert whole.status == "finished"

    class StopError(Exception):
        pass

    def stop(line: dict[str, object]) -> None:
        if line["step"] == 10:
            raise StopError

    with pytest.raises(StopError):
        train(config, tmp_path / "parts", report=stop)
    done = train(config, tmp_path / "parts", resume=True)
    assert done == whole
    assert_same_ending(tmp_path / "whole", tmp_path / "parts")
    lines = read_metrics(tmp_path / "whole")
    assert [line["step"] for line in lines] == list(range(24))
    assert {"lr", "update_ratio"} <= set(lines[10])
    if "moe" in name:
        assert len(lines[10]["load"][0]) == 8
    assert len(checkpoint.Checkpoint.listed(tmp_path / "whole")) == config.keep


def start(run: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "complete_mue", "train", *RUNS["lm moe"], *arguments, "--out", str(run)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
def test_killed_twice_at_random_moments(tmp_path: Path) -> None:
    longer = ("budget.steps=60", "checkpoint_every=1")
    train(config_of("lm moe", *longer), tmp_path / "whole")
    dice, run = random.Random(0), tmp_path / "killed"
    for number in range(2):  # at first, and when it goes on
        process = start(run, *longer, *(["--resume"] if number else []))
        deadline = time.monotonic() + 60
        seen = len(checkpoint.Checkpoint.listed(run)) and checkpoint.Checkpoint.listed(run)[0].step
        while process.poll() is None and time.monotonic() < deadline:
            found = checkpoint.Checkpoint.listed(run)
            if found and found[0].step > seen:  # it got further: now it may die
                break
            time.sleep(0.01)
        time.sleep(dice.uniform(0, 0.3))
        process.kill()
        process.communicate()
    last = start(run, *longer, "--resume")
    out, err = last.communicate(timeout=300)
    assert last.returncode == 0, err
    assert "60 steps" in out
    assert_same_ending(tmp_path / "whole", run)


def test_sigterm_saves_and_leaves(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def terminate() -> None:
        while not read_metrics(run):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate, daemon=True).start()
    left = mue_here(
        "train", *RUNS["lm moe"], "budget.steps=50000", "checkpoint_every=50000", "--out", str(run), cwd=tmp_path
    )
    assert left.returncode == 130, left.stderr
    assert "interrupted after" in left.stdout
    steps = json.loads((run / "result.json").read_text())["steps"]
    assert checkpoint.Checkpoint.listed(run)[0].step == steps


def test_damaged_checkpoints_are_named_and_passed(tmp_path: Path) -> None:
    config = config_of("lm dense")
    train(config, tmp_path / "whole")
    train(config, tmp_path / "hurt")
    newest = checkpoint.Checkpoint.listed(tmp_path / "hurt")[0]
    weights = newest.folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    warnings: list[str] = []
    train(config, tmp_path / "hurt", resume=True, warn=warnings.append)
    assert len(warnings) == 1
    assert str(newest.folder) in warnings[0]
    assert "checksum" in warnings[0]
    assert_same_ending(tmp_path / "whole", tmp_path / "hurt")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with exclusive(tmp_path, "the test"), pytest.raises(RunError, match=rf"another process \(pid {os.getpid()}\)"):
        train(config_of("lm dense"), tmp_path)
    train(config_of("lm dense"), tmp_path)
    with pytest.raises(RunError, match="holds checkpoints already"):
        train(config_of("lm dense"), tmp_path)
    with pytest.raises(RunError, match=r"seed = 1, .*0.*--resume --out"):
        train(config_of("lm dense", "seed=1"), tmp_path, resume=True)
    dry = ("train", *RUNS["lm dense"], "--resume", "--dry-run", "--out", tmp_path)
    assert mue_here(*dry, cwd=tmp_path).returncode == 0
    assert "(seed = 1, not 0)" in mue_here(*dry[:-4], "seed=1", *dry[-4:], cwd=tmp_path).stderr


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = checkpoint.save_file, []

    def full(tensors: dict[str, torch.Tensor], path: Path) -> None:
        calls.append(path)
        if len(calls) > 2:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(RunError, match=r"No space left on device.*checkpoints"):
        train(config_of("lm dense"), tmp_path)
    monkeypatch.undo()
    assert [found.step for found in checkpoint.Checkpoint.listed(tmp_path)] == [5]
    assert not list((tmp_path / "checkpoints").glob(".writing*"))
    assert train(config_of("lm dense"), tmp_path, resume=True).status == "finished"


def test_divergence_is_a_result(tmp_path: Path) -> None:
    config = config_of("lm dense", "clip=none", "reference.hyper.lr=1e30")
    result = train(config, tmp_path)
    assert result.status == "diverged"
    assert result.loss is None
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "diverged"
    trained, warnings = read_metrics(tmp_path), list[str]()
    assert train(config, tmp_path, resume=True, warn=warnings.append) == result, "it would only diverge again"
    assert "would again" in warnings[0]
    assert read_metrics(tmp_path) == trained
    (tmp_path / "result.json").write_text("{}")
    assert train(config, tmp_path, resume=True) == result


def test_learning_rates_follow_plan_and_schedule(tmp_path: Path) -> None:
    config = config_of("lm dense", "log_every=1")
    train(config, tmp_path)
    for line in read_metrics(tmp_path):
        assert line["lr"] == pytest.approx(config.plan.hyper.lr * config.schedule.factor(line["step"]))


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("budget.stpes=3", "did you mean 'steps'"),
        ("steps", "write key=value"),
        ("budget=3", "give one of its keys"),
        ("budget.steps.x=3", "has no keys below"),
        ("budget.batch_tokens=7", "not a whole number of rows"),
        ("precision=int8", "give one of float32, bfloat16"),
        ("duration=long", "give one of scaled, fixed"),
        ("budget.steps=0", "whole number"),
    ],
)
def test_bad_overrides(assignment: str, says: str) -> None:
    with pytest.raises(mue.MueError, match=says):
        override(recipe("lm_tiny"), assignment)


def test_lr_without_the_number_of_steps() -> None:
    """As of `mue plan --duration fixed`: other numbers, so another run; at the default it is the run of before."""
    config = override(recipe("lm_tiny:16e4a"), "budget.steps=100", "betas=hold")
    fixed = override(config, "duration=fixed")
    rules = mue.Rules(config.rules, duration="fixed")
    assert fixed.plan == mue.transfer(config.reference, config.shape, config.budget, rules=rules, betas="hold")
    assert fixed.plan.hyper.lr == config.reference.hyper.lr < config.plan.hyper.lr
    assert fixed.fingerprint != config.fingerprint == override(fixed, "duration=scaled").fingerprint


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_complete(name: str) -> None:
    config = recipe(name)
    plan = config.plan
    assert plan.hyper.lr == pytest.approx(
        config.reference.hyper.lr * (config.reference.budget.steps / config.budget.steps) ** 0.5
    )
    assert config.schedule.steps == config.budget.steps
    moe = RECIPES[name]("16e4a1s")
    assert moe.plan.row("expert_down").route_scale == 4
    assert moe.fingerprint != config.fingerprint


def test_recipes_of_the_paper() -> None:
    large = recipe("lm_large")
    assert large.shape.parameters.total == 6_286_999_552
    assert large.plan.hyper.lr == pytest.approx(5e-4)
    assert recipe("lm_large:dense").shape.parameters.active == pytest.approx(large.shape.parameters.active, rel=0.01)
    for workload, tokens in (("256px", 786_432), ("512px", 786_432)):
        assert RECIPES["dit_large"](workload=workload).budget.batch_tokens == tokens
    with pytest.raises(mue.MueError, match="'video'"):
        RECIPES["dit_large"](workload="vidoe")
    with pytest.raises(mue.MueError, match="'lm_tiny'"):
        recipe("lm_tinny")


@pytest.mark.parametrize("workload", ["256px", "512px", "keyframes", "video"])
@pytest.mark.parametrize("layout", ["dense", "128e8a4g1s"])
def test_micro_batches_of_the_large_recipes(layout: str, workload: str) -> None:
    for config in (RECIPES["dit_large"](layout, workload), recipe(f"lm_large:{layout}")):
        assert config.rows % config.accumulate == 0
        task = config.task
        tokens = config.rows // config.accumulate * (task.tokens_per_row() + getattr(task, "text_length", 0))
        assert 4000 < tokens <= (32_768 if layout == "dense" else 16_384)
