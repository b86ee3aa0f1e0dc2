"""``mue bench train``: what the trainer costs, and how well a recipe uses the device.

``compare`` trains one recipe with the trainer (metrics, clipping, checkpoints, all of it) and with a minimal loop of
the same model, in turns of a few steps within one run. ``measure`` runs steps of any recipe and reports tokens per
second, model FLOPs utilisation and peak memory; nothing is written but the record.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.table import Table

from complete_mue.errors import RunError
from complete_mue.lab.bench.profiler import STEPS, kernel_times, machine
from complete_mue.lab.recipes import recipe as named
from complete_mue.lab.report.tables import number
from complete_mue.lab.train.config import RunConfig, override
from complete_mue.lab.train.flops import Meter
from complete_mue.lab.train.loop import train
from complete_mue.lab.train.task import build
from complete_mue.lab.train.trainer import Trainer, pick_device
from complete_mue.layout import Budget
from complete_mue.layout.numbers import count
from complete_mue.storage import make_folder, write_json
from complete_mue.tabular import terminal_table

TRAINER, MINIMAL = "trainer", "minimal loop"
_COMPARED = "lm_tiny"  # a small model, on CPU: there the trainer's own cost shows most
_WARM_UP_TURNS = 2


@dataclass(frozen=True)
class TrainBenchRow:
    """One way to train: the median of its timed spans."""

    what: str
    tokens_per_step: int
    ms_per_step: float
    fastest_ms: float
    slowest_ms: float
    tokens_per_second: float
    mfu: float | None = None
    peak_gib: float | None = None
    reserved_gib: float | None = None
    kernels: dict[str, float] | None = None  # milliseconds per step by kernel, if it was profiled

    @property
    def title(self) -> str:
        """What was timed."""
        return self.what

    @classmethod
    def of(cls, what: str, tokens: int, spans: Sequence[float], **more: Any) -> TrainBenchRow:
        """From seconds per step."""
        middle = statistics.median(spans)
        times = (1e3 * middle, 1e3 * min(spans), 1e3 * max(spans))
        return cls(what, tokens, *times, tokens / middle, **more)


@dataclass(frozen=True)
class TrainBench:
    """Rows of one run, what was trained, and where."""

    rows: tuple[TrainBenchRow, ...]
    machine: dict[str, str]
    recipe: str
    overrides: tuple[str, ...]
    steps: int  # timed, of each row
    parameters: dict[str, int]
    loss: float | None  # of the last step

    @property
    def slowdown(self) -> float | None:
        """Time of the trainer over that of the minimal loop, where both ran: 1.1 is 10 % slower."""
        times = {row.what: row.ms_per_step for row in self.rows}
        return times[TRAINER] / times[MINIMAL] if {TRAINER, MINIMAL} <= times.keys() else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"bench": "train", **dataclasses.asdict(self), "slowdown": self.slowdown}

    def write(self, folder: Path) -> Path:
        """Write train.json."""
        make_folder(folder)
        write_json(folder / "train.json", self.to_dict())
        return folder / "train.json"

    def table(self) -> Table:
        """A table to print."""
        title = f"{' '.join((self.recipe, *self.overrides))} · {', '.join(self.machine.values())}"
        ratio = "" if self.slowdown is None else f"trainer / minimal loop = {self.slowdown:.3f}"
        headings = ("what", "tokens / step", "ms / step", "fastest", "slowest", "tokens/s", "MFU", "GiB")
        table = terminal_table(headings, ("what",), title, caption=ratio, caption_justify="left")
        for row in self.rows:
            table.add_row(
                row.what, f"{row.tokens_per_step:,}", *(f"{t:.1f}" for t in (row.ms_per_step, row.fastest_ms)),
                f"{row.slowest_ms:.1f}", f"{row.tokens_per_second:,.0f}", number(row.mfu, ".1%"),
                number(row.reserved_gib, ".1f"),
            )  # fmt: skip
        return table


# -- the trainer against a minimal loop ---------------------------------------------------------------------------


def compare(overrides: Sequence[str] = (), *, turns: int = 12) -> TrainBench:
    """Time both loops in turns of ``log_every`` steps, so that a machine's drift meets both; the median of the turns.

    The trainer works as in ``mue train``: it logs at every turn and checkpoints as its config says.
    """
    count("turns", turns)
    config = override(named(_COMPARED), *overrides, "device=cpu")
    length = config.log_every
    steps = length * (turns + _WARM_UP_TURNS) + 1
    config = override(config, f"budget.steps={steps}", "betas=hold")
    minimal, model = _minimal_loop(config)
    spans: dict[str, list[float]] = {TRAINER: [], MINIMAL: []}
    began: list[float] = []
    losses: list[float] = []

    def turn(line: dict[str, Any]) -> None:
        """Called by the trainer at every logged step: its turn is over, the minimal loop has the next."""
        number = line["step"]
        if began and number % length == 0:
            spans[TRAINER].append((time.perf_counter() - began[-1]) / length)
            start = time.perf_counter()
            for step in range(number - length, number):
                minimal(step)
            spans[MINIMAL].append((time.perf_counter() - start) / length)
            losses.append(line["loss"])
        began.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder) / "run", report=turn)
    tokens = config.budget.batch_tokens
    rows = tuple(TrainBenchRow.of(what, tokens, taken[_WARM_UP_TURNS:]) for what, taken in spans.items())
    where = machine(torch.device("cpu"))
    return TrainBench(rows, where, _COMPARED, tuple(overrides), turns * length, _parameters(config, model), losses[-1])


def _minimal_loop(config: RunConfig) -> tuple[Callable[[int], None], torch.nn.Module]:
    """What one would write by hand for the same model and batches: AdamW, no clipping, no metrics, no checkpoints."""
    task = build(config)
    model = task.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.plan.hyper.lr)

    def step(number: int) -> None:
        (tokens,) = task.batch(number)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step, model


# -- how well a recipe uses the device ----------------------------------------------------------------------------


def measure(
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    steps: int = 20,
    warm_up: int = 3,
    device: str = "auto",
    report: Callable[[str], None] = lambda text: None,
    profiled: bool = False,
) -> TrainBench:
    """Take ``warm_up`` steps (which compile) and ``steps`` timed ones of a recipe; the median step counts.
    ``profiled``: a few more, to record the time of every kernel.

    Weights are not drawn by the plan, which would take longer than the steps of a large model; speed and memory do not
    depend on them. Memory that does not suffice is an error that says what to change.
    """
    config, total = override(named(recipe), *overrides), count("steps", steps) + count("warm_up", warm_up)
    place = pick_device(device)
    on_gpu = place.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(place)
    try:
        trainer = Trainer(config, place, draw=False)
        trainer.task.check_holds(Budget(config.budget.batch_tokens, total + (STEPS if profiled else 0)))
        trainer.start()
        meter, ticks, loss = Meter(config, trainer.task, place), [_tick(place)], None
        for number in range(total):
            done = trainer.step(number)
            ticks.append(_tick(place))
            if number < warm_up or number + 1 == total:
                loss = float(done.loss)
                report(f"step {number + 1}/{total}  loss {loss:.4f}")
        if on_gpu:
            torch.cuda.synchronize(place)
        further = itertools.count(total)
        kernels = kernel_times(lambda: trainer.step(next(further)), place) if profiled else None
    except torch.OutOfMemoryError as problem:
        raise RunError(
            f"{recipe} does not fit on this device ({str(problem).splitlines()[0]}); take smaller micro-batches "
            f"(accumulate above {config.accumulate}) or keep fewer activations (recompute, up to {config.shape.depth})"
        ) from None
    pairs = itertools.pairwise(ticks[warm_up:])
    spans = [one.elapsed_time(two) / 1e3 if on_gpu else two - one for one, two in pairs]
    memory: dict[str, float] = {}
    if on_gpu:
        memory["peak_gib"] = torch.cuda.max_memory_allocated(place) / 2**30
        memory["reserved_gib"] = torch.cuda.max_memory_reserved(place) / 2**30
    tokens = config.budget.batch_tokens
    mfu = tokens * meter.cost.flops_per_token / statistics.median(spans) / meter.peak if meter.peak else None
    row = TrainBenchRow.of(TRAINER, tokens, spans, mfu=mfu, kernels=kernels, **memory)
    counted = _parameters(config, trainer.model)
    return TrainBench((row,), machine(place), recipe, tuple(overrides), steps, counted, loss)


def _tick(device: torch.device) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _parameters(config: RunConfig, model: torch.nn.Module) -> dict[str, int]:
    return {"all": sum(p.numel() for p in model.parameters()), "active": config.shape.parameters.active}
