"""A check's result for people: a table, a picture, and a JSON file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from complete_mue.apply.checks import AxisCheck, CheckResult
from complete_mue.apply.judge import OK, Slope
from complete_mue.storage import whole, write_json
from complete_mue.tabular import terminal_table

if TYPE_CHECKING:
    from rich.table import Table


def tables(result: CheckResult) -> Iterator[Table | str]:
    """One table per axis, the findings, and the verdict last."""
    for axis in result.axes:
        title = f"{axis.axis}: {', '.join(f'{x:g}' for x in axis.xs)}"
        headings = ("role", "size", "change", "size moves", "change moves", "formula", "experts", "")
        table = terminal_table(headings, ("role", ""), title)
        for role in axis.roles:
            last = role.points[-1]
            should = f", size should go {role.expected:+.2f}" if role.expected else ""
            table.add_row(
                role.role,
                f"{last.size:.3g}",
                f"{last.change:.3g}",
                str(Slope(role.size_slope, role.size_error)),
                str(Slope(role.change_slope, role.change_error)),
                "–" if role.formula_slope is None else f"{role.formula_slope:+.2f}",
                f"x{last.uneven:.2g}" if last.uneven > 1 else "–",
                role.verdict + should,
            )
        yield table
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


def _effects(axis: AxisCheck) -> Table:
    """How much an update changes each role's own output on fresh tokens, point by point."""
    points = ", ".join(f"{x:g}" for x in axis.xs)
    headings = ("role", "change of its output", "alignment", "over the reference's", "")
    table = terminal_table(headings, ("role", ""), f"update effect, {axis.axis} {points}")
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


def plot(result: CheckResult, file: BinaryIO) -> None:
    """Change of every role's activations along each axis, on log axes: flat lines are right."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(3, len(result.axes))
    rows = -(-len(result.axes) // columns)
    figure, grid = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.4 * rows), squeeze=False, layout="constrained")
    for panel, axis in zip(grid.flat, result.axes, strict=False):
        _panel(panel, axis)
    for panel in list(grid.flat)[len(result.axes) :]:
        panel.axis("off")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    for panel in grid.flat[1:]:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            if label not in labels:
                handles.append(handle)
                labels.append(label)
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    figure.suptitle(
        f"Change of activations after {result.steps} steps, rules {result.rules}: flat is right", fontsize=11
    )
    figure.savefig(file, dpi=150, format="png")
    plt.close(figure)


_COLOURS = {
    "embedding": "#7f7f7f", "readout": "#17becf", "attention_in": "#1f77b4", "attention_out": "#aec7e8",
    "dense_up": "#2ca02c", "dense_down": "#98df8a", "shared_up": "#9467bd", "shared_down": "#c5b0d5",
    "expert_up": "#d62728", "expert_down": "#ff7f0e", "router": "#8c564b", "modulation": "#e377c2",
}  # fmt: skip


def _panel(panel: object, axis: AxisCheck) -> None:
    for role in axis.roles:
        start = role.points[0].change or 1.0
        relative = [point.change / start for point in role.points]
        panel.plot(  # type: ignore[attr-defined]
            axis.xs, relative, marker="o", markersize=3, linewidth=1.2,
            linestyle="-" if role.ok else "--", color=_COLOURS.get(role.role), label=role.role,
        )  # fmt: skip
    panel.set_xscale("log", base=2)  # type: ignore[attr-defined]
    panel.set_yscale("log", base=2)  # type: ignore[attr-defined]
    panel.set_ylim(0.2, 5)  # type: ignore[attr-defined]
    panel.axhline(1, color="0.85", linewidth=0.8, zorder=0)  # type: ignore[attr-defined]
    state = "moves" if not axis.ok else "cannot tell" if axis.unsure else "ok"
    panel.set_title(f"{axis.axis}: {state}", fontsize=10)  # type: ignore[attr-defined]
    panel.set_xlabel(axis.axis, fontsize=9)  # type: ignore[attr-defined]
    panel.set_ylabel("relative to the first point", fontsize=8)  # type: ignore[attr-defined]


def write(result: CheckResult, folder: Path) -> list[Path]:
    """check.json and check.png in a folder; each file appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    data, picture = folder / "check.json", folder / "check.png"
    write_json(data, result.to_dict())
    with whole(picture) as file:
        plot(result, file)
    return [data, picture]
