"""The manifest of prepared text: which tokenizer, which shards with which checksums, from which sources.

folder/
  manifest.json            written last: a folder without it is unfinished
  tokenizer.json           a copy, unless the tokenizer is "bytes"
  train-00000.bin …        token ids, little-endian uint16 or uint32, documents each with its end of text
  held_out-00000.bin …     the last documents, if a part was held out
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
class Split:
    """The shards of one split, with their sums."""

    documents: Step
    tokens: Step
    shards: tuple[Shard, ...]

    def __post_init__(self) -> None:
        if (self.documents, self.tokens) != _sums(self.shards):
            raise ShapeError(f"{self.documents} documents and {self.tokens} tokens are not the sums over its shards")
        if len({shard.file for shard in self.shards}) != len(self.shards):
            raise ShapeError("a shard is listed twice")

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> Split:
        """These shards."""
        return cls(*_sums(shards), tuple(shards))


def _sums(shards: Sequence[Shard]) -> tuple[int, int]:
    return sum(shard.documents for shard in shards), sum(shard.tokens for shard in shards)


@dataclass(frozen=True)
class Manifest:
    """All there is to know about a folder of prepared text: what ``manifest.json`` holds, after its header."""

    tokenizer: TokenizerInfo
    dtype: str
    settings: Mapping[str, Any]
    splits: Mapping[str, Split]
    sources: tuple[Mapping[str, Any], ...]

    def __post_init__(self) -> None:
        if "train" not in self.splits or not set(self.splits) <= set(SPLITS):
            raise ShapeError(f"splits must be {SPLITS[0]!r} and perhaps {SPLITS[1]!r}")
        if self.dtype != self.tokenizer.dtype:
            raise ShapeError(f"dtype {self.dtype!r:.80} with a vocabulary of {self.tokenizer.vocab}")

    @classmethod
    def read(cls, folder: str | Path) -> Manifest:
        """The manifest of a prepared folder, every field checked."""
        return TEXT.read(cls, Path(folder))

    def check(self, folder: str | Path, split: str, *, verify: bool = False) -> None:
        """Every shard of ``split`` is there and has its size; with ``verify`` also its checksum."""
        for shard in self.splits[split].shards:
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
