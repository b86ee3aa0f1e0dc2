"""Documents out of text files, JSON lines, Parquet and Hugging Face datasets, one after another, as UTF-8 bytes.

    source = "notes.txt" "web.jsonl.gz" "part.parquet" "folder/" "hf:NAME" "hf:NAME:SPLIT" "hf:NAME:CONFIG:SPLIT"

The order is that of the sources, folders sorted by path: the same files give the same documents. Empty documents are
left out.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from complete_mue.errors import FileError, MueError, nearest
from complete_mue.lab.data.extras import need
from complete_mue.storage import sha256

LARGEST_DOCUMENT = 2**28
_BLOCK = 2**20
_PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_LINES = (".jsonl", ".ndjson")
_TEXT = (".txt", ".text", ".md", ".rst", ".tex", ".py")
_REFUSED = (".tar", ".tgz", ".zip", ".7z", ".zst", ".rar", ".npz", ".bin", ".pkl", ".pickle", ".pt", ".arrow", ".json")
_HUB = "hf:"


@dataclass(frozen=True)
class HubDataset:
    """A Hugging Face dataset: a name on the hub, or a local path (a dataset folder or one saved with save_to_disk)."""

    path: str
    config: str | None = None
    split: str = "train"

    @classmethod
    def parse(cls, text: str) -> HubDataset:
        """``hf:NAME``, ``hf:NAME:SPLIT`` or ``hf:NAME:CONFIG:SPLIT``."""
        parts = text.removeprefix(_HUB).split(":")
        if not all(parts) or len(parts) > 3:
            raise FileError(f"source {text!r}: write hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT")
        return cls(parts[0], parts[1] if len(parts) == 3 else None, parts[-1] if len(parts) > 1 else "train")

    def __str__(self) -> str:
        return _HUB + ":".join(part for part in (self.path, self.config, self.split) if part)

    def load(self) -> Any:
        """The ``datasets.Dataset``."""
        library = need("datasets", f"the source {self}")
        folder = Path(self.path)
        try:
            if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
                loaded = library.load_from_disk(self.path)
                if isinstance(loaded, library.DatasetDict):
                    if self.split not in loaded:
                        raise FileError(f"{self}: no split {self.split!r}; it has {', '.join(map(str, loaded))}")
                    return loaded[self.split]
                return loaded
            return library.load_dataset(self.path, self.config, split=self.split)
        except MueError:
            raise
        except Exception as problem:  # network, names, formats: many kinds
            reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
            raise FileError(f"{self}: cannot be loaded ({type(problem).__name__}: {reason})") from None


@dataclass
class Reader(ABC):
    """The documents of one source, with how far it has been read. ``size`` is in the same unit as ``position``."""

    name: str
    size: int
    position: int = 0

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What the manifest says about the source; its checksum decides whether two are the same."""

    @abstractmethod
    def documents(self) -> Iterator[bytes]:
        """The documents, from the first."""


@dataclass
class _File(Reader):
    path: Path = field(default_factory=Path)
    text_key: str = "text"
    separator: str | None = None

    @cached_property
    def identity(self) -> dict[str, Any]:
        return {"file": self.name, "bytes": self.size, "sha256": sha256(self.path)}

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        """The file's unpacked bytes; trouble on the way out becomes an error that names the file."""
        try:
            with self.path.open("rb") as raw:
                self._raw = raw
                unpack = _PACKED.get(self.path.suffix.lower())
                if unpack is None:
                    yield raw
                else:
                    with unpack(raw, "rb") as file:
                        yield file
        except UnicodeDecodeError as problem:
            raise FileError(f"{self.name}: not UTF-8 text ({problem.reason}); convert it to UTF-8") from None
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as problem:
            raise FileError(f"{self.name}: damaged or cut off ({problem}); get the file again") from None
        except OSError as problem:
            raise FileError(f"{self.name}: {problem.strerror or problem}") from None

    def _checked(self, text: bytes) -> bytes:
        text.decode("utf-8")
        self.position = self._raw.tell()
        return text


class _Text(_File):
    """One document per file, or the parts between separators."""

    def documents(self) -> Iterator[bytes]:
        with self._opened() as file:
            for text in self._parts(file):
                text = text.removeprefix(b"\xef\xbb\xbf")
                if text:
                    yield self._checked(text)

    def _parts(self, file: BinaryIO) -> Iterator[bytes]:
        separator = None if self.separator is None else self.separator.encode("utf-8")
        pending: list[bytes] = []
        size = 0
        tail = b""  # the end of the last block, where a separator may have begun
        while block := file.read(_BLOCK):
            block = tail + block
            if separator is not None and separator in block:
                first, *others = block.split(separator)
                yield b"".join([*pending, first])
                yield from others[:-1]
                pending, size, block = [], 0, others[-1]
            cut = len(block) if separator is None else max(0, len(block) - len(separator) + 1)
            tail = block[cut:]
            pending.append(block[:cut])
            size += len(pending[-1])
            if size > LARGEST_DOCUMENT:
                raise FileError(
                    f"{self.name}: a document of more than {LARGEST_DOCUMENT} bytes; give the separator that stands "
                    "between its documents"
                )
        yield b"".join([*pending, tail])


