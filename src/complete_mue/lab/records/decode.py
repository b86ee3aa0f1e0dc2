"""JSON that was read, checked against the class that describes it. A fault is one error: file, field, what to do."""

from __future__ import annotations

import re
import reprlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from complete_mue.errors import FileError

T = TypeVar("T")


class RecordError(FileError):
    """A file of ours that does not say what it must. ``field`` leads to the fault: ``targets[0].x``."""

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(problem)
        self.field = field


def decode(kind: type[T], data: Any, file: str | Path, remedy: str, place: str = "") -> T:
    """``data`` as a ``kind``, whose annotations and ``__post_init__`` say what is allowed.

    ``place`` stands before the field in messages, such as the line of a file.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as problem:
        said, _, path = str(problem).partition(" - at `$")
        field = path.removeprefix(".").removesuffix("`")
        where = f"{field}{_given(data, field)}: " if field else ""
        raise RecordError(f"{file}: {place}{where}{said}; {remedy}", field) from None


def _given(data: Any, field: str) -> str:
    """`` is 0``: what stands there, if it is a single value."""
    for key in re.findall(r"[^.\[\]]+", field):
        if isinstance(data, dict):
            data = data.get(key)
        elif isinstance(data, list) and key.isdecimal():
            data = data[int(key)] if int(key) < len(data) else None
    return "" if isinstance(data, dict | list) else f" is {reprlib.repr(data)}"
