"""`mue tune`: it brackets the optimum, says how well it is known, and agrees with the report."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import complete_mue as mue

pytest.importorskip("torch")

from complete_mue.lab.records import Ledger, Outcome
from complete_mue.lab.report.summary import summarize
from complete_mue.lab.sweep.executor import Here
from complete_mue.lab.sweep.figures import base_config
from complete_mue.lab.sweep.grid import Sweep, pinned_sweep
from complete_mue.lab.sweep.run import enter, run
from complete_mue.lab.sweep.tune import tune
from complete_mue.layout.toml_files import read_reference
from in_process import mue as command
from small_sweeps import base


def test_tune_brackets_the_optimum_and_writes_a_reference(tmp_path: Path) -> None:
    start = base("reference.hyper.lr=2e-4", "budget.steps=30")
    folders = []

    def train(sweep: Sweep, folder: Path) -> None:
        folders.append(folder.name)
        run(sweep, folder, Here(), replicas=lambda point: 16)

    reference, found = tune(start, tmp_path, train, hypers=("lr", "lr"), span=1, seeds=(0,))
    assert found[0].optimum.open is None  # it started far below the optimum and was widened
    assert folders.count("1-lr") > 1
    assert reference.hyper.lr > 1e-3
    assert read_reference(tmp_path / "reference.toml") == reference
    text = (tmp_path / "reference.toml").read_text()
    curve = summarize(tmp_path / "2-lr").scans[0].curves[0]
    assert (found[1].optimum, found[1].curve.points) == (curve.optimum, curve.points)  # as `mue report` has it
    assert curve.optimum is not None
    assert f"lr: optimum {curve.optimum.value:.4g}, loss {curve.optimum.loss:.4f}" in text
    assert "2-lr/" in text
    with pytest.raises(mue.MueError, match="above zero"):
        tune(base("reference.hyper.weight_decay=0.0"), tmp_path, train, hypers=("weight_decay",))


def measure(
    noise: float, curvature: float = 0.001, killed_at: int = 0, cliff: float = math.inf
) -> Callable[[Sweep, Path], None]:
    """Records of a known surface stand in for training. A sweep of ``killed_at`` points stops after half of them. Above
    the ``cliff`` the loss is higher by 0.5."""

    def write(sweep: Sweep, folder: Path) -> None:
        ledger, sweep = Ledger(folder), pinned_sweep(sweep)
        enter(sweep, folder, "mue tune", {})
        for point in sweep.points[:: 2 if len(sweep.points) == killed_at else 1]:
            ((_, value),) = point.hypers
            loss = 2 + curvature * math.log2(value / 0.004) ** 2 + 0.5 * (value > cliff)
            loss += random.Random(f"{value} {point.seed}").gauss(0, noise)
            ledger.write(point.id, Outcome("finished", loss, seconds=1.0))
        if len(sweep.points) == killed_at:
            raise KeyboardInterrupt

    return write


def test_a_scan_goes_the_same_way_however_often_it_is_started(tmp_path: Path) -> None:
    """Left while it was widened, it neither takes the half for the whole nor forgets what it widened to."""
    start = base("reference.hyper.lr=3e-2")
    texts = {}
    for name, stops in {"whole": (0, 0), "killed": (5, 0)}.items():
        for killed_at in stops:
            try:
                tune(start, tmp_path / name, measure(1e-5, killed_at=killed_at), hypers=("lr",), span=1, seeds=(0,))
            except KeyboardInterrupt:
                assert len(Ledger(tmp_path / name / "1-lr").done()) == 4
            else:
                texts[name, killed_at] = (tmp_path / name / "reference.toml").read_text()
    assert len(texts) == 2
    assert len(set(texts.values())) == 1
    # More seeds in the same folders do not change what the first command says.
    for seeds in ((0, 1, 2), (0,)):
        tune(start, tmp_path / "whole", measure(1e-5), hypers=("lr",), span=1, seeds=seeds)
        assert ((tmp_path / "whole" / "reference.toml").read_text() in texts.values()) == (seeds == (0,))


def test_tune_says_how_well_the_optimum_is_known(tmp_path: Path) -> None:
    """Two seeds that differ, a basin wider than the grid."""
    start = base("reference.hyper.lr=4e-3")
    _, (flat,) = tune(start, tmp_path / "flat", measure(1e-5), hypers=("lr",), span=2, seeds=(0, 1))
    assert flat.optimum.value == pytest.approx(0.004, rel=0.05)
    assert "± 0.0" in flat.says
    assert re.search(r"… 0\.001 .*0\.016 …, 10 runs", flat.says)
    (doubt,) = flat.doubts
    assert re.search("off the grid.* low .*high ", doubt)
    text = (tmp_path / "flat" / "reference.toml").read_text()
    assert f"{flat.says} in 1-lr/; {flat.doubts[0]}" in text
    _, (noisy,) = tune(start, tmp_path / "noisy", measure(0.003, curvature=1e-5), hypers=("lr",), span=3, seeds=(0, 1))
    assert noisy.curve.optimum_error is not None
    assert noisy.curve.optimum_error > 0.5
    assert any("half an octave" in doubt or "OPEN" in doubt for doubt in noisy.doubts)
    for hyper, found in (("lr", "a cliff at 0.008, "), ("weight_decay", None)):
        begin = base("reference.hyper.lr=4e-3", "reference.hyper.weight_decay=0.004")
        _, (steep,) = tune(begin, tmp_path / f"steep-{hyper}", measure(0, 0.01, cliff=0.006), hypers=(hyper,), span=2)
        assert steep.optimum.best_value == 0.004
        assert [doubt.split("where")[0] for doubt in steep.doubts] == ([found] if found else [])


def test_dry_run_says_what_would_train_and_trains_nothing(tmp_path: Path) -> None:
    done = command("tune", "lm", "--hyper", "lr", "--hyper", "init_std", "--hyper", "lr", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
    start = base_config("lm", "tiny").reference.hyper
    values = [
        line.split(": ")[1].split(", ") for line in done.stdout.splitlines() if line.startswith(("  lr:", "  init"))
    ]
    assert [len(row) for row in values] == [7, 7, 5]  # the second look at lr is a narrower one
    assert [float(row[len(row) // 2]) for row in values] == pytest.approx([start.lr, start.init_std, start.lr])
