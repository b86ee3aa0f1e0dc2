"""The pictures as PNG files, drawn with matplotlib (the extra ``plots``), which is imported only here and only then."""

from __future__ import annotations

import importlib.util
import io
import textwrap
from pathlib import Path
from typing import Any, BinaryIO

from complete_mue.errors import FileError
from complete_mue.lab.report.pictures import LOOKS, Axis, Drawn, Panel, Picture, look_of
from complete_mue.storage import whole

_MANY = 12  # panels
_TITLE = 56  # letters above a panel
_GREY, _GUIDE = "#5d666f", (0, (5, 4))
_RING: dict[str, Any] = {
    "marker": "o", "markersize": 11, "markerfacecolor": "none", "markeredgewidth": 1.5, "linestyle": "none"
}  # fmt: skip
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)))  # where colours come round again


def can_plot() -> bool:
    """Whether matplotlib is here."""
    return importlib.util.find_spec("matplotlib") is not None


def write_png(picture: Picture, path: Path, columns: int | None = None, dpi: int = 150) -> Path:
    """Draw one picture with one y axis, its panels side by side or at most ``columns`` in a row, three where they are
    many; the file appears whole or not at all."""
    if not can_plot():
        raise FileError("a picture needs matplotlib: pip install 'complete-mue[plots]', or look at report.html")
    from matplotlib.figure import Figure

    count = len(picture.panels)
    wide = 3 if count > _MANY else min(count, columns or count)
    high = -(-count // wide)
    size = (4.1 * wide + 0.9 if count > 1 else 6.2, 4.3 if high == 1 else 0.9 + 3.5 * high)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(high, wide, squeeze=False, sharey=True).flatten()
    for axis, panel in zip(axes, picture.panels, strict=False):
        _draw(axis, picture, panel)
        if count > 1:
            axis.set_title(textwrap.fill(_whose(panel.title), _TITLE), fontsize=11, pad=20 if panel.guide else 8)
    for axis in axes[count:]:
        axis.set_visible(False)
    for axis in axes[::wide]:
        axis.set_ylabel(picture.y.label)
    handles = {text: h for axis in axes for h, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    handles |= _signs(picture)
    room = int(size[0] / (0.65 + 0.075 * max(map(len, handles), default=1)))  # inches of a mark and of a letter
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", frameon=False, fontsize=9,
        ncols=max(1, min(len(handles), room)),
    )  # fmt: skip
    alone = f": {_whose(picture.panels[0].title)}" if count == 1 and picture.panels[0].title else ""
    heading = "\n".join(filter(None, (picture.where, picture.title + alone)))
    figure.suptitle(heading, fontsize=10.5, parse_math=False)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=dpi, format="png")
    with whole(path) as file:
        _with_palette(drawn, file)
    return path


def _whose(name: str) -> str:
    """A rule set's name, with whose it is; any other name as it is."""
    return name + {"complete_mue_sparse": " (ours)", "complete_mue": " (the paper's)"}.get(name, "")


def _signs(picture: Picture) -> dict[str, Any]:
    """What the legend says of signs that belong to no line alone."""
    from matplotlib.lines import Line2D

    lines = [line for panel in picture.panels for line in panel.lines]
    guides = {"transferred value" if panel.guide[1] else "the plan's value" for panel in picture.panels if panel.guide}
    found = {text: Line2D([], [], color=_GREY, linestyle=_GUIDE, linewidth=1) for text in guides}
    if any(line.minimum is not None for line in lines):
        found["fitted minimum"] = Line2D([], [], **_RING, markeredgecolor=_GREY)
    if any(line.diverged for line in lines):
        found["diverged"] = Line2D([], [], color=_GREY, marker="x", markersize=6, linestyle="none")
    return found


def _with_palette(drawn: BinaryIO, file: BinaryIO) -> None:
    """The same picture in 64 colours, a third of the size; Pillow is there because matplotlib needs it."""
    from PIL import Image

    with Image.open(drawn) as image:
        few = image.convert("RGB").quantize(64, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(file, format="PNG", optimize=True)


def _draw(axis: Any, picture: Picture, panel: Panel) -> None:
    _scale(axis.xaxis, axis.set_xscale, axis.set_xlim, panel.x)
    _scale(axis.yaxis, axis.set_yscale, axis.set_ylim, picture.y)
    axis.set_xlabel(panel.x.label)
    axis.grid(axis="y", color="#eceef0")
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    if picture.level is not None:
        axis.axhline(picture.level, color=_GREY, linestyle=_GUIDE, linewidth=1)
    if panel.guide is not None:
        value, text = panel.guide
        axis.axvline(value, color=_GREY, linestyle=_GUIDE, linewidth=1)
        said, frame = f"transferred {text}" if text else "", ("data", "axes fraction")
        axis.annotate(said, (value, 1.02), xycoords=frame, ha="center", fontsize=8.5, color=_GREY)
    for line in panel.lines:
        _line(axis, picture, line)


def _line(axis: Any, picture: Picture, line: Drawn) -> None:
    number = look_of(line.style)
    colour, mark = LOOKS[number].colour, LOOKS[number].letter
    dashes = _DASHES[max(line.style - 1, 0) // (len(LOOKS) - 1) % len(_DASHES)] if line.joined else "none"
    xs, ys = [dot.x for dot in line.dots], [dot.y for dot in line.dots]
    width = 2.2 if line.style == 0 else 1.6
    axis.plot(
        xs, ys, color=colour, linewidth=width, linestyle=dashes, marker=mark if line.markers else None, markersize=5,
        label=_whose(line.name),
    )  # fmt: skip
    bars = [dot for dot in line.dots if dot.error]
    if bars and line.markers:
        axis.errorbar(
            [dot.x for dot in bars], [dot.y for dot in bars], [dot.error for dot in bars], color=colour,
            fmt="none", capsize=2, linewidth=1.1,
        )  # fmt: skip
    if line.minimum is not None:
        axis.plot([line.minimum.x], [line.minimum.y], **_RING, markeredgecolor=colour)
    if line.diverged:
        span = picture.y.high - picture.y.low
        top = picture.y.high - span * (0.02 + 0.03 * number)
        axis.plot([dot.x for dot in line.diverged], [top] * len(line.diverged), "x", color=colour, markersize=6)


def _scale(ticks: Any, set_scale: Any, set_limits: Any, axis: Axis) -> None:
    if axis.log:
        set_scale("log", base=2)
    ticks.set_ticks([value for value, _ in axis.ticks], [text for _, text in axis.ticks])
    ticks.set_ticks([], minor=True)
    set_limits(axis.low, axis.high)
