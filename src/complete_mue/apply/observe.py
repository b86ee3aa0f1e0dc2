"""What a model computes, tensor by tensor: the size of every product with a bound parameter, and of its update.

Products are seen where they happen, by watching torch's calls for operands that are views of a bound parameter. So any
eager nn.Module can be observed without changing it, stacked experts and bare parameters included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from complete_mue.apply.bind import Binding, Bound
from complete_mue.layout import Role

_PRODUCTS = {
    F.linear: (0, 1, True),  # (input, weight, weight is [out, in])
    torch.matmul: (0, 1, False),
    torch.Tensor.matmul: (0, 1, False),
    torch.Tensor.__matmul__: (0, 1, False),
    torch.mm: (0, 1, False),
    torch.Tensor.mm: (0, 1, False),
    torch.bmm: (0, 1, False),
    torch.Tensor.bmm: (0, 1, False),
}
BRANCHES = {
    Role.ATTENTION_OUT: (Role.ATTENTION_IN, Role.ATTENTION_OUT),
    Role.DENSE_DOWN: (Role.DENSE_UP, Role.DENSE_DOWN),
    Role.EXPERT_DOWN: (Role.EXPERT_UP, Role.EXPERT_DOWN, Role.ROUTER),
}


@dataclass
class Seen:
    """Running sums over all products of one parameter (or one expert of it)."""

    entries: int = 0
    squares: float = 0.0
    update: float = 0.0  # sum of |dW x|
    inputs: float = 0.0  # sum of |x|
    input_entries: int = 0

    def add(self, x: Tensor, y: Tensor, change: Tensor | None) -> None:
        """One product y = W x, and (dW) x."""
        self.entries += y.numel()
        self.squares += float(y.detach().double().square().sum())
        self.inputs += float(x.detach().double().abs().sum())
        self.input_entries += x.numel()
        self.update += 0.0 if change is None else float(change.detach().double().abs().sum())

    @property
    def size(self) -> float:
        """Root mean square of the product."""
        return (self.squares / self.entries) ** 0.5 if self.entries else 0.0

    @property
    def change(self) -> float:
        """E |dW x|."""
        return self.update / self.entries if self.entries else 0.0

    @property
    def mean_input(self) -> float:
        """E |x|."""
        return self.inputs / self.input_entries if self.input_entries else 0.0


@dataclass
class Observation:
    """One pass: products by parameter name, per expert where there are experts, and outputs of residual branches."""

    products: dict[str, Seen] = field(default_factory=lambda: defaultdict(Seen))
    experts: dict[str, dict[int, Seen]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(Seen)))
    branches: dict[tuple[Role, int], Tensor] = field(default_factory=dict)
    routing: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # router -> weights, index [tokens, active]


class _Watch(TorchFunctionMode):
    def __init__(self, binding: Binding, start: Mapping[str, Tensor] | None, seen: Observation) -> None:
        super().__init__()
        self.by_storage = {b.parameter.untyped_storage().data_ptr(): b for b in binding}
        self.start, self.seen = start, seen

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _PRODUCTS and len(args) >= 2:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                self._product(func, args, result)
        elif func is F.embedding and len(args) >= 2 and isinstance(args[1], Tensor):
            with torch.no_grad(), torch._C.DisableTorchFunction():
                self._embedding(args, result)
        return result

    def _bound(self, weight: Any) -> Bound | None:
        if not isinstance(weight, Tensor):
            return None
        return self.by_storage.get(weight.untyped_storage().data_ptr())

    def _change(self, bound: Bound, weight: Tensor) -> Tensor | None:
        """The view of W - W_0 that corresponds to a view of W."""
        if self.start is None:
            return None
        change = bound.parameter.detach() - self.start[bound.name]
        return change.as_strided(weight.size(), weight.stride(), weight.storage_offset())

    def _product(self, func: Callable[..., Any], args: Any, y: Tensor) -> None:
        first, second, transposed = _PRODUCTS[func]
        x, weight = args[first], args[second]
        bound = self._bound(weight)
        if bound is None:
            return
        change = self._change(bound, weight)
        moved = None if change is None else (F.linear(x, change) if transposed else torch.matmul(x, change))
        self.seen.products[bound.name].add(x, y, moved)
        expert = _expert(bound, weight)
        if expert is not None:
            self.seen.experts[bound.name][expert].add(x, y, moved)

    def _embedding(self, args: Any, y: Tensor) -> None:
        index, weight = args[0], args[1]
        bound = self._bound(weight)
        if bound is None:
            return
        change = self._change(bound, weight)
        moved = None if change is None else F.embedding(index, change)
        self.seen.products[bound.name].add(torch.ones(1), y, moved)


def _expert(bound: Bound, weight: Tensor) -> int | None:
    """Which expert a two-dimensional view of a stacked tensor is."""
    stacked = bound.parameter
    if stacked.dim() != 3 or weight.dim() != 2:
        return None
    return weight.storage_offset() // stacked.stride(0)


def branch_modules(model: nn.Module, binding: Binding) -> dict[tuple[Role, int], nn.Module]:
    """The module whose output is a residual branch: the smallest one around all tensors of the branch in its layer."""
    found = {}
    for role, parts in BRANCHES.items():
        for layer in {b.spec.layer for b in binding if b.spec.role is role and b.spec.layer is not None}:
            names = [b.name for b in binding if b.spec.layer == layer and b.spec.role in parts]
            found[role, layer] = model.get_submodule(_common_module(names))
    return found


def _common_module(names: list[str]) -> str:
    shared = []
    for steps in zip(*(name.split(".")[:-1] for name in names), strict=False):
        if len(set(steps)) > 1:
            break
        shared.append(steps[0])
    return ".".join(shared)


@contextmanager
def observe(model: nn.Module, binding: Binding, start: Mapping[str, Tensor] | None = None) -> Iterator[Observation]:
    """Watch one or more forward passes. With ``start`` (initial weights by name), updates are measured too."""
    seen = Observation()

    def keep(key: tuple[Role, int]) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            seen.branches[key] = (output[0] if isinstance(output, tuple) else output).detach()

        return hook

    def keep_routing(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, tuple) and len(output) == 3:  # Hugging Face: logits, weights, index
                seen.routing[name] = (output[1].detach(), output[2])
            elif callable(route := getattr(module, "route", None)) and (routing := route(inputs[0])) is not None:
                seen.routing[name] = (routing.weight.detach(), routing.index)

        return hook

    handles = [module.register_forward_hook(keep(key)) for key, module in branch_modules(model, binding).items()]
    for b in binding:
        if b.spec.role is Role.ROUTER:
            owner = model.get_submodule(b.name.rpartition(".")[0])
            handles.append(owner.register_forward_hook(keep_routing(b.name)))
    try:
        with _Watch(binding, start, seen):
            yield seen
    finally:
        for handle in handles:
            handle.remove()
