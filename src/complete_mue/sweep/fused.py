"""Many runs in one program: configs of one shape, task and budget train together along a replica axis.

The model carries no multipliers: each replica's plan is folded into its own initial weights and AdamW settings, so that
runs with other hyperparameters, seeds and even rule sets share one forward and one backward. A replica that diverges is
taken out and leaves the others' bits as they were.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from complete_mue.apply.bind import Bound, bind
from complete_mue.apply.initialize import initial_replica
from complete_mue.errors import RunError
from complete_mue.models import DiffusionTransformer, LanguageModel
from complete_mue.nn.router import Routing
from complete_mue.sweep.adamw import ReplicaAdamW, ReplicaSettings
from complete_mue.train.config import RunConfig
from complete_mue.train.loop import pick_device
from complete_mue.train.schedule import last_window
from complete_mue.train.task import Task, build


@dataclass(frozen=True)
class FusedResult:
    """One replica's run: its loss at every step (until it diverged), and the last-window mean (None if it diverged)."""

    losses: tuple[float, ...]
    loss: float | None
    diverged: int | None


def train_fused(
    configs: Sequence[RunConfig],
    *,
    dtype: torch.dtype = torch.float32,
    report: Callable[[int, list[float]], None] = lambda step, losses: None,
) -> tuple[list[FusedResult], nn.Module]:
    """Train all configs together; returns their results and the model, whose parameters are [K, ...]."""
    _check_alike(configs)
    first, device = configs[0], pick_device(configs[0].device)
    tasks = [build(config) for config in _data_configs(configs)]
    model = _bare_model(first, tasks[0], len(configs)).to(device, dtype)
    optimizer = _prepare(model, configs)
    forward = torch.compile(model) if first.compile else model
    alive = torch.ones(len(configs), dtype=torch.bool, device=device)
    schedule, history = first.schedule, []
    for step in range(first.budget.steps):
        loss = _backward(first, tasks, forward, device, dtype, step)
        alive &= loss.isfinite()
        if first.clip is not None:
            optimizer.clip(first.clip)
        optimizer.step(schedule.factor(step), alive)
        optimizer.zero_grad()
        history.append(loss.detach())
        if step % first.log_every == 0:
            report(step, loss.tolist())
            if not bool(alive.any()):
                break
    return _results(torch.stack(history), first.budget.steps), model


_MAY_DIFFER = ("name", "reference", "seed", "rules", "betas")


def _check_alike(configs: Sequence[RunConfig]) -> None:
    if not configs:
        raise RunError("no configs to train: give at least one")
    for entry in dataclasses.fields(RunConfig):
        values = {repr(getattr(config, entry.name)) for config in configs}
        if entry.name not in _MAY_DIFFER and len(values) > 1:
            raise RunError(
                f"configs differ in {entry.name!r}: only {', '.join(_MAY_DIFFER)} may differ among runs that are fused"
            )

    if len({config.plan.attention_scale for config in configs}) > 1:
        raise RunError("configs differ in their attention scale: give their references one head_dim")


def _data_configs(configs: Sequence[RunConfig]) -> list[RunConfig]:
    """One config where all see the same batches, else one per replica."""
    return [configs[0]] if len({config.seed for config in configs}) == 1 else list(configs)


def _bare_model(config: RunConfig, task: Task, replicas: int) -> nn.Module:
    """The task's model without a plan's multipliers, with a replica axis."""
    options = {
        "attention_scale": config.plan.attention_scale,
        "qk_norm": config.qk_norm,
        "router": config.router,
        "replicas": replicas,
    }
    solo = task.model
    if isinstance(solo, LanguageModel):
        return LanguageModel(config.shape, solo.vocab, **options)  # type: ignore[arg-type]
    assert isinstance(solo, DiffusionTransformer)
    return DiffusionTransformer(config.shape, solo.channels, solo.patch, text_vocab=solo.text_vocab, **options)  # type: ignore[arg-type]


def _prepare(model: nn.Module, configs: Sequence[RunConfig]) -> ReplicaAdamW:
    """Draw each replica's weights by its own plan and seed, and collect its AdamW settings."""
    bindings = [{b.name: b for b in bind(model, config.plan)} for config in configs]
    parameters = {name: b.parameter for name, b in bindings[0].items()}
    device = next(iter(parameters.values())).device
    with torch.no_grad():
        for k, (config, bound) in enumerate(zip(configs, bindings, strict=True)):
            for name, b in bound.items():
                parameters[name][k].copy_(initial_replica(b, config.seed))

    def vector(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    def collect(rows: list[Bound]) -> ReplicaSettings:
        return ReplicaSettings(
            vector([b.row.lr for b in rows]),
            vector([b.row.weight_decay for b in rows]),
            vector([b.row.eps for b in rows]),
            vector([b.folded for b in rows]),
        )

    settings = {name: collect([bound[name] for bound in bindings]) for name in parameters}
    betas = torch.stack([vector([config.plan.hyper.betas[i] for config in configs]) for i in range(2)])
    return ReplicaAdamW(parameters, settings, betas)


def _backward(
    config: RunConfig, tasks: list[Task], forward: nn.Module, device: torch.device, dtype: torch.dtype, step: int
) -> Tensor:
    """Gradients of all replicas; their losses [K]. Replicas share no weight, so the sum keeps them apart."""
    batches = [task.batch(step) for task in tasks]
    parts = batches[0] if len(batches) == 1 else tuple(torch.stack(column) for column in zip(*batches, strict=True))
    placed = [part.to(device, dtype if part.is_floating_point() else None) for part in parts]
    routings: list[Routing] = []
    with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
        loss = tasks[0].loss(forward, tuple(placed), routings)
    total = loss.sum() + sum(
        (routing.auxiliary_loss().sum() for routing in routings), start=torch.zeros((), device=device)
    )
    total.backward()
    return loss.detach()


def _results(history: Tensor, steps: int) -> list[FusedResult]:
    results = []
    for losses in history.T.double().tolist():
        broken = next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None)
        kept = tuple(losses if broken is None else losses[:broken])
        window = kept[steps - last_window(steps) :]
        results.append(FusedResult(kept, None if broken is not None else sum(window) / len(window), broken))
    return results
