"""The main job on its default: a dense language model small enough that 52 runs take minutes on two CPU cores."""

from __future__ import annotations

import dataclasses

from complete_mue.lab.recipes import recipe
from complete_mue.lab.sweep.figures import octaves
from complete_mue.lab.sweep.grid import REFERENCE_RULES, Scan, Sweep, Target
from complete_mue.lab.train.config import RunConfig, override
from complete_mue.layout import FeedForward, Reference

SPAN = 3  # octaves on either side, to find the reference's optimum
_AROUND = 2  # octaves on either side of it, for the targets
_SIZE = (
    "shape.width=32", "shape.depth=2", "shape.feed_forward=dense@32", "shape.head_dim=16", "task.sequence=64",
    "budget.batch_tokens=1024", "budget.steps=240", "device=cpu",
)  # fmt: skip


def base() -> RunConfig:
    """The dense reference's own run."""
    config = override(recipe("lm_tiny"), *_SIZE)
    own = dataclasses.replace(config.reference, shape=config.shape, budget=config.budget)
    return dataclasses.replace(config, reference=own)


def sweep_of(reference: Reference) -> Sweep:
    """Dense, three MoE layouts and a wider MoE over the learning rate, by our rules and by standard parametrization."""
    dense = dataclasses.replace(base(), reference=reference)
    width, layouts = dense.shape.width, ("16e4a@8", "32e4a@16", "16e4a2g1s@8")
    targets = [Target("dense", None, dense)]
    for layout in layouts:
        targets.append(_target(dense, layout.partition("@")[0], width, layout))
    targets.append(_target(dense, "16e4a, twice as wide", 2 * width, f"16e4a@{width // 2}"))
    scans = (Scan("lr", octaves(reference.hyper.lr, _AROUND)),)
    return Sweep(
        "quickstart", "One dense calibration, every layout", "layout", "quickstart", tuple(targets), scans,
        (REFERENCE_RULES, "sp"),
    )  # fmt: skip


def _target(dense: RunConfig, name: str, width: int, layout: str) -> Target:
    shape = dataclasses.replace(dense.shape, width=width, feed_forward=FeedForward.parse(layout))
    return Target(name, None, dataclasses.replace(dense, shape=shape))
