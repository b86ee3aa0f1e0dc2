"""Which items a step takes: one shuffled pass, a pure function of the step, the same whatever the number of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from complete_mue.errors import RunError, ShapeError, one_of
from complete_mue.lab.data.randomness import Permutation
from complete_mue.layout.numbers import count

EPOCHS = ("single", "repeat")


class Order(TypedDict, total=False):
    """What every source of data can be asked: the order's seed, whose rows, and whether epochs repeat."""

    seed: int
    rank: int
    world: int
    epochs: str


@dataclass(frozen=True)
class Rows:
    """The rows of a global batch that one rank takes: rank r of w takes the r-th of w equal, consecutive parts."""

    rows: int
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        count("rows", self.rows)
        count("world", self.world)
        count("rank", self.rank, least=0, most=self.world - 1)
        if self.rows % self.world:
            raise ShapeError(
                f"rows = {self.rows} with world = {self.world}: rows of the global batch are shared evenly, "
                "give a multiple of world"
            )

    @property
    def here(self) -> int:
        """Rows of this rank."""
        return self.rows // self.world

    def numbers(self, step: int) -> NDArray[np.int64]:
        """Numbers of this rank's rows, counted from the first row of step 0."""
        first = count("step", step, least=0) * self.rows + self.rank * self.here
        return np.arange(first, first + self.here, dtype=np.int64)


class Shuffled:
    """Data that ends: steps over ``items``, each item at most once per epoch in an order drawn from ``seed``.

    ``rows`` are those of the global batch, which is the same for every number of ranks; ``len`` is the steps of one
    epoch. With ``epochs="single"`` a step past the end is an error; with ``"repeat"`` every epoch has its own order.
    The items that do not fill a last batch are left out, other ones in each epoch. ``what`` they are is for messages.
    """

    def __init__(
        self,
        items: int,
        rows: int,
        what: str = "data",
        *,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        epochs: str = "single",
    ) -> None:
        self.items, self.rows, self.seed, self.epochs, self.what = items, Rows(rows, rank, world), seed, epochs, what
        one_of("epochs", epochs, EPOCHS, ShapeError)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ShapeError(f"seed = {seed!r}: give a whole number")
        if items < rows:
            raise RunError(
                f"{what}: holds {items}, fewer than one batch of {rows} rows; give more data or smaller batches"
            )
        self.steps: int | None = len(self) if epochs == "single" else None  # how long the data lasts

    def __len__(self) -> int:
        return self.items // self.rows.rows

    def indices(self, step: int) -> NDArray[np.int64]:
        """Items of this rank's rows at ``step``."""
        epoch, inside = divmod(count("step", step, least=0), len(self))
        if epoch and self.epochs == "single":
            raise RunError(
                f"{self.what}: step {step} is past the end: one epoch holds {len(self)} steps of {self.rows.rows} "
                f'rows (0 … {len(self) - 1}); take fewer steps, give more data, or say epochs="repeat"'
            )
        return Permutation(self.items, self.seed, epoch)(self.rows.numbers(inside))
