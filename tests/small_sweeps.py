"""Sweeps of a few seconds, for tests of what runs them."""

from __future__ import annotations

from pathlib import Path

from complete_mue.lab.recipes import recipe
from complete_mue.lab.records import read_sweep
from complete_mue.lab.sweep.grid import Scan, Sweep, Target
from complete_mue.lab.train.config import RunConfig, override

TINY = (
    "shape.width=16", "shape.depth=1", "shape.head_dim=8", "shape.feed_forward=dense@16", "task.sequence=16",
    "budget.batch_tokens=64", "budget.steps=10", "betas=hold", "device=cpu",
)  # fmt: skip


def base(*more: str) -> RunConfig:
    return override(recipe("lm_tiny"), *TINY, *more)


def sweep_of(*values: float, **more: object) -> Sweep:
    targets = (Target("dense", None, base()), Target("8e2a", None, base("shape.feed_forward=8e2a@8")))
    return Sweep("test", "Test", "axis", "tiny", targets, (Scan("lr", values or (1e-3, 4e-3, 1.6e-2)),), **more)  # type: ignore[arg-type]


def losses(folder: Path) -> dict[str, float]:
    return {point: outcome.loss for point, outcome in read_sweep(folder).outcomes.items()}
