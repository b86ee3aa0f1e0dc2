"""What a model computes, tensor by tensor: the size of every product with a bound parameter, and of its update.

Products are seen where they happen: below autograd, where every matrix product of eager torch is one of a few
operators. Their operands are views of a bound parameter, or copies of it (a gather of experts, a transposed layout,
another dtype) that are followed entry by entry. So any nn.Module can be observed without changing it, stacked experts
and bare parameters included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from complete_mue.layout import Role, TensorSpec
from complete_mue.layout.tensors import VECTOR_ROLES


def _grouped_mm(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """rows [rows, in] sorted by expert, weights [experts, in, out] -> [rows, out]; ends [experts] closes each group."""
    starts = [0, *ends.tolist()[:-1]]
    return torch.cat([rows[a:b] @ w for a, b, w in zip(starts, ends.tolist(), weights, strict=True)])


# Operator: its first operand's place (the second follows), and the product alone, without bias and without `out=`.
_PRODUCTS: dict[str, tuple[int, Callable[..., Tensor]]] = {
    "aten::mm": (0, torch.mm),
    "aten::addmm": (1, torch.mm),
    "aten::bmm": (0, torch.bmm),
    "aten::baddbmm": (1, torch.bmm),
    "aten::mv": (0, torch.mv),
    "aten::_grouped_mm": (0, _grouped_mm),
    "transformers::grouped_mm_fallback": (0, _grouped_mm),
}
# Operators whose result holds entries of their first argument and nothing else.
_COPIES = ("aten::clone", "aten::_to_copy", "aten::index", "aten::index_select", "aten::repeat")
_LOOKUPS = ("aten::index", "aten::index_select")
BRANCHES = {
    Role.ATTENTION_OUT: (Role.ATTENTION_IN, Role.ATTENTION_OUT),
    Role.DENSE_DOWN: (Role.DENSE_UP, Role.DENSE_DOWN),
    Role.EXPERT_DOWN: (Role.EXPERT_UP, Role.EXPERT_DOWN, Role.ROUTER),
}


@dataclass(frozen=True)
class Declared:
    """One parameter of a model, with its role and axes."""

    spec: TensorSpec
    parameter: nn.Parameter

    @property
    def name(self) -> str:
        """The parameter's qualified name, as the model gives it."""
        return self.spec.name


_T = TypeVar("_T", bound=Declared)


@dataclass(frozen=True)
class Moved:
    """(dW) x of one product, and the sum of its squares to expect if dW and x had nothing to do with each other."""

    y: Tensor
    unaligned: float


@dataclass
class Seen:
    """Running sums over all products of one parameter (or one expert of it)."""

    entries: int = 0
    squares: float = 0.0
    update: float = 0.0  # sum of |dW x|
    update_squares: float = 0.0
    unaligned_squares: float = 0.0
    inputs: float = 0.0  # sum of |x|
    input_entries: int = 0

    def add(self, x: Tensor, y: Tensor, moved: Moved | None) -> None:
        """One product y = W x, and (dW) x."""
        self.entries += y.numel()
        self.squares += _squares(y)
        self.inputs += float(x.detach().double().abs().sum())
        self.input_entries += x.numel()
        if moved is not None:
            self.update += float(moved.y.detach().double().abs().sum())
            self.update_squares += _squares(moved.y)
            self.unaligned_squares += moved.unaligned

    @property
    def size(self) -> float:
        """Root mean square of the product."""
        return (self.squares / self.entries) ** 0.5 if self.entries else 0.0

    @property
    def change(self) -> float:
        """E |dW x|."""
        return self.update / self.entries if self.entries else 0.0

    @property
    def relative_change(self) -> float:
        """Root mean square of dW x over that of W x."""
        return (self.update_squares / self.squares) ** 0.5 if self.squares else 0.0

    @property
    def alignment(self) -> float:
        """|dW x| over |dW|_F |x| / sqrt(fan-in): 1 where they have nothing to do with each other."""
        return (self.update_squares / self.unaligned_squares) ** 0.5 if self.unaligned_squares else 0.0

    @property
    def mean_input(self) -> float:
        """E |x|."""
        return self.inputs / self.input_entries if self.input_entries else 0.0


def _squares(x: Tensor) -> float:
    return float(x.detach().double().square().sum())


def rms(x: Tensor) -> float:
    """Root mean square."""
    return float(x.detach().double().square().mean().sqrt())