class _Lines(_File):
    """JSON lines: an object per line, its text under ``text_key``."""

    def documents(self) -> Iterator[bytes]:
        with self._opened() as file:
            number = 0
            while line := file.readline(LARGEST_DOCUMENT + 1):
                number += 1
                if len(line) > LARGEST_DOCUMENT:
                    raise FileError(f"{self.name}:{number}: a line of more than {LARGEST_DOCUMENT} bytes; split it")
                if not line.strip():
                    continue
                text = self._text(number, line)
                self.position = self._raw.tell()
                if text:
                    yield text

    def _text(self, number: int, line: bytes) -> bytes:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as problem:
            raise FileError(f"{self.name}:{number}: not JSON ({str(problem) or 'nested too deeply'})") from None
        if not isinstance(row, dict):
            raise FileError(f"{self.name}:{number}: a {type(row).__name__}; write one JSON object per line")
        need_column(self.text_key, row, f"{self.name}:{number}", "text_key", "key")
        return _utf8(row[self.text_key], f"{self.name}:{number}", self.text_key)


class _Parquet(_File):
    """Rows of a Parquet file, their text in the column ``text_key``."""

    def documents(self) -> Iterator[bytes]:
        arrow, parquet = need("pyarrow", f"Parquet ({self.name})"), need("pyarrow.parquet", "Parquet")
        try:
            with parquet.ParquetFile(self.path) as file:
                need_column(self.text_key, file.schema_arrow.names, self.name, "text_key")
                rows, row = max(1, file.metadata.num_rows), 0
                for batch in file.iter_batches(batch_size=1024, columns=[self.text_key]):
                    for value in batch.column(0).to_pylist():
                        row += 1
                        self.position = self.size * row // rows
                        if text := _utf8(value, f"{self.name}, row {row}", self.text_key):
                            yield text
        except (arrow.ArrowException, OSError) as problem:
            raise FileError(f"{self.name}: cannot be read as Parquet ({str(problem).splitlines()[0]})") from None


@dataclass
class _Hub(Reader):
    dataset: Any = None
    text_key: str = "text"

    @property
    def identity(self) -> dict[str, Any]:
        return {"file": self.name, "rows": self.size, "fingerprint": str(self.dataset._fingerprint)}

    def documents(self) -> Iterator[bytes]:
        need_column(self.text_key, self.dataset.column_names, self.name, "text_key")
        row = 0
        for batch in self.dataset.select_columns([self.text_key]).iter(batch_size=1024):
            for value in batch[self.text_key]:
                row += 1
                self.position = row
                if text := _utf8(value, f"{self.name}, row {row}", self.text_key):
                    yield text


def need_column(name: str, known: Collection[str], where: str, option: str, what: str = "column") -> None:
    """Refuse a table without the column that an option names."""
    if name not in known:
        found = ", ".join(islice(known, 20))
        raise FileError(f"{where}: no {what} {name!r}{nearest(name, known)}; {what}s are {found}: give one as {option}")


def _utf8(value: Any, where: str, text_key: str) -> bytes:
    if not isinstance(value, str):
        raise FileError(f"{where}: {text_key!r} is {str(value)[:40]!r}, not a text; give the text's key as text_key")
    try:
        text = value.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise FileError(f"{where}: {text_key!r} is not Unicode text ({problem.reason})") from None
    if len(text) > LARGEST_DOCUMENT:
        raise FileError(f"{where}: a document of more than {LARGEST_DOCUMENT} bytes; split it")
    return text


def _kind(path: Path) -> str:
    """The suffix that says what a file holds, without that of its packing."""
    return (Path(path.stem) if path.suffix.lower() in _PACKED else path).suffix.lower()


def _files(folder: Path) -> list[Path]:
    known = (*_TEXT, *_LINES, ".parquet")
    found = sorted(path for path in folder.rglob("*") if path.is_file() and _kind(path) in known)
    if not found:
        raise FileError(
            f"{folder}: no documents; a folder's files are read if they end in {', '.join(known)}, "
            f"also with {', '.join(_PACKED)}"
        )
    return found


def open_sources(
    sources: str | Path | HubDataset | Sequence[str | Path | HubDataset],
    *,
    text_key: str = "text",
    separator: str | None = None,
) -> list[Reader]:
    """Readers of files, folders and datasets, in order."""
    listed = [sources] if isinstance(sources, str | Path | HubDataset) else list(sources)
    if not listed:
        raise FileError("no sources: give text files, JSON lines, Parquet files, folders, or hf:NAME")
    if separator == "":
        raise FileError('separator = "": give the text between documents, or leave it out for one document per file')
    readers: list[Reader] = []
    for source in listed:
        if isinstance(source, str) and source.startswith(_HUB):
            source = HubDataset.parse(source)
        if isinstance(source, HubDataset):
            readers.append(_hub(source, text_key))
            continue
        path = Path(source)
        if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
            readers.append(_hub(HubDataset(str(path)), text_key))
        elif path.is_dir():
            readers += [_file(inside, text_key, separator) for inside in _files(path)]
        elif path.is_file():
            readers.append(_file(path, text_key, separator))
        else:
            raise FileError(f"{path}: no such file or folder; a Hugging Face dataset is written hf:NAME")
    return readers


def _hub(source: HubDataset, text_key: str) -> Reader:
    dataset = source.load()
    return _Hub(str(source), len(dataset), dataset=dataset, text_key=text_key)


def _file(path: Path, text_key: str, separator: str | None) -> Reader:
    kind, size = _kind(path), path.stat().st_size
    if kind in _REFUSED:
        hint = "write one JSON object per line (.jsonl)" if kind == ".json" else "unpack or convert it first"
        raise FileError(
            f"{path}: a {kind} file is no text; {hint}: text, {', '.join(_LINES)} and .parquet are read, "
            f"also with {', '.join(_PACKED)}"
        )
    reader = _Lines if kind in _LINES else _Parquet if kind == ".parquet" else _Text
    if reader is _Parquet and path.suffix.lower() in _PACKED:
        raise FileError(f"{path}: Parquet is packed inside; unpack the file first")
    return reader(path.as_posix(), size, path=path, text_key=text_key, separator=separator)
