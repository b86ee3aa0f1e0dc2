"""One group of points, trained together: configs in, outcomes out. Runs wherever an executor puts it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

import torch
from torch import Tensor

from complete_mue.lab.records import LossCurve, Outcome
from complete_mue.lab.sweep.fused import FusedResult, Report, train_fused
from complete_mue.lab.sweep.gpu_turn import Turn, lock_of
from complete_mue.lab.train.config import RunConfig, pinned
from complete_mue.lab.train.schedule import last_window
from complete_mue.lab.train.trainer import pick_device

BINS = 100  # a record's loss curve is the mean over at most this many spans of steps
FIRST = 100  # and its first losses one by one


def work(configs: Sequence[RunConfig], *, threads: int | None = None, report: Report) -> list[Outcome]:
    """Train the configs in one program and describe what each gave."""
    if threads is not None:
        torch.set_num_threads(threads)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        _forget_programs(configs)
    start, data, device = time.perf_counter(), pinned(configs[0]).task.data, pick_device(configs[0].device)
    with closing(Turn(lock_of(device, "compile"))) as compiling, closing(Turn(lock_of(device, "train"))) as training:
        results, _ = train_fused(configs, report=report, compiling=compiling, training=training)
    seconds = time.perf_counter() - start - compiling.waited - training.waited
    return [
        _outcome(result, config, seconds, len(configs), data) for result, config in zip(results, configs, strict=True)
    ]


def warm_up(config: RunConfig) -> None:
    """Make ready for jobs like this: the GPU's context, and what the compiler loads and starts when first used."""
    device = pick_device(config.device)
    if device.type == "cuda":
        tiny = torch.compile(_tiny, dynamic=False) if config.compile else _tiny
        tiny(torch.zeros(8, device=device, requires_grad=True)).backward()


def _tiny(x: Tensor) -> Tensor:
    return x.sin().sum()


_compiled_for: list[tuple[object, ...]] = []


def _forget_programs(configs: Sequence[RunConfig]) -> None:
    """Drop the compiled programs of the last group, unless this one's are the same: their number is limited."""
    first = configs[0]
    key = (len(configs), first.shape, first.task, first.budget.batch_tokens, first.accumulate, first.router)
    if _compiled_for != [key]:
        torch.compiler.reset()
        _compiled_for[:] = [key]


def _outcome(result: FusedResult, config: RunConfig, seconds: float, fused: int, data: str | None) -> Outcome:
    steps = config.budget.steps
    return Outcome(
        status="finished" if result.loss is not None else "diverged",
        loss=result.loss,
        diverged=result.diverged,
        steps=steps,
        last_window=(steps - last_window(steps), steps),
        seconds=round(seconds, 3),
        fused=fused,
        load_variation=result.load_variation,
        curve=_curve(result.losses),
        first=tuple(round(loss, 5) for loss in result.losses[:FIRST]),
        data=data,
    )


def _curve(losses: Sequence[float]) -> LossCurve:
    """Mean loss of spans of steps."""
    count = min(BINS, len(losses))
    ends = [round((number + 1) * len(losses) / count) for number in range(count)]
    starts = [0, *ends[:-1]]
    means = [sum(losses[a:b]) / (b - a) for a, b in zip(starts, ends, strict=True)]
    return LossCurve(tuple(ends), tuple(round(mean, 5) for mean in means))