@dataclass
class Observation:
    """One pass: products by parameter name, per expert where there are experts, and outputs of residual branches."""

    products: dict[str, Seen] = field(default_factory=lambda: defaultdict(Seen))
    experts: dict[str, dict[int, Seen]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(Seen)))
    branches: dict[tuple[Role, int], Tensor] = field(default_factory=dict)
    routing: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # router -> weights, index [tokens, active]
    norms: dict[str, float] = field(default_factory=dict)  # gain of a norm -> root mean square of what it puts out
    first: float | None = None  # root mean square of what the first layer is given
    logits: Tensor | None = None  # what the model puts out

    def saw(self, bound: Declared) -> bool:
        """Whether a product with this parameter was seen."""
        return bound.name in self.products and self.products[bound.name].entries > 0


# What makes a product visible.
SHOW_PRODUCTS = (
    "compute it with torch's own matrix products (transformers: model.set_experts_implementation('eager'), our models: "
    "kernel='reference')"
)


def unseen(binding: Iterable[_T], seen: Observation) -> list[_T]:
    """Matrices that took part in no product: the first of each kind.

    Tensors that differ by a number alone (layers, experts one by one) are a kind: an expert may get no token. So are
    all tables: some are not looked up but added, such as positions.
    """
    matrices = [b for b in binding if b.spec.role not in VECTOR_ROLES]
    known = {_kind(b) for b in matrices if seen.saw(b)}
    missing: dict[str, _T] = {}
    for b in matrices:
        if _kind(b) not in known:
            missing.setdefault(_kind(b), b)
    return list(missing.values())


def _kind(bound: Declared) -> str:
    return any_number(bound.name) if bound.spec.fan_in is not None else bound.spec.role.value


def any_number(name: str) -> str:
    """A qualified name with * for every number in it."""
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


@dataclass(frozen=True)
class _Source:
    """What a storage holds: a bound parameter, or a copy of parts of it."""

    bound: Declared
    places: Tensor | None = None  # of a copy: for each entry of its storage, the entry of the parameter's storage
    storage: StorageWeakRef | None = None  # of a copy: memory that was freed may come back as something else

    @property
    def is_gone(self) -> bool:
        return self.storage is not None and self.storage.expired()

    def places_of(self, weight: Tensor) -> Tensor:
        """Where each entry of a view of this storage comes from."""
        if self.places is not None:
            return self.places.as_strided(weight.size(), weight.stride(), weight.storage_offset())
        places = torch.tensor(weight.storage_offset(), dtype=torch.int32, device=weight.device)
        for size, stride in zip(weight.size(), weight.stride(), strict=True):
            places = places[..., None] + stride * torch.arange(size, dtype=torch.int32, device=weight.device)
        return places


