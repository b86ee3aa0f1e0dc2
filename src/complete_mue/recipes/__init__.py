"""Recipes by name. A recipe is a function that returns a complete RunConfig; ``NAME:LAYOUT`` picks the layout.

`dit_large` has a workload too: ``dit_large:LAYOUT:WORKLOAD``.
"""

from __future__ import annotations

from collections.abc import Callable

from complete_mue.errors import RunError, nearest
from complete_mue.recipes.dit import dit_large, dit_proxy, dit_tiny
from complete_mue.recipes.lm import lm_large, lm_proxy, lm_tiny
from complete_mue.train.config import RunConfig

RECIPES: dict[str, Callable[..., RunConfig]] = {
    recipe.__name__: recipe for recipe in (lm_tiny, lm_proxy, lm_large, dit_tiny, dit_proxy, dit_large)
}


def recipe(name: str) -> RunConfig:
    """The config of ``lm_tiny`` or, with a layout, ``lm_tiny:16e4a``; ``dit_large:dense:256px`` has a workload too."""
    base, *options = name.split(":")
    if base not in RECIPES:
        raise RunError(
            f"recipe {base!r}{nearest(base, RECIPES)}: recipes are {', '.join(RECIPES)}; add :LAYOUT for an MoE"
        )
    if len(options) > (2 if base == "dit_large" else 1):
        raise RunError(f"recipe {name!r}: give NAME:LAYOUT, or dit_large:LAYOUT:WORKLOAD")
    return RECIPES[base](*options)
