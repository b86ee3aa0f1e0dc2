"""A check's result for people: a table, a picture, and a JSON file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from complete_mue.apply.checks import AxisCheck, CheckResult
from complete_mue.apply.judge import OK, Slope
from complete_mue.chart import Axis, Dot, Drawn, Panel, Picture, log_axis
from complete_mue.chart_svg import write_svg
from complete_mue.storage import make_folder, write_json
from complete_mue.tabular import terminal_table

if TYPE_CHECKING:
    from rich.table import Table


def tables(result: CheckResult) -> Iterator[Table | str]:
    """One table per axis, the findings, and the verdict last."""
    for axis in result.axes:
        title = f"{axis.axis}: {', '.join(f'{x:g}' for x in axis.xs)}"
        headings = ("role", "size", "change", "size moves", "change moves", "formula", "experts", "")
        table = _roles_table(headings, title)
        for role in axis.roles:
            last = role.points[-1]
            table.add_row(
                role.role,
                f"{last.size:.3g}",
                f"{last.change:.3g}",
                str(Slope(role.size_slope, role.size_error)),
                str(Slope(role.change_slope, role.change_error)),
                "–" if role.formula_slope is None else f"{role.formula_slope:+.2f}",
                f"x{last.uneven:.2g}" if last.uneven > 1 else "–",
                role.verdict,
            )
        yield table
        if should := [f"{role.role} {role.expected:+.2f}" for role in axis.roles if role.expected]:
            yield f"size should move: {', '.join(should)}"
        for role in axis.roles:
            if role.verdict != OK:
                yield f"{role.verdict}: {role.role} ({role.tensor}): {role.why}"
        if any(point.load_variation for point in axis.routing):
            factors = ", ".join(f"{point.forward_factor:.3f}" for point in axis.routing)
            loads = ", ".join(f"{point.load_variation:.2f}" for point in axis.routing)
            yield f"routing at init: F = {factors}; variation of the load = {loads}"
        if axis.effects:
            yield _effects(axis)
    for finding in result.findings:
        yield f"not as planned: {finding}"
    for left in result.not_walked:
        yield f"not walked: {left.axis}: {left.reason}"
    yield verdict(result)


def _roles_table(headings: tuple[str, ...], title: str) -> Table:
    """Where it is narrow, everything but the names of the roles is folded."""
    table = terminal_table(headings, ("role", ""), title, padding=(0, 1, 0, 0))
    table.columns[0].no_wrap = True
    return table


def _effects(axis: AxisCheck) -> Table:
    """How much an update changes each role's own output on fresh tokens, point by point."""
    points = ", ".join(f"{x:g}" for x in axis.xs)
    headings = ("role", "change of its output", "alignment", "over the reference's", "")
    table = _roles_table(headings, f"update effect, {axis.axis} {points}")
    for role in axis.effects:
        table.add_row(
            role.role,
            ", ".join(f"{effect.change:.3g}" for effect in role.effects),
            ", ".join(f"{effect.alignment:.2f}" for effect in role.effects),
            ", ".join("–" if ratio is None else f"{ratio:.2f}" for ratio in role.ratios),
            "" if role.counterpart == role.role else f"against {role.counterpart}",
        )
    return table


def verdict(result: CheckResult) -> str:
    """One line in plain words."""
    left = f"; not walked: {', '.join(axis.axis for axis in result.not_walked)}" if result.not_walked else ""
    unsure = [f"{axis.axis} ({', '.join(role.role for role in axis.unsure)})" for axis in result.axes if axis.unsure]
    if unsure:
        left = (
            f"; cannot tell along {', '.join(unsure)}: use more seeds, steps or tokens, or text in place of noise{left}"
        )
    if result.ok:
        axes = ", ".join(axis.axis for axis in result.axes)
        what = "nothing is wrong as far as can be seen" if unsure else "every role keeps its size"
        return f"ok: {what} along {axes}, and the optimizer does what the plan says{left}"
    broken = [
        f"{axis.axis} ({', '.join(f'{r.role}: {r.tensor}' for r in axis.roles if not r.ok)})"
        for axis in result.axes
        if not axis.ok
    ]
    parts = [f"sizes move along {', '.join(broken)}"] if broken else []
    kinds = dict.fromkeys(finding.what for finding in result.findings)
    parts += [f"not as planned: {', '.join(kinds)}"] if kinds else []
    return "failed: " + "; ".join(parts) + left


_LOW, _HIGH = 0.2, 5.0  # what is further off is drawn there


def picture(result: CheckResult) -> Picture:
    """Change of every role's activations along each axis, on log axes: flat lines are right."""
    roles = dict.fromkeys(role.role for axis in result.axes for role in axis.roles)
    styles = {role: style for style, role in enumerate(roles, start=1)}
    y = Axis("relative to the first point", _LOW, _HIGH, tuple((v, f"{v:g}") for v in (0.25, 0.5, 1, 2, 4)), log=True)
    title = f"Change of activations after {result.steps} steps, rules {result.rules}: flat is right"
    return Picture("check", title, "", y, tuple(_panel(axis, styles) for axis in result.axes), level=1.0)


def _panel(axis: AxisCheck, styles: dict[str, int]) -> Panel:
    lines = []
    for role in axis.roles:
        start = role.points[0].change or 1.0
        values = [min(max(point.change / start, _LOW), _HIGH) for point in role.points]
        dots = (Dot(x, value, f"{role.role}: {value:.2f}") for x, value in zip(axis.xs, values, strict=True))
        lines.append(Drawn(role.role, styles[role.role], tuple(dots)))
    moved = ", ".join(role.role for role in axis.roles if not role.ok)
    state = f"{moved} moves" if moved else "cannot tell" if axis.unsure else "ok"
    return Panel(f"{axis.axis}: {state}", log_axis(axis.axis, axis.xs, "{:g}".format), tuple(lines))


def write(result: CheckResult, folder: Path) -> list[Path]:
    """check.json and check.svg in a folder; each file appears whole or not at all."""
    make_folder(folder)
    data = folder / "check.json"
    write_json(data, result.to_dict())
    return [data, write_svg(picture(result), folder / "check.svg", columns=3)]
