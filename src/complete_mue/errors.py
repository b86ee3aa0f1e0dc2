"""Errors a user can meet. Each message says what was given, what is allowed and what to do.

    MueError                     everything this library raises on purpose
    ├── NotationError            a layout string such as "128e8a4g1s" that cannot be read
    ├── ShapeError               a layout, model shape, budget or hyperparameter with impossible numbers
    ├── FileError                a file that is missing, unreadable or has unknown keys
    ├── TransferError            a transfer the rules do not define (also: an unknown rule set or role)
    ├── BindError                a model's parameters and a plan's rows do not match one to one
    ├── KernelError              a kernel was forced that cannot run on these tensors or this machine
    └── RunError                 a training run, sweep or check that cannot go on

All of them are ``ValueError`` too, so code that guards against bad values needs no import from here.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable


class MueError(ValueError):
    """Base of all errors raised on purpose by complete_mue.

    Programs need not read the sentence: ``field`` names the argument or key it is about, ``given`` is what stood there,
    ``allowed`` what may, and ``remedy`` what to do; None where it does not say.
    """

    def __init__(
        self,
        message: str = "",
        *,
        field: str | None = None,
        given: object = None,
        allowed: object = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message)
        self.field, self.given, self.allowed, self.remedy = field, given, allowed, remedy


class NotationError(MueError):
    """A layout string cannot be read."""


class ShapeError(MueError):
    """A layout, shape, budget or hyperparameter has impossible numbers."""


class FileError(MueError):
    """A file is missing, unreadable, or has unknown or missing keys."""


class TransferError(MueError):
    """The rules do not define this transfer."""


class BindError(MueError):
    """Parameters and rows do not match one to one."""


class KernelError(MueError):
    """A forced kernel cannot run here."""


class RunError(MueError):
    """A run, sweep or check cannot go on."""


def nearest(given: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` when a known name is close to what was given, else an empty string."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def first_line(problem: BaseException, most: int) -> str:
    """An error's kind and the first line of what it says, at most so many characters."""
    lines = str(problem).strip().splitlines() or [""]
    return f"{type(problem).__name__}: {lines[0]}"[:most]


def one_of(name: str, given: object, allowed: Collection[str], error: type[MueError]) -> None:
    """Refuse a word that is not among those allowed."""
    if given not in allowed:
        text = f"{name} = {given!r:.80}{nearest(str(given), allowed)}: give one of {', '.join(allowed)}"
        raise error(text, field=name, given=given, allowed=tuple(allowed))
