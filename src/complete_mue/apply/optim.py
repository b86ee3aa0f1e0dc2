"""From a binding to an optimizer: plain groups, clipping that agrees in both forms, a guard for schedulers."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from complete_mue.apply.bind import Binding, Bound, bind
from complete_mue.apply.family import Family
from complete_mue.errors import RunError
from complete_mue.layout.numbers import count, real
from complete_mue.plan.plan import Plan


def param_groups(model: nn.Module, plan: Plan, *, family: Family | None = None) -> list[dict[str, Any]]:
    """Plain parameter groups for any AdamW: parameters with equal settings share a group.

    Each group has ``params``, ``lr``, ``weight_decay``, ``eps``, ``betas``, a unique ``name``, its ``param_names``, and
    ``planned_lr``: the learning rate once more, since some schedulers overwrite ``lr`` and ``initial_lr`` both.
    """
    alike: dict[tuple[float, float, float], list[Bound]] = {}
    for bound in bind(model, plan, family):
        alike.setdefault((bound.row.lr, bound.row.weight_decay, bound.row.eps), []).append(bound)
    return [
        {
            "params": [bound.parameter for bound in group],
            "param_names": [bound.name for bound in group],
            "lr": lr,
            "planned_lr": lr,
            "weight_decay": weight_decay,
            "eps": eps,
            "betas": plan.hyper.betas,
            "name": f"{number}:{'+'.join(dict.fromkeys(bound.spec.role.value for bound in group))}",
        }
        for number, ((lr, weight_decay, eps), group) in enumerate(alike.items())
    ]


# -- clipping ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def clip_grad_norm_(
    model: nn.Module, plan: Plan, max_norm: float, *, family: Family | None = None, binding: Binding | None = None
) -> Tensor:
    """Clip by the global norm of the gradients as the multiplier form sees them, and return that norm; an infinite
    ``max_norm`` leaves them as they are.

    A folded parameter is m times its multiplier-form twin, so its gradient is 1/m of the twin's: the norm is taken over
    m g. With the plain norm the two forms would clip differently. A ``binding`` made once (``bind(model, plan)``) saves
    a loop from walking all names at every step.

    Gradients may be cut in several ways, as with FSDP2 and experts over ranks: a DTensor is summed over the ranks of
    its own mesh. A plain tensor counts once: every rank must hold the same, so reduce it first. All ranks must call.
    """
    if max_norm != math.inf:  # which only measures
        real("max_norm", max_norm)
    binding = bind(model, plan, family) if binding is None else binding
    found = [(grad, b.folded) for b in binding if (grad := b.parameter.grad) is not None]
    total = _norm(found)
    if max_norm != math.inf:
        _scale([gradient for gradient, _ in found], (max_norm / (total + 1e-6)).clamp(max=1.0))
    return total


def _scale(gradients: Sequence[Tensor], factor: Tensor) -> None:
    """Multiply in place what this rank holds: torch's own clipping refuses DTensors of several meshes at once."""
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        alike.setdefault((local.device, local.dtype), []).append(local)
    for (device, _), same in alike.items():
        torch._foreach_mul_(same, factor.to(device))


def _norm(weighed: Iterable[tuple[Tensor, float]]) -> Tensor:
    """Global norm of gradients times weights: one kernel per device and dtype, one reduction per way of sharding."""
    shares: dict[tuple[Any, ...], list[tuple[Tensor, float]]] = {}
    for gradient, weight in weighed:
        mesh, sharded = None, tuple[bool, ...]()
        if isinstance(gradient, DTensor):
            if any(placement.is_partial() for placement in gradient.placements):
                raise RunError(
                    f"a gradient has placements {gradient.placements}, a sum that is still open: reduce it before "
                    "clipping, with redistribute to Replicate() or Shard()"
                )
            # Whatever is not held whole is cut: FSDP2 over experts dealt out has a placement that is no Shard.
            mesh, sharded = gradient.device_mesh, tuple(not p.is_replicate() for p in gradient.placements)
            gradient = gradient.to_local()
        shares.setdefault((mesh, sharded, gradient.device, gradient.dtype), []).append((gradient, weight))
    totals = [_share(mesh, sharded, share) for (mesh, sharded, *_), share in shares.items()]
    if not totals:
        return torch.zeros(())
    whole: Tensor = torch.linalg.vector_norm(torch.stack([total.to(totals[0].device) for total in totals]))
    return whole


