"""The training loop. Batches, noise and learning rates are functions of the step, so a run resumes to the same bits."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from complete_mue.apply.bind import bind
from complete_mue.apply.initialize import initialize
from complete_mue.apply.optim import clip_grad_norm_, param_groups
from complete_mue.errors import RunError
from complete_mue.nn.router import Routing
from complete_mue.storage import exclusive, write_json
from complete_mue.train import checkpoint
from complete_mue.train.config import RunConfig
from complete_mue.train.directory import Metrics, read_metrics
from complete_mue.train.flops import Cost, peak_flops
from complete_mue.train.schedule import last_window
from complete_mue.train.task import Task, build


@dataclass(frozen=True)
class Result:
    """How a run ended: ``finished``, ``interrupted`` or ``diverged``; the loss is the mean over the last window."""

    status: str
    steps: int
    loss: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"status": self.status, "steps": self.steps, "loss": self.loss}


Report = Callable[[dict[str, Any]], None]


def train(config: RunConfig, run: Path, *, resume: bool = False, report: Report = lambda line: None,
          warn: Callable[[str], None] = lambda text: None) -> Result:  # fmt: skip
    """Train a config in a directory. ``resume`` goes on from the newest sound checkpoint."""
    with exclusive(run, "the run"):
        if not resume and checkpoint.Checkpoint.listed(run):
            raise RunError(f"{run} holds checkpoints already: resume that run (--resume), or give another directory")
        device = pick_device(config.device)
        plan, task = config.plan, build(config)
        if task.steps is not None and task.steps < config.budget.steps:
            raise RunError(
                f"the data holds {task.steps} steps of {config.budget.batch_tokens} tokens and the budget asks for "
                f"{config.budget.steps}: give more data, fewer steps, or task.epochs=repeat"
            )
        model = task.model.to(device)
        initialize(model, plan, seed=config.seed)
        optimizer = torch.optim.AdamW(param_groups(model, plan), fused=device.type == "cuda")
        start = checkpoint.load_newest(run, config.fingerprint, model, optimizer, warn)
        write_json(run / "config.json", config.to_dict())
        write_json(run / "plan.json", plan.to_dict())
        metrics = Metrics(run, start)
        try:
            with _signals() as stopped:
                result = _steps(config, task, optimizer, device, run, start, metrics, report, stopped)
        finally:
            metrics.close()
        write_json(run / "result.json", {**result.to_dict(), "fingerprint": config.fingerprint})
        return result


def _steps(config: RunConfig, task: Task, optimizer: torch.optim.Optimizer, device: torch.device, run: Path, start: int,
           metrics: Metrics, report: Report, stopped: list[int]) -> Result:  # fmt: skip
    plan, schedule, model = config.plan, config.schedule, task.model
    forward = torch.compile(model) if config.compile else model
    meter = _Meter(config, task, device)
    pending: list[tuple[int, Tensor, Tensor | None]] = []
    for step in range(start, config.budget.steps):
        factor, logged = schedule.factor(step), step % config.log_every == 0
        for group in optimizer.param_groups:
            group["lr"] = group["planned_lr"] * factor
        loss, routings = _backward(config, task, forward, device, step)
        norm = clip_grad_norm_(model, plan, config.clip) if config.clip is not None else None
        before = _snapshot(model) if logged else None
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        _balance(config, model, routings)
        pending.append((step, loss, norm))
        last = step + 1 == config.budget.steps
        saving = (step + 1) % config.checkpoint_every == 0 or last or bool(stopped)
        if logged or saving:
            extra = {"lr": plan.hyper.lr * factor, **_details(config, model, before, routings), **meter.read(step + 1)}
            lines = [{"step": at, "loss": float(value), **({"grad_norm": float(n)} if n is not None else {})}
                     for at, value, n in pending]  # fmt: skip
            pending.clear()
            lines[-1] |= extra
            broken = next((line["step"] for line in lines if not math.isfinite(line["loss"])), None)
            metrics.write([_finite(line) for line in lines])
            report(lines[-1])
            if broken is not None:
                return Result("diverged", broken, None)
        if saving:
            checkpoint.save(run, step + 1, config.fingerprint, model, optimizer, config.keep)
        if stopped and not last:
            return Result("interrupted", step + 1, None)
    return Result("finished", config.budget.steps, last_window_loss(run, config.budget.steps))


def _backward(
    config: RunConfig, task: Task, forward: Any, device: torch.device, step: int
) -> tuple[Tensor, list[Routing]]:
    """Gradients of one step, over its micro-batches; the mean loss without auxiliary terms."""
    batch = task.batch(step)
    total = torch.zeros((), device=device)
    routings: list[Routing] = []
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bfloat16")
    for part in zip(*(tensor.chunk(config.accumulate) for tensor in batch), strict=True):
        routings = []
        with autocast:
            loss = task.loss(forward, tuple(tensor.to(device, non_blocking=True) for tensor in part), routings)
        full = loss + sum((routing.auxiliary_loss() for routing in routings), start=torch.zeros((), device=device))
        (full / config.accumulate).backward()
        total = total + loss.detach() / config.accumulate
    return total, routings


def _balance(config: RunConfig, model: torch.nn.Module, routings: list[Routing]) -> None:
    if config.bias_rate and config.router.selection_bias:
        routed = [layer.feed_forward for layer in model.layers if layer.feed_forward.spec.groups]  # type: ignore[union-attr]
        for block, routing in zip(routed, routings, strict=True):
            block.update_bias(routing.load, config.bias_rate)


def _snapshot(model: torch.nn.Module) -> dict[str, Tensor] | None:
    """A copy of the weights for update sizes; left out for models where a copy would hurt."""
    if sum(parameter.numel() for parameter in model.parameters()) > 200_000_000:
        return None
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@torch.no_grad()
def _details(
    config: RunConfig, model: torch.nn.Module, before: dict[str, Tensor] | None, routings: list[Routing]
) -> dict[str, Any]:
    """Update over weight by role, and how even the experts' load is."""
    details: dict[str, Any] = {}
    if before is not None:
        sums: dict[str, list[float]] = {}
        for b in bind(model, config.plan):
            update = torch.linalg.vector_norm(b.parameter - before[b.name])
            weight = torch.linalg.vector_norm(before[b.name])
            sums.setdefault(b.spec.role.value, []).append(float(update / weight) if weight else 0.0)
        details["update_ratio"] = {role: sum(values) / len(values) for role, values in sums.items()}
    if routings:
        details["load_variation"] = float(torch.stack([routing.load_variation.float() for routing in routings]).mean())
        details["load"] = [routing.relative_load.tolist() for routing in routings]
    return details


