"""What an optimizer really does to each tensor, against what the plan says.

Activation sizes cannot see a wrong weight decay or eps, so they are measured on the optimizer itself. A fresh AdamW
turns a first gradient g into the step  w <- w (1 - lr wd) - lr g / (|g| + eps).  So g = 0 shows lr wd, a large g shows
lr, and a g of the size of eps shows eps. A warmup multiplies every lr alike; what counts is that all tensors agree on
the factor.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from complete_mue.apply.bind import Binding, Bound, bind
from complete_mue.apply.optim import check_scheduler
from complete_mue.apply.setup import Setup, built
from complete_mue.errors import RunError
from complete_mue.plan.plan import Plan


@dataclass(frozen=True)
class Finding:
    """One thing that is not as planned."""

    what: str  # init_std, lr, weight_decay, eps, betas, scheduler, coordinate, …
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.what} of {self.where}: {self.message}"


def realized(build: Callable[[Plan], Setup], plan: Plan, tolerance: float = 0.02) -> list[Finding]:
    """Compare initial weights and the first optimizer steps of ``build(plan)`` with the plan, tensor by tensor."""
    setup = built(build, plan)
    binding = bind(setup.model, plan, setup.family)
    findings = _initial(binding) + _scheduler(setup)
    decay = _step(build, plan, lambda b: 0.0)
    full = _without(decay, _step(build, plan, lambda b: 1e6))
    small = _without(decay, _step(build, plan, lambda b: b.row.eps))
    warmup = statistics.median(full[b.name] / b.row.lr for b in binding)
    for b in binding:
        lr = full[b.name]
        wd = decay[b.name] / lr if lr else math.nan
        findings += _compare("lr", b, lr, warmup * b.row.lr, tolerance)
        findings += _compare("weight_decay", b, wd, b.row.weight_decay, tolerance)
        if b.row.eps and lr:
            eps = b.row.eps * (lr / small[b.name] - 1) if small[b.name] else math.inf
            findings += _compare("eps", b, eps, b.row.eps, 0.1)
    return findings + _betas(setup, plan)


def _compare(what: str, bound: Bound, got: float, planned: float, tolerance: float) -> list[Finding]:
    if math.isclose(got, planned, rel_tol=tolerance, abs_tol=1e-12 + 1e-4 * (what == "weight_decay")):
        return []
    times = f", {got / planned:.3g} times as much" if planned else ""
    return [Finding(what, bound.name, f"the optimizer applies {got:.4g}, the plan says {planned:.4g}{times}")]


def _initial(binding: Binding) -> list[Finding]:
    findings = []
    for b in binding:
        weight = b.parameter.detach().double()
        if b.row.init_std is None or weight.numel() < 64:
            continue
        std = float(weight.square().mean().sqrt())
        # Five standard errors of a sample standard deviation, at least 2 %.
        slack = max(0.02, 5 / math.sqrt(2 * weight.numel()))
        if not math.isclose(std, b.row.init_std, rel_tol=slack):
            message = f"the weights have {std:.4g}, the plan says {b.row.init_std:.4g} (fan-in axis {b.spec.fan_in!r})"
            findings.append(Finding("init_std", b.name, message))
    return findings


def _scheduler(setup: Setup) -> list[Finding]:
    if setup.scheduler is None:
        return []
    try:
        check_scheduler(setup.scheduler)
    except RunError as problem:
        return [Finding("scheduler", type(setup.scheduler).__name__, str(problem))]
    return []


def _betas(setup: Setup, plan: Plan) -> list[Finding]:
    for number, group in enumerate(setup.optimizer.param_groups):
        betas = group.get("betas")
        if betas is not None and not all(
            math.isclose(a, b, rel_tol=1e-6) for a, b in zip(betas, plan.hyper.betas, strict=True)
        ):
            where = str(group.get("name", f"group {number}"))
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
    setup.optimizer.step()
    # The mean step, not the first entry's: a stacked tensor may be treated unevenly.
    return {b.name: float(1 - b.parameter.detach().mean()) for b in binding}


def _without(decay: dict[str, float], fell: dict[str, float]) -> dict[str, float]:
    return {name: value - decay[name] for name, value in fell.items()}
