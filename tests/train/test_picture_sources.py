"""One source of pictures, however they lie on disk: the same batches, the same training, the same captions."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

from complete_mue.errors import FileError, RunError  # noqa: E402
from complete_mue.lab.data.digest import identity_now  # noqa: E402
from complete_mue.lab.recipes import recipe  # noqa: E402
from complete_mue.lab.train.config import RunConfig, override, read_config  # noqa: E402
from complete_mue.lab.train.loop import train  # noqa: E402
from complete_mue.lab.train.sample import draw_pictures, load_run  # noqa: E402
from complete_mue.lab.train.task import build  # noqa: E402

COUNT, SIZE = 8, 16
SMALL = ("shape.width=16", "shape.depth=2", "shape.head_dim=8", "betas=hold", "budget.batch_tokens=256")


def config_of(source: Path, *more: str) -> RunConfig:
    return override(recipe("dit_tiny:8e2a"), *SMALL, f"task.source={source}", "budget.steps=2", *more)


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Path]:
    """The same captioned pictures as a folder, a tar, a folder of tars and an array."""
    images = np.random.default_rng(0).integers(0, 256, (COUNT, SIZE, SIZE, 3), np.uint8)
    (tmp_path / "folder").mkdir()
    (tmp_path / "tars").mkdir()
    with tarfile.open(tmp_path / "one.tar", "w") as one:
        for number, image in enumerate(images):
            files = {f"{number:02d}.png": png(image), f"{number:02d}.txt": f"picture {number}".encode()}
            with tarfile.open(tmp_path / "tars" / f"{number:02d}.tar", "w") as several:
                for name, content in files.items():
                    (tmp_path / "folder" / name).write_bytes(content)
                    add(one, name, content)
                    add(several, name, content)
    np.savez(tmp_path / "array.npz", images=images)
    (tmp_path / "array.json").write_text(json.dumps([f"picture {number}" for number in range(COUNT)]))
    return {name: tmp_path / name for name in ("folder", "one.tar", "tars", "array.npz")}


def test_the_same_pictures_give_the_same_batches(sources: dict[str, Path]) -> None:
    first, *others = (build(config_of(path)) for path in sources.values())
    assert first.steps == 2
    for task in others:
        for step in range(2):
            assert all(map(torch.equal, task.batch(step), first.batch(step)))


@pytest.mark.parametrize("name", ["one.tar", "array.npz"])
def test_a_run_on_a_file(sources: dict[str, Path], tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    said: list[str] = []
    assert train(config_of(sources[name], "task.text_length=8"), run, warn=said.append).status == "finished"
    assert said == ["8 of 8 captions are cut to task.text_length=8 bytes; task.text_length=9 holds them all"]
    config, model, step = load_run(run)
    assert step == 2
    assert config.task.data.startswith("images-")
    assert identity_now(str(sources[name]), config.task.data) == config.task.data
    drawn = draw_pictures(config, model, "", 10, tmp_path / "drawn.png", steps=1, guidance=1.0, seed=0)
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_other_pictures_are_noticed(sources: dict[str, Path], tmp_path: Path) -> None:
    train(config_of(sources["array.npz"]), tmp_path / "run")
    np.savez(sources["array.npz"], images=np.zeros((COUNT, SIZE, SIZE, 3), np.uint8))
    with pytest.raises(RunError, match="replaced"):
        train(read_config(tmp_path / "run" / "config.json"), tmp_path / "run", resume=True)


def test_clips_in_an_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "clips.npz", images=np.zeros((COUNT, 4, SIZE, SIZE, 3), np.uint8))
    (tmp_path / "clips.json").write_text(json.dumps(["a clip"] * COUNT))
    task = build(config_of(tmp_path / "clips.npz", "task.frames=2"))
    assert task.batch(0)[0].shape == (2, 3, 2, SIZE, SIZE)


def test_what_is_no_source_is_named(tmp_path: Path) -> None:
    for name in ("nothing", "nothing.npz"):
        with pytest.raises(RunError, match=r"scenes, .*\.tar .*\.npz"):
            build(config_of(tmp_path / name))
    with pytest.raises(FileError, match=r"nothing\.tar: .*No such file"):
        build(config_of(tmp_path / "nothing.tar"))
    np.savez(tmp_path / "alone.npz", images=np.zeros((COUNT, SIZE, SIZE, 3), np.uint8))
    with pytest.raises(FileError, match=r"alone\.json: no captions"):
        build(config_of(tmp_path / "alone.npz"))
