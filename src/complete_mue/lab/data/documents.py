"""Documents out of text files, JSON lines, Parquet and Hugging Face datasets, one after another, as UTF-8 bytes.

    source = "notes.txt" "web.jsonl.gz" "part.parquet" "folder/" "hf:NAME" "hf:NAME:SPLIT" "hf:NAME:CONFIG:SPLIT"

The order is that of the sources, folders sorted by path: the same files give the same documents. Empty documents, and
rows whose text is null, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from complete_mue.errors import FileError, nearest
from complete_mue.lab.data.extras import in_our_words, need
from complete_mue.lab.data.text_files import PACKED, json_lines, unpacked
from complete_mue.storage import sha256

LARGEST_DOCUMENT = 2**28
_BLOCK = 2**20
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
        with in_our_words(f"{self}: cannot be loaded"):
            if not (folder / "dataset_dict.json").is_file() and not (folder / "state.json").is_file():
                return library.load_dataset(self.path, self.config, split=self.split)
            loaded = library.load_from_disk(self.path)
            if isinstance(loaded, library.DatasetDict) and self.split not in loaded:
                raise FileError(f"{self}: no split {self.split!r}; it has {', '.join(map(str, loaded))}")
            return loaded[self.split] if isinstance(loaded, library.DatasetDict) else loaded


Texts = Iterator[tuple[int, bytes]]  # how far a source has been read, and a text


@dataclass(frozen=True)
class Reader:
    """The texts of one source, empty ones too, each with how far the source has been read by then, of its ``size``."""

    name: str
    size: int
    identity: dict[str, Any]  # what the manifest says about the source; its checksum decides whether two are the same
    texts: Callable[[], Texts]


def _text(path: Path, separator: str | None) -> Texts:
    """One document per file, or the parts between separators."""
    with unpacked(path) as (raw, file):
        for text in _parts(file, path, None if separator is None else separator.encode("utf-8")):
            text = text.removeprefix(b"\xef\xbb\xbf")
            text.decode("utf-8")
            yield raw.tell(), text


def _parts(file: BinaryIO, path: Path, separator: bytes | None) -> Iterator[bytes]:
    held = bytearray()  # what follows the last separator
    while block := file.read(_BLOCK):
        unseen = max(0, len(held) - len(separator or b""))  # a separator may have begun in the block before
        held += block
        if separator is not None and held.find(separator, unseen) >= 0:
            *parts, held = held.split(separator)
            yield from map(bytes, parts)
        if len(held) > LARGEST_DOCUMENT:
            raise FileError(
                f"{path}: a document of more than {LARGEST_DOCUMENT} bytes; give the separator that stands "
                "between its documents"
            )
    yield bytes(held)


def _lines(path: Path, text_key: str) -> Texts:
    """JSON lines: an object per line, its text under ``text_key``."""
    with unpacked(path) as (raw, file):
        for where, row in json_lines(file, path):
            need_column(text_key, row, where, "the text key", "key")
            yield raw.tell(), _utf8(row[text_key], where, text_key)


def _parquet(path: Path, text_key: str) -> Texts:
    """Rows of a Parquet file, their text in the column ``text_key``."""
    arrow, parquet = need("pyarrow", f"Parquet ({path})"), need("pyarrow.parquet", "Parquet")
    size, row = path.stat().st_size, 0
    try:
        with parquet.ParquetFile(path) as file:
            need_column(text_key, file.schema_arrow.names, str(path), "the text key")
            for batch in file.iter_batches(batch_size=1024, columns=[text_key]):
                for value in batch.column(0).to_pylist():
                    row += 1
                    yield size * row // file.metadata.num_rows, _utf8(value, f"{path}, row {row}", text_key)
    except (arrow.ArrowException, OSError) as problem:
        raise FileError(f"{path}: cannot be read as Parquet ({str(problem).splitlines()[0]})") from None


def _rows(dataset: Any, name: str, text_key: str) -> Texts:
    """Rows of a Hugging Face dataset."""
    need_column(text_key, dataset.column_names, name, "the text key")
    row = 0
    for batch in dataset.select_columns([text_key]).iter(batch_size=1024):
        for value in batch[text_key]:
            row += 1
            yield row, _utf8(value, f"{name}, row {row}", text_key)


def need_column(name: str, known: Collection[str], where: str, option: str, what: str = "column") -> None:
    """Refuse a table without the column that an option names."""
    if name not in known:
        found = ", ".join(islice(known, 20))
        raise FileError(f"{where}: no {what} {name!r}{nearest(name, known)}; {what}s are {found}: give one as {option}")


def _utf8(value: Any, where: str, text_key: str) -> bytes:
    if value is None:  # a row without a text, as tables of web pages have them, is an empty document
        return b""
    if not isinstance(value, str):
        raise FileError(f"{where}: {text_key!r} is {str(value)[:40]!r}, not a text; give another text key")
    try:
        text = value.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise FileError(f"{where}: {text_key!r} is not Unicode text ({problem.reason})") from None
    if len(text) > LARGEST_DOCUMENT:
        raise FileError(f"{where}: a document of more than {LARGEST_DOCUMENT} bytes; split it")
    return text


def _kind(path: Path) -> str:
    """The suffix that says what a file holds, without that of its packing."""
    return (Path(path.stem) if path.suffix.lower() in PACKED else path).suffix.lower()


def _files(folder: Path) -> list[Path]:
    known = (*_TEXT, *_LINES, ".parquet")
    found = sorted(path for path in folder.rglob("*") if path.is_file() and _kind(path) in known)
    if not found:
        raise FileError(
            f"{folder}: no documents; a folder's files are read if they end in {', '.join(known)}, "
            f"also with {', '.join(PACKED)}"
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
    dataset, name = source.load(), str(source)
    identity = {"file": name, "rows": len(dataset), "fingerprint": str(dataset._fingerprint)}
    return Reader(name, len(dataset), identity, partial(_rows, dataset, name, text_key))


def _file(path: Path, text_key: str, separator: str | None) -> Reader:
    kind, size = _kind(path), path.stat().st_size
    if kind in _REFUSED:
        hint = "write one JSON object per line (.jsonl)" if kind == ".json" else "unpack or convert it first"
        raise FileError(
            f"{path}: a {kind} file is no text; {hint}: text, {', '.join(_LINES)} and .parquet are read, "
            f"also with {', '.join(PACKED)}"
        )
    if kind == ".parquet" and path.suffix.lower() in PACKED:
        raise FileError(f"{path}: Parquet is packed inside; unpack the file first")
    texts = partial(_text, path, separator)
    if kind in _LINES or kind == ".parquet":
        texts = partial(_lines if kind in _LINES else _parquet, path, text_key)
    return Reader(path.as_posix(), size, {"file": path.as_posix(), "bytes": size, "sha256": sha256(path)}, texts)
