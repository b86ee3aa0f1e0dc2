"""Many runs in one program: configs of one shape, task and budget train together along a replica axis.

The model carries no multipliers: each replica's plan is folded into its own initial weights and AdamW settings, so that
runs with other hyperparameters, seeds and even rule sets share one forward and one backward. A replica that diverges is
taken out and leaves the others' bits as they were.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from complete_mue.apply.bind import Bound, bind
from complete_mue.apply.initialize import initial_replica
from complete_mue.errors import RunError
from complete_mue.lab.models import DiffusionTransformer, LanguageModel
from complete_mue.lab.models.residual_layer import LayerOptions, planned_attention_scale
from complete_mue.lab.nn.router import Routing
from complete_mue.lab.sweep.adamw import ReplicaAdamW
from complete_mue.lab.sweep.gpu_turn import NO_TURN, Turn
from complete_mue.lab.sweep.grid import MAY_DIFFER, alike
from complete_mue.lab.train.config import RunConfig
from complete_mue.lab.train.cuda_graph import WARM_UP, Recorded
from complete_mue.lab.train.schedule import last_window
from complete_mue.lab.train.task import Batch, Task, build, check_fits
from complete_mue.lab.train.trainer import added, balance, pick_device


@dataclass(frozen=True)
class FusedResult:
    """One replica's run: its loss at every step (until it diverged), and the last-window mean (None if it diverged).

    ``load_variation`` is that of the experts' load in the last step, averaged over layers; None without experts.
    """

    losses: tuple[float, ...]
    loss: float | None
    diverged: int | None
    load_variation: float | None = None


Report = Callable[[int, list[float]], None]


def train_fused(
    configs: Sequence[RunConfig],
    *,
    dtype: torch.dtype = torch.float32,
    graph: bool = True,
    report: Report = lambda step, losses: None,
    compiling: Turn = NO_TURN,
    training: Turn = NO_TURN,
) -> tuple[list[FusedResult], nn.Module]:
    """Train all configs together; returns their results and the model, whose parameters are [K, ...].

    ``report`` gets the step and the losses [K] of every ``log_every``-th step. On a GPU, ``graph`` records a step once
    and replays it, so that the host's pace does not matter. The turns are taken for compiling and recording, and for
    all steps after that.
    """
    _check_alike(configs)
    first, device = configs[0], pick_device(configs[0].device)
    seeds = list(dict.fromkeys(config.seed for config in configs))
    check_fits(first, torch.get_default_device())
    # For data and loss alone: the models of these tasks would be drawn and thrown away.
    tasks = [build(dataclasses.replace(first, seed=seed), device=torch.device("meta")) for seed in seeds]
    whose = torch.tensor([seeds.index(config.seed) for config in configs], device=device)
    tasks[0].check_holds(first.budget)
    model = _bare_model(first, tasks[0], len(configs), device, dtype)
    optimizer = _prepare(model, configs)
    steps = first.budget.steps
    batches = partial(_placed_batches, tasks, whose, dtype)

    def meanwhile() -> None:
        try:
            _try_kernels(first, tasks[0], model, next(batches(1)), len(tasks) > 1)
        except torch.OutOfMemoryError:
            pass
        except Exception as error:  # these runs may train nevertheless; if not, they say why
            warnings.warn(f"kernels were not compiled ahead: {type(error).__name__}: {error}", stacklevel=2)
        optimizer.grads.zero_()
        torch.cuda.empty_cache()

    compiling.take(meanwhile)
    if first.compile:
        model.compile_parts()
    alive = torch.ones(len(configs), dtype=torch.bool, device=device)

    def advance(factor: Tensor, *batch: Tensor) -> tuple[Tensor, list[Routing]]:
        loss, routings, loads = _backward(first, tasks[0], model, batch, len(tasks) > 1)
        alive.logical_and_(loss.isfinite())
        optimizer.step(factor, alive)
        balance(model, loads, first.balance_rate)
        return loss, routings

    take = Recorded(advance) if graph and device.type == "cuda" else advance
    factors = torch.tensor([first.schedule.factor(step) for step in range(steps)], dtype=torch.float64, device=device)
    history: list[Tensor] = []
    routings: list[Routing] = []
    for step, batch in enumerate(batches(steps)):
        if step == WARM_UP + 1:
            compiling.close()
            training.take()
        loss, routings = take(factors[step], *batch)
        history.append(loss.clone())
        if step % first.log_every == 0:
            report(step, loss.tolist())
            if not bool(alive.any()):
                break
    return _results(torch.stack(history), steps, routings), model


def _check_alike(configs: Sequence[RunConfig]) -> None:
    if not configs:
        raise RunError("no configs to train: give at least one")
    common = alike(configs[0])
    for name, value in (item for config in configs for item in alike(config).items()):
        if value != common[name]:
            raise RunError(
                f"configs differ in {name!r}: only {', '.join(MAY_DIFFER)} may differ among runs that are fused, and "
                "their references have the same heads"
            )


def _bare_model(config: RunConfig, task: Task, replicas: int, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The task's model without a plan's multipliers, with a replica axis; its weights are whatever memory held."""
    options = LayerOptions(
        attention_scale=planned_attention_scale(config.plan, config.shape), qk_norm=config.qk_norm,
        router=config.router, replicas=replicas,
    )  # fmt: skip
    solo: Any = task.model
    with torch.device("meta"):  # weights drawn here would be thrown away
        if isinstance(solo, LanguageModel):
            model: Any = LanguageModel(config.shape, solo.vocab, **options)
        else:
            text: dict[str, Any] = {"text_vocab": solo.text_vocab, "text_features": solo.text_features}
            model = DiffusionTransformer(config.shape, solo.channels, solo.patch, **text, **options)
    model.to(dtype).to_empty(device=device)
    for layer in model.layers:
        layer.feed_forward.reset_buffers()
    return model


