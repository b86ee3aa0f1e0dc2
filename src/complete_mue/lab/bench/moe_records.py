"""Results of ``mue bench moe`` as data: to JSON and back, as a table, as a picture. Needs no torch.

A row is one kernel at one shape; rows of one shape were timed in turns within one run, so their ratios mean something
even where the machine's speed drifts.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import HEAVY_HEAD
from rich.table import Table

from complete_mue.errors import FileError, KernelError, ShapeError, nearest
from complete_mue.storage import whole
from complete_mue.tabular import terminal_table

DENSE = "dense"
DENSE_COMPILED = "dense, compiled"
REFERENCE = "reference"

# The varied number of each figure, and what stays fixed, as the title says it.
FIGURES = {
    "capacity": ("experts", "more experts, the same active width"),
    "granularity": ("active", "finer experts, the same active width, E = 8 k"),
    "width": ("expert_width", "wider experts"),
    "tiny": ("experts", "the small sweeps' shapes"),
}
_AXIS_LABEL = {"experts": "experts E", "active": "active experts k", "expert_width": "expert width h"}
_COLOURS = {
    "triton": "tab:red", "sonic": "tab:purple", "sonic, native": "tab:pink", "grouped": "tab:orange",
    "grouped, compiled": "tab:green", REFERENCE: "tab:gray",
}  # fmt: skip


def check_names(figures: Sequence[str], device: str | None) -> None:
    """Refuse names that no machine knows."""
    for figure in figures:
        if figure not in FIGURES:
            raise ShapeError(f"figure {figure!r}{nearest(figure, FIGURES)}: figures are {', '.join(FIGURES)}")
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

    def to_json(self) -> str:
        """One JSON object: ``bench``, ``machine``, ``repeats``, ``rows``."""
        rows = [dataclasses.asdict(row) for row in self.rows]
        return json.dumps({"bench": "moe", "machine": self.machine, "repeats": self.repeats, "rows": rows}, indent=1)

    def write(self, directory: str | Path) -> Path:
        """Write ``moe.json`` in ``directory`` (made if missing), whole or not at all."""
        target = Path(directory) / "moe.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole(target) as file:
            file.write(self.to_json().encode() + b"\n")
        return target

    @classmethod
    def read(cls, path: str | Path) -> BenchResult:
        """The result in ``path``, or in ``path/moe.json`` for a directory."""
        path = Path(path)
        path = path / "moe.json" if path.is_dir() else path
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            rows = tuple(BenchRow(**row) for row in data["rows"])
            return cls(rows, dict(data["machine"]), int(data["repeats"]))
        except OSError as problem:
            raise FileError(f"{path}: {problem.strerror}; give a file that `mue bench moe` wrote") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
            raise FileError(f"{path} is no result of `mue bench moe` ({problem}); run the benchmark again") from None

    # -- reading them -------------------------------------------------------------------------------------

    @property
    def figures(self) -> tuple[str, ...]:
        """Figures with rows, in the order they ran."""
        return tuple(dict.fromkeys(row.figure for row in self.rows))

    def beside(self, row: BenchRow, kernel: str) -> BenchRow | None:
        """The row of ``kernel`` at the same shape, if it has a time."""
        same = (r for r in self.rows if r.kernel == kernel and r.shape == row.shape and r.ms is not None)
        return next(same, None)

    def ratio(self, row: BenchRow, to: str = DENSE_COMPILED) -> float | None:
        """Time of ``row`` over that of kernel ``to`` at the same shape; None where either has no time."""
        other = self.beside(row, to)
        return None if other is None or row.ms is None or other.ms is None else row.ms / other.ms

    def table(self) -> Table:
        """A table to print: time, ratio to the compiled dense block, speed-up over ``reference`` where that ran."""
        with_reference = any(row.kernel == REFERENCE and row.ms is not None for row in self.rows)
        title = f"MoE layer, forward + backward, median of {self.repeats} · {', '.join(self.machine.values())}"
        times = ("ms", "/ dense", *(["reference /"] if with_reference else []), "peak GiB")
        table = terminal_table(("figure", "E", "k", "h", "kernel", *times), ("figure", "kernel"), title, box=HEAVY_HEAD)
        previous = None
        for row in self.rows:
            if previous is not None and row.shape != previous:
                table.add_section()
            first = row.shape != previous
            previous = row.shape
            shape = [row.figure, str(row.experts), str(row.active), str(row.expert_width)] if first else [""] * 4
            if row.error is not None:
                table.add_row(*shape, row.kernel, "–", "–", *(["–"] if with_reference else []), row.error)
                continue
            slower = self.ratio(row, REFERENCE)
            cells = [_number(row.ms, ".2f"), _number(self.ratio(row), ".2f")]
            cells += [_number(1 / slower if slower else None, ".2f")] if with_reference else []
            table.add_row(*shape, row.kernel, *cells, _number(row.peak_gib, ".1f"))
        return table

    def plot(self, path: str | Path) -> Path:
        """Draw one panel per figure: milliseconds against the varied number, dense as lines. Needs matplotlib."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise FileError(
                "a picture needs matplotlib: pip install 'complete-mue[plots]', then plot the JSON"
            ) from None
        figure = Figure(figsize=(5.2 * len(self.figures), 4.2), layout="constrained")
        panels = figure.subplots(1, len(self.figures), squeeze=False)[0]
        for panel, name in zip(panels, self.figures, strict=True):
            self._draw(panel, name)
        panels[0].set_ylabel("forward + backward, ms")
        handles = {
            label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=4, fontsize="small", frameon=False)
        figure.suptitle(", ".join(self.machine.values()), fontsize="small", color="gray")
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as file:
            figure.savefig(file, dpi=160, format=path.suffix[1:] or "png")
        return path

    def _draw(self, panel: Any, figure: str) -> None:
        axis, says = FIGURES.get(figure, ("experts", ""))
        rows = [row for row in self.rows if row.figure == figure and row.ms is not None]
        ticks = sorted({getattr(row, axis) for row in rows})
        for kernel in dict.fromkeys(row.kernel for row in rows):
            points = sorted((getattr(row, axis), row.ms or 0.0) for row in rows if row.kernel == kernel)
            values = [ms for _, ms in points]
            style = "--" if kernel == DENSE else "-"
            constant = figure != "width"  # one dense block for the whole panel; its times differ by noise alone
            if kernel in (DENSE, DENSE_COMPILED) and constant:
                panel.axhline(statistics.median(values), color="black", linestyle=style, linewidth=1, label=kernel)
            else:
                colour = _COLOURS.get(kernel, "black" if kernel.startswith(DENSE) else None)
                panel.plot(
                    [at for at, _ in points],
                    values,
                    marker="o",
                    markersize=4,
                    linestyle=style,
                    color=colour,
                    label=kernel,
                )
        panel.set_xscale("log", base=2)
        panel.set_xticks(ticks, [str(tick) for tick in ticks])
        panel.minorticks_off()
        times = [row.ms for row in rows if row.ms is not None]
        if times and max(times) > 6 * min(times):
            panel.set_yscale("log")
        else:
            panel.set_ylim(bottom=0)
        panel.set_xlabel(_AXIS_LABEL[axis])
        panel.set_title(f"{figure}: {says}", fontsize="medium")
        panel.grid(alpha=0.25)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
