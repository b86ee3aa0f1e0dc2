"""lr and init std of one role against width, experts or N/a, as SVG: the target changed along one axis.

Every point is a transfer of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from complete_mue.errors import MueError
from complete_mue.layout.notation import FeedForward, RoutedGroup
from complete_mue.layout.shape import ModelShape
from complete_mue.layout.tensors import Role
from complete_mue.plan.plan import Plan
from complete_mue.plan.row import Row
from complete_mue.plan.transfer import transfer
from complete_mue.web.compare import chosen
from complete_mue.web.curves import Line, curves_svg
from complete_mue.web.fields import FieldError

AXES = {
    "width": ("width d", "The feed-forward block grows with the width; everything else stays."),
    "experts": ("experts N", "The number of active experts and their width stay."),
    "sparsity": (
        "N/a, experts per active one",
        "The number of experts and their width stay; fewer or more are active.",
    ),
}
COLUMNS = {"lr": "learning rate", "init_std": "init std"}
_MOST_HALVINGS = 10


def keys(plan: Plan) -> list[str]:
    """A name per row, as the page's table has it: the role, and its block where a role has several."""
    roles = [row.role for row in plan.rows]
    return [row.role.value + (f":{row.block}" if roles.count(row.role) > 1 else "") for row in plan.rows]


def plot_answer(parameters: Mapping[str, str], plan: Plan) -> dict[str, Any]:
    """Both pictures, and the choices there are."""
    axis = parameters.get("axis") or "width"
    if axis not in AXES:
        raise FieldError(f"axis={axis!r:.80}: give one of {', '.join(AXES)}", field="axis", given=axis)
    known = keys(plan)
    role = parameters.get("role") or ""
    if role not in known:  # a role of the form before: this target has none
        role = Role.EXPERT_UP.value if Role.EXPERT_UP.value in known else known[1]
    names = chosen(parameters, plan)
    answer: dict[str, Any] = {"roles": known, "role": role, "axis": axis, "note": AXES[axis][1]}
    if axis != "width" and not plan.shape.main.groups:
        return {**answer, "note": "The target has no experts: choose width, or give it a layout with experts."}
    lines = along(plan, known.index(role), axis, names, folded=parameters.get("form") == "folded")
    alike = coinciding(lines)
    answer["rules"] = [*alike.values()]
    lines = {column: [line for line in found if line.rules in alike] for column, found in lines.items()}
    here, x_name = _x(plan.shape, axis), AXES[axis][0]
    drawn = {c: curves_svg(lines[c], here, x_name, name, f"{name} of {role}") for c, name in COLUMNS.items()}
    return {**answer, **drawn}


def along(plan: Plan, index: int, axis: str, names: tuple[str, ...], *, folded: bool = False) -> dict[str, list[Line]]:
    """By column, a line per rule set: the row at ``index``, with the target's shape changed along the axis."""
    shapes = sorted({_x(shape, axis): shape for shape in variants(plan, axis)}.items())
    rows = {name: [(x, _row(plan, shape, name, index, folded)) for x, shape in shapes] for name in names}
    return {
        column: [
            Line(name, tuple((x, value) for x, row in found if row and (value := getattr(row, column))))
            for name, found in rows.items()
        ]
        for column in COLUMNS
    }


def coinciding(lines: Mapping[str, list[Line]]) -> dict[str, list[str]]:
    """The first of the rule sets that give the same numbers throughout -> all of them: one curve stands for all."""
    found: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for same in zip(*lines.values(), strict=True):
        numbers = tuple(tuple(f"{x:.9g} {y:.9g}" for x, y in line.points) for line in same)
        found.setdefault(numbers, []).append(same[0].rules)
    return {names[0]: names for names in found.values()}


def _row(plan: Plan, shape: ModelShape, rules: str, index: int, folded: bool) -> Row | None:
    """The row of another shape; None where the rules make no plan of it, or one of other roles."""
    try:
        made = transfer(plan.reference, shape, plan.budget, rules=rules, betas=plan.betas)
    except MueError:
        return None
    rows = (made.fold() if folded else made).rows
    return rows[index] if [row.role for row in rows] == [row.role for row in plan.rows] else None


def variants(plan: Plan, axis: str) -> Iterator[ModelShape]:
    """The target by factors of two along an axis, itself among them."""
    shape = plan.shape
    low = min(-2, math.floor(math.log2(plan.reference.shape.width / shape.width))) if axis == "width" else -99
    for power in range(max(low, -_MOST_HALVINGS), 3 if axis != "sparsity" else _MOST_HALVINGS):
        try:
            yield _changed(shape, axis, 2.0**power)
        except MueError:
            continue
    yield shape


def _changed(shape: ModelShape, axis: str, factor: float) -> ModelShape:
    def times(number: int, least: int = 1, most: float = math.inf) -> int:
        return int(min(max(least, round(number * factor)), most))

    def group(one: RoutedGroup) -> RoutedGroup:
        if axis == "width":
            return replace(one, expert_width=times(one.expert_width))
        if axis == "experts":
            return replace(one, experts=times(one.experts, one.active))
        return replace(one, active=times(one.active, 1, one.experts))

    def block(one: FeedForward) -> FeedForward:
        branches = tuple(map(times, one.branches)) if axis == "width" else one.branches
        return FeedForward(branches, tuple(map(group, one.groups)))

    blocks = shape.feed_forward
    changed = block(blocks) if isinstance(blocks, FeedForward) else tuple(map(block, blocks))
    return replace(shape, feed_forward=changed, width=times(shape.width) if axis == "width" else shape.width)


def _x(shape: ModelShape, axis: str) -> float:
    if axis == "width":
        return shape.width
    return shape.main.experts if axis == "experts" else shape.main.experts / shape.main.active
