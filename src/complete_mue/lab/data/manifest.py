"""The manifest of prepared text: which tokenizer, which shards with which checksums, from which sources.

folder/
  manifest.json            written last: a folder without it is unfinished
  tokenizer.json           a copy, unless the tokenizer is "bytes"
  train-00000.bin …        token ids, little-endian uint16 or uint32, documents each with its end of text
  held_out-00000.bin …     the last documents, if a part was held out
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from complete_mue.errors import FileError, ShapeError
from complete_mue.lab.data.shard_folder import SPLITS, TEXT, TOKENIZER
from complete_mue.lab.data.tokenizers import BYTES, ByteTokenizer, JsonTokenizer, Tokenizer
from complete_mue.lab.records.decode import Checksum, Count, Step

ITEM_SIZE = {"uint16": 2, "uint32": 4}


@dataclass(frozen=True)
class Shard:
    """One file of token ids. Only plain names of ours: a manifest cannot point outside its folder."""

    file: Annotated[str, Meta(pattern=r"\A(train|held_out)-[0-9]{5,8}\.bin\Z")]
    documents: Count
    tokens: Count
    sha256: Checksum


@dataclass(frozen=True)
class TokenizerInfo:
    """What decided the ids."""

    name: str
    sha256: Checksum
    vocab: Annotated[int, Meta(ge=1, le=2**32)]  # ids are 32 bits wide at most
    end_of_text: Step
    end: str | None = None

    def __post_init__(self) -> None:
        if self.end_of_text >= self.vocab:
            raise ShapeError(f"end_of_text = {self.end_of_text}: must be below vocab = {self.vocab}")

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenizerInfo:
        """The facts of a tokenizer."""
        end = getattr(tokenizer, "end", None)
        return cls(tokenizer.name, tokenizer.sha256, tokenizer.vocab, tokenizer.end_of_text, end)

    @property
    def dtype(self) -> str:
        """The narrowest type that holds every id."""
        return "uint16" if self.vocab <= 2**16 else "uint32"


@dataclass(frozen=True)
class Manifest:
    """All there is to know about a folder of prepared text."""

    tokenizer: TokenizerInfo
    splits: Mapping[str, tuple[Shard, ...]]
    sources: tuple[Mapping[str, Any], ...]
    settings: Mapping[str, Any]

    @property
    def dtype(self) -> str:
        """Type of the ids in the shards."""
        return self.tokenizer.dtype

    def tokens(self, split: str = "train") -> int:
        """Tokens of a split."""
        return sum(shard.tokens for shard in self.splits.get(split, ()))

    def documents(self, split: str = "train") -> int:
        """Documents of a split."""
        return sum(shard.documents for shard in self.splits.get(split, ()))

    # -- files ----------------------------------------------------------------------------------------------------

    def write(self, folder: Path) -> None:
        """Write ``manifest.json``, whole or not at all."""
        splits = {name: _Split(self.documents(name), self.tokens(name), rows) for name, rows in self.splits.items()}
        sources = tuple(dict(source) for source in self.sources)
        TEXT.finish(folder, dataclasses.asdict(_File(self.tokenizer, self.dtype, self.settings, splits, sources)))

    @classmethod
    def read(cls, folder: str | Path) -> Manifest:
        """The manifest of a prepared folder, every field checked."""
        found = TEXT.read(_File, Path(folder))
        splits = {name: split.shards for name, split in found.splits.items()}
        return cls(found.tokenizer, splits, found.sources, found.settings)

    # -- what the folder holds ------------------------------------------------------------------------------------

    def check(self, folder: str | Path, split: str, *, verify: bool = False) -> None:
        """Every shard of ``split`` is there and has its size; with ``verify`` also its checksum."""
        for shard in self.splits[split]:
            size = shard.tokens * ITEM_SIZE[self.dtype]
            TEXT.check(Path(folder) / shard.file, size, shard.sha256 if verify else None)

    def load_tokenizer(self, folder: str | Path) -> Tokenizer:
        """The tokenizer that made the folder, from its copy there."""
        if self.tokenizer.name == BYTES:
            tokenizer: Tokenizer = ByteTokenizer()
        else:
            path = Path(folder) / TOKENIZER
            tokenizer = JsonTokenizer(path, name=self.tokenizer.name, end_of_text=self.tokenizer.end)
        if tokenizer.sha256 != self.tokenizer.sha256:
            raise FileError(f"{folder}: its tokenizer is not the one that made the data; prepare the data again")
        return tokenizer


@dataclass(frozen=True)
class _Split:
    documents: Step
    tokens: Step
    shards: tuple[Shard, ...]

    def __post_init__(self) -> None:
        sums = sum(shard.documents for shard in self.shards), sum(shard.tokens for shard in self.shards)
        if (self.documents, self.tokens) != sums:
            raise ShapeError(f"{self.documents} documents and {self.tokens} tokens are not the sums over its shards")
        if len({shard.file for shard in self.shards}) != len(self.shards):
            raise ShapeError("a shard is listed twice")


@dataclass(frozen=True)
class _File:
    """What ``manifest.json`` holds, after its header."""

    tokenizer: TokenizerInfo
    dtype: str
    settings: Mapping[str, Any]
    splits: Mapping[str, _Split]
    sources: tuple[Mapping[str, Any], ...]

    def __post_init__(self) -> None:
        if "train" not in self.splits or not set(self.splits) <= set(SPLITS):
            raise ShapeError(f"splits must be {SPLITS[0]!r} and perhaps {SPLITS[1]!r}")
        if self.dtype != self.tokenizer.dtype:
            raise ShapeError(f"dtype {self.dtype!r:.80} with a vocabulary of {self.tokenizer.vocab}")