class _Meter:
    """Tokens per second, utilisation and time left, since the last reading."""

    def __init__(self, config: RunConfig, task: Task, device: torch.device) -> None:
        parameters = sum(p.numel() for p in task.model.parameters())
        self.cost = Cost.of(config.shape, parameters, task.embedding, task.sequence)
        self.config, self.peak = config, peak_flops(device)
        self.last = (time.perf_counter(), None)

    def read(self, step: int) -> dict[str, Any]:
        now, (then, at) = time.perf_counter(), self.last
        self.last = (now, step)
        if at is None or step == at:
            return {}
        speed = (step - at) * self.config.budget.batch_tokens / (now - then)
        left = (self.config.budget.steps - step) * self.config.budget.batch_tokens / speed
        values = {"tokens_per_second": speed, "seconds_left": left}
        return values | ({"mfu": speed * self.cost.flops_per_token / self.peak} if self.peak else {})


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGTERM and Ctrl-C ask the loop to save and leave after the step; a second Ctrl-C ends it at once."""
    caught: list[int] = []

    def note(number: int, frame: Any) -> None:
        if caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        caught.append(number)

    try:
        old = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not the main thread: signals are somebody else's
        yield caught
        return
    try:
        yield caught
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def last_window_loss(run: Path, steps: int) -> float | None:
    """Mean training loss over the last window: with single-epoch data, an unbiased held-out loss."""
    window = last_window(steps)
    losses = [
        line["loss"]
        for line in read_metrics(run)
        if steps - window <= line["step"] < steps and line["loss"] is not None
    ]
    return sum(losses) / len(losses) if losses else None


def _finite(line: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: what is not finite becomes null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}


def pick_device(name: str) -> torch.device:
    """``auto`` takes CUDA where it is."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise RunError(f"device = {name!r}: this machine or this torch has no CUDA; give device=cpu or device=auto")
    try:
        return torch.device(name)
    except RuntimeError:
        raise RunError(f"device = {name!r}: give auto, cpu, cuda or cuda:N") from None
