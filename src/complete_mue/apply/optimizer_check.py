"""What an optimizer really does to each tensor, against what the plan says.

Activation sizes cannot see a wrong weight decay or eps, so they are measured on the optimizer itself. A fresh AdamW
turns a first gradient g into the step  w <- w (1 - lr wd) - lr g / (|g| + eps).  So g = 0 shows lr wd, a large g shows
lr, and a g of the size of eps shows eps. A warmup multiplies every lr alike; what counts is that all tensors agree on
the factor. Clipping is shown huge gradients: one tensor's alone, then all together.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from complete_mue.apply.bind import Binding, Bound, bind
from complete_mue.apply.initialize import initial_value
from complete_mue.apply.optim import check_scheduler
from complete_mue.apply.setup import Setup, built, clip
from complete_mue.errors import RunError
from complete_mue.layout import Role
from complete_mue.plan.plan import Plan

_TOLERANCE = 0.02


@dataclass(frozen=True)
class Finding:
    """One thing that is not as planned."""

    what: str  # init_std, lr, weight_decay, eps, betas, scheduler, coordinate, …
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.what} of {self.where}: {self.message}"


def realized(build: Callable[[Plan], Setup], plan: Plan) -> tuple[list[Finding], dict[str, float]]:
    """Compare initial weights and the first optimizer steps of ``build(plan)`` with the plan, tensor by tensor: what is
    not as planned, and the learning rate of each tensor by name."""
    setup = built(build, plan)
    binding = bind(setup.model, plan, setup.family)
    findings = [*_initial(binding), *_alike(binding), *_scheduler(setup), *_clipping(setup, binding)]
    decay = _step(build, plan, lambda b: 0.0)
    full = _without(decay, _step(build, plan, lambda b: 1e6))
    small = _without(decay, _step(build, plan, lambda b: b.row.eps))
    factors = [full[b.name] / b.row.lr for b in binding]
    right = any(math.isclose(factor, 1, rel_tol=_TOLERANCE) for factor in factors)
    warmup = 1.0 if right else statistics.median(factors)
    for b in binding:
        lr = full[b.name]
        wd = decay[b.name] / lr if lr else math.nan
        findings += _compare("lr", b, lr, warmup * b.row.lr)
        findings += _compare("weight_decay", b, wd, b.row.weight_decay)
        if b.row.eps and lr:
            eps = b.row.eps * (lr / small[b.name] - 1) if small[b.name] else math.inf
            findings += _compare("eps", b, eps, b.row.eps, 0.1)
    return findings + _betas(setup, binding, plan), full


def _compare(what: str, bound: Bound, got: float, planned: float, tolerance: float = _TOLERANCE) -> list[Finding]:
    if math.isclose(got, planned, rel_tol=tolerance, abs_tol=1e-12 + 1e-4 * (what == "weight_decay")):
        return []
    times = f", {got / planned:.3g} times as much" if planned else ""
    return [Finding(what, bound.name, f"the optimizer applies {got:.4g}, the plan says {planned:.4g}{times}")]


def _initial(binding: Binding) -> Iterator[Finding]:
    for b in binding:
        weight = b.parameter.detach().double()
        if b.row.init_std is None:  # gains and biases have one value each
            planned = initial_value(b).to(weight)
            if not torch.allclose(weight, planned, rtol=1e-2, atol=1e-6):
                found, wanted = float(weight.mean()), float(planned.mean())
                yield Finding("init", b.name, f"it starts at {found:.4g} (mean), the plan says {wanted:.4g}")
        elif weight.numel() >= 64:
            stacked = b.spec.role in (Role.EXPERT_UP, Role.EXPERT_DOWN) and weight.dim() == 3
            experts = weight if stacked and weight[0].numel() >= 64 else weight[:0]
            single = [
                words for i, expert in enumerate(experts) for words in _drawn(f"expert {i} has", expert, b.row.init_std)
            ]
            # Where all experts are off, the tensor is.
            words = single if len(single) < len(experts) else list(_drawn("the weights have", weight, b.row.init_std))
            if words:
                more = f" (and {len(words) - 1} more)" if len(words) > 1 else ""
                yield Finding("init_std", b.name, f"{words[0]}{more} (fan-in axis {b.spec.fan_in!r})")


def _drawn(who: str, weight: Tensor, planned: float) -> Iterator[str]:
    std, mean, entries = float(weight.square().mean().sqrt()), float(weight.mean()), weight.numel()
    # Five standard errors of a sample standard deviation, at least 2 %; five of a mean.
    if not math.isclose(std, planned, rel_tol=max(0.02, 5 / math.sqrt(2 * entries))):
        yield f"{who} {std:.4g}, the plan says {planned:.4g}"
    elif abs(mean) > 5 * planned / math.sqrt(entries):
        yield f"{who} a mean of {mean:.4g}, the plan says 0 with a standard deviation of {planned:.4g}"


def _alike(binding: Binding) -> Iterator[Finding]:
    """Tensors, or experts of one tensor, that start with the same weights: draws that were meant to differ."""
    known: dict[tuple[float, ...], str] = {}
    for b in binding:
        weight = b.parameter.detach()
        if b.row.init_std is None or weight.numel() < 64:
            continue
        experts = b.spec.role in (Role.EXPERT_UP, Role.EXPERT_DOWN) and weight.dim() == 3
        for number, part in enumerate(weight if experts else [weight]):
            name = f"expert {number} of {b.name}" if experts else b.name
            first = tuple(part.flatten()[:64].tolist())
            twin = known.setdefault(first, name)
            if twin != name and any(first):
                yield Finding("init", b.name, f"{name} starts with the weights of {twin}: give each its own seed")
                break


def _clipping(setup: Setup, binding: Binding) -> Iterator[Finding]:
    """Huge gradients must be clipped to one norm, whichever tensor they are of, and all by one factor."""
    if setup.clip is None:
        return
    kept = {b.name: _clipped(setup, binding, [b])[b.name] for b in binding}
    norm = statistics.median(kept[b.name] for b in binding if b.folded == 1 or all(o.folded != 1 for o in binding))
    for b in binding:
        if not math.isclose(kept[b.name], norm, rel_tol=1e-2):
            yield Finding(
                "clip",
                b.name,
                f"its gradient alone is clipped to a norm of {kept[b.name]:.4g} (times its folded multiplier "
                f"{b.folded:.4g}), others to {norm:.4g}: use mue.clip_grad_norm_(model, plan, max_norm)",
            )
            return
    together = _clipped(setup, binding, list(binding))
    for b in binding:
        if not math.isclose(together[b.name], statistics.median(together.values()), rel_tol=1e-2):
            yield Finding("clip", b.name, "it is clipped by a factor of its own: clip by the norm of all gradients")
            return


def _clipped(setup: Setup, binding: Binding, huge: list[Bound]) -> dict[str, float]:
    """What is left of gradients of norm 1, 2, 3, … million in the multiplier form, over 1, 2, 3, …, by name.

    All other gradients are zero.
    """
    for b in binding:
        b.parameter.grad = torch.zeros_like(b.parameter)
    for place, b in enumerate(huge, start=1):
        b.parameter.grad = torch.full_like(b.parameter, 1e6 * place / b.folded / math.sqrt(b.parameter.numel()))
    clip(setup)
    left = {
        b.name: float((b.parameter.grad * b.folded).double().norm()) / place
        for place, b in enumerate(huge, start=1)
        if b.parameter.grad is not None
    }
    setup.optimizer.zero_grad()
    return left


def _scheduler(setup: Setup) -> Iterator[Finding]:
    try:
        if setup.scheduler is not None:
            check_scheduler(setup.scheduler)
    except RunError as problem:
        yield Finding("scheduler", type(setup.scheduler).__name__, str(problem))


def _betas(setup: Setup, binding: Binding, plan: Plan) -> list[Finding]:
    names = {id(b.parameter): b.name for b in binding}
    for number, group in enumerate(setup.optimizer.param_groups):
        betas = group.get("betas")
        if betas is not None and not all(
            math.isclose(a, b, rel_tol=1e-6) for a, b in zip(betas, plan.hyper.betas, strict=True)
        ):
            where = next((names[id(p)] for p in group["params"] if id(p) in names), f"group {number}")
            return [Finding("betas", where, f"the optimizer has {tuple(betas)}, the plan says {plan.hyper.betas}")]
    return []


def _step(build: Callable[[Plan], Setup], plan: Plan, gradient: Callable[[Bound], float]) -> dict[str, float]:
    """Set all weights to 1 and all gradients to one value, take one step, and return how far each tensor went down."""
    setup = built(build, plan)
    binding = bind(setup.model, plan, setup.family)
    with torch.no_grad():
        for b in binding:
            # float64 so that a decay of 1e-6 per step is seen
            b.parameter.data = torch.ones_like(b.parameter, dtype=torch.float64)
            b.parameter.grad = torch.full_like(b.parameter, gradient(b))
    for group in setup.optimizer.param_groups:
        if not float(group["lr"]):  # a warmup that starts at zero
            group["lr"] = group.get("initial_lr", 0.0)
    setup.optimizer.step()
    # The mean step, not the first entry's: a stacked tensor may be treated unevenly.
    return {b.name: float(1 - b.parameter.detach().mean()) for b in binding}


def _without(decay: dict[str, float], fell: dict[str, float]) -> dict[str, float]:
    return {name: value - decay[name] for name, value in fell.items()}
