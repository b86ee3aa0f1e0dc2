"""The pictures as PNG files, drawn with matplotlib (the extra ``plots``), which is imported only here and only then."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from complete_mue.errors import FileError
from complete_mue.report.pictures import Axis, Drawn, Panel, Picture
from complete_mue.storage import whole

# The page's colours and markers.
_COLOURS = ("#1c2024", "#0072b2", "#d55e00", "#009e73", "#b3589a", "#c98200", "#3a9fd6", "#882255")
_MARKERS = ("o", "s", "^", "D", "v", "P", "p", "<")


def can_plot() -> bool:
    """Whether matplotlib is here."""
    return importlib.util.find_spec("matplotlib") is not None


def write_png(picture: Picture, path: Path) -> Path:
    """Draw one picture, panels side by side with one y axis; the file appears whole or not at all."""
    if not can_plot():
        raise FileError("a picture needs matplotlib: pip install 'complete-mue[plots]', or look at report.html")
    from matplotlib.figure import Figure

    count = len(picture.panels)
    figure = Figure(figsize=(4.1 * count + 0.9 if count > 1 else 6.2, 4.3), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False, sharey=True)[0]
    for axis, panel in zip(axes, picture.panels, strict=True):
        _draw(axis, picture, panel)
        if count > 1:
            axis.set_title(panel.title, fontsize=11, pad=20 if panel.guide else 8)
    axes[0].set_ylabel(picture.y.label)
    handles = {text: h for axis in axes for h, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=min(len(handles), 7), frameon=False,
        fontsize=9,
    )  # fmt: skip
    figure.suptitle(picture.title, fontsize=12.5)
    with whole(path) as file:
        figure.savefig(file, dpi=150, format="png")
    return path


def _draw(axis: Any, picture: Picture, panel: Panel) -> None:
    _scale(axis.xaxis, axis.set_xscale, axis.set_xlim, panel.x)
    _scale(axis.yaxis, axis.set_yscale, axis.set_ylim, picture.y)
    axis.set_xlabel(panel.x.label)
    axis.grid(axis="y", color="#eceef0")
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    if picture.level is not None:
        axis.axhline(picture.level, color="#5d666f", linestyle=(0, (5, 4)), linewidth=1)
    if panel.guide is not None:
        value, text = panel.guide
        axis.axvline(value, color="#5d666f", linestyle=(0, (5, 4)), linewidth=1)
        where = (value, 1.02)
        axis.annotate(
            f"transferred {text}", where, xycoords=("data", "axes fraction"), ha="center", fontsize=8.5, color="#5d666f"
        )
    for line in panel.lines:
        _line(axis, picture, line)


def _line(axis: Any, picture: Picture, line: Drawn) -> None:
    number = 0 if line.style == 0 else 1 + (line.style - 1) % (len(_COLOURS) - 1)
    colour, mark = _COLOURS[number], _MARKERS[number]
    xs, ys = [dot.x for dot in line.dots], [dot.y for dot in line.dots]
    width = 2.2 if line.style == 0 else 1.6
    axis.plot(
        xs, ys, color=colour, linewidth=width, marker=mark if line.markers else None, markersize=5, label=line.name
    )
    bars = [dot for dot in line.dots if dot.error]
    if bars and line.markers:
        axis.errorbar(
            [dot.x for dot in bars], [dot.y for dot in bars], [dot.error for dot in bars], color=colour,
            fmt="none", capsize=2, linewidth=1.1,
        )  # fmt: skip
    if line.minimum is not None:
        axis.plot(
            [line.minimum.x], [line.minimum.y], marker="o", markersize=11, markerfacecolor="none",
            markeredgecolor=colour, markeredgewidth=1.5, linestyle="none",
        )  # fmt: skip
    if line.diverged:
        span = picture.y.high - picture.y.low
        top = picture.y.high - span * (0.02 + 0.03 * number)
        axis.plot([dot.x for dot in line.diverged], [top] * len(line.diverged), "x", color=colour, markersize=6)


def _scale(ticks: Any, set_scale: Any, set_limits: Any, axis: Axis) -> None:
    if axis.log:
        set_scale("log", base=2)
    ticks.set_major_locator(_fixed([value for value, _ in axis.ticks]))
    ticks.set_major_formatter(_named([text for _, text in axis.ticks]))
    ticks.set_minor_locator(_fixed([]))
    set_limits(axis.low, axis.high)


def _fixed(places: list[float]) -> Any:
    from matplotlib.ticker import FixedLocator

    return FixedLocator(places)


def _named(texts: list[str]) -> Any:
    from matplotlib.ticker import FixedFormatter

    return FixedFormatter(texts)
