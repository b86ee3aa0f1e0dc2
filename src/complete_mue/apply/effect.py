"""What an update does to each layer's own output, role by role.

Two states of a model, before and after a step (or several), and tokens that were not trained on: with W the weights
before, dW their change and x what the layer is given before the update,

    change    = rms(dW x) / rms(W x)                        how much of the layer's output the update replaces
    alignment = |dW x| / (|dW|_F |x| / sqrt(fan-in))         1 where dW and x have nothing to do with each other
    size      = rms(W x)

each per tensor, and for stacked experts per expert, on the tokens that are routed to it; a role is the mean of its
tensors and experts. Multipliers drop out of change and alignment: both are ratios.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from complete_mue.apply.bind import tensors_of, unwrapped
from complete_mue.apply.family import Family
from complete_mue.apply.observe import SHOW_PRODUCTS, Declared, Seen, holding, observe, unseen
from complete_mue.errors import RunError
from complete_mue.layout import Role


@dataclass(frozen=True)
class Effect:
    """An update's effect on one role: see the module."""

    change: float
    alignment: float
    size: float


@torch.no_grad()
def update_effect(
    model: nn.Module,
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    tokens: Tensor | Callable[[nn.Module], object],
    *,
    family: Family | None = None,
) -> dict[Role, Effect]:
    """The effect of the update from ``before`` to ``after`` (tensors by parameter name) on every matrix role.

    ``tokens`` are given to the model, ``model(tokens)``; or a function of the model that runs it. The model holds the
    weights ``before`` meanwhile, and its own again after; products must be torch's own (``kernel="reference"``). A
    model of many replicas: give a model of one, and one replica's states.
    """
    inner = unwrapped(model)
    named = tensors_of(inner, family)
    if any("replica" in one.spec.axes for one in named):
        raise RunError("the model holds several replicas: give a model of one, and one replica's states")
    changes = {one.name: _change(one, before, after) for one in named}
    if not any(change.any() for change in changes.values()):
        raise RunError("before and after are the same weights: keep a clone of each parameter before the step")
    with holding(named, before), observe(inner, named, changes) as seen:
        model(tokens) if isinstance(tokens, Tensor) else tokens(model)
    if missing := unseen(named, seen):
        raise RunError(f"{missing[0].name!r} was never seen in a product: {SHOW_PRODUCTS}")
    roles: dict[Role, list[Seen]] = {}
    for one in named:
        if seen.saw(one):  # of a stack of experts, the products of each that got a token
            experts = [expert for expert in seen.experts.get(one.name, {}).values() if expert.entries]
            roles.setdefault(one.spec.role, []).extend(experts or [seen.products[one.name]])
    return {
        role: Effect(
            change=statistics.fmean(one.relative_change for one in parts),
            alignment=statistics.fmean(one.alignment for one in parts),
            size=statistics.fmean(one.size for one in parts),
        )
        for role, parts in roles.items()
    }


def _change(one: Declared, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Tensor:
    for which, state in (("before", before), ("after", after)):
        if one.name not in state or state[one.name].shape != one.parameter.shape:
            found = f"has shape {tuple(state[one.name].shape)}" if one.name in state else "is missing"
            shape = tuple(one.parameter.shape)
            raise RunError(f"{which}: {one.name!r} {found}; give every parameter by name, this one of shape {shape}")
    change = torch.empty_like(one.parameter)  # laid out as the parameter is
    return change.copy_(after[one.name].to(change.device) - before[one.name].to(change.device))
