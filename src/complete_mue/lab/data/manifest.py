"""The manifest of prepared text: which tokenizer, which shards with which checksums, from which sources.

folder/
  manifest.json            written last: a folder without it is unfinished
  tokenizer.json           a copy, unless the tokenizer is "bytes"
  train-00000.bin …        token ids, little-endian uint16 or uint32, documents each with its end of text
  held_out-00000.bin …     the last documents, if a part was held out
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from complete_mue.errors import FileError, MueError, ShapeError
from complete_mue.lab.data.tokenizers import BYTES, ByteTokenizer, JsonTokenizer, Tokenizer
from complete_mue.layout.numbers import count
from complete_mue.storage import read_json, sha256, write_json

MANIFEST = "manifest.json"
PROGRESS = "progress.json"
TOKENIZER = "tokenizer.json"
FORMAT = "complete_mue tokens"
VERSION = 1
SPLITS = ("train", "held_out")
ITEM_SIZE = {"uint16": 2, "uint32": 4}
_SHARD_NAME = re.compile(r"(train|held_out)-[0-9]{5,8}\.bin")
_CHECKSUM = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Shard:
    """One file of token ids."""

    file: str
    documents: int
    tokens: int
    sha256: str

    def __post_init__(self) -> None:
        # Only plain names of ours: a manifest cannot point outside its folder.
        if not isinstance(self.file, str) or not _SHARD_NAME.fullmatch(self.file):
            raise ShapeError(f"shard file {self.file!r}: the name must be such as train-00000.bin")
        count("documents", self.documents)
        count("tokens", self.tokens)
        _checksum(self.sha256)


@dataclass(frozen=True)
class TokenizerInfo:
    """What decided the ids."""

    name: str
    sha256: str
    vocab: int
    end_of_text: int
    end: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not (self.end is None or isinstance(self.end, str)):
            raise ShapeError(f"tokenizer {self.name!r}, end {self.end!r}: both must be texts")
        _checksum(self.sha256)
        if count("vocab", self.vocab) > 2**32:
            raise ShapeError(f"vocab = {self.vocab}: ids are 32 bits wide at most")
        if count("end_of_text", self.end_of_text, least=0) >= self.vocab:
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

    def to_dict(self) -> dict[str, Any]:
        """As it stands in the file."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "tokenizer": dataclasses.asdict(self.tokenizer),
            "dtype": self.dtype,
            "settings": dict(self.settings),
            "splits": {
                name: {
                    "documents": self.documents(name),
                    "tokens": self.tokens(name),
                    "shards": [dataclasses.asdict(shard) for shard in shards],
                }
                for name, shards in self.splits.items()
            },
            "sources": [dict(source) for source in self.sources],
        }

    def write(self, folder: Path) -> None:
        """Write ``manifest.json``, whole or not at all."""
        write_json(folder / MANIFEST, self.to_dict())

    @classmethod
    def read(cls, folder: str | Path) -> Manifest:
        """The manifest of a prepared folder, every field checked."""
        folder = Path(folder)
        path = folder / MANIFEST
        if not path.is_file():
            if (folder / PROGRESS).is_file():
                raise FileError(f"{folder}: preparing it did not finish; run the same `mue data prepare` again")
            raise FileError(f"{folder}: no {MANIFEST}; give a folder that `mue data prepare` wrote")
        data = read_json(path, "manifest of prepared text")
        try:
            return cls._parse(data)
        except (MueError, KeyError, TypeError, AttributeError) as problem:
            said = f"no {problem}" if isinstance(problem, KeyError) else problem
            raise FileError(f"{path}: not a manifest of prepared text ({said}); prepare the data again") from None

    @classmethod
    def _parse(cls, data: Mapping[str, Any]) -> Manifest:
        if data["format"] != FORMAT or data["version"] != VERSION:
            raise ShapeError(f"format {data['format']!r} version {data['version']!r}, not {FORMAT!r} version {VERSION}")
        splits = data["splits"]
        if not isinstance(splits, dict) or "train" not in splits or not set(splits) <= set(SPLITS):
            raise ShapeError(f"splits must be {SPLITS[0]!r} and perhaps {SPLITS[1]!r}")
        manifest = cls(
            tokenizer=TokenizerInfo(**data["tokenizer"]),
            splits={name: tuple(Shard(**row) for row in _list(split["shards"])) for name, split in splits.items()},
            sources=tuple(_object(source) for source in _list(data["sources"])),
            settings=_object(data["settings"]),
        )
        if data["dtype"] != manifest.dtype:
            raise ShapeError(f"dtype {data['dtype']!r} with a vocabulary of {manifest.tokenizer.vocab}")
        for name, split in splits.items():
            if (split["documents"], split["tokens"]) != (manifest.documents(name), manifest.tokens(name)):
                raise ShapeError(f"the counts of {name!r} are not the sums over its shards")
            if len({shard.file for shard in manifest.splits[name]}) != len(manifest.splits[name]):
                raise ShapeError(f"a shard of {name!r} is listed twice")
        return manifest

    # -- what the folder holds ------------------------------------------------------------------------------------

    def check(self, folder: str | Path, split: str, *, verify: bool = False) -> None:
        """Every shard of ``split`` is there and has its size; with ``verify`` also its checksum."""
        for shard in self.splits[split]:
            path = Path(folder) / shard.file
            expected = shard.tokens * ITEM_SIZE[self.dtype]
            try:
                size = path.stat().st_size
            except OSError as problem:
                raise FileError(f"{path}: {problem.strerror}; the manifest lists it: prepare the data again") from None
            if size != expected:
                raise FileError(
                    f"{path}: {size} bytes, but {shard.tokens} tokens need {expected}: cut off or changed; "
                    "prepare the data again"
                )
            if verify and sha256(path) != shard.sha256:
                raise FileError(f"{path}: its checksum is not the manifest's: changed since; prepare the data again")

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


def _checksum(value: object) -> None:
    if not isinstance(value, str) or not _CHECKSUM.fullmatch(value):
        raise ShapeError(f"sha256 {value!r}: must be 64 hexadecimal digits")


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ShapeError(f"a {type(value).__name__} where an object must be")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ShapeError(f"a {type(value).__name__} where a list must be")
    return value
