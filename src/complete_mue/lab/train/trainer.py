"""One optimizer step: batch, micro-batches, clipping, AdamW. Nothing here waits for the device or touches the disk.

Batches, noise and learning rates are functions of the step, so that a step can be run again to the same bits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from complete_mue.apply.bind import Binding, Bound, bind
from complete_mue.apply.initialize import initialize
from complete_mue.apply.optim import clip_grad_norm_, param_groups
from complete_mue.errors import RunError
from complete_mue.lab.nn.router import Routing
from complete_mue.lab.train.config import RunConfig
from complete_mue.lab.train.cuda_graph import Recorded
from complete_mue.lab.train.parallel import ALONE, Ranks, check_dealing, split_by_mesh
from complete_mue.lab.train.precision import ExpertCopies
from complete_mue.lab.train.task import Batch, build

_FEW_WEIGHTS = 200_000_000  # up to here update sizes are those of all tensors, beyond of the first of each role


@dataclass(frozen=True)
class Step:
    """What a step left, still on the device."""

    number: int
    loss: Tensor
    norm: Tensor | None
    updates: dict[str, Tensor]  # by role: mean over tensors of |update| / |weight|; empty unless asked for
    routings: list[Routing]  # of the last micro-batch

    def details(self) -> dict[str, Any]:
        """Update sizes and how even the experts' load is, as plain numbers."""
        plain: dict[str, Any] = {}
        if self.updates:
            plain["update_ratio"] = dict(zip(self.updates, torch.stack([*self.updates.values()]).tolist(), strict=True))
        if self.routings:
            variations = [routing.load_variation.float() for routing in self.routings]
            plain["load_variation"] = torch.stack(variations).mean().item()
            # Four digits: of many experts in many layers they are most of what a long run writes.
            loads = (routing.relative_load.tolist() for routing in self.routings)
            plain["load"] = [[float(f"{share:.4g}") for share in layer] for layer in loads]
        return plain


