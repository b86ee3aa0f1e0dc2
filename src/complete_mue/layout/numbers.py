"""Checks on numbers, shared by every spec that is validated when made."""

from __future__ import annotations

import math

from complete_mue.errors import ShapeError

# Larger counts are typing mistakes, and would overflow a float when multiplied.
LARGEST_COUNT = 10**15


def count(name: str, value: object, *, least: int = 1) -> int:
    """A whole number of at least ``least``; booleans and floats are refused."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ShapeError(f"{name} = {value!r}: give a whole number of at least {least}")
    if not least <= value <= LARGEST_COUNT:
        given = value if value.bit_length() <= 64 else "a number of more than 64 bits"
        raise ShapeError(f"{name} = {given}: give a whole number from {least} to {LARGEST_COUNT:.0e}")
    return value


def real(name: str, value: object, *, positive: bool = True) -> float:
    """A finite number, positive (or at least zero with ``positive=False``)."""
    allowed = "a finite number above 0" if positive else "a finite number of at least 0"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ShapeError(f"{name} = {value!r}: give {allowed}")
    try:
        number = float(value)
    except OverflowError:
        raise ShapeError(f"{name} is too large: give {allowed}") from None
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        raise ShapeError(f"{name} = {value!r}: give {allowed}")
    return number
