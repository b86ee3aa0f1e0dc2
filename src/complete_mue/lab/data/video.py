"""Endless captioned clips: two coloured shapes that move.

"a red circle moving right and a blue square moving up on black"
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from complete_mue.lab.data.batches import ImageBatch
from complete_mue.lab.data.drawing import BACKGROUNDS, COLOURS, SHAPES, blank, draw, in_words, palette
from complete_mue.lab.data.randomness import uniform
from complete_mue.lab.data.scenes import DrawnPictures
from complete_mue.layout.numbers import count

DIRECTIONS = {"right": (1, 0), "left": (-1, 0), "down": (0, 1), "up": (0, -1)}
_BACKGROUNDS, _WAYS = tuple(BACKGROUNDS), tuple(DIRECTIONS)


class MovingSprites(DrawnPictures):
    """Clips float32 [rows / world, 3, frames, size, size], captions as bytes [rows / world, text_length].

    A sprite moves evenly along its direction, by a third to a half of the picture over the clip; the second one is
    drawn over the first.
    """

    choices = (
        len(COLOURS), len(SHAPES), len(DIRECTIONS), len(COLOURS) - 1, len(SHAPES), len(DIRECTIONS), len(BACKGROUNDS),
    )  # fmt: skip

    def __init__(self, *, frames: int = 8, rows: int = 16, text_length: int = 80, **options: int) -> None:
        super().__init__(rows=rows, text_length=text_length, **options)
        self.frames = count("frames", frames)
        self.image_shape = (3, frames, self.size, self.size)

    @staticmethod
    def caption(*facts: int) -> str:
        """Two shapes and where they go."""
        colour, shape, way, other, second, other_way, ground = facts
        return (
            f"{in_words(colour, shape)} moving {_WAYS[way]} and "
            f"{in_words(other + (other >= colour), second)} moving {_WAYS[other_way]} on {_BACKGROUNDS[ground]}"
        )

    def identity(self) -> str:
        """Everything the items depend on."""
        return f"{type(self).__name__} {self.frames} {self.size} {self.seed}"

    def at(self, items: NDArray[np.int64]) -> ImageBatch:
        """Draw the clips of these numbers."""
        colour, shape, way, other, second, other_way, ground = self.facts(items)
        ways, colours, clips = np.array(list(DIRECTIONS.values()), np.float64), palette(COLOURS), len(items)
        canvas = blank(np.repeat(ground, self.frames), self.size)
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
            draw(canvas, what[spread], colours[tint][spread], x, y, radius[spread])
        images = np.moveaxis(canvas.reshape(clips, self.frames, *canvas.shape[1:]), 1, 2)
        return ImageBatch(torch.from_numpy(np.ascontiguousarray(images)), self.text(items))
