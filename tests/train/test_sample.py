"""Samples through the command line, from runs of a few steps."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import in_process  # noqa: E402
from complete_mue.errors import RunError  # noqa: E402
from complete_mue.lab.train.sample import grid, write_pictures  # noqa: E402

SMALL = ("shape.width=16", "shape.depth=2", "shape.head_dim=8", "betas=hold", "budget.steps=2")
RUNS = {
    "lm_tiny:8e2a": ("task.sequence=16", "budget.batch_tokens=32"),
    "dit_tiny:8e2a1s": ("task.size=16", "task.patch=4", "budget.batch_tokens=32"),
    "dit_tiny": ("task.source=sprites", "task.size=16", "task.patch=4", "task.frames=3", "budget.batch_tokens=96"),
}


def mue(*arguments: str) -> str:
    done = in_process.mue(*arguments, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("recipe", RUNS)
def test_sample(recipe: str, tmp_path: Path) -> None:
    assert "2 steps" in mue("train", recipe, *SMALL, *RUNS[recipe], "--out", str(tmp_path))
    if recipe.startswith("lm"):
        text = mue("sample", str(tmp_path), "--prompt", "def ")
        assert text.startswith("def ")
        assert text == mue("sample", str(tmp_path), "--prompt", "def ")
        refused = in_process.mue("sample", str(tmp_path), "--out", "x.png", "--guidance", "2", cwd=tmp_path)
        assert refused.returncode == 2
        assert "writes text, on stdout: leave out --guidance, --out" in refused.stderr
        return
    refused = in_process.mue("sample", str(tmp_path), "--temperature", "0", cwd=tmp_path)
    assert refused.returncode == 2
    assert "draws: leave out --temperature" in refused.stderr
    out = mue("sample", str(tmp_path), "--count", "4", "--steps", "2")
    video = "sprites" in RUNS[recipe][0]
    picture = tmp_path / ("sample.gif" if video else "sample.png")
    assert str(picture) in out
    assert picture.read_bytes().startswith(b"GIF8" if video else b"\x89PNG")


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", list(RUNS)[:2])
def test_a_gpu_draws_the_same(recipe: str, tmp_path: Path) -> None:
    text = recipe.startswith("lm")
    # A gentle lr: after two steps of the recipe's own, velocities are so large that rounding grows to whole pixels.
    gentle = () if text else ("reference.hyper.lr=1e-4",)
    mue("train", recipe, *SMALL, *RUNS[recipe], *gentle, "device=cpu", "--out", str(tmp_path))
    one, other = (
        mue("sample", str(tmp_path), *(() if text else ("--out", str(tmp_path / f"{device}.png"))), "--device", device)
        for device in ("cpu", "cuda")
    )
    if text:
        assert one == other
    else:
        image = pytest.importorskip("PIL.Image")
        first, second = (np.asarray(image.open(tmp_path / f"{name}.png")).astype(int) for name in ("cpu", "cuda"))
        assert abs(first - second).max() <= 1  # the same noise, summed in another order, in steps of 1/255


@pytest.mark.parametrize("words", ["--guidance nan", "--guidance inf", "--temperature inf", "--temperature nan"])
def test_numbers_that_are_not_finite_are_refused(words: str, tmp_path: Path) -> None:
    done = in_process.mue("sample", "none", *words.split(), cwd=tmp_path)
    assert done.returncode == 2
    assert words.split()[0] in done.stderr


def frames_of() -> list[np.ndarray]:
    clips = torch.linspace(-1, 1, 5).view(1, 1, 5, 1, 1).expand(3, 3, 5, 8, 8)
    return grid(clips)


def test_an_mp4_plays(tmp_path: Path) -> None:
    av = pytest.importorskip("av", reason="PyAV is not installed")
    frames = frames_of()
    write_pictures(frames, tmp_path / "clip.mp4")
    with av.open(str(tmp_path / "clip.mp4")) as video:
        seen = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert len(seen) == 5
    for one, other in zip(frames, seen, strict=True):
        assert one.shape == other.shape
        assert abs(one.astype(int) - other).mean() < 3


def test_without_pyav_an_mp4_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(RunError, match=r"complete-mue\[diffusion\].*\.gif"):
        write_pictures(frames_of(), tmp_path / "clip.mp4")
    write_pictures(frames_of(), tmp_path / "clip.gif")
    assert list(tmp_path.iterdir()) == [tmp_path / "clip.gif"]


def test_a_grid_keeps_every_picture_apart() -> None:
    (frame,) = grid(torch.full((5, 3, 1, 48, 48), -1.0))
    assert frame.shape == (2 * 100, 3 * 100, 3)  # pictures of 48 twice as large, and a white edge
    assert (frame == 0).sum() == 5 * 96 * 96 * 3
