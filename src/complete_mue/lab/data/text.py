"""Batches of token windows as a pure function of the step.

The tokens of a split are one stream; window i is the ``sequence + 1`` tokens from i · sequence on, so that every token
but the first is predicted exactly once per epoch. The only state of a run is its step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from complete_mue.errors import FileError, RunError, ShapeError, one_of
from complete_mue.lab.data.file_parts import OpenFiles
from complete_mue.lab.data.item_order import Order, Shuffled
from complete_mue.lab.data.manifest import ITEM_SIZE, Manifest
from complete_mue.lab.data.shard_folder import SPLITS
from complete_mue.lab.data.standard_library import library_texts
from complete_mue.lab.data.tokenizers import END_OF_TEXT, ByteTokenizer
from complete_mue.layout.numbers import count


class Windows(Shuffled, ABC):
    """Windows of ``tokens`` one after another, each once per epoch."""

    def __init__(self, tokens: int, vocab: int, *, sequence: int, rows: int, name: str, **order: Unpack[Order]) -> None:
        self.tokens, self.vocab, self.name = tokens, vocab, name
        self.sequence = count("sequence", sequence)
        if tokens <= sequence:
            raise RunError(
                f"{name}: holds {tokens} tokens, fewer than one window of {sequence} + 1; "
                "give more text or a shorter sequence"
            )
        self.windows = (tokens - 1) // sequence  # of one epoch
        super().__init__(self.windows, rows, f"{name}: windows of {sequence} + 1 tokens", **order)

    @abstractmethod
    def read(self, start: int, out: NDArray[np.int64]) -> None:
        """Fill ``out`` with the tokens from ``start`` on."""

    def batch(self, step: int) -> Tensor:
        """This rank's rows at ``step``: int64 [rows / world, sequence + 1]."""
        return self.at(self.indices(step))

    def at(self, windows: NDArray[np.int64]) -> Tensor:
        """The windows of these numbers, in stream order from 0."""
        out = np.empty((len(windows), self.sequence + 1), np.int64)
        for row, window in zip(out, windows.tolist(), strict=True):
            self.read(window * self.sequence, row)
        if out.size and out.max() >= self.vocab:
            raise FileError(
                f"{self.name}: holds the id {out.max()}, but the vocabulary ends at {self.vocab - 1}: a shard has "
                "changed; open it with verify=True to learn which"
            )
        return torch.from_numpy(out)


class TextData(Windows):
    """A folder that ``prepare`` wrote.

    Opening it checks manifest, shard sizes and, with ``verify``, checksums. ``split`` is ``train`` or ``held_out``.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        sequence: int,
        rows: int,
        split: str = "train",
        verify: bool = False,
        **order: Unpack[Order],
    ) -> None:
        self.manifest = Manifest.read(folder)
        if split not in self.manifest.splits:
            raise FileError(
                f"{folder}: no split {split!r}; it has {', '.join(self.manifest.splits)}"
                + (": prepare it with held_out" if split == "held_out" else "")
            )
        self.manifest.check(folder, split, verify=verify)
        shards = self.manifest.splits[split].shards
        self._paths = [Path(folder) / shard.file for shard in shards]
        self._starts = np.cumsum([0, *(shard.tokens for shard in shards)])
        self._files = OpenFiles("prepare the data again")
        vocab, name = self.manifest.tokenizer.vocab, f"{folder}, {split}"
        super().__init__(int(self._starts[-1]), vocab, sequence=sequence, rows=rows, name=name, **order)

    def read(self, start: int, out: NDArray[np.int64]) -> None:
        """Fill ``out`` from ``start`` on, across shards."""
        dtype = np.dtype(f"<u{ITEM_SIZE[self.manifest.dtype]}")
        number, filled = int(np.searchsorted(self._starts, start, side="right")) - 1, 0
        while filled < len(out):
            first, end = int(self._starts[number]), int(self._starts[number + 1])
            count = min(len(out) - filled, end - start - filled)
            begin = (start + filled - first) * dtype.itemsize
            content = self._files.read(self._paths[number], begin, count * dtype.itemsize)
            out[filled : filled + count] = np.frombuffer(content, dtype)
            filled += count
            number += 1


class StandardLibrary(Windows):
    """The sources of Python's own standard library as byte tokens: text that is on every machine.

    The same for a given Python version: only modules of the standard library, in an order drawn from their names, up
    to 20 MB. The last twentieth of the files is the split ``held_out``.
    """

    def __init__(self, *, sequence: int, rows: int, split: str = "train", **order: Unpack[Order]) -> None:
        one_of("split", split, SPLITS, ShapeError)
        self._ids, name = _library()[split == "held_out"], f"standard library, {split}"
        super().__init__(len(self._ids), END_OF_TEXT + 1, sequence=sequence, rows=rows, name=name, **order)

    def read(self, start: int, out: NDArray[np.int64]) -> None:
        """Fill ``out`` from ``start`` on."""
        out[:] = self._ids[start : start + len(out)]


def open_text(source: str, **options: Any) -> Windows:
    """``stdlib``, or a folder that ``prepare`` wrote."""
    return StandardLibrary(**options) if source == "stdlib" else TextData(source, **options)


@lru_cache(maxsize=1)
def _library() -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Tokens of the training and of the held-out files."""
    texts = library_texts()
    held = len(texts) // 20
    train, rest = (ByteTokenizer().documents(part)[1].astype(np.uint16) for part in (texts[:-held], texts[-held:]))
    return train, rest
