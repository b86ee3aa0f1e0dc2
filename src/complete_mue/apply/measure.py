"""One model of an axis: its activations at init, their change over the first steps, its updates, its routing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from complete_mue.apply.bind import Binding, Bound, bind, unwrapped
from complete_mue.apply.effect import Effect, update_effect
from complete_mue.apply.forward_check import judge_forward
from complete_mue.apply.initialize import generator_of
from complete_mue.apply.observe import Observation, any_number, holding, observe, rms
from complete_mue.apply.optimizer_check import Finding
from complete_mue.apply.setup import Setup, built, clip, loss_of
from complete_mue.layout import Role
from complete_mue.plan.plan import Plan


@dataclass(frozen=True)
class Measured:
    """One role at one point: size at init, its change after all steps, and how much of the largest change that is.

    ``formula`` is E|dW x| / (lr * fan-in * E|x|), with the learning rate that the optimizer really applies: the part
    of an update that the data decides, by the paper's estimate constant along every axis. It is so where all inputs and
    all steps agree; where they have nothing in common it falls with the root of the fan-in. None without a product.
    """

    size: float
    change: float
    formula: float | None
    uneven: float  # largest over smallest expert's update; 1 without experts


@dataclass(frozen=True)
class Observed:
    """One model, one seed."""

    roles: dict[Role, Measured]
    tensors: dict[Role, str]  # one name of each, with * for numbers
    forward_factor: float  # F = a E[sum pi^2]
    load_variation: float
    findings: tuple[Finding, ...]
    effects: dict[Role, Effect]


def measure(
    build: Callable[[Plan], Setup],
    plan: Plan,
    rates: Mapping[str, float],
    *,
    steps: int,
    seed: int = 0,
    effects: bool = False,
) -> Observed:
    """Build, look, train ``steps`` steps, look again. ``rates`` are the learning rates the optimizer applies, by name.

    Seeds other than 0 train on other batches, from the same weights in another order.
    """
    setup = built(build, plan)
    model, binding, loss = setup.model, bind(setup.model, plan, setup.family), loss_of(setup, plan)
    _shuffle(binding, seed)
    start = _state(model)
    first = seed * (steps + 1)
    for step in range(first, first + steps):
        setup.optimizer.zero_grad()
        loss(model, step).backward()
        clip(setup)
        setup.optimizer.step()
        if setup.scheduler is not None:
            setup.scheduler.step()
    changes = {b.name: b.parameter.detach() - start[b.name] for b in binding}
    with observe(model, binding) as after, torch.no_grad():
        loss(model, first)
    with holding(binding, start), observe(model, binding, changes) as before, torch.no_grad():
        loss(model, first)
    shown = {key[0] for key in before.branches} | {b.spec.role for b in binding if before.saw(b)}
    known = [role for role in dict.fromkeys(b.spec.role for b in binding) if role in shown]
    roles = {role: _role(role, plan, binding, rates, before, after) for role in known}
    names = {role: next(any_number(b.name) for b in binding if b.spec.role is role) for role in known}
    factor, variation = _routing(before, plan.shape.main.experts)
    effect = dict[Role, Effect]()
    if effects:
        effect = update_effect(model, start, _state(model), lambda m: loss(m, first + steps), family=setup.family)
    return Observed(roles, names, factor, variation, tuple(judge_forward(binding, plan, before)), effect)


def _state(model: nn.Module) -> dict[str, Tensor]:
    named = unwrapped(model).named_parameters(remove_duplicate=False)
    return {name: parameter.detach().clone() for name, parameter in named}


@torch.no_grad()
def _shuffle(binding: Binding, seed: int) -> None:
    """The entries of every drawn matrix in another order: another draw of the same distribution, whoever made it.

    The experts of a stack are put in one order, so that experts that start alike stay alike.
    """
    for b in binding if seed else ():
        if b.row.init_std is None or b.parameter.dim() < 2:
            continue
        entries = b.parameter.shape[-2:].numel()
        order = torch.randperm(entries, generator=generator_of(b, seed), device="cpu").to(b.parameter.device)
        b.parameter.copy_(b.parameter.flatten(-2)[..., order].view(b.parameter.shape))


def _role(
    role: Role, plan: Plan, binding: Binding, rates: Mapping[str, float], before: Observation, after: Observation
) -> Measured:
    # Sizes are stated at the reference's residual multiplier and global learning rate, so that depth and batch compare.
    depth, lr = plan.ratios.depth, plan.hyper.lr / plan.reference.hyper.lr
    members = [b for b in binding if b.spec.role is role and before.saw(b)]
    formulas, uneven = [], [1.0]
    for b in members:
        seen = before.products[b.name]  # what the update does to the inputs that the layer had at first
        fan_in = b.parameter.shape[b.spec.axes.index(b.spec.fan_in)] if b.spec.fan_in else 1
        largest = rates[b.name] * fan_in * seen.mean_input
        formulas += [seen.change / largest] if largest else []
        moved = [expert.change for expert in before.experts.get(b.name, {}).values() if expert.entries]
        uneven += [max(moved) / min(moved)] if len(moved) > 1 and min(moved) > 0 else []
    # A role that ends residual branches is judged by their output, which includes every multiplier.
    if keys := [key for key in before.branches if key[0] is role]:
        size = statistics.fmean(rms(before.branches[key]) * depth for key in keys)
        change = statistics.fmean(rms(after.branches[key] - before.branches[key]) * depth for key in keys)
    else:
        # A shared expert is judged by its share of the block's active width: of many terms, each is a small one.
        times = depth if role is Role.SHARED_DOWN else 1.0
        seen_as = [(before.products[b.name], b.spec.multiplier * times, _share(b, plan)) for b in members]
        size = statistics.fmean(seen.size * m / share**0.5 for seen, m, share in seen_as)
        change = statistics.fmean(seen.change * m / share for seen, m, share in seen_as)
    return Measured(size, change / lr, statistics.fmean(formulas) if formulas else None, max(uneven))


def _share(bound: Bound, plan: Plan) -> float:
    if bound.spec.role is not Role.SHARED_DOWN or bound.spec.layer is None:
        return 1.0
    block = plan.shape.blocks[bound.spec.layer]
    return sum(block.branches) / block.active_width


def _routing(seen: Observation, experts: int) -> tuple[float, float]:
    """F = a E[sum pi^2] and the load's coefficient of variation, averaged over layers; 1 and 0 without routers."""
    factors, variations = [], []
    for weights, index in seen.routing.values():
        shares = weights.double() / weights.double().sum(-1, keepdim=True)
        factors.append(float(index.shape[-1] * shares.square().sum(-1).mean()))
        load = torch.bincount(index.flatten(), minlength=experts).double()
        variations.append(float(load.std(correction=0) / load.mean()))
    return (statistics.fmean(factors), statistics.fmean(variations)) if factors else (1.0, 0.0)


def typical(values: list[Measured]) -> Measured:
    """Several seeds as one: geometric means, as slopes see them."""
    formulas = [one.formula for one in values if one.formula is not None]
    return Measured(
        _geometric([one.size for one in values]),
        _geometric([one.change for one in values]),
        _geometric(formulas) if formulas else None,
        max(one.uneven for one in values),
    )


def _geometric(values: list[float]) -> float:
    if not all(value > 0 and math.isfinite(value) for value in values):
        return statistics.fmean(values)
    return math.exp(statistics.fmean(map(math.log, values)))
