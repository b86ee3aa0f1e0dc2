"""Random numbers and permutations as pure functions of integers: nothing to save, nothing to advance.

Everything is 64-bit integer arithmetic, so results are the same on every machine and with every version of numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from complete_mue.layout.numbers import count

_WORD = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = 6

Words = NDArray[np.uint64]


def mix(words: Words) -> Words:
    """SplitMix64's finalizer: a bijection of 64-bit words that looks random."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def key(*numbers: int) -> np.uint64:
    """One word out of several whole numbers; their order matters."""
    state = np.zeros(1, np.uint64)
    for number in numbers:
        state = mix(state + np.array([number & _WORD], np.uint64) + np.array([_GOLDEN], np.uint64))
    return np.uint64(state[0])


def uniform(seed: int, items: NDArray[Any], draw: int) -> NDArray[np.float64]:
    """The ``draw``-th uniform number in [0, 1) of every item."""
    words = mix(mix(items.astype(np.uint64) + key(seed, draw)) + np.array(_GOLDEN, np.uint64))
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def choice(seed: int, items: NDArray[Any], draw: int, options: int) -> NDArray[np.int64]:
    """The ``draw``-th choice of every item among 0 … options - 1."""
    return (uniform(seed, items, draw) * options).astype(np.int64)


class Permutation:
    """A seeded permutation of 0 … size - 1 that holds no table: a Feistel network, walked until it lands inside.

    The network permutes 2^bits >= size numbers, fewer than twice as many as needed (and four at least); a number that
    lands outside is sent through again, which keeps it a bijection.
    """

    def __init__(self, size: int, *seed: int) -> None:
        self.size = count("size", size)
        bits = max(2, (size - 1).bit_length())
        self._low = bits // 2  # bits of the right half before an even round
        self._high = bits - self._low
        self._keys = [key(*seed, number) for number in range(_ROUNDS)]

    def __call__(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each of ``items`` goes."""
        words = self._network(np.atleast_1d(items).astype(np.uint64))
        outside = words >= self.size
        while outside.any():
            words[outside] = self._network(words[outside])
            outside = words >= self.size
        return words.astype(np.int64)

    def _network(self, words: Words) -> Words:
        left_bits, right_bits = self._high, self._low
        left, right = words >> np.uint64(right_bits), words & np.uint64(2**right_bits - 1)
        for round_key in self._keys:
            left = left ^ (mix(right + round_key) & np.uint64(2**left_bits - 1))
            left, right, left_bits, right_bits = right, left, right_bits, left_bits
        return (left << np.uint64(right_bits)) | right
