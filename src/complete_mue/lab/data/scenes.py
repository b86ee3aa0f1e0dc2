"""Endless captioned scenes: two coloured shapes and how they stand to each other, or a single large shape.

    Scenes   "a red circle left of a blue square on black"
    Shapes   "a red circle on black"

Item i of seed s is always the same picture; nothing is stored and nothing downloaded.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cache, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from complete_mue.lab.data.batches import ImageBatch, Pictures, caption_tokens
from complete_mue.lab.data.drawing import BACKGROUNDS, COLOURS, SHAPES, blank, draw, in_words, palette
from complete_mue.lab.data.item_order import Rows
from complete_mue.lab.data.randomness import choice, uniform
from complete_mue.layout.numbers import count

RELATIONS = ("left of", "right of", "above", "below")
SMALLEST = 8  # pixels along a side: fewer do not tell shapes apart
_BACKGROUNDS = tuple(BACKGROUNDS)


class DrawnPictures(Pictures):
    """Pictures drawn from their number, without end. ``choices``: of how many things each fact of a picture is one.

    ``rows`` are those of the global batch, which is the same for every number of ranks.
    """

    choices: tuple[int, ...]

    def __init__(
        self, *, size: int = 32, rows: int = 64, text_length: int = 56, seed: int = 0, rank: int = 0, world: int = 1
    ) -> None:
        count("size", size, least=SMALLEST)
        self.size, self.rows, self.seed = size, Rows(rows, rank, world), seed
        self.image_shape, self.text_shape = (3, size, size), (count("text_length", text_length),)

    @staticmethod
    @abstractmethod
    def caption(*facts: int) -> str:
        """What a picture with these facts shows."""

    def indices(self, step: int) -> NDArray[np.int64]:
        """The rows are numbered through; every number is a new picture."""
        return self.rows.numbers(step)

    def identity(self) -> str:
        """Everything the items depend on."""
        return f"{type(self).__name__} {self.size} {self.seed}"

    def captions(self, items: NDArray[np.int64]) -> list[str]:
        """What the pictures show."""
        table = _captions(type(self))
        return [table[number] for number in self._numbers(items).tolist()]

    def all_captions(self) -> list[str]:
        """Of all combinations of facts."""
        return _captions(type(self))

    def facts(self, items: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """The facts of these items, one after another."""
        return np.unravel_index(self._numbers(items), self.choices)

    def text(self, items: NDArray[np.int64]) -> Tensor:
        """Their captions as bytes."""
        return _caption_tokens(type(self), *self.text_shape)[torch.from_numpy(self._numbers(items))].long()

    def _numbers(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        return choice(self.seed, items, 0, math.prod(self.choices))


class Scenes(DrawnPictures):
    """Pictures float32 [rows / world, 3, size, size], captions as bytes [rows / world, text_length]."""

    choices = len(COLOURS), len(SHAPES), len(RELATIONS), len(COLOURS) - 1, len(SHAPES), len(BACKGROUNDS)

    @staticmethod
    def caption(*facts: int) -> str:
        """Two shapes and a relation."""
        colour, shape, relation, other, second, ground = facts
        return (
            f"{in_words(colour, shape)} {RELATIONS[relation]} "
            f"{in_words(other + (other >= colour), second)} on {_BACKGROUNDS[ground]}"
        )

    def at(self, items: NDArray[np.int64]) -> ImageBatch:
        """Draw the scenes of these numbers."""
        colour, shape, relation, other, second, ground = self.facts(items)
        colours, seed = palette(COLOURS), self.seed
        # Along the relation's axis the first shape stands in one half and the second in the other, apart by their
        # radii; across it both stand anywhere.
        first_along, second_along = 0.2 + 0.1 * uniform(seed, items, 1), 0.7 + 0.1 * uniform(seed, items, 2)
        swapped = relation % 2 == 1  # right of, below
        first_along, second_along = (
            np.where(swapped, second_along, first_along),
            np.where(swapped, first_along, second_along),
        )
        first_across, second_across = 0.22 + 0.56 * uniform(seed, items, 3), 0.22 + 0.56 * uniform(seed, items, 4)
        upright = relation >= 2  # above, below: the axis is y
        canvas = blank(ground, self.size)
        for what, tint, along, across, number in (
            (shape, colour, first_along, first_across, 5),
            (second, other + (other >= colour), second_along, second_across, 6),
        ):
            x, y = np.where(upright, across, along), np.where(upright, along, across)
            draw(canvas, what, colours[tint], x, y, 0.14 + 0.06 * uniform(seed, items, number))
        return ImageBatch(torch.from_numpy(canvas), self.text(items))


class Shapes(DrawnPictures):
    """One large shape on its background: what a tiny model learns to draw in a minute."""

    choices = len(COLOURS), len(SHAPES), len(BACKGROUNDS)

    @staticmethod
    def caption(*facts: int) -> str:
        """The shape."""
        colour, shape, ground = facts
        return f"{in_words(colour, shape)} on {_BACKGROUNDS[ground]}"

    def at(self, items: NDArray[np.int64]) -> ImageBatch:
        """Draw the shapes of these numbers."""
        seed, (colour, shape, ground) = self.seed, self.facts(items)
        canvas = blank(ground, self.size)
        x, y = (0.45 + 0.1 * uniform(seed, items, number) for number in (1, 2))
        draw(canvas, shape, palette(COLOURS)[colour], x, y, 0.33 + 0.06 * uniform(seed, items, 3))
        return ImageBatch(torch.from_numpy(canvas), self.text(items))


@cache
def _captions(kind: type[DrawnPictures]) -> list[str]:
    """The caption of every picture there can be."""
    return [kind.caption(*facts) for facts in np.ndindex(*kind.choices)]


@lru_cache(maxsize=8)
def _caption_tokens(kind: type[DrawnPictures], length: int) -> Tensor:
    return caption_tokens(_captions(kind), length).to(torch.uint8)
