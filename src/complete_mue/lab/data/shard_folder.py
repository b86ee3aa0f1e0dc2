"""Folders of shards: each shard whole or not at all, the manifest last. A killed writer's folder is gone on with.

``progress.json`` stands in for the manifest until then: what was asked for, and the shards that are done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from msgspec import to_builtins

from complete_mue.errors import FileError
from complete_mue.lab.records.decode import decode, refuse_other_format
from complete_mue.storage import exclusive, read_json, refuse_strangers, sha256, whole, write_json

MANIFEST = "manifest.json"
PROGRESS = "progress.json"
TOKENIZER = "tokenizer.json"
SPLITS = ("train", "held_out")
_ANEW = "empty the folder and start over"

T = TypeVar("T")


@dataclass(frozen=True)
class ShardFolder:
    """A kind of folder: what it holds, who writes it, which names are its own, what to do about a damaged one."""

    header: Mapping[str, Any]
    what: str
    writer: str
    names: tuple[str, ...]
    remedy: str

    def is_at(self, folder: Path) -> bool:
        """Whether the folder's manifest is of this kind."""
        path = folder / MANIFEST
        return path.is_file() and bool(read_json(path, "manifest").get("format") == self.header["format"])

    def read(self, kind: type[T], folder: Path) -> T:
        """The manifest, every field checked."""
        path = folder / MANIFEST
        if not path.is_file():
            if (folder / PROGRESS).is_file():
                raise FileError(f"{folder}: writing it did not finish; run the same {self.writer} again")
            missing = f"no {MANIFEST}" if folder.exists() else "no such folder"
            raise FileError(f"{folder}: {missing}; give a folder that {self.writer} wrote")
        data = read_json(path, f"manifest of {self.what}", self.remedy)
        refuse_other_format(data, self.header, path, self.remedy)
        return decode(kind, data, path, self.remedy)

    def check(self, path: Path, size: int, checksum: str | None = None) -> None:
        """A shard is there and has its size; where a checksum is given, also that."""
        try:
            found = path.stat().st_size
        except OSError as problem:
            raise FileError(f"{path}: {problem.strerror}; the manifest lists it: {self.remedy}") from None
        if found != size:
            raise FileError(f"{path}: {found} bytes, not {size}: cut off or changed; {self.remedy}")
        if checksum is not None and sha256(path) != checksum:
            raise FileError(f"{path}: its checksum is not the manifest's: changed since; {self.remedy}")

    # -- writing ----------------------------------------------------------------------------------------------------

    @contextmanager
    def held(self, folder: Path) -> Iterator[None]:
        """Hold the folder (made if missing) for writing; one with files of others is refused."""
        refuse_strangers(folder, (MANIFEST, PROGRESS, *self.names), self.writer)
        with exclusive(folder, self.writer):
            yield

    def unfinished(self, fresh: T, folder: Path) -> T:
        """What an earlier call noted in ``progress.json``; where there was none, ``fresh``, which is noted now."""
        path = folder / PROGRESS
        if path.exists():
            return decode(type(fresh), read_json(path, f"record of unfinished {self.what}", _ANEW), path, _ANEW)
        write_json(path, to_builtins(fresh))
        return fresh

    def finish(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        """Write the manifest."""
        write_json(folder / MANIFEST, {**self.header, **manifest})
        (folder / PROGRESS).unlink(missing_ok=True)


TEXT = ShardFolder(
    {"format": "complete_mue tokens", "version": 1}, "prepared text", "`mue data prepare`",
    (TOKENIZER, *(f"{split}-" for split in SPLITS)), "prepare the data again",
)  # fmt: skip
FEATURES = ShardFolder(
    {"format": "complete_mue features", "version": 1}, "cached features", "cache_features", ("features-",),
    "cache the features again",
)  # fmt: skip


def holds_features(folder: Path) -> bool:
    """Whether ``cache_features`` wrote (or is writing) the folder."""
    return FEATURES.is_at(folder) or (not (folder / MANIFEST).is_file() and (folder / PROGRESS).is_file())


def write_shard(path: Path, parts: Iterable[bytes]) -> str:
    """Write a shard; its checksum."""
    digest = hashlib.sha256()
    with whole(path) as file:
        for part in parts:
            digest.update(part)
            file.write(part)
    return digest.hexdigest()


def is_whole(path: Path, size: int) -> bool:
    """Whether a shard is there and has its size."""
    return path.is_file() and path.stat().st_size == size


def refuse_other_request(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with a folder that was begun with other settings or sources; mere names do not count."""
    for name, value in now.items():
        given = before.get(name)
        if given != value and not name.endswith("_name"):
            short = max(len(repr(given)), len(repr(value))) <= 40  # not a checksum
            said = f" ({given!r}, now {value!r})" if short else ""
            raise FileError(
                f"{folder}: begun with another {'source' if name == 'sources' else name}{said}; "
                "give another folder, or empty this one"
            )
