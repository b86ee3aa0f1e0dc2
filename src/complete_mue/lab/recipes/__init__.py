"""Recipes by name: each a function of a layout that returns a complete config; ``NAME:LAYOUT`` picks the layout.

`dit_large` has a workload too: ``dit_large:LAYOUT:WORKLOAD``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from complete_mue.errors import RunError, one_of
from complete_mue.lab.train.config import PictureTask, RunConfig, TextTask, override
from complete_mue.layout import Budget, FeedForward, Hyper, ModelShape, Reference
from complete_mue.layout.toml_files import read_reference

_PROXY: dict[str, Any] = {"precision": "bfloat16", "compile": True, "log_every": 50, "checkpoint_every": 1000}


def lm_tiny(layout: str = "dense") -> RunConfig:
    """A minute or two on two CPU cores: width 64, four layers, bytes of Python's standard library."""
    hyper = Hyper(lr=8e-3, weight_decay=0.1, init_std=0.06, betas=(0.95, 0.95), eps=1e-8)
    return _small("lm_tiny", layout, TextTask(sequence=128), _dense(64, 4, 16), Budget(16 * 128, 400), hyper)


def lm_proxy(layout: str = "dense") -> RunConfig:
    """The paper's language proxy: width 128, 32 layers, 128 x 2048 tokens, 25k steps."""
    hyper = Hyper(lr=1e-3, weight_decay=0.1, init_std=0.01, betas=(0.95, 0.95), eps=1e-8)
    task, budget = TextTask(sequence=2048), Budget(128 * 2048, 25_000)
    return _small("lm_proxy", layout, task, _dense(128, 32, 64), budget, hyper, **_PROXY)


def lm_large(layout: str = "128e8a4g1s") -> RunConfig:
    """The paper's large language model: width 1024, 32 layers, 0.62 B active of 6.29 B, 512 x 2048 tokens, 100k steps.

    ``dense`` is its twin of the same active width.
    """
    return _large(f"lm_large-{layout}", layout, TextTask(sequence=2048), lm_proxy().reference, rows=512, head_dim=64)


def dit_tiny(layout: str = "dense") -> RunConfig:
    """A minute or two on two CPU cores: width 64, four layers, one captioned shape of 16 pixels."""
    hyper = Hyper(lr=5e-3, weight_decay=0.01, init_std=0.08, betas=(0.95, 0.95), eps=1e-8)
    task = PictureTask("shapes", size=16, patch=2, text_length=28)
    return _small("dit_tiny", layout, task, _dense(64, 4, 16), Budget(16 * task.tokens_per_row(), 1000), hyper)


def dit_proxy(layout: str = "dense") -> RunConfig:
    """The paper's diffusion proxy: width 128, 32 layers, 1024 latents per picture, batch 256, 100k steps."""
    hyper = Hyper(lr=1.6e-3, weight_decay=0.01, init_std=0.02, betas=(0.95, 0.95), eps=1e-8)
    task, budget = PictureTask(size=32, patch=1), Budget(256 * 1024, 100_000)
    return _small("dit_proxy", layout, task, _dense(128, 32, 64), budget, hyper, **_PROXY)


# workload -> latents per side after 16x compression (patch 1), frames, batch
WORKLOADS = {"256px": (16, 1, 3072), "512px": (32, 1, 768), "keyframes": (15, 8, 96), "video": (15, 30, 48)}


def dit_large(layout: str = "128e8a4g1s", workload: str = "512px") -> RunConfig:
    """The paper's large diffusion model on one of its four workloads: 256px, 512px, keyframes, video."""
    one_of("workload", workload, WORKLOADS, RunError)
    side, frames, batch = WORKLOADS[workload]
    task = PictureTask("sprites" if frames > 1 else "scenes", size=side, patch=1, frames=frames)
    return _large(f"dit_large-{layout}-{workload}", layout, task, dit_proxy().reference, rows=batch, head_dim=128)


def _dense(width: int, depth: int, head_dim: int) -> ModelShape:
    return ModelShape(width, depth, FeedForward.dense(width), head_dim=head_dim)


def _small(
    name: str, layout: str, task: TextTask | PictureTask, dense: ModelShape, budget: Budget, hyper: Hyper,
    **options: Any,
) -> RunConfig:  # fmt: skip
    """A model of the dense reference's width and depth. Experts are 16 wide: any tiny layout with four of them active
    has the reference's active width."""
    block = dense.feed_forward if layout == "dense" else FeedForward.parse(layout, 16)
    shape = dataclasses.replace(dense, feed_forward=block)
    return RunConfig(f"{name}-{layout}", task, Reference(dense, budget, hyper), shape, budget, **options)


def _large(
    name: str, layout: str, task: TextTask | PictureTask, reference: Reference, *, rows: int, head_dim: int
) -> RunConfig:
    block = FeedForward.dense(4608) if layout == "dense" else FeedForward.parse(layout, 512)
    shape = ModelShape(1024, 32, block, dense_layers=0 if block.is_dense else 2, head_dim=head_dim)
    row = task.tokens_per_row() + (task.text_length if isinstance(task, PictureTask) else 0)
    return RunConfig(
        name, task, reference, shape, Budget(rows * task.tokens_per_row(), 100_000), precision="bfloat16", compile=True,
        accumulate=_micro_batches(rows, row, dense=block.is_dense), log_every=10, checkpoint_every=1000,
    )  # fmt: skip


def _micro_batches(rows: int, tokens: int, *, dense: bool) -> int:
    """Micro-batches of a large model on one device of 140 GB: the fewest whose activations fit beside its states.

    Some 1.5 MB of activations per token at width 1024 and 32 layers; the states take 105 GiB of an MoE and 10 GiB of
    its dense twin.
    """
    most = 32_768 if dense else 16_384
    return next(parts for parts in range(1, rows + 1) if rows % parts == 0 and rows // parts * tokens <= most)


RECIPES: dict[str, Callable[..., RunConfig]] = {
    recipe.__name__: recipe for recipe in (lm_tiny, lm_proxy, lm_large, dit_tiny, dit_proxy, dit_large)
}


def configured(name: str, overrides: Sequence[str] = (), reference: Path | None = None) -> RunConfig:
    """A recipe as a command asks for it: transferred from a tuned reference, if one is given, then changed."""
    config = recipe(name)
    if reference is not None:
        config = dataclasses.replace(config, reference=read_reference(reference))
    changed = override(config, *overrides)
    layout = str(changed.shape.main)
    if changed.name == config.name and layout != str(config.shape.main):  # the name, and the run's folder, tell it
        first, _, *rest = config.name.split("-")
        changed = dataclasses.replace(changed, name="-".join((first, layout, *rest)))
    return changed


def recipe(name: str) -> RunConfig:
    """The config of ``lm_tiny`` or, with a layout, ``lm_tiny:16e4a``; ``dit_large:dense:256px`` has a workload too."""
    base, *options = name.split(":")
    one_of("recipe", base, RECIPES, RunError)
    if len(options) > (2 if base == "dit_large" else 1):
        raise RunError(f"recipe {name!r}: give NAME:LAYOUT, or dit_large:LAYOUT:WORKLOAD")
    return RECIPES[base](*options)
