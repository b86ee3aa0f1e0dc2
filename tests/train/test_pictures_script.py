"""The runs of dense and sparse diffusion models: their commands, and a whole show of one's own pictures."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from complete_mue.lab.data.picture_sources import open_pictures
from complete_mue.lab.recipes import configured
from complete_mue.lab.train.config import PictureTask

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "results" / "dit-reference.toml"


def pictures(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "pictures.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_both_have_the_same_active_width_and_every_training_can_be_planned() -> None:
    commands = [shlex.split(line)[1:] for line in pictures("--list").stdout.splitlines()]
    assert [command[0] for command in commands] == ["train", "train", "sample", "sample", "eval", "eval", "speedup"] * 2
    for command in (command for command in commands if command[0] == "train"):
        config = configured(command[1], command[2 : command.index("--reference")], REFERENCE)
        assert config.shape.active_width == 768
        assert config.plan.reference.shape.width == 128
        task = config.task
        assert isinstance(task, PictureTask)
        data = open_pictures(
            task.source, size=task.size, frames=task.frames, text_length=task.text_length, rows=1, seed=0
        )
        assert data.cut_captions() == ""


def test_what_cannot_be_shown_is_refused() -> None:
    for arguments, said in (
        (("--only", "films"), "films"),
        (("--only", "images"), "--images"),
        (("--images", "nothing.npz"), "nothing.npz"),
    ):
        done = pictures(*arguments)
        assert done.returncode == 2
        assert said in done.stderr


@pytest.mark.slow
def test_a_show_of_pictures_of_ones_own(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", images=generator.integers(0, 256, (22, 8, 8, 3), np.uint8))
    (tmp_path / "own.json").write_text(json.dumps([f"picture {number}" for number in range(22)]))
    changes = (
        "precision=float32", "compile=false", "betas=hold", "device=cpu", "task.size=8", "task.text_length=16",
        "reference.hyper.lr=1e-4", "log_every=1",
    )  # fmt: skip
    tiny = ("--width", 32, "--depth", 1, "--layout", "8e2a", "--steps", 20, "--batch-tokens", 32)
    sets = [part for change in changes for part in ("--set", change)]
    done = pictures("--images", tmp_path / "own.npz", "--only", "images", *tiny, *sets, "--runs", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "runs" / "results" / "pictures.json").read_text())
    assert {name: run["steps"] for name, run in found.items()} == {"images-dense": 20, "images-8e2a": 20}
    assert {run["held_out_pictures"] for run in found.values()} == {2}  # of 22
    assert len(json.loads((tmp_path / "runs" / "seen.json").read_text())) == 20
    for name in (*found, "images-data"):
        assert (tmp_path / "runs" / "results" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "runs" / "results" / "images-8e2a" / "speedup.json").read_text())["median"] > 0
