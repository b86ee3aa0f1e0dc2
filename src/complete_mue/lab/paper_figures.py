"""The paper's figures: which models stand along which axis. A figure is added here and nowhere else.

Every model is transferred from one dense reference. Experts are an eighth of the width wide, unless the figure is
about their width; depth and width are grown on an MoE, so that both transfers happen at once. ``sweep.figures`` makes
sweeps of them; commands, report and scripts take names and order from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from complete_mue.errors import RunError
from complete_mue.layout import Budget, FeedForward, ModelShape
from complete_mue.layout.axes import AXES

Axis = tuple[str, str, float]  # title, label, x


@dataclass(frozen=True)
class Model:
    """A shape and a budget, their name and place along the figure's axis; ``axes`` where they stand on several."""

    shape: ModelShape
    budget: Budget
    name: str = "dense"
    x: float | None = None
    axes: tuple[Axis, ...] = ()

    def with_layout(self, layout: str, x: float, *, width: int | None = None, name: str | None = None) -> Model:
        """The same with another feed-forward block; experts of ``width``, or of an eighth of the residual width."""
        block = FeedForward.parse(layout, width or self.shape.width // 8)
        return replace(self, shape=replace(self.shape, feed_forward=block), name=name or layout, x=x)


Models = Callable[[Model, bool], list[Model]]


@dataclass(frozen=True)
class Figure:
    """One named sweep: its title, the axis its models lie along, and the models around a dense one (few if tiny)."""

    title: str
    axis: str
    models: Models
    hypers: tuple[str, ...] = ("lr",)
    fixed: bool = False  # the tuned value alone: loss against size


FIGURES: dict[str, Figure] = {}  # in the order of the paper


def register(
    name: str, title: str, axis: str, *, hypers: tuple[str, ...] = ("lr",), fixed: bool = False
) -> Callable[[Models], Models]:
    """Name a function of the dense model, and of whether the scale is tiny, as a figure."""

    def add(models: Models) -> Models:
        if name in FIGURES:
            raise RunError(f"figure {name!r} is known already: give another name", field="name", given=name)
        FIGURES[name] = Figure(title, axis, models, hypers, fixed)
        return models

    return add


def _along(name: str, **options: Any) -> Callable[[Models], Models]:
    """A figure along an axis that `mue check` walks too, by the same name."""
    return register(name, AXES[name].title, AXES[name].counts, **options)


@_along("activated", hypers=("lr", "weight_decay", "init_std"))
def _activated(base: Model, tiny: bool) -> list[Model]:
    return [base.with_layout(f"{16 if tiny else 64}e{a}a", a) for a in ((2, 4, 8) if tiny else (2, 4, 8, 16))]


@_along("capacity")
def _capacity(base: Model, tiny: bool) -> list[Model]:
    active, most = (4, 32) if tiny else (8, 256)
    return [base.with_layout(f"{e}e{active}a", e) for e in (active << k for k in range(6)) if e <= most]


@_along("granularity")
def _granularity(base: Model, tiny: bool) -> list[Model]:
    sparsity, counts = (4, (2, 4, 8)) if tiny else (8, (2, 4, 8, 16))
    return [base.with_layout(f"{sparsity * k}e{k}a@{base.shape.width // k}", k) for k in counts]


@_along("shared")
def _shared(base: Model, tiny: bool) -> list[Model]:
    """Added to the routed ones."""
    routed, numbers = ("16e4a", (0, 1, 2)) if tiny else ("64e8a", (0, 1, 2, 4))
    return [base.with_layout(routed + (f"{z}s" if z else ""), z) for z in numbers]


@register("shared_instead", "Shared experts in place of active ones", "shared experts")
def _shared_instead(base: Model, tiny: bool) -> list[Model]:
    """As many run as before, so that the active width stays: the paper's way."""
    experts, active, numbers = (16, 4, (0, 1, 2)) if tiny else (64, 8, (0, 1, 2, 4))
    return [base.with_layout(f"{experts}e{active - z}a" + (f"{z}s" if z else ""), z) for z in numbers]


@_along("grouped")
def _grouped(base: Model, tiny: bool) -> list[Model]:
    routed, numbers = ("16e4a", (1, 2, 4)) if tiny else ("64e8a", (1, 2, 4, 8))
    return [base.with_layout(routed + (f"{g}g" if g > 1 else ""), g) for g in numbers]


@_along("depth")
def _depth(base: Model, tiny: bool) -> list[Model]:
    """Up to the paper's 32 layers, where that is within eight times."""
    return _each_an_moe(
        [replace(base, name=f"{base.shape.depth} layers", x=base.shape.depth), *_deeper(base, tiny)], tiny
    )


@register("depth_dense", "Depth, dense", "layers")
def _deeper(base: Model, tiny: bool) -> list[Model]:
    """What of the figure above is depth, and what is the experts?"""
    depth = base.shape.depth
    sizes = [depth * factor for factor in ((2,) if tiny else (2, 4, 8)) if factor < 8 or depth <= 4]
    return [replace(base, shape=replace(base.shape, depth=n), name=f"{n} layers", x=n) for n in sizes]


@_along("width")
def _width(base: Model, tiny: bool) -> list[Model]:
    sizes = [base.shape.width * factor for factor in ((1, 2) if tiny else (1, 2, 4))]
    return [_moe(replace(base, shape=replace(base.shape, width=n)), tiny, f"width {n}", n) for n in sizes]


def _moe(base: Model, tiny: bool, size: str, x: float) -> Model:
    layout = "16e4a" if tiny else "64e8a"
    return base.with_layout(layout, x, name=f"{layout}, {size}")


@_along("ffn_width")
def _ffn_width(base: Model, tiny: bool) -> list[Model]:
    width = base.shape.active_width
    return [base.with_layout("dense", f, width=round(f * width), name=f"dense x{f:g}") for f in _factors(tiny)]


@register("ffn_width_moe", "Feed-forward width, on an MoE", "expansion")
def _ffn_width_moe(base: Model, tiny: bool) -> list[Model]:
    layout, width = "16e4a" if tiny else "64e8a", base.shape.width // 8
    return [
        base.with_layout(layout, f, width=round(f * width), name=f"{layout} x{f:g}") for f in (1.0, *_factors(tiny))
    ]


@_along("batch_steps")
def _batch_steps(base: Model, tiny: bool) -> list[Model]:
    return [_batch(base, factor, base.budget.steps) for factor in _factors(tiny)]


@register("batch_tokens", "Batch at fixed tokens", "batch ratio")
def _batch_tokens(base: Model, tiny: bool) -> list[Model]:
    return [_batch(base, factor, round(base.budget.steps / factor)) for factor in _factors(tiny)]


@register("batch_steps_moe", "Batch at fixed steps, on an MoE", "batch ratio")
def _batch_steps_moe(base: Model, tiny: bool) -> list[Model]:
    return _each_an_moe([replace(base, name="batch x1"), *_batch_steps(base, tiny)], tiny)


@register("batch_tokens_moe", "Batch at fixed tokens, on an MoE", "batch ratio")
def _batch_tokens_moe(base: Model, tiny: bool) -> list[Model]:
    return _each_an_moe([replace(base, name="batch x1"), *_batch_tokens(base, tiny)], tiny)


@register("duration", "Duration at a fixed batch", "steps ratio")
def _duration(base: Model, tiny: bool) -> list[Model]:
    return [
        replace(base, budget=replace(base.budget, steps=round(f * base.budget.steps)), name=f"steps x{f:g}", x=f)
        for f in _factors(tiny)
    ]


@register("duration_moe", "Duration at a fixed batch, on an MoE", "steps ratio")
def _duration_moe(base: Model, tiny: bool) -> list[Model]:
    return _each_an_moe([replace(base, name="steps x1"), *_duration(base, tiny)], tiny)


@register("shorter", "Fewer steps, dense and MoE", "steps ratio")
def _shorter(base: Model, tiny: bool) -> list[Model]:
    """Where the rules for duration fail, apart: with other settings, such as held betas, this is minutes."""
    few = [model for model in _duration(base, tiny) if model.budget.steps < base.budget.steps]
    return [*few, *_each_an_moe(few, tiny)]


@register("batch_and_steps", "Batch and steps together, dense and MoE", "batch ratio")
def _batch_and_steps(base: Model, tiny: bool) -> list[Model]:
    """Away from the two axes and from equal tokens: does the optimum go with the batch or with the steps?"""
    return _both(base, ((2.0, 0.5),) if tiny else ((0.25, 0.25), (0.5, 0.25), (0.5, 0.5), (2.0, 0.25)), tiny)


@register("more_steps", "More steps at other batches, dense and MoE", "batch ratio")
def _more_steps(base: Model, tiny: bool) -> list[Model]:
    """The same question where the target trains for longer, as most do."""
    return _both(base, ((2.0, 2.0), (0.5, 4.0)), tiny)


def _both(base: Model, budgets: tuple[tuple[float, float], ...], tiny: bool) -> list[Model]:
    both = [
        replace(_batch(base, batch, round(steps * base.budget.steps)), name=f"batch x{batch:g}, steps x{steps:g}")
        for batch, steps in budgets
    ]
    return [*both, *_each_an_moe(both, tiny)]


def _each_an_moe(models: list[Model], tiny: bool) -> list[Model]:
    return [_moe(model, tiny, model.name, model.x or 1.0) for model in models]


def _factors(tiny: bool) -> tuple[float, ...]:
    return (0.5, 2.0) if tiny else (0.25, 0.5, 2.0, 4.0)


def _batch(base: Model, factor: float, steps: int) -> Model:
    budget = Budget(round(base.budget.batch_tokens * factor), steps)
    return replace(base, budget=budget, name=f"batch x{factor:g}", x=factor)


@register("scaling", "The dense optimum, fixed, at every size", "parameters", fixed=True)
def _scaling(base: Model, tiny: bool) -> list[Model]:
    """Four axes together, a layout that several share once; and a hybrid, which is on none: groups and a shared expert
    at once, as in the large recipes."""
    found: dict[tuple[ModelShape, Budget], Model] = {}
    for figure in (FIGURES[name] for name in ("activated", "capacity", "granularity", "depth")):
        for model in figure.models(base, tiny):
            known = found.get((model.shape, model.budget), model)
            axis = figure.title.split(":")[0], figure.axis, float(model.x or 0)
            found[model.shape, model.budget] = replace(known, axes=(*known.axes, axis))
    experts, layout = (16, "16e4a2g1s") if tiny else (128, "128e8a4g1s")
    return [*found.values(), base.with_layout(layout, experts)]


@register("selected", "A few of each: activated experts, a hybrid, twice the width", "active weights, millions")
def _selected(base: Model, tiny: bool) -> list[Model]:
    """For a scale at which no axis can be run in full."""
    few, hybrid = (("16e2a", "16e4a"), "16e4a2g1s") if tiny else (("64e4a", "64e8a"), "128e8a4g1s")
    wide = replace(base, shape=replace(base.shape, width=2 * base.shape.width))
    found = [*(base.with_layout(layout, 0) for layout in (*few, hybrid)), _moe(wide, tiny, "width x2", 0)]
    return [replace(model, x=model.shape.parameters.active / 1e6) for model in found]


@register("large_batch", "Four times the batch, as many steps", "batch ratio")
def _large_batch(base: Model, tiny: bool) -> list[Model]:
    """Layouts whose experts see few tokens, with four times as many: is it the noise of their gradients that moves an
    optimum?"""
    width, budget = base.shape.width, Budget(4 * base.budget.batch_tokens, base.budget.steps)
    large = replace(base, budget=budget, name="dense, batch x4", x=4.0)
    layouts = {"16e2a": width // 8} if tiny else {"64e2a": width // 8, "32e4a": width // 4}
    return [large, *(large.with_layout(k, 4.0, width=h, name=f"{k}, batch x4") for k, h in layouts.items())]
