"""How a model routes: how many experts each token takes, and what their weights sum to.

Read from what the experts were given in one forward pass; where they get no weights, from forwards with equal experts,
which any router leaves alike. The modules' own fields fill what stays open.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from complete_mue.apply.observe import Declared, any_number, observe
from complete_mue.apply.observe import Seen as Products
from complete_mue.apply.one_forward import Capture, branch_modules, holding, owner, run
from complete_mue.layout import Role, TensorSpec

_ACTIVE_FIELDS = ("top_k", "num_experts_per_tok", "moe_topk", "moe_k", "topk")
_NORMALIZED_FIELD = "norm_topk_prob"


@dataclass(frozen=True)
class Routing:
    """How one layer routes. None stands for what could not be told."""

    active: int | None = None  # experts each token takes
    normalized: bool | None = None  # the weights of each token sum to one number
    sums: tuple[float, float] | None = None  # smallest and largest sum over tokens


def count_experts(model: nn.Module, specs: Sequence[TensorSpec], layer: int) -> int:
    """The routed experts of a layer, stacked or one by one."""
    found = [spec for spec in specs if spec.layer == layer and spec.role is Role.EXPERT_DOWN]
    sizes = [model.get_parameter(s.name).shape[s.axes.index("experts")] if "experts" in s.axes else 1 for s in found]
    return sum(sizes)


def routing_of(capture: Capture, layer: int, fields: Routing) -> Routing:
    """From what the experts were given, else from the last top-k over all experts; fields fill what stays open."""
    experts = next(s for s in capture.specs if s.layer == layer and s.role is Role.EXPERT_DOWN)
    given = _chosen(capture.inputs.get(owner(experts), ()))
    if given is None:
        number = count_experts(capture.model, capture.specs, layer)
        taken = [k for among, k in capture.topk.get(layer, ()) if among == number]
        return Routing(taken[-1] if taken else fields.active, fields.normalized)
    index, weights = given[0], given[1].double()
    sums = weights.sum(-1)
    low, high = float(sums.min()), float(sums.max())
    normalized: bool | None = high - low <= _slack(given[1]) * abs(high)
    if normalized and index.shape[-1] > 1 and float(weights.std(0).max()) <= 4 * _slack(given[1]) * abs(high):
        normalized = fields.normalized  # all tokens have the same weights, as with a router of zeros: it shows nothing
    if not math.isfinite(high):
        return Routing(index.shape[-1], fields.normalized)
    return Routing(index.shape[-1], normalized, (low, high))


def _chosen(given: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """Indices and weights of the chosen experts among a module's inputs: integers, and numbers of the same shape."""
    tensors = [x for x in given if isinstance(x, Tensor)]
    for index in tensors:
        if index.is_floating_point() or index.is_complex() or index.dtype is torch.bool or index.dim() < 2:
            continue
        for weights in tensors:
            if weights.is_floating_point() and weights.shape == index.shape:
                return index, weights
    return None


@torch.no_grad()
def same_for_any_router(
    model: nn.Module, specs: Sequence[TensorSpec], parameters: Mapping[str, nn.Parameter], tokens: Tensor
) -> tuple[bool | None, dict[int, float]]:
    """Whether weights sum to one number, where they cannot be read: with equal experts any router does the same then.

    Two forwards with experts that are copies of one another and routers drawn anew; None where these cannot run. A
    third, with last projections twice as large, makes sure of the number itself, by layer.
    """
    generator = torch.Generator().manual_seed(0)

    def drawn(like: Tensor) -> Tensor:
        value = torch.empty(like.shape, device="cpu")
        value.normal_(0.0, max(like.shape[1:], default=1) ** -0.5, generator=generator)
        return value.to(like.device, like.dtype)

    experts = _by_expert(specs, parameters)
    routers = [s.name for s in specs if s.axes[0] == "experts" and s.role is Role.ROUTER]
    if not routers or not experts:
        return None, {}
    # What is added to the experts' products is nothing.
    values = {s.name: torch.zeros_like(parameters[s.name]) for s in specs if s.role is Role.SHARED_DOWN}
    twice: dict[str, Tensor] = {}
    for alike in experts:
        like, role = parameters[alike[0].name], alike[0].role
        one = drawn(like[0]).expand(like.shape).contiguous() if alike[0].axes[0] == "experts" else drawn(like)
        values |= dict.fromkeys([s.name for s in alike], torch.zeros_like(one) if role is Role.BIAS else one)
        if role is Role.EXPERT_DOWN:
            twice |= dict.fromkeys([s.name for s in alike], 2 * one)
    try:
        one_router = values | {name: drawn(parameters[name]) for name in routers}
        other_router = values | {name: drawn(parameters[name]) for name in routers}
        first, sums = _with_values(model, specs, one_router, tokens)
        second, again = _with_values(model, specs, other_router, tokens)
        if first is None or second is None or not bool(torch.isfinite(first).all()):
            return None, {}
        slack = 1e3 * float(torch.finfo(first.dtype).eps) * float(first.abs().max())
        if float((first - second).abs().max()) > slack:
            return False, {}
        _, larger = _with_values(model, specs, other_router | twice, tokens)
    except Exception:  # a model that cannot run with other weights
        return None, {}
    return True, {
        layer: found
        for layer, found in sums.items()
        if all(math.isclose(found, other.get(layer, math.nan), rel_tol=1e-3) for other in (again, larger))
    }


