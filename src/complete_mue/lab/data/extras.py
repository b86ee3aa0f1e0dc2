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
def loading(what: str, advice: str = "") -> Iterator[None]:
    """Whatever a library raises while it loads (network, names, formats: many kinds) is one error of one line."""
    try:
        yield
    except MueError:
        raise
    except Exception as problem:
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
        raise FileError(
            f"{what}: cannot be loaded ({type(problem).__name__}: {reason}){advice and '; '}{advice}"
        ) from None
