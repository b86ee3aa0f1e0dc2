"""The axes a check walks along: small shapes that differ in one thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from complete_mue.errors import RunError, nearest
from complete_mue.layout import Budget, FeedForward, Hyper, ModelShape, Reference

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


def _points(xs: tuple[int, ...], make: Callable[[int], tuple[ModelShape, int]]) -> list[Point]:
    def point(x: int) -> Point:
        shape, batch = make(x)
        return Point(float(x), shape, Budget(batch * small_reference().budget.batch_tokens, 100))

    return [point(x) for x in xs]


def _moe(text: str, h: int, width: int = WIDTH, depth: int = DEPTH) -> tuple[ModelShape, int]:
    return ModelShape(width, depth, FeedForward.parse(text, h), head_dim=HEAD_DIM), 1


AXES: dict[str, Callable[[], list[Point]]] = {
    "width": lambda: _points((64, 128, 256), lambda d: _moe("8e2a1s", d // 4, width=d)),
    "depth": lambda: _points((4, 8, 16), lambda depth: _moe("8e2a1s", 16, depth=depth)),
    "active": lambda: _points((2, 4, 8, 16), lambda a: _moe(f"16e{a}a", 16)),
    "experts": lambda: _points((4, 8, 16, 32), lambda n: _moe(f"{n}e2a", 32)),
    "granularity": lambda: _points((2, 4, 8, 16), lambda a: _moe(f"{4 * a}e{a}a", 128 // a)),
    "shared": lambda: _points((1, 2, 3, 5), lambda z: _moe(f"8e2a{z - 1}s" if z > 1 else "8e2a", 32)),
    "groups": lambda: _points((1, 2, 4), lambda g: _moe(f"16e4a{g}g", 16)),
    "ffn_width": lambda: _points(
        (32, 64, 128, 256),
        lambda hidden: (ModelShape(WIDTH, DEPTH, FeedForward.dense(hidden), head_dim=HEAD_DIM), 1),
    ),
    "batch": lambda: _points((1, 2, 4), lambda b: (_moe("8e2a1s", 16)[0], b)),
}


def axis_points(axis: str) -> list[Point]:
    """The points of an axis, or an error that lists the axes."""
    if axis not in AXES:
        raise RunError(f"axis {axis!r}{nearest(axis, AXES)}: axes are {', '.join(AXES)}")
    return AXES[axis]()