class _Rows(Products):
    """The rows of a product: the sizes of the largest and the smallest that is not zero, and their number."""

    largest, smallest, number = 0.0, math.inf, 0

    def add(self, x: Tensor, y: Tensor, moved: Any) -> None:
        """One product y = W x."""
        super().add(x, y, moved)
        sizes = y.double().norm(dim=-1).flatten()
        sizes = sizes[sizes > 0]  # places that no token was put in
        if sizes.numel():
            self.largest = max(self.largest, float(sizes.max()))
            self.smallest = min(self.smallest, float(sizes.min()))
        self.number += sizes.numel()


def _with_values(
    model: nn.Module, specs: Sequence[TensorSpec], values: Mapping[str, Tensor], tokens: Tensor
) -> tuple[Tensor | None, dict[int, float]]:
    """Logits with other weights, and by layer what the product of equal experts is multiplied with: weights' sums.

    Only where all tokens show one factor between the experts' products and what the module around them puts out. With
    one product per token, a factor of 1 shows nothing: weights may be inside that product.
    """
    downs = [s for s in specs if s.role is Role.EXPERT_DOWN and s.name in values]
    watched = [Declared(s, nn.Parameter(values[s.name], requires_grad=False)) for s in downs]
    capture = Capture(model, specs)
    with holding(model, values), capture, observe(model, watched) as seen:
        seen.products = defaultdict(_Rows)
        logits = run(model, tokens)
    sums: dict[int, float] = {}
    for layer in {s.layer for s in downs if s.layer is not None}:
        here = [s.name for s in downs if s.layer == layer]
        products = [rows for name, rows in seen.products.items() if name in here and isinstance(rows, _Rows)]
        module = next((m for n, m in branch_modules(model, specs, layer).items() if n in here), None)
        out = capture.outputs.get(module) if module else None
        if out is None or len(products) != 1 or len({values[name].data_ptr() for name in here}) != 1:
            continue
        branch, rows = _Rows(), products[0]
        branch.add(out, out, None)
        if not rows.number or branch.number != tokens.numel():
            continue
        factor = branch.largest / rows.largest
        inside = rows.number < 2 * tokens.numel() and math.isclose(factor, 1.0, rel_tol=1e-3)
        if not inside and math.isclose(factor, branch.smallest / rows.smallest, rel_tol=1e-3):
            sums[layer] = factor
    return logits, sums


def _by_expert(specs: Sequence[TensorSpec], parameters: Mapping[str, nn.Parameter]) -> list[list[TensorSpec]]:
    """The experts' tensors: a stack by itself, or those of single experts that differ by numbers in their names."""
    stacks = [[s] for s in specs if s.axes[0] == "experts" and s.role is not Role.ROUTER]
    single = [s for s in specs if s.role in (Role.EXPERT_UP, Role.EXPERT_DOWN) and "experts" not in s.axes]
    owners, alike = {owner(s) for s in single}, dict[Any, list[TensorSpec]]()
    for spec in specs:
        if owner(spec) in owners and "experts" not in spec.axes:
            key = spec.layer, spec.role, parameters[spec.name].shape, any_number(spec.name)
            alike.setdefault(key, []).append(spec)
    return [*stacks, *alike.values()]


def _slack(x: Tensor) -> float:
    return max(1e-5, 2 * float(torch.finfo(x.dtype).eps))


def field_routing(model: nn.Module, specs: Sequence[TensorSpec], layer: int) -> Routing:
    """What the modules around a router keep for themselves."""
    names = [owner(s) for s in specs if s.layer == layer and s.role is Role.ROUTER and s.axes[0] == "experts"]
    active = normalized = None
    for name in names:
        while name and active is None:
            module = model.get_submodule(name)
            values = [getattr(module, one, None) for one in _ACTIVE_FIELDS]
            active = next((v for v in values if isinstance(v, int) and not isinstance(v, bool)), None)
            own = getattr(module, _NORMALIZED_FIELD, None)
            normalized = own if normalized is None and isinstance(own, bool) else normalized
            name = name.rpartition(".")[0] if not name.rpartition(".")[2].isdigit() else ""
    return Routing(active, normalized)


def own_fields(model: nn.Module, name: str) -> Iterator[tuple[str, Any]]:
    """Every module that keeps a plain number of this name for itself, with the number."""
    for where, module in model.named_modules():
        value = vars(module).get(name)
        if isinstance(value, bool | int | float):
            yield where or type(module).__name__, value
