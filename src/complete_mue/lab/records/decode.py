"""JSON that was read, checked against the class that describes it. A fault is one error: file, field, what to do."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from complete_mue.errors import FileError

T = TypeVar("T")

# What many files hold: numbers that fit in 64 bits, checksums.
Whole = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
Step = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
Checksum = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class RecordError(FileError):
    """A file of ours that does not say what it must. ``field`` leads to the fault: ``targets[0].x``."""


def decode(kind: type[T], data: Any, file: str | Path, remedy: str) -> T:
    """``data`` of ``file`` as a ``kind``, whose annotations and ``__post_init__`` say what is allowed."""
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, ValueError) as problem:  # half a surrogate pair is a plain ValueError
        said, _, path = str(problem).partition(" - at `$")
        field = path.removeprefix(".").removesuffix("`")
        where = f"{field}{_given(data, field)}: " if field else ""
        raise RecordError(f"{file}: {where}{said}; {remedy}", field=field) from None


def refuse_other_format(data: Mapping[str, Any], header: Mapping[str, Any], file: str | Path, remedy: str) -> None:
    """Refuse a file that another version wrote, or that is of another kind."""
    for key, value in header.items():
        if data.get(key) != value:
            given = reprlib.repr(data.get(key))
            raise RecordError(f"{file}: {key} is {given}, this version reads {value!r}; {remedy}", field=key)


def _given(data: Any, field: str) -> str:
    """`` is 0``: what stands there, if it is a single value."""
    for key in re.findall(r"[^.\[\]]+", field):
        if isinstance(data, dict):
            data = data.get(key)
        elif isinstance(data, list) and key.isdecimal():
            data = data[int(key)] if int(key) < len(data) else None
    return "" if isinstance(data, dict | list) else f" is {reprlib.repr(data)}"
