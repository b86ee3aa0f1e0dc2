"""Packages that only some data needs, imported where they are used."""

from __future__ import annotations

import importlib
from types import ModuleType

from complete_mue.errors import MueError


def need(module: str, purpose: str) -> ModuleType:
    """Import ``module``, or say what needs it and how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        package = {"PIL": "pillow"}.get(module.split(".")[0], module.split(".")[0])
        raise MueError(f"{purpose} needs {package} ({problem}): install it with `pip install {package}`") from None