class _Watch(TorchDispatchMode):
    def __init__(self, binding: Iterable[Declared], changes: Mapping[str, Tensor] | None, seen: Observation) -> None:
        super().__init__()
        self.sources = {b.parameter.untyped_storage().data_ptr(): _Source(b) for b in binding}
        self.changes, self.seen = changes, seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name in _PRODUCTS:
            self._product(name, args, result)
        elif name == "aten::embedding":
            self._lookup(args[0], result, lambda table: F.embedding(args[1], table))
        elif name in _COPIES:
            self._copy(func, args, kwargs or {}, result)
        elif func._schema.is_mutable and args and isinstance(args[0], Tensor):
            self._forget(args[0])
        return result

    def _source(self, weight: Any) -> _Source | None:
        if not isinstance(weight, Tensor):
            return None
        source = self.sources.get(weight.untyped_storage().data_ptr())
        return None if source is None or source.is_gone else source

    def _change(self, source: _Source, weight: Tensor) -> Tensor | None:
        """dW in the places of a view of W, or of a copy of it."""
        if self.changes is None:
            return None
        change = self.changes[source.bound.name]
        if source.places is None:
            view = change.as_strided(weight.size(), weight.stride(), weight.storage_offset())
        else:
            view = change.as_strided((change.numel(),), (1,))[source.places_of(weight)]
        return view.to(weight.dtype)

    def _product(self, name: str, args: Any, y: Tensor) -> None:
        first, product = _PRODUCTS[name]
        operands, ends = args[first : first + 2], None
        if product is _grouped_mm:
            ends = args[2] if len(args) > 2 else None
            if operands[0].dim() == 3 and operands[1].dim() == 2:  # weights first, a column per row: the same, turned
                operands, y = (operands[1].t(), operands[0].mT), y.t()
            if ends is None or operands[0].dim() != 2 or operands[1].dim() != 3:
                return
        for place, weight in enumerate(operands):
            source = self._source(weight)
            # A table that is multiplied is tied: that product is another role's.
            if source is None or source.bound.spec.fan_in is None or (ends is not None and place == 0):
                continue
            x, change = operands[1 - place], self._change(source, weight)
            if ends is not None:  # rows behind the last group are not computed
                x, y = x[: ends[-1]], y[: ends[-1]]
            moved, unaligned = None, None
            if change is not None:
                factors = (x, change) if place else (change, x)
                moved = product(*factors) if ends is None else product(*factors, ends)
                unaligned = _unaligned(x, change, change.shape[-2 if place else -1], ends)
            self.seen.products[source.bound.name].add(x, y, _moved(moved, unaligned))
            for expert, rows in _by_expert(source, weight, ends):
                self.seen.experts[source.bound.name][expert].add(x[rows], y[rows], _moved(moved, unaligned, rows))

    def _lookup(self, table: Tensor, y: Tensor, look: Callable[[Tensor], Tensor]) -> None:
        source = self._source(table)
        if source is not None:
            change, moved = self._change(source, table), None
            if change is not None:
                rows = y.numel() // y.shape[-1]
                moved = Moved(look(change), _squares(change) * rows / table[..., 0].numel())
            self.seen.products[source.bound.name].add(torch.ones(1), y, moved)

    def _copy(self, func: Any, args: Any, kwargs: Any, copy: Tensor) -> None:
        source = self._source(args[0])
        if source is None or not copy.numel():
            return
        name = func._schema.name
        if source.bound.spec.role is Role.EMBEDDING and name in _LOOKUPS:
            self._lookup(args[0], copy, lambda table: func(table, *args[1:], **kwargs))
            return
        places = source.places_of(args[0])
        moved = places if name == "aten::_to_copy" else func(places, *args[1:], **kwargs)
        storage = copy.untyped_storage()
        laid_out = places.new_zeros(storage.nbytes() // copy.element_size())
        laid_out.as_strided(copy.size(), copy.stride(), copy.storage_offset()).copy_(moved)
        self.sources = {place: known for place, known in self.sources.items() if not known.is_gone}
        self.sources[storage.data_ptr()] = _Source(source.bound, laid_out, StorageWeakRef(storage))

    def _forget(self, written: Tensor) -> None:
        """A copy that is written to is no copy any more."""
        source = self._source(written)
        if source is not None and source.places is not None:
            del self.sources[written.untyped_storage().data_ptr()]


def _unaligned(x: Tensor, change: Tensor, fan_in: int, ends: Tensor | None) -> Tensor:
    """|dW|_F^2 |x|^2 / fan-in: of the whole, of each product of a batch, or of each row of grouped products."""
    x, sizes = x.detach().double().square(), change.double().square().sum((-1, -2))
    if ends is not None:
        sizes = sizes.repeat_interleave(ends.diff(prepend=ends.new_zeros(1)))
    return (x.sum() if change.dim() == 2 else x.flatten(1).sum(-1)) * sizes / fan_in


def _moved(y: Tensor | None, unaligned: Tensor | None, rows: Any = ...) -> Moved | None:
    return None if y is None or unaligned is None else Moved(y[rows], float(unaligned[rows].sum()))


def _by_expert(source: _Source, weight: Tensor, ends: Tensor | None) -> Iterator[tuple[int, Any]]:
    """Which experts a product is of, each with its rows: one matrix of a stack, several side by side, or grouped."""
    stack = source.bound.parameter
    if source.bound.spec.role not in (Role.EXPERT_UP, Role.EXPERT_DOWN) or stack.dim() != 3:
        return
    if weight.dim() not in (2, 3) or weight.shape[-2:].numel() > stack[0].numel():
        return
    experts = source.places_of(weight[..., 0, 0]) // stack.stride(0)
    if weight.dim() == 2:
        yield int(experts), ...
        return
    if ends is not None:
        experts = experts.repeat_interleave(ends.diff(prepend=ends.new_zeros(1)))
    for expert in experts.unique().tolist():
        yield expert, experts == expert


def branch_modules(model: nn.Module, binding: Iterable[Declared]) -> dict[tuple[Role, int], list[nn.Module]]:
    """The modules whose outputs add up to a residual branch: the smallest one around all tensors of the branch in its
    layer, and beside experts the one around the shared experts where they stand apart.
    """
    found = {}
    for role, parts in BRANCHES.items():
        for layer in {b.spec.layer for b in binding if b.spec.role is role and b.spec.layer is not None}:
            within = [b for b in binding if b.spec.layer == layer]
            paths = [common_module([b.name for b in within if b.spec.role in parts])]
            shared = [b.name for b in within if b.spec.role in (Role.SHARED_UP, Role.SHARED_DOWN)]
            apart = [name for name in shared if not name.startswith(f"{paths[0]}.")]
            paths += [common_module(apart)] if role is Role.EXPERT_DOWN and apart else []
            found[role, layer] = [model.get_submodule(path) for path in paths]
    return found


def common_module(names: Iterable[str]) -> str:
    """The smallest module around all of these parameters."""
    shared = []
    for steps in zip(*(name.split(".")[:-1] for name in names), strict=False):
        if len(set(steps)) > 1:
            break
        shared.append(steps[0])
    return ".".join(shared)


def floating(given: Iterable[Any]) -> list[Tensor]:
    """The tensors of numbers, not of indices, among what a module was given."""
    return [x for x in given if isinstance(x, Tensor) and x.is_floating_point()]


def logits_of(output: Any) -> Tensor | None:
    """The logits of a model's output, if it has them."""
    logits = getattr(output, "logits", output)
    return logits if isinstance(logits, Tensor) else None


@contextmanager
def observe(
    model: nn.Module, binding: Iterable[Declared], changes: Mapping[str, Tensor] | None = None
) -> Iterator[Observation]:
    """Watch one or more forward passes. With ``changes`` (dW by name, laid out as W is), updates are measured too."""
    binding, seen = list(binding), Observation()

    outputs: dict[tuple[Role, int], dict[int, Tensor]] = defaultdict(dict)

    def keep(key: tuple[Role, int], part: int) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            outputs[key][part] = (output[0] if isinstance(output, tuple) else output).detach()
            seen.branches[key] = torch.stack(list(outputs[key].values())).sum(0)

        return hook

    def keep_routing(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, tuple) and len(output) == 3:  # Hugging Face: logits, weights, index
                seen.routing[name] = (output[1].detach(), output[2])
            elif callable(route := getattr(module, "route", None)) and (routing := route(inputs[0])) is not None:
                seen.routing[name] = (routing.weight.detach(), routing.index)

        return hook

    def keep_norm(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, named: Any, output: Any) -> None:
            given = [x for x in (*inputs, *named.values()) if isinstance(x, Tensor)]  # a gated norm has two
            if len(given) == 1 and isinstance(output, Tensor) and output.shape == given[0].shape:
                seen.norms[name] = rms(output)

        return hook

    def keep_first(module: nn.Module, inputs: Any, named: Any) -> None:
        given = floating((*inputs, *named.values()))
        seen.first = rms(given[0]) if given else None

    def keep_logits(module: nn.Module, inputs: Any, output: Any) -> None:
        seen.logits = None if (logits := logits_of(output)) is None else logits.detach()

    handles = [model.register_forward_hook(keep_logits)]
    for key, modules in branch_modules(model, binding).items():
        handles += [module.register_forward_hook(keep(key, part)) for part, module in enumerate(modules)]
    for b in binding:
        owner = model.get_submodule(b.name.rpartition(".")[0])
        if b.spec.role is Role.ROUTER:
            handles.append(owner.register_forward_hook(keep_routing(b.name)))
        elif b.spec.role in (Role.NORM, Role.FINAL_NORM) and not (b.name.endswith("bias") or any(owner.children())):
            handles.append(owner.register_forward_hook(keep_norm(b.name), with_kwargs=True))
    if inside := [b.name for b in binding if b.spec.layer == 0]:
        first = model.get_submodule(common_module(inside))
        handles.append(first.register_forward_pre_hook(keep_first, with_kwargs=True))
    try:
        with _Watch(binding, changes, seen):
            yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def holding(named: Iterable[Declared], state: Mapping[str, Tensor]) -> Iterator[None]:
    """The parameters with these values, and with their own afterwards."""
    kept = [(one.parameter, one.parameter.detach().clone()) for one in named]
    with torch.no_grad():
        for one in named:
            one.parameter.copy_(state[one.name])
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in kept:
                parameter.copy_(value)
