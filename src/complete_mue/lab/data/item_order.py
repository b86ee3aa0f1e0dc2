"""Which items a step takes: one shuffled pass, a pure function of the step, the same whatever the number of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from complete_mue.errors import RunError, ShapeError
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
        count("rank", self.rank, least=0)
        if self.rank >= self.world:
            raise ShapeError(f"rank = {self.rank} with world = {self.world}: give a rank from 0 to {self.world - 1}")
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


@dataclass(frozen=True)
class Sampling:
    """Steps over ``items``, each item at most once per epoch in an order drawn from ``seed``.

    With ``epochs="single"`` a step past the end is an error; with ``"repeat"`` every epoch has its own order. The
    items that do not fill a last batch are left out, other ones in each epoch.
    """

    items: int
    rows: Rows
    seed: int = 0
    epochs: str = "single"
    what: str = "data"

    def __post_init__(self) -> None:
        if self.epochs not in EPOCHS:
            raise ShapeError(f"epochs = {self.epochs!r}: give one of {', '.join(EPOCHS)}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ShapeError(f"seed = {self.seed!r}: give a whole number")
        if self.items < self.rows.rows:
            raise RunError(
                f"{self.what}: holds {self.items}, fewer than one batch of {self.rows.rows} rows; "
                "give more data or smaller batches"
            )

    @classmethod
    def over(
        cls, items: int, rows: int, what: str, *, seed: int = 0, rank: int = 0, world: int = 1, epochs: str = "single"
    ) -> Sampling:
        """Batches of so many rows over the items."""
        return cls(items, Rows(rows, rank, world), seed, epochs, what)

    @property
    def steps(self) -> int:
        """Steps in one epoch."""
        return self.items // self.rows.rows

    def indices(self, step: int) -> NDArray[np.int64]:
        """Items of this rank's rows at ``step``."""
        epoch, inside = divmod(count("step", step, least=0), self.steps)
        if epoch and self.epochs == "single":
            raise RunError(
                f"{self.what}: step {step} is past the end: one epoch holds {self.steps} steps of {self.rows.rows} "
                f'rows (0 … {self.steps - 1}); take fewer steps, give more data, or say epochs="repeat"'
            )
        return Permutation(self.items, self.seed, epoch)(self.rows.numbers(inside))
