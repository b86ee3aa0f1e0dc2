"""Scenes and sprites show what their captions say, and are the same every time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from complete_mue.errors import ShapeError
from complete_mue.lab.data import MovingSprites, Scenes, Shapes
from complete_mue.lab.data.drawing import BACKGROUNDS, COLOURS, SHAPES, draw, palette

RELATIONS = {"left": (0, -1), "right": (0, 1), "above": (1, -1), "below": (1, 1)}


def mask(image: torch.Tensor, colour: str) -> torch.Tensor:
    """Pixels that are exactly of a colour."""
    wanted = torch.tensor(palette(COLOURS | BACKGROUNDS)[list(COLOURS | BACKGROUNDS).index(colour)])
    return ((image - wanted[:, None, None]).abs() < 1e-5).all(0)


def centre(image: torch.Tensor, colour: str) -> tuple[float, float]:
    """x and y of the middle of a colour's pixels."""
    found = mask(image, colour).nonzero().float().mean(0)
    return float(found[1]), float(found[0])


def test_captions_agree_with_the_pixels() -> None:
    data = Scenes(size=32, rows=200, seed=11)
    batch, captions = data.batch(3), data.captions(data.indices(3))
    seen = set()
    for image, caption in zip(batch.images, captions, strict=True):
        words = caption.split()
        relation = next(name for name in RELATIONS if name in words)
        at = words.index(relation)
        first, ground = words[1], words[-1]
        second = words[at + 2 + (words[at + 1] == "of")]
        axis, sign = RELATIONS[relation]
        places = centre(image, first), centre(image, second)
        assert sign * (places[0][axis] - places[1][axis]) > 4, caption
        assert image[:, 0, 0].tolist() == pytest.approx(palette(BACKGROUNDS)[list(BACKGROUNDS).index(ground)].tolist())
        # Smooth edges are between the colours; nothing of a third one is anywhere.
        assert not any(mask(image, other).any() for other in COLOURS if other not in (first, second))
        seen.add(relation)
    assert seen == set(RELATIONS)


def test_single_shapes_agree_with_their_captions() -> None:
    data = Shapes(size=32, rows=200, seed=5, text_length=28)
    batch, captions = data.batch(2), data.captions(data.indices(2))
    area: dict[str, list[int]] = {}
    for image, text, caption in zip(batch.images, batch.text, captions, strict=True):
        _, colour, shape, _, ground = caption.split()
        assert bytes(text.tolist()).rstrip(b"\0").decode() == caption
        assert mask(image, colour)[16, 16], caption
        assert mask(image, ground)[0, 0]
        assert not any(mask(image, other).any() for other in COLOURS if other != colour)
        area.setdefault(shape, []).append(int(mask(image, colour).sum()))
    assert set(area) == set(SHAPES)
    mean = {shape: sum(sizes) / len(sizes) for shape, sizes in area.items()}
    assert mean["circle"] > mean["square"] > mean["diamond"] > mean["triangle"]
    assert torch.equal(Shapes(size=32, rows=200, seed=5).batch(2).images, batch.images)


def test_shapes_look_like_their_names() -> None:
    """Drawn large: the share of the enclosing square that each fills, and which rows and columns are widest."""
    rows = len(SHAPES)
    canvas, ones = np.full((rows, 3, 128, 128), -1, np.float32), np.ones((rows, 3), np.float32)
    half = np.full(rows, 0.5)
    draw(canvas, np.arange(rows), ones, half, half, np.full(rows, 0.4))
    inside = canvas[:, 0] > 0
    share = {name: inside[n].sum() / (2 * 0.4 * 128) ** 2 for n, name in enumerate(SHAPES)}
    expected = {"circle": np.pi / 4, "square": 0.85**2, "diamond": 0.5, "triangle": 1.65**2 / 1.8 / 4, "cross": 0.51}
    assert share == pytest.approx(expected, abs=0.02)
    assert inside[:, 64, 64].all()
    triangle = inside[SHAPES.index("triangle")].sum(1)
    assert triangle[85] > triangle[50] > triangle[35] > 0


