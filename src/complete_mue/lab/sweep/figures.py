"""The paper's figures as named sweeps, at three scales.

    tiny    minutes on two CPU cores; a look, not evidence
    small   one GPU: width 128, four layers, 16k tokens per step, 2000 steps, three seeds
    paper   the paper's proxies: 32 layers, 25k steps (language), 100k (diffusion)

Every target is transferred from one dense reference. Experts are an eighth of the width wide, unless the figure is
about their width; depth and width are grown on an MoE, so that both transfers happen at once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from complete_mue.errors import RunError, nearest
from complete_mue.lab.recipes import recipe
from complete_mue.lab.records.schema import TASKS, Place
from complete_mue.lab.sweep.grid import OWN_RULES, Scan, Sweep, Target
from complete_mue.lab.sweep.hypers import Hyper
from complete_mue.lab.train.config import RunConfig, override
from complete_mue.layout import Budget, FeedForward, Reference

SCALES = ("tiny", "small", "paper")
_TINY = ("budget.steps=300",)
# Four heads, not the proxies' two, and short rows of bytes: with two heads, or longer rows, seeds differ by more than
# what is to be seen, probably by when they learn to copy from earlier in the row.
_SMALL = (
    "shape.depth=4", "shape.head_dim=32", "budget.batch_tokens=16384", "budget.steps=2000", "bias_rate=0.003",
    "log_every=20",
)  # fmt: skip
_BASE: dict[tuple[str, str], tuple[str, ...]] = {
    ("lm", "tiny"): ("lm_tiny", *_TINY, "task.sequence=64", "budget.batch_tokens=1024"),
    ("lm", "small"): ("lm_proxy", *_SMALL, "task.sequence=64"),
    ("lm", "paper"): ("lm_proxy",),
    ("dit", "tiny"): ("dit_tiny", *_TINY, "budget.batch_tokens=1024"),
    ("dit", "small"): ("dit_proxy", *_SMALL, "task.patch=4", "budget.batch_tokens=8192"),  # and as many of captions
    ("dit", "paper"): ("dit_proxy",),
}
_SPAN = {"tiny": 2, "small": 2, "paper": 4}  # octaves on either side of the tuned value
SEEDS = {"tiny": (0,), "small": (0, 1, 2), "paper": (0, 1)}


def base_config(task: str, scale: str, reference: Reference | None = None, overrides: Sequence[str] = ()) -> RunConfig:
    """The dense reference's own run at a scale; a tuned ``reference`` brings its shape, budget and hyperparameters."""
    for name, given, known in (("task", task, TASKS), ("scale", scale, SCALES)):
        if given not in known:
            raise RunError(f"{name} {given!r}{nearest(given, known)}: give one of {', '.join(known)}")
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


@dataclass(frozen=True)
class Figure:
    """One named sweep: its title, the axis its targets lie along, and the targets of a base config."""

    title: str
    axis: str
    targets: Callable[[RunConfig, bool], list[Target]]
    hypers: tuple[str, ...] = ("lr",)
    fixed: bool = False  # the tuned value alone: loss against size


def figure(
    name: str,
    base: RunConfig,
    scale: str,
    *,
    rules: Sequence[str] = (OWN_RULES,),
    seeds: Sequence[int] | None = None,
    span: Span | None = None,
    per_octave: int = 1,
    hypers: Sequence[str] | None = None,
) -> Sweep:
    """A named figure around ``base``, the dense reference."""
    if name not in FIGURES:
        raise RunError(f"figure {name!r}{nearest(name, FIGURES)}: figures are {', '.join(FIGURES)}")
    given = FIGURES[name]
    span = 0 if given.fixed else _SPAN[scale] if span is None else span
    for each in hypers or ():
        Hyper.parse(each)
    wanted = tuple(hypers or (given.hypers if scale != "tiny" else given.hypers[:1]))
    scans = tuple(Scan(each, octaves(Hyper.parse(each).of(base.reference), span, per_octave)) for each in wanted)
    targets = (Target("dense", None, base), *given.targets(base, scale == "tiny"))
    title = given.title
    return Sweep(name, title, given.axis, scale, targets, scans, tuple(rules), tuple(seeds or SEEDS[scale]))


def with_layout(base: RunConfig, name: str, layout: str, x: float | None = None) -> Target:
    """The base's run with another feed-forward block."""
    shape = dataclasses.replace(base.shape, feed_forward=FeedForward.parse(layout))
    return Target(name, x, dataclasses.replace(base, shape=shape))


def _layouts(base: RunConfig, layouts: Sequence[tuple[float, str, int]]) -> list[Target]:
    return [with_layout(base, layout, f"{layout}@{width}", x) for x, layout, width in layouts]