def _share(mesh: Any, sharded: tuple[bool, ...], weighed: list[tuple[Tensor, float]]) -> Tensor:
    gradients, weights = map(list, zip(*weighed, strict=True))
    precise = torch.promote_types(gradients[0].dtype, torch.float32)
    norms = torch._foreach_norm(gradients, 2, dtype=precise)
    # Factors as plain numbers: a tensor of them would be a copy to the device that the host waits for.
    weighed = norms if all(weight == 1 for weight in weights) else torch._foreach_mul(norms, weights)
    local: Tensor = torch.linalg.vector_norm(torch.stack(weighed))
    if mesh is None:
        return local
    over = [Partial("sum") if cut else Replicate() for cut in sharded]
    squares: Tensor = DTensor.from_local(local.square(), mesh, over, run_check=False).full_tensor()
    return squares.sqrt()


# -- schedulers ----------------------------------------------------------------------------------------------------


def check_scheduler(scheduler: Any, steps: int = 20_000) -> None:
    """Refuse a scheduler that does not multiply every group's planned learning rate by the same factor.

    Runs the scheduler ``steps`` steps ahead (20,000 take about half a second) and puts it and the optimizer's groups
    back as they were. What comes after them is not seen: give a longer run's own number. LambdaLR passes;
    CosineAnnealingLR(eta_min > 0) and OneCycleLR with one max_lr for all groups do not, nor does one that moves betas.
    """
    while hasattr(scheduler, "scheduler"):  # Accelerate wraps the scheduler it prepared
        scheduler = scheduler.scheduler
    if not hasattr(scheduler, "optimizer"):
        raise RunError(f"a {type(scheduler).__name__} where the scheduler belongs: give one of torch's, or the like")
    count("steps", steps)
    groups = scheduler.optimizer.param_groups
    name = type(scheduler).__name__
    planned = [float(group.get("planned_lr", group.get("initial_lr", group["lr"]))) for group in groups]
    kept = [{key: _copied(value) for key, value in group.items() if key != "params"} for group in groups]
    state = copy.deepcopy(scheduler.state_dict())
    waits = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)  # for a loss that no longer falls
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for step in range(steps + 1):
                _check_ratios(name, step, planned, [float(group["lr"]) for group in groups], kept)
                if any(group.get("betas") != before.get("betas") for group, before in zip(groups, kept, strict=True)):
                    raise RunError(f"{name} changes the plan's betas: give it cycle_momentum=False")
                try:
                    scheduler.step(1.0) if waits else scheduler.step()
                except ValueError:  # a scheduler of fixed length has reached its end
                    break
    finally:
        scheduler.load_state_dict(state)
        for group, before in zip(groups, kept, strict=True):
            for key in group.keys() - before.keys() - {"params"}:
                del group[key]
            for key, value in before.items():
                if isinstance(value, Tensor) and isinstance(group[key], Tensor):
                    group[key].copy_(value)  # a tensor lr stays the tensor that a compiled step knows
                else:
                    group[key] = value


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else copy.copy(value)


def _check_ratios(name: str, step: int, planned: list[float], now: list[float], groups: list[dict[str, Any]]) -> None:
    # A group planned at 0 that stays there fits any factor.
    rates = enumerate(zip(now, planned, strict=True))
    factors = [(lr / start if start else math.inf, i) for i, (lr, start) in rates if lr or start]
    for factor, i in factors:
        first, j = factors[0]
        # Differences below 1e-5 of the planned rate move nothing: schedulers round, and end near zero.
        if not math.isclose(factor, first, rel_tol=1e-6, abs_tol=1e-5):
            raise RunError(
                f"{name} breaks the ratios between parameter groups: at step {step} it multiplies group "
                f"{_called(groups[j], j)} by {first:.6g} and group {_called(groups[i], i)} by {factor:.6g}; "
                "use a scheduler that multiplies, such as torch.optim.lr_scheduler.LambdaLR"
            )


def _called(group: dict[str, Any], number: int) -> str:
    """A group's name, and its first tensor's."""
    names = group.get("param_names", [])
    return repr(group.get("name", number)) + (f" ({names[0]}{', …' if len(names) > 1 else ''})" if names else "")