def test_text_is_the_caption_in_bytes() -> None:
    data = Scenes(rows=50)
    batch = data.batch(0)
    for row, caption in zip(batch.text, data.captions(data.indices(0)), strict=True):
        assert bytes(row.tolist()).rstrip(b"\0").decode() == caption
    assert batch.text.dtype == torch.int64
    assert batch.text.shape == (50, 56)


def test_a_scene_is_a_function_of_seed_step_and_row() -> None:
    whole = Scenes(rows=12, seed=2).batch(5)
    parts = [Scenes(rows=12, seed=2, rank=rank, world=3).batch(5) for rank in range(3)]
    assert torch.equal(whole.images, torch.cat([part.images for part in parts]))
    assert torch.equal(whole.text, torch.cat([part.text for part in parts]))
    assert not torch.equal(whole.images, Scenes(rows=12, seed=3).batch(5).images)
    assert not torch.equal(whole.images, Scenes(rows=12, seed=2).batch(6).images)
    assert len({image.numpy().tobytes() for step in range(5) for image in Scenes(rows=40).batch(step).images}) == 200


@pytest.mark.parametrize("size", [8, 16, 32, 64])
def test_sizes(size: int) -> None:
    batch = Scenes(size=size, rows=3).batch(0)
    assert batch.images.shape == (3, 3, size, size)
    assert batch.images.dtype == torch.float32
    assert batch.images.min() >= -1
    assert batch.images.max() <= 1


def test_sprites_move_as_their_captions_say() -> None:
    data = MovingSprites(frames=6, size=32, rows=60, seed=5)
    batch, captions = data.batch(2), data.captions(data.indices(2))
    assert batch.images.shape == (60, 3, 6, 32, 32)
    ways = {"right": (1, 0), "left": (-1, 0), "down": (0, 1), "up": (0, -1)}
    for clip, text, caption in zip(batch.images, batch.text, captions, strict=True):
        assert bytes(text.tolist()).rstrip(b"\0").decode() == caption
        # The second sprite is on top, so that it can be followed through the whole clip.
        _, _, after = caption.partition(" and ")
        words = after.split()
        way = ways[words[words.index("moving") + 1]]
        places = np.array([centre(clip[:, frame], words[1]) for frame in range(6)])
        steps = np.diff(places, axis=0)
        assert np.allclose(steps @ np.array([way[1], way[0]]), 0, atol=0.6), caption
        assert (steps @ np.array(way) > 0.7).all(), caption
        assert np.ptp(steps @ np.array(way)) < 1.3, caption


def test_clips_are_the_same_for_every_number_of_ranks() -> None:
    whole = MovingSprites(rows=4).batch(1)
    parts = [MovingSprites(rows=4, rank=rank, world=2).batch(1) for rank in range(2)]
    assert torch.equal(whole.images, torch.cat([part.images for part in parts]))
    assert MovingSprites(frames=1, rows=2).batch(0).images.shape == (2, 3, 1, 32, 32)


def test_impossible_sizes_are_named() -> None:
    with pytest.raises(ShapeError, match=r"size = 4: .* 8 "):
        Scenes(size=4)
    with pytest.raises(ShapeError, match="frames = 0"):
        MovingSprites(frames=0)
    with pytest.raises(ShapeError, match="step = -1"):
        Scenes().batch(-1)


def test_a_warning_says_how_many_captions_are_cut() -> None:
    """The longest sprites: "an orange triangle moving right and a yellow triangle moving right on black"."""
    assert MovingSprites(size=8, rows=1).cut_captions() == Scenes(size=8, rows=1).cut_captions() == ""
    said = Shapes(size=8, rows=1, text_length=26).cut_captions()
    assert said == "2 of 120 captions are cut to task.text_length=26 bytes; task.text_length=27 holds them all"
    said = MovingSprites(size=8, rows=1, text_length=74).cut_captions()
    assert said == "8 of 67,200 captions are cut to task.text_length=74 bytes; task.text_length=75 holds them all"
