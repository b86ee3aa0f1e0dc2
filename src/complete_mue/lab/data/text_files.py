"""Text files as they come: plain or packed, JSON lines; what is wrong with one is an error that names it."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from complete_mue.errors import FileError
from complete_mue.storage import json_object

PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
LARGEST_LINE = 2**28


@contextmanager
def unpacked(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The file as it lies, and its unpacked bytes. Trouble while they are read, also with UTF-8, is named."""
    try:
        with path.open("rb") as raw:
            unpack = PACKED.get(path.suffix.lower())
            if unpack is None:
                yield raw, raw
            else:
                with unpack(raw, "rb") as file:
                    yield raw, file
    except UnicodeDecodeError as problem:
        raise FileError(f"{path}: not UTF-8 text ({problem.reason}); convert it to UTF-8") from None
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as problem:
        raise FileError(f"{path}: damaged or cut off ({problem}); get the file again") from None
    except OSError as problem:
        raise FileError(f"{path}: {problem.strerror or problem}") from None


def json_lines(file: BinaryIO, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file of JSON lines, each with where it stands (``web.jsonl:12``)."""
    for number, line in enumerate(iter(lambda: file.readline(LARGEST_LINE + 1), b""), 1):
        if len(line) > LARGEST_LINE:
            raise FileError(f"{path}:{number}: a line of more than {LARGEST_LINE} bytes; split it")
        if line.strip():
            where = f"{path}:{number}"
            yield where, json_object(line, where, "JSON object", "write one per line")
