"""Results of ``mue bench moe`` as data: to JSON and back, as a table, as a picture. Needs no torch.

A row is one kernel at one shape; rows of one shape were timed in turns within one run, so their ratios mean something
even where the machine's speed drifts.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table

from complete_mue.chart import Dot, Drawn, Panel, Picture, linear_axis, log_axis, round_numbers
from complete_mue.chart_svg import write_svg
from complete_mue.errors import KernelError, ShapeError, one_of
from complete_mue.lab.records import decode
from complete_mue.lab.report.tables import number
from complete_mue.storage import json_object, make_folder, read_bytes, write_json
from complete_mue.tabular import terminal_table

DENSE = "dense"
DENSE_COMPILED = "dense, compiled"
REFERENCE = "reference"

# The varied number of each figure, and what stays fixed, as the title says it.
FIGURES = {
    "capacity": ("experts", "more experts, the same active width"),
    "granularity": ("active", "finer experts, E = 8 k"),
    "width": ("expert_width", "wider experts"),
    "tiny": ("experts", "the small sweeps' shapes"),
    "layer_experts": ("experts", "whole layers, router included"),
    "layer_active": ("active", "whole layers, finer experts, the same E"),
}
WHOLE_LAYERS = ("layer_experts", "layer_active")
_AXIS_LABEL = {"experts": "experts E", "active": "active experts k", "expert_width": "expert width h"}


def check_names(figures: Sequence[str], device: str | None) -> None:
    """Refuse names that no machine knows."""
    for figure in figures:
        one_of("figure", figure, FIGURES, ShapeError)
    if device is not None and device.split(":")[0] not in ("cpu", "cuda"):
        raise KernelError(f"device {device!r}: give 'cuda' or 'cpu'")


@dataclass(frozen=True)
class BenchRow:
    """One kernel at one shape: forward + backward, median of the repeats; or the error that kept it from running."""

    figure: str
    kernel: str
    tokens: int
    width: int
    experts: int
    active: int
    expert_width: int
    dtype: str
    ms: float | None = None
    fastest_ms: float | None = None
    slowest_ms: float | None = None
    peak_gib: float | None = None
    error: str | None = None
    note: str | None = None  # what a peer's tuner chose
    kernels: dict[str, float] | None = None  # milliseconds by kernel, if it was profiled

    @property
    def title(self) -> str:
        """What was timed, at which shape."""
        return f"{self.kernel}, E = {self.experts}, k = {self.active}, h = {self.expert_width}"

    @property
    def shape(self) -> tuple[str, int, int, int, int, int]:
        """What two rows must share to be compared."""
        return self.figure, self.tokens, self.width, self.experts, self.active, self.expert_width


@dataclass(frozen=True)
class BenchResult:
    """All rows of one run, and the machine they ran on."""

    rows: tuple[BenchRow, ...]
    machine: dict[str, str]
    repeats: int

    # -- records ------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain data: ``bench``, ``machine``, ``repeats``, ``rows``."""
        rows = [dataclasses.asdict(row) for row in self.rows]
        return {"bench": "moe", "machine": self.machine, "repeats": self.repeats, "rows": rows}

    def write(self, folder: Path) -> Path:
        """Write moe.json."""
        make_folder(folder)
        write_json(folder / "moe.json", self.to_dict())
        return folder / "moe.json"

    @classmethod
    def read(cls, path: str | Path) -> BenchResult:
        """The result in ``path``, or in ``path/moe.json`` for a directory."""
        path = Path(path)
        path = path / "moe.json" if path.is_dir() else path
        content, again = read_bytes(path, "give a file that `mue bench moe` wrote"), "run the benchmark again"
        return decode(cls, json_object(content, str(path), "result of `mue bench moe`", again), path, again)

    # -- reading them -------------------------------------------------------------------------------------

    @property
    def figures(self) -> tuple[str, ...]:
        """Figures with rows, in the order they ran."""
        return tuple(dict.fromkeys(row.figure for row in self.rows))

    def ratio(self, row: BenchRow, to: str = DENSE_COMPILED) -> float | None:
        """Time of ``row`` over that of kernel ``to`` at the same shape; None where either has no time."""
        other = next((r.ms for r in self.rows if r.kernel == to and r.shape == row.shape and r.ms is not None), None)
        return None if other is None or row.ms is None else row.ms / other

    def table(self) -> Group:
        """A table per figure: time, ratio to the compiled dense block, speed-up over ``reference`` where that ran."""
        title = f"MoE layer, forward + backward, median of {self.repeats} · {', '.join(self.machine.values())}"
        return Group(title, *(self._table(figure) for figure in self.figures))

    def _table(self, figure: str) -> Table:
        rows = [row for row in self.rows if row.figure == figure]
        with_reference = any(row.kernel == REFERENCE and row.ms is not None for row in rows)
        times = ("ms", "/ dense", *(["reference /"] if with_reference else []), "peak GiB")
        says = FIGURES[figure][1] if figure in FIGURES else ""
        table = terminal_table(("E", "k", "h", "kernel", *times), ("kernel",), f"{figure}: {says}")
        for _, alike in itertools.groupby(rows, key=lambda row: row.shape):
            table.add_section()
            for place, row in enumerate(alike):
                shape = [""] * 3 if place else [str(row.experts), str(row.active), str(row.expert_width)]
                slower = self.ratio(row, REFERENCE)
                cells = [number(row.ms, ".2f"), number(self.ratio(row), ".2f")]
                cells += [number(1 / slower if slower else None, ".2f")] if with_reference else []
                table.add_row(*shape, row.kernel, *cells, row.error or number(row.peak_gib, ".1f"))
        return table

    def plot(self, path: str | Path) -> Path | None:
        """Draw one panel per figure: milliseconds against the varied number. None where no row has a time."""
        path, timed = Path(path), [row for row in self.rows if row.ms]
        if not timed:
            return None
        make_folder(path.parent)
        times = [row.ms for row in timed if row.ms]
        wide = max(times, default=0.0) > 6 * min(times, default=0.0)
        y = log_axis("ms", round_numbers(times), reach=times) if wide else linear_axis("ms", [0.0, *times])
        panels = tuple(self._panel(name) for name in dict.fromkeys(row.figure for row in timed))
        title, where = "MoE layer, forward + backward", ", ".join(self.machine.values())
        return write_svg(Picture("moe", title, "", y, panels, where=where), path)

    def _panel(self, figure: str) -> Panel:
        axis, says = FIGURES.get(figure, ("experts", ""))
        rows = sorted((row for row in self.rows if row.figure == figure and row.ms), key=lambda row: getattr(row, axis))
        kernels = list(dict.fromkeys(row.kernel for row in self.rows if row.ms))  # a look each, the same in all panels
        lines = [
            Drawn(kernel, style, tuple(Dot(getattr(r, axis), r.ms or 0.0, "") for r in rows if r.kernel == kernel))
            for style, kernel in enumerate(kernels)
        ]
        x = log_axis(_AXIS_LABEL[axis], [getattr(row, axis) for row in rows], "{:g}".format)
        return Panel(says or figure, x, tuple(line for line in lines if line.dots))
