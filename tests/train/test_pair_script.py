"""The runs of the dense and sparse pair: their commands, and that a stopped start goes on."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

from typer.testing import CliRunner

from complete_mue.cli import app
from complete_mue.lab.recipes import configured
from in_process import popen, script

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "results" / "pair" / "reference.toml"
TINY = (
    "--layout", "16e4a1s", "--width", "64", "--depth", "1", "--sequence", "32", "--batch-tokens", "128",
    "--tokens", "2560", "--device", "cpu",
    *(part for change in ("precision=float32", "compile=false", "task.epochs=repeat", "betas=hold", "log_every=1")
      for part in ("--set", change)),
)  # fmt: skip


def pair(source: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return script(ROOT / "scripts" / "pair.py", source, "--reference", REFERENCE, *arguments)


def test_both_have_the_same_active_width_and_every_training_can_be_planned(tmp_path: Path) -> None:
    listed = pair(tmp_path, "--list", "--questions", "q.xz", "--evals", "evals").stdout.splitlines()
    commands = [shlex.split(line)[1:] for line in listed]
    assert [command[0] for command in commands] == ["train"] * 2 + ["eval"] * 2 + ["speedup"] + ["eval"] * 4
    dense, moe = ([part for part in command if part.startswith("shape.feed_forward")] for command in commands[:2])
    assert (dense, moe) == (["shape.feed_forward=dense@576"], ["shape.feed_forward=128e8a1s@64"])
    for command in commands[:2]:
        config = configured(command[1], command[2 : command.index("--reference")], REFERENCE)
        assert config.plan.reference.shape.width == 128
        assert config.budget.tokens == pytest.approx(503e6, rel=0.001)


def test_several_layouts_share_a_dense_model_as_wide(tmp_path: Path) -> None:
    both = ("--layout", "128e8a1s", "--layout", "128e8a4g1s", "--list")
    commands = [shlex.split(line)[1:] for line in pair(tmp_path, *both).stdout.splitlines()]
    assert [command[0] for command in commands] == ["train"] * 3 + ["eval"] * 3 + ["speedup"] * 2
    assert [command[1] for command in commands[:3]] == [f"lm_proxy:{name}" for name in ("dense", *both[1:4:2])]
    other = pair(tmp_path, "--layout", "128e8a1s", "--layout", "64e4a", "--list")
    assert other.returncode == 2
    assert "active widths differ" in other.stderr


@pytest.mark.slow
def test_a_stopped_start_goes_on_to_the_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, data, runs = tmp_path / "text.md", tmp_path / "data", tmp_path / "runs"
    text.write_text((ROOT / "docs" / "rules.md").read_text(encoding="utf-8") * 4)
    assert (
        CliRunner().invoke(app, ["data", "prepare", str(text), "--held-out", "0.1", "--out", str(data)]).exit_code == 0
    )
    assert pair(data, *TINY, "--runs", str(runs), "--seconds", "0").returncode == 130
    monkeypatch.setattr("subprocess.Popen", popen)  # the stop above was that of a process
    done = pair(data, *TINY, "--runs", str(runs))
    assert done.returncode == 0, done.stderr
    for name in ("dense", "16e4a1s"):
        assert json.loads((runs / name / "result.json").read_text())["status"] == "finished"
        assert json.loads((runs / "results" / name / "held_out.json").read_text())["loss"] > 0
    assert json.loads((runs / "results" / "16e4a1s" / "speedup.json").read_text())["median"] > 0
    again = pair(data, *TINY, "--runs", str(runs)).stdout
    assert "speedup" not in again  # nothing is done twice