def _activated(base: RunConfig, tiny: bool) -> list[Target]:
    experts, width = (16, base.shape.width // 8) if tiny else (64, base.shape.width // 8)
    return _layouts(base, [(a, f"{experts}e{a}a", width) for a in ((2, 4, 8) if tiny else (2, 4, 8, 16))])


def _capacity(base: RunConfig, tiny: bool) -> list[Target]:
    active, most = (4, 32) if tiny else (8, 256)
    sizes = [active << k for k in range(20) if active << k <= most]
    return _layouts(base, [(e, f"{e}e{active}a", base.shape.width // 8) for e in sizes])


def _granularity(base: RunConfig, tiny: bool) -> list[Target]:
    sparsity, most = (4, 8) if tiny else (8, 16)
    counts = [2**k for k in range(1, 6) if 2**k <= most]
    layouts = [(k, f"{sparsity * k}e{k}a@{base.shape.width // k}") for k in counts]
    return [with_layout(base, layout, layout, k) for k, layout in layouts]


def _shared(base: RunConfig, tiny: bool) -> list[Target]:
    routed, numbers = ("16e4a", (0, 1, 2)) if tiny else ("64e8a", (0, 1, 2, 4))
    return _layouts(base, [(z, routed + (f"{z}s" if z else ""), base.shape.width // 8) for z in numbers])


def _grouped(base: RunConfig, tiny: bool) -> list[Target]:
    routed, numbers = ("16e4a", (1, 2, 4)) if tiny else ("64e8a", (1, 2, 4, 8))
    return _layouts(base, [(g, routed + (f"{g}g" if g > 1 else ""), base.shape.width // 8) for g in numbers])


def _moe(base: RunConfig, tiny: bool, width: int, depth: int) -> RunConfig:
    layout = "16e4a" if tiny else "64e8a"
    block = FeedForward.parse(layout, width // 8)
    shape = dataclasses.replace(base.shape, width=width, depth=depth, feed_forward=block)
    return dataclasses.replace(base, shape=shape)


def _depth(base: RunConfig, tiny: bool) -> list[Target]:
    depth, layout = base.shape.depth, "16e4a" if tiny else "64e8a"
    sizes = [depth * factor for factor in ((1, 2) if tiny else (1, 2, 4))]
    return [Target(f"{layout}, {n} layers", n, _moe(base, tiny, base.shape.width, n)) for n in sizes]


def _width(base: RunConfig, tiny: bool) -> list[Target]:
    width, layout = base.shape.width, "16e4a" if tiny else "64e8a"
    sizes = [width * factor for factor in ((1, 2) if tiny else (1, 2, 4))]
    return [Target(f"{layout}, width {n}", n, _moe(base, tiny, n, base.shape.depth)) for n in sizes]


def _ffn_width(base: RunConfig, tiny: bool) -> list[Target]:
    factors = (0.5, 2.0) if tiny else (0.25, 0.5, 2.0, 4.0)
    return [with_layout(base, f"dense x{f:g}", f"dense@{round(f * base.shape.active_width)}", f) for f in factors]


def _batch(base: RunConfig, tiny: bool, fixed_tokens: bool) -> list[Target]:
    targets = []
    for factor in (0.5, 2.0) if tiny else (0.25, 0.5, 2.0, 4.0):
        steps = base.budget.steps / factor if fixed_tokens else base.budget.steps
        budget = Budget(round(base.budget.batch_tokens * factor), round(steps))
        targets.append(Target(f"batch x{factor:g}", factor, dataclasses.replace(base, budget=budget)))
    return targets


def _large_batch(base: RunConfig, tiny: bool) -> list[Target]:
    """Layouts whose experts see few tokens, with four times as many: is it the noise of their gradients that moves an
    optimum?"""
    width, budget = base.shape.width, Budget(4 * base.budget.batch_tokens, base.budget.steps)
    large = dataclasses.replace(base, budget=budget)
    layouts = {"16e2a": width // 8} if tiny else {"64e2a": width // 8, "32e4a": width // 4}
    moes = [with_layout(large, f"{name}, batch x4", f"{name}@{h}", 4.0) for name, h in layouts.items()]
    return [Target("dense, batch x4", 4.0, large), *moes]


def _hybrid(base: RunConfig, tiny: bool) -> list[Target]:
    """Groups and a shared expert at once, as in the large recipes."""
    experts, layout = (16, "16e4a2g1s") if tiny else (128, "128e8a4g1s")
    return _layouts(base, [(experts, layout, base.shape.width // 8)])


def _scaling(base: RunConfig, tiny: bool) -> list[Target]:
    """Four axes together, a layout that several share once; and a hybrid, which is on none."""
    found: dict[str, Target] = {}
    for axis in ("activated", "capacity", "granularity", "depth"):
        figure = FIGURES[axis]
        for target in figure.targets(base, tiny):
            known = found.get(target.config.fingerprint, target)
            place = Place(figure.title.split(":")[0], figure.axis, float(target.x or 0))
            found[target.config.fingerprint] = dataclasses.replace(known, places=(*known.places, place))
    return [*found.values(), *_hybrid(base, tiny)]


FIGURES: dict[str, Figure] = {
    "activated": Figure("Activated experts", "activated experts", _activated, ("lr", "weight_decay", "init_std")),
    "capacity": Figure("Capacity: more experts, as many active", "experts", _capacity),
    "granularity": Figure("Granularity: finer experts, the same active width", "activated experts", _granularity),
    "shared": Figure("Shared experts", "shared experts", _shared),
    "grouped": Figure("Group-balanced routing", "groups", _grouped),
    "depth": Figure("Depth, on an MoE", "layers", _depth),
    "width": Figure("Width, on an MoE", "width", _width),
    "ffn_width": Figure("Feed-forward width, dense", "expansion", _ffn_width),
    "batch_steps": Figure(
        "Batch at fixed steps", "batch ratio", lambda base, tiny: _batch(base, tiny, fixed_tokens=False)
    ),
    "batch_tokens": Figure(
        "Batch at fixed tokens", "batch ratio", lambda base, tiny: _batch(base, tiny, fixed_tokens=True)
    ),
    "large_batch": Figure("Four times the batch, as many steps", "batch ratio", _large_batch),
    "scaling": Figure("The dense optimum, fixed, at every size", "parameters", _scaling, fixed=True),
}
