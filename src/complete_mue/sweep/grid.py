"""A grid: one recipe's config with some keys varied, as points with stable ids.

The id of a point is the fingerprint of its config: the same point has the same id in every sweep, on every machine, and
whatever else the grid holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from complete_mue.errors import RunError
from complete_mue.train.config import RunConfig, override


@dataclass(frozen=True)
class GridPoint:
    """One run of a sweep: its id, the values that make it differ, and its whole config."""

    id: str
    values: tuple[tuple[str, str], ...]
    config: RunConfig

    @property
    def label(self) -> str:
        """``shape.feed_forward=8e2a, seed=1``."""
        return ", ".join(f"{key}={value}" for key, value in self.values)


def grid(config: RunConfig, axes: Mapping[str, Sequence[object]]) -> tuple[GridPoint, ...]:
    """Every combination of the axes' values over ``config``: {"reference.hyper.lr": [1e-3, 2e-3], "seed": [0, 1]}."""
    points: dict[str, GridPoint] = {}
    for combination in itertools.product(*(list(values) for values in axes.values())):
        values = tuple((key, str(value)) for key, value in zip(axes, combination, strict=True))
        changed = override(config, *(f"{key}={value}" for key, value in values))
        point = GridPoint(changed.fingerprint, values, changed)
        if point.id in points:
            raise RunError(
                f"grid: {point.label!r} and {points[point.id].label!r} are the same run: "
                "give each value of an axis once"
            )
        points[point.id] = point
    return tuple(points.values())


def fusible(points: Sequence[GridPoint]) -> Iterator[tuple[GridPoint, ...]]:
    """Points in groups that can train in one program: one shape, task, budget and attention scale each."""
    groups: dict[tuple[object, ...], list[GridPoint]] = {}
    for point in points:
        c = point.config
        same = (c.task, c.shape, c.budget, c.warmup, c.clip, c.precision, c.compile, c.accumulate, c.qk_norm, c.router)
        groups.setdefault((*same, c.bias_rate, c.plan.attention_scale), []).append(point)
    return (tuple(group) for group in groups.values())