class Trainer:
    """A run's model and optimizer, and how to take a step."""

    def __init__(self, config: RunConfig, device: torch.device, *, draw: bool = True, ranks: Ranks = ALONE) -> None:
        """``draw=False`` leaves the weights as the model made them, for benchmarks of models that take long to draw.
        Of several ``ranks`` each holds its part of the model, which is never whole anywhere.
        """
        self.config, self.device, self.plan, self.schedule = config, device, config.plan, config.schedule
        self.ranks = ranks
        check_dealing(ranks.world, config.expert_parallel, config.shape)
        whole = ranks.mesh is None
        self.task = build(config, device=device if whole else torch.device("meta"), ranks=ranks)
        self.model: nn.Module = self.task.model
        if not whole:
            ranks.shard(self.model, config.precision)
            self.model.to_empty(device=device)
        if draw:
            initialize(self.model, self.plan, seed=config.seed)
        self.binding: Binding = bind(self.model, self.plan)
        self.optimizer = torch.optim.AdamW(split_by_mesh(param_groups(self.model, self.plan)), fused=True)
        self._copies: ExpertCopies | None = None
        self._watched = _watched(self.binding)
        self._micro_batch: Callable[..., tuple[Tensor, list[Routing], list[Tensor]]] = self._plain_micro_batch

    @property
    def masters(self) -> dict[str, nn.Parameter]:
        """float32 weights that stand outside the model, by name."""
        return self._copies.masters if self._copies else {}

    def start(self) -> None:
        """Last preparations, once the weights are those to go on from."""
        self.model.run_layer.recompute = self.config.recompute
        if self.config.precision == "bfloat16" and self.config.accumulate > 1 and self.ranks.mesh is None:
            self._copies = ExpertCopies(self.model, self.binding)
        if self.config.compile:
            self.model.compile_parts()
            if self.device.type == "cuda" and self.ranks.mesh is None:
                self._record()

    def _record(self) -> None:
        """Make a micro-batch one CUDA graph: the host cannot start an MoE's kernels as fast as the GPU runs them.

        Its gradients are added to ones that stay in place.
        """
        for bound in self.binding:
            if bound.parameter.grad is None:
                bound.parameter.grad = torch.zeros_like(bound.parameter)
        self._micro_batch = Recorded(self._plain_micro_batch)

    def step(self, number: int, *, detailed: bool = False) -> Step:
        """One optimizer step; ``detailed`` measures update sizes."""
        factor = self.schedule.factor(number)
        for group in self.optimizer.param_groups:
            group["lr"] = group["planned_lr"] * factor
        loss, routings = self._backward(self._placed(self.task.batch(number)))
        self.ranks.reduce_gradients(self.model)
        norm = None
        if self.config.clip is not None:
            norm = clip_grad_norm_(self.model, self.plan, self.config.clip, binding=self.binding)
        before = [b.parameter.detach().clone() for b in self._watched] if detailed else []
        self.optimizer.step()
        if self._copies is not None:
            self._copies.refresh()
        self._drop_gradients()
        return Step(number, loss, norm, self._updates(before) if detailed else {}, routings)

    def _placed(self, batch: Batch) -> Batch:
        if self.device.type != "cuda":
            return tuple(tensor.to(self.device) for tensor in batch)
        # From pinned memory the host need not wait for the copy.
        return tuple(tensor.pin_memory().to(self.device, non_blocking=True) for tensor in batch)

    def _backward(self, batch: Batch) -> tuple[Tensor, list[Routing]]:
        """Gradients over the micro-batches; the mean loss without auxiliary terms, and the last one's routings."""
        config, total = self.config, torch.zeros((), device=self.device)
        routings: list[Routing] = []
        loads: list[Tensor] = []
        for part in zip(*(tensor.chunk(config.accumulate) for tensor in batch), strict=True):
            loss, routings, now = self._micro_batch(*part)
            total = total + loss / config.accumulate
            loads = added(loads, now)
        balance(self.model, loads, config.balance_rate)
        return self.ranks.mean(total), routings

    def _plain_micro_batch(self, *batch: Tensor) -> tuple[Tensor, list[Routing], list[Tensor]]:
        """Gradients of one micro-batch; its loss without auxiliary terms, where its tokens went, and the experts' loads
        where they are balanced by them.
        """
        config = self.config
        routings: list[Routing] = []
        with _attention(config.attention, self.device):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
                loss = self.task.loss(self.model, batch, routings)
            full, routings = loss, [self.ranks.routing(routing) for routing in routings]
            if config.router.balance_loss or config.router.z_loss:
                full = loss + sum((routing.auxiliary_loss() for routing in routings), torch.zeros_like(loss))
            (full / config.accumulate).backward()
        return loss.detach(), routings, [routing.load for routing in routings] if config.balance_rate else []

    def _drop_gradients(self) -> None:
        """Those of a recorded step and of the experts stay where they are, as zeros: a graph adds to them, and to free
        and fetch so much anew would scatter memory.
        """
        stay = [b.parameter for b in self.binding] if isinstance(self._micro_batch, Recorded) else self.masters.values()
        kept = [(parameter, grad) for parameter in stay if (grad := parameter.grad) is not None]
        self.optimizer.zero_grad(set_to_none=True)
        if kept:
            torch._foreach_zero_([grad for _, grad in kept])
            for parameter, grad in kept:
                parameter.grad = grad

    @torch.no_grad()
    def _updates(self, before: list[Tensor]) -> dict[str, Tensor]:
        """Mean over a role's watched tensors of |update| / |weight|; 0 for a tensor that was 0."""
        sizes = self.ranks.norms(before)
        changes = self.ranks.norms([b.parameter - old for b, old in zip(self._watched, before, strict=True)])
        ratios = torch.where(sizes > 0, changes / sizes, 0.0)
        places: dict[str, list[int]] = {}
        for place, bound in enumerate(self._watched):
            places.setdefault(bound.spec.role.value, []).append(place)
        return {role: torch.stack([ratios[place] for place in found]).mean() for role, found in places.items()}


def added(loads: list[Tensor], now: list[Tensor]) -> list[Tensor]:
    """The experts' loads of all micro-batches so far."""
    return [one + two for one, two in zip(loads, now, strict=True)] if loads else [load.clone() for load in now]


def balance(model: nn.Module, loads: list[Tensor], rate: float) -> None:
    """Loss-free balancing, where it is on, by the load of the whole step."""
    if loads:
        routed = [layer.feed_forward for layer in model.layers if layer.feed_forward.spec.groups]
        for block, load in zip(routed, loads, strict=True):
            block.update_bias(load, rate)


def _watched(binding: Binding) -> list[Bound]:
    """Tensors whose update sizes are measured: all, or of a large model the first of each role."""
    if sum(b.parameter.numel() for b in binding) <= _FEW_WEIGHTS:
        return list(binding)
    return list({b.spec.role: b for b in reversed(binding.bound)}.values())


def _attention(kind: str, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Torch's own choice of an attention kernel, or that one first."""
    if kind == "auto" or device.type != "cuda":
        return contextlib.nullcontext()
    order = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    if kind == "cudnn":
        order.insert(0, SDPBackend.CUDNN_ATTENTION)
    return sdpa_kernel(order, set_priority=True)


def pick_device(name: str) -> torch.device:
    """``auto`` takes CUDA where it is."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise RunError(f"device = {name!r}: this machine or this torch has no CUDA; give device=cpu or device=auto")
    try:
        place = torch.device(name)
        if place.type not in ("cpu", "cuda"):
            torch.empty(0, device=place)
    except (RuntimeError, AssertionError, ImportError):
        raise RunError(f"device = {name!r}: not on this machine; give auto, cpu, cuda or cuda:N") from None
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise RunError(f"device = {name!r}: this machine has {torch.cuda.device_count()} GPUs; count from cuda:0")
    return place
