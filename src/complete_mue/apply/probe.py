"""What a model really does, seen in one forward pass: routing, its own multipliers, the gains of its norms.

A config says what a model was meant to be; its modules decide. Hooks on routers, branches and layers show how many
experts each token takes, what their weights sum to, and what the forward multiplies every branch, the embedding and the
logits with. Where no forward can run (meta device, shards, a model without one) the modules' own fields are read
instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from complete_mue.apply.one_forward import (
    COARSE,
    Capture,
    NoForwardError,
    cannot_run,
    evaluating,
    in_float32,
    owner,
    routed_layers,
    run,
    some_tokens,
)
from complete_mue.apply.seen_factors import end_factors, layer_factors
from complete_mue.apply.seen_routing import Routing, field_routing, routing_of, same_for_any_router
from complete_mue.layout import Role, TensorSpec


@dataclass(frozen=True)
class Seen:
    """What was seen. ``factors`` holds, by a tensor's name, what the forward multiplies its product with."""

    how: str  # `forward`, or `fields` where no forward could run
    routing: Mapping[int, Routing] = field(default_factory=dict)  # by layer
    factors: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)  # how far each factor may be off, relative to it
    gain_offsets: Mapping[str, float] = field(default_factory=dict)  # norms: what is added to the weight, 0 or 1
    gains: Mapping[str, float] = field(default_factory=dict)  # norms: the mean gain, the offset included
    shifts: frozenset[str] = frozenset()  # tensors of norms that are added, and multiply nothing
    problem: str = ""  # why no forward could run


def look(model: nn.Module, specs: Sequence[TensorSpec], *, forward: bool = True) -> Seen:
    """One forward pass with hooks, or the modules' own fields where none can run or none is wanted.

    A model in 16 bits is looked at with its weights in float32, where one differs from nearly one. That takes 4 bytes
    more for each of them meanwhile; without the memory, or where the model runs in 16 bits alone, it is looked at as it
    is, and less is told.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    fields = {layer: field_routing(model, specs, layer) for layer in routed_layers(specs)}
    problem = cannot_run(parameters, specs) if forward else "not wanted"
    if problem:
        return Seen("fields", fields, problem=problem)
    coarse = any(x.dtype in COARSE for x in model.parameters())
    for stand_in in (in_float32, nullcontext) if coarse else (nullcontext,):
        try:
            with stand_in(model):
                return _look(model, specs, fields)
        except NoForwardError as error:
            problem = str(error)
    return Seen("fields", fields, problem=problem)


def _look(model: nn.Module, specs: Sequence[TensorSpec], fields: Mapping[int, Routing]) -> Seen:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    capture = Capture(model, specs)
    tokens = some_tokens(parameters, specs)
    try:
        with capture, torch.no_grad():
            logits = run(model, tokens)
    except Exception as error:  # whatever a model of any kind raises on plain tokens
        raise NoForwardError(f"{type(error).__name__}: {error}") from error
    routing = {layer: routing_of(capture, layer, fields[layer]) for layer in fields}
    coarse = any(x.dtype in COARSE for x in capture.outputs.values())
    if any(one.sums is None for one in routing.values()) and not coarse:
        same, sums = same_for_any_router(model, specs, parameters, tokens)
        for layer, one in routing.items():
            if one.sums is None:
                found_sums = (sums[layer], sums[layer]) if layer in sums else None
                routing[layer] = replace(one, normalized=same, sums=found_sums)
    found: dict[str, tuple[float, float]] = {}
    for layer in capture.layers:
        found |= layer_factors(capture, layer, routing.get(layer, Routing()))
    found |= end_factors(capture, parameters, tokens, logits)
    offsets, shifts = _gain_offsets(model, specs)
    return Seen(
        "forward",
        routing,
        {name: factor for name, (factor, _) in found.items()},
        {name: error for name, (_, error) in found.items()},
        offsets,
        {name: float(parameters[name].detach().double().mean()) + offset for name, offset in offsets.items()},
        shifts,
    )


@torch.no_grad()
def _gain_offsets(model: nn.Module, specs: Sequence[TensorSpec]) -> tuple[dict[str, float], frozenset[str]]:
    """Whether a norm multiplies by w or by 1 + w, and what it adds: one look per class and tensor."""
    known: dict[tuple[type, str, bool], float | None] = {}
    found, shifts = {}, set()
    for spec in specs:
        if spec.role not in (Role.NORM, Role.FINAL_NORM) or spec.name.endswith("bias"):
            continue
        module, name = model.get_submodule(owner(spec)), spec.name.rpartition(".")[2]
        key = type(module), name, bool(getattr(module, "bias", None) is not None)
        if key not in known:
            known[key] = _gain_offset(module, name)
        if (offset := known[key]) == math.inf:
            shifts.add(spec.name)
        elif offset is not None:
            found[spec.name] = offset
    return found, frozenset(shifts)


def _gain_offset(module: nn.Module, name: str) -> float | None:
    """What is added to a gain; infinity for a tensor that is no gain but is added; None where neither is shown."""
    weight = module.get_parameter(name)
    if any(True for _ in module.children()) or weight.dim() != 1 or weight.numel() < 2:
        return None
    size = weight.numel() // 2 * 2
    # Every norm leaves this vector as it is.
    probe = torch.zeros_like(weight)
    probe[:size:2], probe[1:size:2] = 1.0, -1.0
    probe *= math.sqrt(weight.numel() / size)
    given = torch.stack([probe, -probe]).view(1, 2, -1)
    try:
        with evaluating(module):
            out = module(given)
            with torch.nn.utils.stateless._reparametrize_module(module, {name: weight + 1}):
                moved = module(given)
    except Exception:  # a norm that wants more than its input, such as a gate
        return None
    if not isinstance(out, Tensor) or out.shape != (1, 2, weight.numel()):
        return None
    if bool(((moved - out).double() - 1).abs().max() <= 0.05):  # for a vector and for its opposite
        return math.inf
    gain = ((out[0, 0] - out[0, 1]) / 2 / probe)[:size].double()
    added = gain - weight[:size].double()
    slack = min(64 * float(torch.finfo(weight.dtype).eps) * (1 + float(gain.abs().max())), 0.25)  # 0 is not 1
    for offset in (0.0, 1.0):
        if bool(((added - offset).abs() <= max(slack, 1e-4)).all()):
            return offset
    return None
