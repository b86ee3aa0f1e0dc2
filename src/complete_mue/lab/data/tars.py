"""WebDataset tars: members that share a name up to its first dot are one sample, ``cat.jpg`` with ``cat.txt``.

Tars are indexed once by their headers and then read in place: nothing is ever unpacked to disk.
"""

from __future__ import annotations

import json
import math
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from complete_mue.errors import FileError
from complete_mue.lab.data.decoding import LARGEST_FILE, SUFFIXES
from complete_mue.lab.data.images import Collection, caption_text

_TEXTS = (".txt", ".caption", ".text")
_LARGEST_TEXT = 2**20
_LARGEST_PATTERN = 100_000
_RANGE = re.compile(r"\{([0-9]{1,18})\.\.([0-9]{1,18})\}")


@dataclass(frozen=True)
class _Piece:
    """Where a member's bytes lie."""

    tar: int
    offset: int
    size: int


@dataclass
class _Sample:
    key: str
    tar: int
    pieces: dict[str, _Piece] = field(default_factory=dict)


class ImageTars(Collection):
    """Samples of one or more tars: paths, a folder of .tar files, or a pattern such as ``train-{000..041}.tar``.

    The caption is in a .txt (or .caption) or under ``caption_key`` of a .json.
    """

    def __init__(self, tars: str | Path | Sequence[str | Path], *, caption_key: str = "caption") -> None:
        given = [tars] if isinstance(tars, str | Path) else list(tars)
        self._tars = [path for one in given for path in _expanded(one)]
        self._caption_key = caption_key
        if not self._tars:
            raise FileError(f"{', '.join(map(str, given)) or 'no tars'}: no .tar files; give paths or a folder of them")
        self.name = self._tars[0].as_posix()
        self._samples = [
            sample for number, path in enumerate(self._tars) for sample in _indexed(number, path, caption_key)
        ]
        if not self._samples:
            raise FileError(f"{self.name}: no pictures in it; a picture ends in {', '.join(SUFFIXES)}")

    def __len__(self) -> int:
        return len(self._samples)

    def caption(self, item: int) -> str:
        """From the sample's .txt or .json."""
        sample = self._samples[item]
        for suffix in _TEXTS:
            if suffix in sample.pieces:
                try:
                    return self._bytes(sample.pieces[suffix]).decode("utf-8").strip()
                except UnicodeDecodeError as problem:
                    raise FileError(f"{self.where(item)}{suffix}: not UTF-8 text ({problem.reason})") from None
        try:
            return caption_text(json.loads(self._bytes(sample.pieces[".json"]))[self._caption_key], self.where(item))
        except (ValueError, KeyError, TypeError, RecursionError) as problem:
            if isinstance(problem, FileError):
                raise
            raise FileError(
                f"{self.where(item)}.json: no caption under {self._caption_key!r} ({problem}); give its caption_key"
            ) from None

    def picture(self, item: int) -> bytes:
        """The member's bytes."""
        return self._bytes(next(piece for suffix, piece in self._samples[item].pieces.items() if suffix in SUFFIXES))

    def where(self, item: int) -> str:
        """Tar and key."""
        sample = self._samples[item]
        return f"{self._tars[sample.tar].as_posix()}: {sample.key}"

    def stamp(self, item: int) -> str:
        """Sizes of its members."""
        return " ".join(f"{suffix} {piece.size}" for suffix, piece in sorted(self._samples[item].pieces.items()))

    def _bytes(self, piece: _Piece) -> bytes:
        path = self._tars[piece.tar]
        try:
            with path.open("rb") as file:
                file.seek(piece.offset)
                content = file.read(piece.size)
        except OSError as problem:
            raise FileError(f"{path}: {problem.strerror or problem}") from None
        if len(content) != piece.size:
            raise FileError(f"{path}: cut off; get the file again")
        return content


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


def _indexed(number: int, path: Path, caption_key: str) -> Iterator[_Sample]:
    """Samples of one tar that have a picture, each with a caption."""
    samples: dict[str, _Sample] = {}
    try:
        with tarfile.open(path, "r:") as archive:  # "r:": not packed as a whole, so that members can be read in place
            for member in archive:
                if member.isdir():
                    continue
                key, suffix = _split(path, member)
                limit = LARGEST_FILE if suffix in SUFFIXES else _LARGEST_TEXT
                if suffix in (*SUFFIXES, *_TEXTS, ".json"):
                    if member.size > limit:
                        raise FileError(f"{path}: member {member.name!r} is larger than {limit} bytes; leave it out")
                    pieces = samples.setdefault(key, _Sample(key, number)).pieces
                    pieces[suffix] = _Piece(number, member.offset_data, member.size)
    except (tarfile.TarError, EOFError, ValueError) as problem:
        if isinstance(problem, FileError):
            raise
        raise FileError(
            f"{path}: not a readable .tar ({problem}); a packed one (.tar.gz) must be unpacked to .tar first"
        ) from None
    except OSError as problem:
        raise FileError(f"{path}: {problem.strerror or problem}") from None
    for sample in samples.values():
        if not any(suffix in sample.pieces for suffix in SUFFIXES):
            continue
        if not any(suffix in sample.pieces for suffix in (*_TEXTS, ".json")):
            raise FileError(f"{path}: {sample.key} has no caption; add {sample.key}.txt, or .json with {caption_key!r}")
        yield sample


def _split(path: Path, member: tarfile.TarInfo) -> tuple[str, str]:
    """Key and last suffix of a member; names that lead out of an archive, links and devices are refused."""
    inside = PurePosixPath(member.name)
    if inside.is_absolute() or ".." in inside.parts or "\\" in member.name or "\0" in member.name:
        raise FileError(f"{path}: member {member.name!r} points out of the archive: refused, do not trust this file")
    if not member.isreg() or member.issparse():
        raise FileError(f"{path}: member {member.name!r} is not a plain file: refused; pack plain files only")
    stem, dot, suffix = inside.name.partition(".")
    return (inside.parent / stem).as_posix(), f"{dot}{suffix.rpartition('.')[2]}".lower()
