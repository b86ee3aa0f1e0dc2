"""WebDataset tars: members that share a name up to its first dot are one sample, ``cat.jpg`` with ``cat.txt``.

Tars are indexed once by their headers and then read in place: nothing is ever unpacked to disk.
"""

from __future__ import annotations

import json
import math
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath

from complete_mue.errors import FileError
from complete_mue.lab.data.decoding import LARGEST_FILE, SUFFIXES
from complete_mue.lab.data.extras import in_our_words
from complete_mue.lab.data.file_parts import OpenFiles
from complete_mue.lab.data.images import Collection, Item, caption_text

_TEXTS = (".txt", ".caption", ".text")
_LARGEST_TEXT = 2**20
_LARGEST_PATTERN = 100_000
_RANGE = re.compile(r"\{([0-9]{1,18})\.\.([0-9]{1,18})\}")


class ImageTars(Collection):
    """Samples of a .tar, of a folder of them, or of a pattern such as ``train-{000..041}.tar``.

    The caption is in a .txt (or .caption) or under ``caption`` of a .json.
    """

    def __init__(self, tars: str | Path) -> None:
        found = _expanded(tars)
        if not found:
            raise FileError(f"{tars}: no .tar files; give the path of one or of a folder of them")
        files = OpenFiles("get the file again")
        super().__init__(found[0].as_posix(), [item for path in found for item in _items(path, files)])
        self._folder = Path(os.path.commonpath([path.parent for path in found])).as_posix()

    def inside(self, name: str) -> str:
        """Of the first tar, without its name; of the others, with their names."""
        return super().inside(name).removeprefix(f"{self._folder}/")


def _expanded(given: str | Path) -> list[Path]:
    """A folder's tars, or the numbers of a pattern."""
    path = Path(given)
    if path.is_dir():
        return sorted(path.glob("*.tar"))
    found = _RANGE.search(str(given))
    if found is None or path.exists():
        return [path]
    first, last, digits = int(found[1]), int(found[2]), len(found[1])
    if math.prod(max(1, int(end) - int(begin) + 1) for begin, end in _RANGE.findall(str(given))) > _LARGEST_PATTERN:
        raise FileError(f"{given}: names more than {_LARGEST_PATTERN} tars; give fewer")
    head, tail = str(given)[: found.start()], str(given)[found.end() :]
    return [inside for number in range(first, last + 1) for inside in _expanded(f"{head}{number:0{digits}d}{tail}")]


def _items(path: Path, files: OpenFiles) -> Iterator[Item]:
    """Samples of one tar that have a picture, each with a caption."""
    for key, members in _indexed(path).items():
        picture = next((suffix for suffix in members if suffix in SUFFIXES), None)
        if picture is not None:
            stamp = " ".join(f"{suffix} {member.size}" for suffix, member in sorted(members.items()))
            parts = {suffix: partial(files.read, path, at.offset_data, at.size) for suffix, at in members.items()}
            yield Item(f"{path.as_posix()}: {key}", _caption(parts, path, key), stamp, parts[picture])


def _indexed(path: Path) -> dict[str, dict[str, tarfile.TarInfo]]:
    """Pictures and texts of a tar, by key and suffix."""
    samples: dict[str, dict[str, tarfile.TarInfo]] = {}
    advice = "give a plain .tar; a packed one (.tar.gz) must be unpacked first"
    # "r:": not packed as a whole, so that members can be read in place
    with in_our_words(f"{path}: cannot be read as .tar", advice), tarfile.open(path, "r:") as archive:
        for member in archive:
            if member.isdir():
                continue
            key, suffix = _split(path, member)
            limit = LARGEST_FILE if suffix in SUFFIXES else _LARGEST_TEXT
            if suffix in (*SUFFIXES, *_TEXTS, ".json"):
                if member.size > limit:
                    raise FileError(f"{path}: member {member.name!r} is larger than {limit} bytes; leave it out")
                samples.setdefault(key, {})[suffix] = member
    return samples


def _caption(parts: Mapping[str, Callable[[], bytes]], path: Path, key: str) -> str:
    suffix = next((suffix for suffix in (*_TEXTS, ".json") if suffix in parts), None)
    if suffix is None:
        raise FileError(f"{path}: {key} has no caption; add {key}.txt, or .json with 'caption'")
    wanted = "JSON with 'caption'" if suffix == ".json" else "text in UTF-8"
    with in_our_words(f"{path}: {key}{suffix}: not {wanted}"):
        text = parts[suffix]().decode("utf-8-sig")
        return caption_text(json.loads(text)["caption"] if suffix == ".json" else text, f"{path}: {key}")


def _split(path: Path, member: tarfile.TarInfo) -> tuple[str, str]:
    """Key and last suffix of a member; names that lead out of an archive, links and devices are refused."""
    inside = PurePosixPath(member.name)
    if inside.is_absolute() or ".." in inside.parts or "\\" in member.name or "\0" in member.name:
        raise FileError(f"{path}: member {member.name!r} points out of the archive: refused, do not trust this file")
    if not member.isreg() or member.issparse():
        raise FileError(f"{path}: member {member.name!r} is not a plain file: refused; pack plain files only")
    stem, dot, suffix = inside.name.partition(".")
    return (inside.parent / stem).as_posix(), f"{dot}{suffix.rpartition('.')[2]}".lower()
