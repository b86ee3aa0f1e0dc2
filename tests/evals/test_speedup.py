"""Two run directories with a known ratio, through the command line."""

from __future__ import annotations

import json
import random
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("torch")

from complete_mue.errors import RunError
from complete_mue.lab.evals.speedup import compare, to_text
from complete_mue.lab.recipes import recipe
from complete_mue.lab.report.speedup import bin_middles, speedup_curves
from complete_mue.lab.train.config import override
from complete_mue.lab.train.run_folder import read_metrics
from in_process import mue


def write_run(folder: Path, layout: str, speed: float, *overrides: str) -> Path:
    """A run whose loss is one curve with its time stretched by ``speed``."""
    config = override(recipe(f"lm_tiny:{layout}"), "budget.steps=4000", *overrides)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    rnd = random.Random(layout)
    losses = [2 + 3 * (speed * (step + 1)) ** -0.3 + rnd.gauss(0, 0.01) for step in range(4000)]
    lines = [json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(losses)]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    return folder


def test_a_known_ratio_is_recovered(tmp_path: Path) -> None:
    dense, moe = write_run(tmp_path / "dense", "dense", 1.0), write_run(tmp_path / "moe", "16e4a", 2.5)
    done = mue("speedup", dense, moe, "--out", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out/speedup.json").read_text())
    assert found["median"] == pytest.approx(2.5, rel=0.01)
    assert f"{found['median']:.2f}x fewer steps" in done.stdout
    assert found["target"] == "lm_tiny-16e4a"
    # Only steps at full learning rate: between warmup (4 %) and decay (the last 20 %).
    assert min(found["reference_steps"]) >= 160
    assert max(found["reference_steps"]) <= 3200
    assert ElementTree.parse(tmp_path / "out/speedup.svg").getroot().tag.endswith("svg")
    assert compare(moe, dense).median == pytest.approx(1 / 2.5, rel=0.01)
    for name in ("speedup.json", "speedup.svg", "speedup-loss.svg"):
        assert (tmp_path / "out" / name).exists()
        assert str(tmp_path / "out" / name) in done.stdout


def test_steps_are_counted_as_in_the_reports_of_sweeps(tmp_path: Path) -> None:
    """A run's step is a bin of one step: it begins at its number and ends at the next."""
    runs = write_run(tmp_path / "dense", "dense", 1.0), write_run(tmp_path / "moe", "16e4a", 2.5)
    losses = [[line["loss"] for line in read_metrics(run)] for run in runs]
    middles = bin_middles(range(1, 4001))
    assert compare(*runs).curve == speedup_curves(middles, losses[0], middles, losses[1], (160, 3200))


def test_a_slower_run_and_another_batch_in_words(tmp_path: Path) -> None:
    small = write_run(tmp_path / "small", "dense", 2.5, "budget.batch_tokens=1024")
    found = compare(small, write_run(tmp_path / "large", "16e4a", 1.0, "budget.batch_tokens=2048"))
    first, second, *_ = to_text(found).splitlines()
    assert f"takes {1 / found.median:.2f}x the steps to the same loss" in first
    assert second == f"a step of lm_tiny-16e4a has 2x the tokens: it takes {2 / found.median:.2f}x the tokens"
    first, second, *_ = to_text(compare(tmp_path / "large", tmp_path / "small")).splitlines()
    assert "x fewer steps" in first
    assert second.startswith("a step of lm_tiny-dense has 0.5x the tokens: it takes 5.")


def test_runs_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    dense = write_run(tmp_path / "dense", "dense", 1.0)
    other = write_run(tmp_path / "other", "16e4a", 2.5, "task.sequence=64")
    empty = write_run(tmp_path / "empty", "16e4a", 2.5)
    (empty / "metrics.jsonl").unlink()
    far = write_run(tmp_path / "far", "16e4a", 1e6)
    for run, message in ((other, "different tasks"), (empty, "no losses"), (far, "no loss that both reach")):
        with pytest.raises(RunError, match=message):
            compare(dense, run)