def _prepare(model: nn.Module, configs: Sequence[RunConfig]) -> ReplicaAdamW:
    """Draw each replica's weights by its own plan and seed, and collect its AdamW settings."""
    bindings = [{b.name: b for b in bind(model, config.plan)} for config in configs]
    parameters = {name: b.parameter for name, b in bindings[0].items()}
    device = next(iter(parameters.values())).device
    for name, parameter in parameters.items():
        _draw(parameter, [bound[name] for bound in bindings], [config.seed for config in configs])

    def by_replica(values: list[tuple[float, ...]]) -> Tensor:
        """[K, settings] -> [settings, K]."""
        return torch.tensor(values, dtype=torch.float64, device=device).T.contiguous()

    def numbers(bound: Bound) -> tuple[float, ...]:
        return bound.row.lr, bound.row.weight_decay, bound.row.eps, bound.folded

    settings = {name: by_replica([numbers(bound[name]) for bound in bindings]) for name in parameters}
    betas = by_replica([config.plan.hyper.betas for config in configs])
    compiled = configs[0].compile and device.type == "cuda"
    return ReplicaAdamW(parameters, settings, betas, max_norm=configs[0].clip, compiled=compiled)


@torch.no_grad()
def _draw(parameter: Tensor, replicas: list[Bound], seeds: list[int]) -> None:
    """Initial weights of every replica; those of one seed and one init are drawn once."""
    drawn: dict[tuple[object, ...], Tensor] = {}
    for weights, bound, seed in zip(parameter, replicas, seeds, strict=True):
        key = (seed, bound.row.init_std, bound.folded)
        if key not in drawn:
            drawn[key] = initial_replica(bound, seed)
        weights.copy_(drawn[key])


def _placed_batches(tasks: list[Task], whose: Tensor, dtype: torch.dtype, steps: int) -> Iterator[Batch]:
    """Every step's batch on the device: [rows, ...] where replicas share it, else [K, rows, ...].

    There is one task per seed, and ``whose`` [K] says which is a replica's: a batch is made once per seed.
    """
    device = whose.device
    for batch in _made_ahead(tasks, steps):
        parts = [part.pin_memory() if device.type == "cuda" else part for part in batch]
        placed = [part.to(device, dtype if part.is_floating_point() else None, non_blocking=True) for part in parts]
        yield tuple(placed if len(tasks) == 1 else (part.index_select(0, whose) for part in placed))


_AHEAD = 4  # steps


def _made_ahead(tasks: list[Task], steps: int) -> Iterator[Batch]:
    """Every step's batch of all tasks, made by a thread per task and joined by one more, while earlier steps train."""
    with contextlib.ExitStack() as stack:
        *makers, joiner = (stack.enter_context(ThreadPoolExecutor(1)) for _ in range(len(tasks) + 1))
        waiting: deque[Future[Batch]] = deque()
        for step in range(steps + _AHEAD):
            if step < steps:
                made = [maker.submit(task.batch, step) for maker, task in zip(makers, tasks, strict=True)]
                waiting.append(joiner.submit(_joined, made))
            if step >= _AHEAD:
                yield waiting.popleft().result()


def _joined(made: list[Future[Batch]]) -> Batch:
    batches = [batch.result() for batch in made]
    return batches[0] if len(batches) == 1 else tuple(torch.stack(column) for column in zip(*batches, strict=True))


def _backward(
    config: RunConfig, task: Task, model: nn.Module, batch: Batch, apart: bool
) -> tuple[Tensor, list[Routing], list[Tensor]]:
    """Gradients of all replicas over the micro-batches: losses [K], the last routings, and where loads matter, loads.

    Replicas share no weight, so the gradient of the sum keeps them apart.
    """
    device = batch[0].device
    total = torch.zeros((), device=device)
    routings: list[Routing] = []
    loads: list[Tensor] = []
    for part in zip(*(tensor.chunk(config.accumulate, dim=1 if apart else 0) for tensor in batch), strict=True):
        routings = []
        with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
            loss = task.loss(model, part, routings)
        extra = sum((routing.auxiliary_loss() for routing in routings), start=torch.zeros_like(loss))
        ((loss + extra) / config.accumulate).sum().backward()
        total = total + loss.detach() / config.accumulate
        if config.balance_rate:
            loads = added(loads, [routing.load for routing in routings])
    return total, routings, loads


def _try_kernels(config: RunConfig, task: Task, model: nn.Module, batch: Batch, apart: bool) -> None:
    """Gradients through one layer of each kind, not compiled. They leave our own kernels on disk, ready for the program
    that this one waits for: torch compiles its own side by side, but ours one by one, when they are first called.
    """
    kinds = config.shape.blocks
    whole: Any = model.run_layer

    def first_of_a_kind(number: int, routings: list[Routing], layer: nn.Module, x: Tensor, *rest: Any) -> Any:
        return x if kinds[number] in kinds[:number] else whole(number, routings, layer, x, *rest)

    try:
        model.run_layer = first_of_a_kind
        _backward(config, task, model, batch, apart)
    finally:
        model.run_layer = whole


def _results(history: Tensor, steps: int, routings: list[Routing]) -> list[FusedResult]:
    results = []
    variations: list[float | None] = [None] * history.shape[1]
    if routings:
        variations = torch.stack([routing.load_variation for routing in routings]).mean(0).tolist()
    for losses, uneven in zip(history.T.double().tolist(), variations, strict=True):
        broken = next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None)
        if broken is None:
            window = losses[steps - last_window(steps) :]
            results.append(FusedResult(tuple(losses), sum(window) / len(window), None, uneven))
        else:
            results.append(FusedResult(tuple(losses[:broken]), None, broken))
    return results
