"""Packages that only some data needs, imported where they are used."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from complete_mue.errors import FileError, MueError


def need(module: str, purpose: str) -> ModuleType:
    """Import ``module``, or say what needs it and how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        package = {"PIL": "pillow"}.get(module.split(".")[0], module.split(".")[0])
        raise MueError(f"{purpose} needs {package} ({problem}): install it with `pip install {package}`") from None


@contextmanager
def in_our_words(what: str, advice: str = "") -> Iterator[None]:
    """Whatever a library raises (network, names, formats; the panic of a Rust part is no Exception) as one line.

    Not around a ``yield``: a generator that is closed sees an exception, too.
    """
    try:
        yield
    except (MueError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as problem:
        said = getattr(problem, "strerror", None) or str(problem).strip()
        reason = (said or "no reason given").splitlines()[0]
        raise FileError(f"{what} ({type(problem).__name__}: {reason}){advice and '; '}{advice}") from None
