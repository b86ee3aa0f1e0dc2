"""Recipes by name. A recipe is a function that returns a complete RunConfig; ``NAME:LAYOUT`` picks the layout.

`dit_large` has a workload too: ``dit_large:LAYOUT:WORKLOAD``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from complete_mue.errors import RunError, one_of
from complete_mue.lab.recipes.dit import dit_large, dit_proxy, dit_tiny
from complete_mue.lab.recipes.lm import lm_large, lm_proxy, lm_tiny
from complete_mue.lab.train.config import RunConfig, override
from complete_mue.layout.toml_files import read_reference

RECIPES: dict[str, Callable[..., RunConfig]] = {
    recipe.__name__: recipe for recipe in (lm_tiny, lm_proxy, lm_large, dit_tiny, dit_proxy, dit_large)
}


def configured(name: str, overrides: Sequence[str] = (), reference: Path | None = None) -> RunConfig:
    """A recipe as a command asks for it: transferred from a tuned reference, if one is given, then changed."""
    config = recipe(name)
    if reference is not None:
        config = dataclasses.replace(config, reference=read_reference(reference))
    return override(config, *overrides)


def recipe(name: str) -> RunConfig:
    """The config of ``lm_tiny`` or, with a layout, ``lm_tiny:16e4a``; ``dit_large:dense:256px`` has a workload too."""
    base, *options = name.split(":")
    one_of("recipe", base, RECIPES, RunError)
    if len(options) > (2 if base == "dit_large" else 1):
        raise RunError(f"recipe {name!r}: give NAME:LAYOUT, or dit_large:LAYOUT:WORKLOAD")
    return RECIPES[base](*options)
