"""Endless captioned clips: two coloured shapes that move.

"a red circle moving right and a blue square moving up on black"
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from complete_mue.lab.data.batches import ImageBatch, Pictures, caption_tokens
from complete_mue.lab.data.drawing import BACKGROUNDS, COLOURS, SHAPES, article, draw, palette
from complete_mue.lab.data.item_order import Rows
from complete_mue.lab.data.randomness import choice, uniform
from complete_mue.lab.data.scenes import picture_size
from complete_mue.layout.numbers import count

DIRECTIONS = {"right": (1, 0), "left": (-1, 0), "down": (0, 1), "up": (0, -1)}
_SIZES = (
    len(COLOURS), len(SHAPES), len(DIRECTIONS), len(COLOURS) - 1, len(SHAPES), len(DIRECTIONS), len(BACKGROUNDS),
)  # fmt: skip


class MovingSprites(Pictures):
    """Clips float32 [rows / world, 3, frames, size, size], captions as bytes [rows / world, text_length].

    A sprite moves evenly along its direction, by a third to a half of the picture over the clip; the second one is
    drawn over the first.
    """

    items = None

    def __init__(
        self,
        *,
        frames: int = 8,
        size: int = 32,
        rows: int = 16,
        text_length: int = 80,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.frames, self.size = count("frames", frames), picture_size(size)
        self.rows, self.seed = Rows(rows, rank, world), seed
        self.text_length = count("text_length", text_length)

    def indices(self, step: int) -> NDArray[np.int64]:
        """The rows are numbered through; every number is a new clip."""
        return self.rows.numbers(step)

    def identity(self) -> str:
        """Everything the items depend on."""
        return f"{type(self).__name__} {self.frames} {self.size} {self.seed}"

    def captions(self, items: NDArray[np.int64]) -> list[str]:
        """What the clips show."""
        table = _captions()
        return [table[number] for number in self._numbers(items).tolist()]

    def at(self, items: NDArray[np.int64]) -> ImageBatch:
        """Draw the clips of these numbers."""
        numbers = self._numbers(items)
        colour, shape, way, other, second, other_way, ground = np.unravel_index(numbers, _SIZES)
        ways, colours, clips = np.array(list(DIRECTIONS.values()), np.float64), palette(COLOURS), len(items)
        canvas = np.empty((clips, self.frames, 3, self.size, self.size), np.float32)
        canvas[:] = palette(BACKGROUNDS)[ground][:, None, :, None, None]
        flat = canvas.reshape(clips * self.frames, 3, self.size, self.size)
        when = np.linspace(-0.5, 0.5, self.frames) if self.frames > 1 else np.zeros(1)
        for what, tint, going, draws in (
            (shape, colour, way, 1),
            (second, other + (other >= colour), other_way, 5),
        ):
            middle = [0.35 + 0.3 * uniform(self.seed, items, draws + axis) for axis in (0, 1)]
            travel = 0.33 + 0.17 * uniform(self.seed, items, draws + 2)
            radius = 0.12 + 0.05 * uniform(self.seed, items, draws + 3)
            x, y = (
                (middle[axis][:, None] + (ways[going, axis] * travel)[:, None] * when).reshape(-1) for axis in (0, 1)
            )
            spread = np.repeat(np.arange(clips), self.frames)
            draw(flat, what[spread], colours[tint][spread], x, y, radius[spread])
        images = torch.from_numpy(np.ascontiguousarray(canvas.transpose(0, 2, 1, 3, 4)))
        return ImageBatch(images, _caption_tokens(self.text_length)[torch.from_numpy(numbers)].long())

    def _numbers(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        return choice(self.seed, items, 0, int(np.prod(_SIZES)))


@lru_cache(maxsize=1)
def _captions() -> list[str]:
    """The caption of every clip."""
    colours, backgrounds, ways = list(COLOURS), list(BACKGROUNDS), list(DIRECTIONS)
    return [
        f"{article(colours[colour])} {SHAPES[shape]} moving {ways[way]} and "
        f"{article(colours[other + (other >= colour)])} {SHAPES[second]} moving {ways[other_way]} "
        f"on {backgrounds[ground]}"
        for colour, shape, way, other, second, other_way, ground in np.ndindex(*_SIZES)
    ]


@lru_cache(maxsize=4)
def _caption_tokens(length: int) -> Tensor:
    return caption_tokens(_captions(), length).to(torch.uint8)
