"""lr and init std of one role against width, experts or N/a, as SVG: the target changed along one axis.

Every point is a transfer of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from complete_mue.chart import Dot, Drawn, Panel, Picture, log_axis
from complete_mue.chart_svg import panel_svg
from complete_mue.errors import MueError, one_of
from complete_mue.layout.notation import FeedForward, RoutedGroup
from complete_mue.layout.shape import ModelShape
from complete_mue.layout.tensors import Role
from complete_mue.plan.plan import Plan
from complete_mue.plan.row import Row
from complete_mue.plan.transfer import transfer
from complete_mue.web.compare import chosen
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


Points = tuple[tuple[float, float], ...]  # x and value
Lines = dict[str, Points]  # by rule set, in the order in which they are drawn


def keys(plan: Plan) -> list[str]:
    """A name per row, as the page's table has it: the role, and its block where a role has several."""
    roles = [row.role for row in plan.rows]
    return [row.role.value + (f":{row.block}" if roles.count(row.role) > 1 else "") for row in plan.rows]


def plot_answer(parameters: Mapping[str, str], plan: Plan) -> dict[str, Any]:
    """Both pictures, and the choices there are."""
    axis = parameters.get("axis") or "width"
    one_of("axis", axis, AXES, FieldError)
    known = keys(plan)
    role = parameters.get("role") or ""
    if role not in known:
        if role:  # one that this target has not is of the form before: the page goes on with another
            one_of("role", role.partition(":")[0], [*Role], FieldError)
        role = Role.EXPERT_UP.value if Role.EXPERT_UP.value in known else known[1]
    names = chosen(parameters, plan)
    answer: dict[str, Any] = {"roles": known, "role": role, "axis": axis, "note": AXES[axis][1]}
    if axis != "width" and not plan.shape.main.groups:
        return {**answer, "note": "The target has no experts: choose width, or give it a layout with experts."}
    lines = along(plan, known.index(role), axis, names, folded=parameters.get("form") == "folded")
    alike = coinciding(lines)
    answer["rules"] = [*alike.values()]
    lines = {column: {name: found[name] for name in alike} for column, found in lines.items()}
    here = _x(plan.shape, axis)
    drawn = {c: _svg(lines[c], here, AXES[axis][0], f"{name} of {role}") for c, name in COLUMNS.items()}
    answer["note"] += "".join(f" {role} has no {name}." for c, name in COLUMNS.items() if not drawn[c])
    return {**answer, **drawn}


def _svg(lines: Lines, here: float, x_name: str, title: str) -> str:
    """Curves on logarithmic axes; the present point has a dashed line, a ring and its value. Nothing without points."""
    xs, ys = ([point[i] for points in lines.values() for point in points] for i in (0, 1))
    if not ys:
        return ""
    drawn = [
        Drawn(rules, style, tuple(Dot(x, y, f"{rules}: {_place(x, y)}") for x, y in points))
        for style, (rules, points) in enumerate(lines.items())
    ]
    now = dict(next(iter(lines.values()))).get(here)
    if now is not None:
        drawn[0] = replace(drawn[0], minimum=Dot(here, now, _place(here, now)))
    guide = (here, f"{now:.4g}") if now is not None else None
    panel = Panel("", log_axis(x_name, xs, "{:.6g}".format), tuple(drawn), guide)
    y = log_axis("", ys, "{:.2g}".format, reach=(min(ys) / 1.3, max(ys) * 1.3))
    return panel_svg(Picture("", title, "", y, (panel,)), panel, f"clip-{title.split()[0]}")


def _place(x: float, y: float) -> str:
    return f"{y:.4g} at {x:.6g}"


def along(plan: Plan, index: int, axis: str, names: tuple[str, ...], *, folded: bool = False) -> dict[str, Lines]:
    """By column, a line per rule set: the row at ``index``, with the target's shape changed along the axis."""
    shapes = sorted({_x(shape, axis): shape for shape in variants(plan, axis)}.items())
    rows = {name: [(x, _row(plan, shape, name, index, folded)) for x, shape in shapes] for name in names}
    return {
        column: {
            name: tuple((x, value) for x, row in found if row and (value := getattr(row, column)))
            for name, found in rows.items()
        }
        for column in COLUMNS
    }


def coinciding(lines: Mapping[str, Lines]) -> dict[str, list[str]]:
    """The first of the rule sets that give the same numbers throughout -> all of them: one curve stands for all."""
    found: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for name in lines["lr"]:
        numbers = tuple(tuple(f"{x:.9g} {y:.9g}" for x, y in column[name]) for column in lines.values())
        found.setdefault(numbers, []).append(name)
    return {names[0]: names for names in found.values()}


def _row(plan: Plan, shape: ModelShape, rules: str, index: int, folded: bool) -> Row | None:
    """The row of another shape; None where the rules make no plan of it, or one of other roles."""
    try:
        made = transfer(plan.reference, shape, plan.budget, rules=replace(plan.rules, name=rules), betas=plan.betas)
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
