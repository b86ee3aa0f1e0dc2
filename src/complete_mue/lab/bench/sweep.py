"""``mue bench sweep``: K runs in one program against one run at a time, in total tokens per second, in one run.

On a GPU the language model of scale `small` (width 128, four layers, 16k tokens per step), bfloat16, compiled;
on CPU `lm_tiny` in one thread, as a sweep's worker processes run it.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from complete_mue.lab.bench.profiler import Profiler, machine
from complete_mue.lab.recipes import recipe
from complete_mue.lab.report.tables import number
from complete_mue.lab.sweep.fused import train_fused
from complete_mue.lab.train.config import RunConfig, override
from complete_mue.lab.train.trainer import pick_device
from complete_mue.layout.numbers import count
from complete_mue.storage import make_folder, write_json
from complete_mue.tabular import terminal_table

LAYOUTS = ("dense", "64e2a")
_ON_GPU = (
    "lm_proxy",
    "shape.depth=4",
    "shape.head_dim=32",
    "task.sequence=64",
    "budget.batch_tokens=16384",
    "task.epochs=repeat",
)
_ON_CPU = ("lm_tiny", "compile=false")
_INTERVAL, _WARM_UP = 5, 3  # steps per timed interval, intervals that compile and warm up


@dataclass(frozen=True)
class SweepBenchRow:
    """K runs of one layout in one program: the median of the timed intervals."""

    layout: str
    replicas: int
    recorded: bool  # as a CUDA graph
    tokens_per_step: int
    ms_per_step: float
    tokens_per_second: float
    peak_gib: float | None
    kernels: dict[str, float] | None = None  # milliseconds per step by kernel, if it was profiled

    @property
    def title(self) -> str:
        """What was timed."""
        return f"{self.layout}, K = {self.replicas}{', recorded' if self.recorded else ''}"


@dataclass(frozen=True)
class SweepBench:
    """All rows of one run, and where they were timed."""

    rows: tuple[SweepBenchRow, ...]
    machine: dict[str, str]

    def speedup(self, row: SweepBenchRow) -> float | None:
        """Total tokens per second over those of one run at a time, both recorded or both not."""
        alike = (r for r in self.rows if (r.layout, r.recorded) == (row.layout, row.recorded))
        solo = next((r for r in alike if r.replicas == 1), None)
        return None if solo is None else row.tokens_per_second / solo.tokens_per_second

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        rows = [{**dataclasses.asdict(row), "speedup": self.speedup(row)} for row in self.rows]
        return {"machine": self.machine, "rows": rows}

    def write(self, folder: Path) -> Path:
        """Write sweep.json."""
        make_folder(folder)
        write_json(folder / "sweep.json", self.to_dict())
        return folder / "sweep.json"

    def table(self) -> Table:
        """A table to print."""
        headings = ("layout", "step", "K", "ms / step", "tokens/s in all", "x one run", "peak GiB")
        title = f"K runs in one program · {', '.join(self.machine.values())}"
        table = terminal_table(headings, ("layout", "step"), title)
        for row in self.rows:
            table.add_row(
                row.layout, "recorded" if row.recorded else "plain", str(row.replicas), f"{row.ms_per_step:.1f}",
                f"{row.tokens_per_second:,.0f}", number(self.speedup(row), ".2f"), number(row.peak_gib, ".1f"),
            )  # fmt: skip
        return table


def run(
    layouts: Sequence[str] = LAYOUTS,
    replicas: Sequence[int] = (1, 9),
    device: str = "auto",
    *,
    intervals: int = 8,
    overrides: Sequence[str] = (),
    profiled: bool = False,
    each: Callable[[SweepBench], None] = lambda so_far: None,
) -> SweepBench:
    """Time every layout at every K, on a GPU also with the step recorded as a CUDA graph.

    ``overrides`` change the config, ``each`` sees the rows so far; ``profiled`` also records the time of every kernel,
    in an interval of its own.
    """
    count("intervals", intervals)
    place = pick_device(device)
    where, rows = machine(place, threads=1), []
    for layout in layouts:
        base, *changes = _ON_GPU if place.type == "cuda" else _ON_CPU
        config = override(recipe(f"{base}:{layout}"), *changes, *overrides, f"device={place.type}")
        for recorded in (False, True) if place.type == "cuda" else (False,):
            for runs in replicas:
                rows.append(_time(config, layout, count("replicas", runs), place, intervals, recorded, profiled))
                each(SweepBench(tuple(rows), where))
    return SweepBench(tuple(rows), where)


def _time(
    config: RunConfig,
    layout: str,
    replicas: int,
    device: torch.device,
    intervals: int,
    recorded: bool,
    profiled: bool,
) -> SweepBenchRow:
    timed = _WARM_UP + intervals
    steps = _INTERVAL * (timed + profiled) + 1
    config = override(config, f"budget.steps={steps}", f"log_every={_INTERVAL}", "betas=hold")
    lr = config.reference.hyper.lr
    configs = [override(config, f"reference.hyper.lr={lr * 2.0 ** (-k / 4)}") for k in range(replicas)]
    threads, ticks = torch.get_num_threads(), []
    profiler, kernels = Profiler(device) if profiled else None, None

    def tick(step: int, losses: list[float]) -> None:
        nonlocal kernels
        ticks.append(time.perf_counter())
        if profiler is not None and len(ticks) == timed + 1:
            profiler.start()
        elif profiler is not None and len(ticks) == timed + 2:
            kernels = profiler.stop(_INTERVAL)

    if device.type == "cuda":
        gc.collect()
        torch.compiler.reset()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    else:
        torch.set_num_threads(1)
    try:
        train_fused(configs, graph=recorded, report=tick)
    finally:
        torch.set_num_threads(threads)
    spans = [later - earlier for earlier, later in itertools.pairwise(ticks)][_WARM_UP:timed]
    per_step = statistics.median(spans) / _INTERVAL
    tokens = replicas * config.budget.batch_tokens
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    return SweepBenchRow(layout, replicas, recorded, tokens, 1000 * per_step, tokens / per_step, peak, kernels)
