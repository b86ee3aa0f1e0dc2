"""The paper's figures as named sweeps, at four scales.

tiny    minutes on two CPU cores; a glance, not evidence
small   one GPU: width 128, four layers, 16k tokens per step, 2000 steps, three seeds
medium  one GPU, ten times the cost: width 256, eight layers, 64k tokens per step in rows of 512, 2000 steps, two seeds
paper   the paper's proxies: 32 layers, 25k steps (language), 100k (diffusion)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from complete_mue.errors import RunError, one_of
from complete_mue.lab.paper_figures import FIGURES, Model
from complete_mue.lab.recipes import recipe
from complete_mue.lab.records.schema import TASKS, Place
from complete_mue.lab.sweep.grid import Scan, Sweep, Target
from complete_mue.lab.sweep.hypers import Hyper
from complete_mue.lab.train.config import RunConfig, override
from complete_mue.layout import Reference
from complete_mue.rules import DEFAULT_RULES

SCALES = ("tiny", "small", "medium", "paper")
_TINY = ("budget.steps=300",)
# Four heads, not the proxies' two, and short rows of bytes: with two heads, or longer rows, seeds differ by more than
# what is to be seen, probably by when they learn to copy from earlier in the row.
_SMALL = (
    "shape.depth=4", "shape.head_dim=32", "budget.batch_tokens=16384", "budget.steps=2000", "bias_rate=0.003",
    "log_every=20",
)  # fmt: skip
# 131 million tokens a run, of a vocabulary such as GPT-NeoX's. Without norms of queries and keys all language models of
# docs/results/medium.md fall off a cliff; with them and a longer warmup they end 0.16 to 0.21 nats lower.
_MEDIUM = (
    "shape.width=256", "shape.feed_forward=dense@256", "shape.depth=8", "budget.batch_tokens=65536",
    "budget.steps=2000", "log_every=20", "qk_norm=true",
)  # fmt: skip
_BASE: dict[tuple[str, str], tuple[str, ...]] = {
    ("lm", "tiny"): ("lm_tiny", *_TINY, "task.sequence=64", "budget.batch_tokens=1024"),
    ("lm", "small"): ("lm_proxy", *_SMALL, "task.sequence=64"),
    ("lm", "medium"): (
        "lm_proxy",
        *_MEDIUM,
        "task.sequence=512",
        "warmup=0.2",
        "reference.hyper.lr=0.002",
        "reference.hyper.init_std=0.015",
    ),
    ("lm", "paper"): ("lm_proxy",),
    ("dit", "tiny"): ("dit_tiny", *_TINY, "budget.batch_tokens=1024"),
    ("dit", "small"): ("dit_proxy", *_SMALL, "task.patch=4", "budget.batch_tokens=8192"),  # and as many of captions
    ("dit", "medium"): ("dit_proxy", *_MEDIUM, "task.patch=2"),  # 256 of a picture
    ("dit", "paper"): ("dit_proxy",),
}
_SPAN = {"tiny": 2, "small": 2, "medium": 1, "paper": 4}  # octaves on either side of the tuned value
SEEDS = {"tiny": (0,), "small": (0, 1, 2), "medium": (0, 1), "paper": (0, 1)}


def base_config(task: str, scale: str, reference: Reference | None = None, overrides: Sequence[str] = ()) -> RunConfig:
    """The dense reference's own run at a scale; a tuned ``reference`` brings its shape, budget and hyperparameters."""
    one_of("task", task, TASKS, RunError)
    one_of("scale", scale, SCALES, RunError)
    name, *changes = _BASE[task, scale]
    config = override(recipe(name), *changes, *overrides)
    return from_reference(config, reference, overrides)


def from_reference(config: RunConfig, reference: Reference | None, overrides: Sequence[str]) -> RunConfig:
    """The run of a tuned reference, with its shape, budget and hyperparameters; without one, the config's own."""
    reference = reference or dataclasses.replace(config.reference, shape=config.shape, budget=config.budget)
    dense = dataclasses.replace(config, reference=reference, shape=reference.shape, budget=reference.budget)
    for change in overrides:
        if override(dense, change) != dense:
            raise RunError(
                f"--set {change} is not what the reference has, which brings its own shape, budget and "
                "hyperparameters: tune a reference with it, or leave --reference out"
            )
    return dense


Span = int | tuple[float, float]


def octaves(centre: float, span: Span, per_octave: int = 1) -> tuple[float, ...]:
    """centre * 2^(k / per_octave), ``span`` octaves on either side or from one to another, and the centre."""
    low, high = span if isinstance(span, tuple) else (-span, span)
    steps = range(math.ceil(low * per_octave), math.floor(high * per_octave) + 1)
    return tuple(centre * 2 ** (k / per_octave) for k in sorted({*steps, 0}))


def scan_of(hyper: str, base: RunConfig, scale: str, span: Span, per_octave: int | None) -> Scan:
    """Values around the reference's own. Unless told otherwise, a learning rate is scanned in half octaves, which find
    its optimum more closely, or at scale tiny in octaves; other hyperparameters, whose basins are wide, in octaves."""
    asked = Hyper.parse(hyper)
    fine = scale != "tiny" and asked.name in ("lr", "lr_same_decay")
    return Scan(hyper, octaves(asked.of(base.reference), span, per_octave or (2 if fine else 1)))


def figure(
    name: str,
    base: RunConfig,
    scale: str,
    *,
    rules: Sequence[str] = (DEFAULT_RULES,),
    seeds: Sequence[int] | None = None,
    span: Span | None = None,
    per_octave: int | None = None,
    hypers: Sequence[str] | None = None,
) -> Sweep:
    """A named figure around ``base``, the dense reference."""
    one_of("figure", name, FIGURES, RunError)
    given = FIGURES[name]
    span = 0 if given.fixed else _SPAN[scale] if span is None else span
    wanted = tuple(hypers or (given.hypers if scale != "tiny" else given.hypers[:1]))
    scans = tuple(scan_of(each, base, scale, span, per_octave) for each in wanted)
    dense = Model(base.shape, base.budget)
    targets = []
    for model in (dense, *given.models(dense, scale == "tiny")):
        config = dataclasses.replace(base, shape=model.shape, budget=model.budget)
        targets.append(Target(model.name, model.x, config, tuple(Place(*axis) for axis in model.axes)))
    seeds = tuple(seeds or SEEDS[scale])
    return Sweep(name, given.title, given.axis, scale, tuple(targets), scans, tuple(rules), seeds)
