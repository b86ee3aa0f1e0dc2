"""A JSON object with typed access, so that every fault of a file is said with its place and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from complete_mue.errors import FileError, nearest

FORMAT = 1
_LEAST = 1e-100
_USABLE = "a finite number: zero, or of a size from 1e-100 to 1e+100"


@dataclass(frozen=True)
class Sheet:
    """An object of ``path``; ``place`` leads to it inside the file, ``advice`` says what to do about a fault."""

    path: Path
    data: Mapping[str, Any]
    advice: str
    place: str = ""

    def wrong(self, key: str, problem: str) -> FileError:
        """The error to raise."""
        return FileError(f"{self.path}: {self.place}{key} {problem}; {self.advice}")

    def format(self) -> None:
        """Refuse what another version wrote."""
        if self.data.get("format") != FORMAT:
            raise self.wrong("format", f"is {self.data.get('format')!r}, this version reads {FORMAT}")

    def value(self, key: str) -> Any:
        """Whatever is there."""
        if key not in self.data:
            raise self.wrong(key, f"is missing{nearest(key, [str(k) for k in self.data])}")
        return self.data[key]

    def text(self, key: str) -> str:
        """One printable line."""
        value = self.value(key)
        if not isinstance(value, str) or not value or not value.isprintable():
            raise self.wrong(key, f"is {value!r:.80}, not a line of text")
        return value

    def choice(self, key: str, known: list[str] | tuple[str, ...]) -> str:
        """One of the ``known`` words."""
        value = self.text(key)
        if value not in known:
            raise self.wrong(key, f"is {value!r:.80}, not one of {', '.join(known)}{nearest(value, known)}")
        return value

    def number(self, key: str, least: float | None = math.ulp(0.0)) -> float:
        """A finite number, at least ``least`` (by default: above zero)."""
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not _usable(value):
            raise self.wrong(key, f"is {value!r:.80}, not {_USABLE}")
        if least is not None and value < least:
            raise self.wrong(key, f"is {value!r:.80}, {'below zero' if value < 0 else 'not above zero'}")
        return float(value)

    def optional(self, key: str, least: float | None) -> float | None:
        """A number, or None where there is none."""
        return None if self.data.get(key) is None else self.number(key, least)

    def numbers(self, key: str, gaps: bool = False) -> tuple[float, ...]:
        """A list of finite numbers; with ``gaps``, null and entries that are not finite are NaN."""
        value = self.value(key)
        if not isinstance(value, list):
            raise self.wrong(key, f"is a {type(value).__name__}, not a list")
        for item in value:
            if (isinstance(item, bool) or not isinstance(item, int | float)) and not (gaps and item is None):
                raise self.wrong(key, f"holds {item!r:.80}, not a number")
            if item is not None and not gaps and not _usable(item):
                raise self.wrong(key, f"holds {item!r:.80}, not {_USABLE}")
        return tuple(float(item) if item is not None and _usable(item) else math.nan for item in value)

    def inner(self, key: str) -> Sheet:
        """The object there."""
        value = self.value(key)
        if not isinstance(value, dict):
            raise self.wrong(key, f"is a {type(value).__name__}, not an object")
        return Sheet(self.path, value, self.advice, f"{self.place}{key}.")

    def sheets(self, key: str) -> list[Sheet]:
        """The objects of the list there, at least one."""
        value = self.value(key)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(key, "is not a list of objects")
        if not value:
            raise self.wrong(key, "is empty")
        return [Sheet(self.path, item, self.advice, f"{self.place}{key}[{i}].") for i, item in enumerate(value)]


def _usable(value: float) -> bool:
    """Finite, and not so large or small that squares and ratios of such numbers are not."""
    return value == 0 or _LEAST <= abs(value) <= 1 / _LEAST
