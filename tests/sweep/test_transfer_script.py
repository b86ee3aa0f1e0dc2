"""The runs behind the evidence page: which they are, and that they follow from each other."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

from typer.testing import CliRunner

from complete_mue.cli import app
from complete_mue.lab.report.summary import summarize
from complete_mue.layout.toml_files import read_reference
from in_process import popen, script

SCRIPT = Path(__file__).parents[2] / "scripts" / "transfer.py"


def transfer(*arguments: str) -> subprocess.CompletedProcess[str]:
    return script(SCRIPT, *arguments)


def here(command: list[str], **_: object) -> subprocess.Popen[bytes]:
    """In place of ``subprocess.Popen``: the sweep in this process, workers and all."""
    return popen([*command, "--executor", "here"])


@pytest.mark.parametrize("task", [pytest.param("lm", marks=pytest.mark.slow), "dit"])
def test_every_sweep_is_one_that_the_command_line_takes(task: str, tmp_path: Path) -> None:
    listed = transfer("stdlib" if task == "lm" else "scenes", "--task", task, "--list", "--runs", str(tmp_path))
    lines = listed.stdout.splitlines()
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("mue ")]
    costs = [re.search(r"(\d+) new runs at most, about ([\d.]+) min", line) for line in lines if line.startswith("#")]
    assert [bool(cost and int(cost[1]) and float(cost[2])) for cost in costs] == [True] * (len(commands) - 1)
    assert commands[0][:2] == ["tune", task]
    reference = tmp_path / f"{task}-tune" / "reference.toml"
    reference.parent.mkdir()
    for path in (reference, reference.with_name("longer.toml")):
        path.write_text((SCRIPT.parents[1] / "examples" / "lm_reference.toml").read_text(encoding="utf-8"))
    for command in commands[1:]:
        result = CliRunner().invoke(app, [*command, "--dry-run"])
        assert result.exit_code == 0, result.output


def test_a_tuned_reference_is_not_tuned_again(tmp_path: Path) -> None:
    results, runs = SCRIPT.parents[1] / "docs/results", tmp_path / "runs"
    given = ("--reference", str(results / "dit-reference.toml"))
    listed = transfer("scenes", "--task", "dit", *given, "--only", "batch_steps", "--list", "--runs", str(runs))
    assert listed.returncode == 0, listed.stderr
    (command,) = (shlex.split(line) for line in listed.stdout.splitlines() if line.startswith("mue "))
    assert command[command.index("--reference") + 1] == given[1]
    assert "tune" not in command
    missing = transfer("scenes", "--task", "dit", "--reference", str(tmp_path / "none.toml"), "--list")
    assert missing.returncode == 2
    assert "no such file; give what `mue tune` wrote" in missing.stderr


def test_an_unknown_figure_is_named() -> None:
    found = transfer("scenes", "--task", "dit", "--only", "duration", "--list")
    assert found.returncode == 2
    assert re.search("'duration'.* activated, capacity, width", found.stderr)


def test_weight_decay_is_scanned_at_more_steps_by_the_rule_for_duration(tmp_path: Path) -> None:
    tuned = tmp_path / "lm-tune" / "reference.toml"
    tuned.parent.mkdir()
    tuned.write_text((SCRIPT.parents[1] / "examples" / "lm_reference.toml").read_text(encoding="utf-8"))
    options = ("--set", f"budget.steps={read_reference(tuned).budget.steps}", "--runs", str(tmp_path), "--list")
    listed = transfer("stdlib", "--only", "decay_long", *options).stdout.splitlines()[-1]
    longer = tuned.with_name("longer.toml")
    assert str(longer) in listed
    assert "budget.steps" not in listed  # the reference brings its own
    before, after = read_reference(tuned), read_reference(longer)
    assert after.budget.steps == 4 * before.budget.steps
    assert after.hyper.lr * after.hyper.weight_decay * 4 == pytest.approx(before.hyper.lr * before.hyper.weight_decay)
    assert 1 - after.hyper.betas[1] == pytest.approx((1 - before.hyper.betas[1]) / 4)


@pytest.mark.slow
def test_tune_then_sweeps_that_share_their_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ["budget.steps=3", "shape.width=16", "shape.depth=1", "shape.feed_forward=dense@16", "shape.head_dim=8"]
    small += ["task.sequence=32", "budget.batch_tokens=128"]
    changes = [part for change in small for part in ("--set", change)]
    options = ("--only", "ffn_width,batch_tokens", "--runs", str(tmp_path), *changes)
    with monkeypatch.context() as patch:
        patch.setattr("subprocess.Popen", here)
        done = transfer("stdlib", "--scale", "tiny", *options)
    assert done.returncode == 0, done.stderr
    one, two = (summarize(tmp_path / f"lm-{name}") for name in ("ffn_width", "batch_tokens"))
    assert {run.rules for run in one.runs} == {"complete_mue", "sp", "mup", "mup_moe"}
    assert one.progress.missing == two.progress.missing == 0
    dense = [{c.target: c.points for c in each.scans[0].curves}["dense"] for each in (one, two)]
    wide = {point.value: dict(point.losses) for point in dense[0]}  # the other rule sets are scanned more widely
    assert all(dict(point.losses).items() <= wide[point.value].items() for point in dense[1])
    assert len(wide) > len(dense[1])
    packed, again = str(tmp_path / "packed"), tmp_path / "again"
    folders = [str(tmp_path / f"lm-{name}") for name in ("tune", "ffn_width", "batch_tokens")]
    assert CliRunner().invoke(app, ["report", *folders, "--pack", packed]).exit_code == 0
    # Now in processes of their own, which have nothing to train.
    options = ("--only", "ffn_width", "--runs", str(again), "--known", packed)
    done = transfer("stdlib", "--scale", "tiny", *options, *changes)
    assert done.returncode == 0, done.stderr
    before = {path.read_bytes() for path in tmp_path.glob("lm-*/**/ledger/*.json")}
    assert {path.read_bytes() for path in again.glob("lm-*/**/ledger/*.json")} <= before  # nothing was trained again
    assert summarize(again / "lm-ffn_width").progress.missing == 0
    assert (again / "lm-tune/reference.toml").read_text() == (tmp_path / "lm-tune/reference.toml").read_text()
    assert "--known" not in json.loads((again / "lm-ffn_width" / "sweep.json").read_text())["command"]
