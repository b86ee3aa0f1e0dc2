"""Samples through the command line, from runs of a few steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SMALL = ("shape.width=16", "shape.depth=2", "shape.head_dim=8", "betas=hold", "budget.steps=2")
RUNS = {
    "lm_tiny:8e2a": ("task.sequence=16", "budget.batch_tokens=32"),
    "dit_tiny:8e2a1s": ("task.size=16", "budget.batch_tokens=32"),
    "dit_tiny": ("task.source=sprites", "task.size=16", "task.frames=3", "budget.batch_tokens=96"),
}


def mue(*arguments: str) -> str:
    command = [sys.executable, "-m", "complete_mue", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("recipe", RUNS)
def test_sample(recipe: str, tmp_path: Path) -> None:
    assert "finished after 2 steps" in mue("train", recipe, *SMALL, *RUNS[recipe], "--out", str(tmp_path))
    if recipe.startswith("lm"):
        text = mue("sample", str(tmp_path), "--prompt", "def ")
        assert text.startswith("def ")
        assert text == mue("sample", str(tmp_path), "--prompt", "def ")
        return
    out = mue("sample", str(tmp_path), "--count", "4", "--steps", "2")
    video = "sprites" in RUNS[recipe][0]
    picture = tmp_path / ("sample.gif" if video else "sample.png")
    assert str(picture) in out
    assert picture.read_bytes().startswith(b"GIF8" if video else b"\x89PNG")
