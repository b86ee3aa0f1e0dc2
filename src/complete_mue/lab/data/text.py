"""Batches of token windows as a pure function of the step.

The tokens of a split are one stream; window i is the ``sequence + 1`` tokens from i · sequence on, so that every token
but the first is predicted exactly once per epoch. The only state of a run is its step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from complete_mue.errors import FileError, RunError, ShapeError
from complete_mue.lab.data.file_parts import OpenFiles
from complete_mue.lab.data.item_order import Order, Sampling
from complete_mue.lab.data.manifest import ITEM_SIZE, Manifest
from complete_mue.lab.data.standard_library import LARGEST, library_texts
from complete_mue.lab.data.tokenizers import ByteTokenizer, Tokenizer
from complete_mue.layout.numbers import count


class TokenStream(Protocol):
    """Tokens one after another."""

    @property
    def size(self) -> int:
        """How many."""

    def read(self, start: int, out: NDArray[np.int64]) -> None:
        """Fill ``out`` with the tokens from ``start`` on."""


class Shards:
    """The shards of a split as one stream."""

    def __init__(self, paths: Sequence[Path], tokens: Sequence[int], dtype: str) -> None:
        self._paths, self._dtype = list(paths), np.dtype(f"<u{ITEM_SIZE[dtype]}")
        self._starts = np.concatenate([[0], np.cumsum(tokens, dtype=np.int64)])
        self._files = OpenFiles("prepare the data again")

    @property
    def size(self) -> int:
        """Tokens of all shards."""
        return int(self._starts[-1])

    def read(self, start: int, out: NDArray[np.int64]) -> None:
        """Fill ``out`` from ``start`` on, across shards."""
        number, filled, size = int(np.searchsorted(self._starts, start, side="right")) - 1, 0, self._dtype.itemsize
        while filled < len(out):
            first, end = int(self._starts[number]), int(self._starts[number + 1])
            count = min(len(out) - filled, end - start - filled)
            content = self._files.read(self._paths[number], (start + filled - first) * size, count * size)
            out[filled : filled + count] = np.frombuffer(content, self._dtype)
            filled += count
            number += 1


class Memory:
    """A stream held in memory."""

    def __init__(self, tokens: NDArray[Any]) -> None:
        self._tokens = tokens

    @property
    def size(self) -> int:
        """Tokens."""
        return len(self._tokens)

    def read(self, start: int, out: NDArray[np.int64]) -> None:
        """Fill ``out`` from ``start`` on."""
        out[:] = self._tokens[start : start + len(out)]


class Windows:
    """Windows of a token stream: shuffled, each once per epoch, the global batch the same for every number of ranks.

    ``rows`` are those of the global batch; rank r of w gets its r-th part. ``len(data)`` is the steps of one epoch.
    """

    def __init__(
        self,
        stream: TokenStream,
        tokenizer: Tokenizer | None,
        vocab: int,
        *,
        sequence: int,
        rows: int,
        name: str,
        **order: Unpack[Order],
    ) -> None:
        self._stream, self._tokenizer, self.vocab, self.name = stream, tokenizer, vocab, name
        self.sequence = count("sequence", sequence)
        if stream.size <= sequence:
            raise RunError(
                f"{name}: holds {stream.size} tokens, fewer than one window of {sequence} + 1; "
                "give more text or a shorter sequence"
            )
        windows = (stream.size - 1) // sequence
        self.sampling = Sampling.over(windows, rows, f"{name}: windows of {sequence} + 1 tokens", **order)

    def __len__(self) -> int:
        return self.sampling.steps

    @property
    def tokens(self) -> int:
        """Tokens in the stream."""
        return self._stream.size

    @property
    def windows(self) -> int:
        """Windows in one epoch."""
        return self.sampling.items

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer whose ids these are."""
        assert self._tokenizer is not None
        return self._tokenizer

    def batch(self, step: int) -> Tensor:
        """Token ids of this rank's rows at ``step``: int64 [rows / world, sequence + 1]."""
        return self.at(self.sampling.indices(step))

    def at(self, windows: NDArray[np.int64]) -> Tensor:
        """The windows of these numbers, in stream order from 0."""
        out = np.empty((len(windows), self.sequence + 1), np.int64)
        for row, window in zip(out, windows.tolist(), strict=True):
            self._stream.read(window * self.sequence, row)
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
        self.folder, self.manifest = Path(folder), Manifest.read(folder)
        if split not in self.manifest.splits:
            raise FileError(
                f"{folder}: no split {split!r}; it has {', '.join(self.manifest.splits)}"
                + (": prepare it with held_out" if split == "held_out" else "")
            )
        self.manifest.check(folder, split, verify=verify)
        shards = self.manifest.splits[split]
        stream = Shards([self.folder / s.file for s in shards], [s.tokens for s in shards], self.manifest.dtype)
        vocab, name = self.manifest.tokenizer.vocab, f"{folder}, {split}"
        super().__init__(stream, None, vocab, sequence=sequence, rows=rows, name=name, **order)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the folder, loaded on first use."""
        if self._tokenizer is None:
            self._tokenizer = self.manifest.load_tokenizer(self.folder)
        return self._tokenizer


class StandardLibrary(Windows):
    """The sources of Python's own standard library as byte tokens: text that is on every machine.

    The same for a given Python version: only modules of the standard library, in an order drawn from their names, at
    most ``LARGEST`` bytes. The last twentieth of the files is the split ``held_out``.
    """

    LARGEST = LARGEST

    def __init__(self, *, sequence: int, rows: int, split: str = "train", **order: Unpack[Order]) -> None:
        if split not in ("train", "held_out"):
            raise ShapeError(f"split = {split!r}: give train or held_out")
        tokenizer = ByteTokenizer()
        super().__init__(
            Memory(_library()[split == "held_out"]), tokenizer, tokenizer.vocab, sequence=sequence, rows=rows,
            name=f"standard library, {split}", **order,
        )  # fmt: skip


@lru_cache(maxsize=1)
def _library() -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Tokens of the training and of the held-out files."""
    texts = library_texts()
    held = len(texts) // 20
    return _tokens(texts[:-held]), _tokens(texts[-held:])


def _tokens(texts: Sequence[bytes]) -> NDArray[np.uint16]:
    return ByteTokenizer().documents(texts)[1].astype(np.uint16)
