"""Checks on numbers, shared by every spec that is validated when made."""

from __future__ import annotations

import math

from complete_mue.errors import ShapeError

# Larger counts are typing mistakes, and would overflow a float when multiplied.
LARGEST_COUNT = 10**15


def count(name: str, value: object, *, least: int = 1, most: int = LARGEST_COUNT) -> int:
    """A whole number from ``least`` to ``most``; booleans and floats are refused."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refused(name, value, f"a whole number of at least {least}")
    if not least <= value <= most:
        given = value if value.bit_length() <= 64 else "a number of more than 64 bits"
        raise _refused(name, given, f"a whole number from {least} to {most:g}", shown=str(given))
    return value


def real(name: str, value: object, *, positive: bool = True, field: str | None = None) -> float:
    """A finite number, positive (or at least zero with ``positive=False``); ``field`` is where it stands, if not at
    its name."""
    allowed = "a finite number above 0" if positive else "a finite number of at least 0"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(field or name, value, allowed, name=name)
    try:
        number = float(value)
    except OverflowError:
        raise ShapeError(f"{name} is too large: give {allowed}", field=field or name, allowed=allowed) from None
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        raise _refused(field or name, value, allowed, name=name)
    return number


def _refused(field: str, given: object, allowed: str, *, name: str = "", shown: str = "") -> ShapeError:
    text = f"{name or field} = {shown or repr(given)}: give {allowed}"
    return ShapeError(text, field=field, given=given, allowed=allowed)
