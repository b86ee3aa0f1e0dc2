"""The axes along which models grow, named alike in `mue check`, `mue sweep` and `mue quickstart`, and the small models
that a check walks along each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from complete_mue.errors import RunError, ShapeError, one_of
from complete_mue.layout.notation import FeedForward
from complete_mue.layout.reference import Hyper, Reference
from complete_mue.layout.shape import Budget, ModelShape

WIDTH, DEPTH, HEAD_DIM = 64, 2, 16


@dataclass(frozen=True)
class Point:
    """One model along an axis: where it stands (on a log axis), its shape and its budget."""

    x: float
    shape: ModelShape
    budget: Budget


def small_reference(batch_tokens: int = 1024) -> Reference:
    """The dense model that checks start from: unit expansion, two layers, width 64."""
    return Reference(
        ModelShape(WIDTH, DEPTH, FeedForward.dense(WIDTH), head_dim=HEAD_DIM),
        Budget(batch_tokens, 100),
        Hyper(lr=4e-3, weight_decay=0.1, init_std=0.06, betas=(0.9, 0.9), eps=1e-9),
    )


@dataclass(frozen=True)
class Axis:
    """One way to grow: its title, what is counted along it, and where a check's models stand.

    ``make`` gives the shape at a place, and its batch over the reference's; the layout is for axes that do not vary it.
    """

    title: str
    counts: str
    places: tuple[int, ...]
    make: Callable[[int, str], tuple[ModelShape, int]]


def _moe(text: str, h: int, width: int = WIDTH, depth: int = DEPTH, batch: int = 1) -> tuple[ModelShape, int]:
    return ModelShape(width, depth, FeedForward.parse(text, h), head_dim=HEAD_DIM), batch


LAYOUT = "8e2a1s"  # of the axes that do not vary the layout
LAYOUT_AXES = ("width", "depth", "batch_steps")
AXES = {
    "width": Axis("Width, on an MoE", "width", (64, 128, 256), lambda d, layout: _moe(layout, d // 4, width=d)),
    "depth": Axis("Depth, on an MoE", "layers", (4, 8, 16), lambda n, layout: _moe(layout, 16, depth=n)),
    "activated": Axis("Activated experts", "activated experts", (2, 4, 8, 16), lambda a, _: _moe(f"16e{a}a", 16)),
    "capacity": Axis(
        "Capacity: more experts, as many active", "experts", (4, 8, 16, 32), lambda n, _: _moe(f"{n}e2a", 32)
    ),
    "granularity": Axis(
        "Granularity: finer experts, the same active width", "activated experts", (2, 4, 8, 16),
        lambda a, _: _moe(f"{4 * a}e{a}a", 128 // a),
    ),
    "shared": Axis(
        "Shared experts", "shared experts", (1, 2, 3, 5),
        lambda z, _: _moe(f"8e2a{z - 1}s" if z > 1 else "8e2a", 32),
    ),
    "grouped": Axis("Group-balanced routing", "groups", (1, 2, 4), lambda g, _: _moe(f"16e4a{g}g", 16)),
    "ffn_width": Axis("Feed-forward width, dense", "expansion", (32, 64, 128, 256), lambda h, _: _moe("dense", h)),
    "batch_steps": Axis("Batch at fixed steps", "batch ratio", (1, 2, 4), lambda b, layout: _moe(layout, 16, batch=b)),
}  # fmt: skip


def axis_points(axis: str, layout: str | None = None) -> list[Point]:
    """The points of an axis, or an error that lists the axes.

    ``layout`` is that of every point on the axes that do not vary it (``width``, ``depth``, ``batch_steps``); others
    keep their own. A term without ``@width`` gets experts of a quarter of the residual width.
    """
    one_of("axis", axis, AXES, RunError)
    found, budget = AXES[axis], small_reference().budget
    made = [(x, *found.make(x, LAYOUT if layout is None else layout)) for x in found.places]
    return [Point(float(x), shape, Budget(batch * budget.batch_tokens, budget.steps)) for x, shape, batch in made]


def axis_lines(axes: list[str], layout: str | None, points: list[Point] | None) -> dict[str, list[Point]]:
    """The points of every axis that is asked for."""
    if not axes or (points is not None and len(axes) > 1):
        raise RunError(f"{len(axes)} axes: give one or more, and with points= of your own the name of one")
    if layout is not None and (points is not None or not set(axes) & set(LAYOUT_AXES)):
        what = "points= bring their own" if points is not None else f"along {', '.join(axes)} the layout is what varies"
        raise RunError(f"layout {layout!r} is for the axes {', '.join(LAYOUT_AXES)}, but {what}: leave it out")
    lines = {axis: axis_points(axis, layout) if points is None else points for axis in axes}
    for axis, line in lines.items():
        if len({point.x for point in line}) < 2:
            raise ShapeError(f"{axis}: {len(line)} points at one place; give two or more, at different x")
    return lines
