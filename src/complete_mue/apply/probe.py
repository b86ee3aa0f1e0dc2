"""What a model really does, seen in one forward pass: routing, its own multipliers, the gains of its norms.

A config says what a model was meant to be; its modules decide. One forward in eval mode on a few tokens, with hooks on
routers, branches and layers, shows how many experts each token takes, what their weights sum to, and what the forward
multiplies every branch, the embedding and the logits with: a layer's output minus its input is fitted as a sum of its
branches. Where no forward can run (meta device, shards, a model without one) the modules' own fields are read instead.
Nothing is changed and nothing is stored on the model; weights of 16 bits are replaced by float32 copies meanwhile.
"""

from __future__ import annotations

import inspect
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from complete_mue.apply.observe import Declared, any_number, common_module, floating, observe
from complete_mue.apply.observe import Seen as Products
from complete_mue.layout import Role, TensorSpec

TOKENS = 16
_EXACT = 0.05  # relative error beyond which a factor was not seen
_APART = 1e-6  # least eigenvalue of the branches' correlations: below it they cannot be told apart
_COARSE = (torch.bfloat16, torch.float16)  # their rounding hides what is looked for
_ACTIVE_FIELDS = ("top_k", "num_experts_per_tok", "moe_topk", "moe_k", "topk")
_NORMALIZED_FIELD = "norm_topk_prob"
_BRANCH_ROLES = {
    Role.ATTENTION_OUT: (Role.ATTENTION_IN, Role.ATTENTION_OUT),
    Role.DENSE_DOWN: (Role.DENSE_UP, Role.DENSE_DOWN),
    Role.SHARED_DOWN: (Role.SHARED_UP, Role.SHARED_DOWN),
    Role.EXPERT_DOWN: (Role.EXPERT_UP, Role.EXPERT_DOWN),
}
_WATCHED = (Role.NORM, Role.FINAL_NORM, Role.ROUTER, Role.EXPERT_DOWN)
GATE_AT_START = 0.5  # a sigmoid gate's mean while its weights are small and random


@dataclass(frozen=True)
class Routing:
    """How one layer routes. None stands for what could not be told."""

    active: int | None = None  # experts each token takes
    normalized: bool | None = None  # the weights of each token sum to one number
    sums: tuple[float, float] | None = None  # smallest and largest sum over tokens


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
    fields = {layer: _field_routing(model, specs, layer) for layer in _routed_layers(specs)}
    problem = _cannot_run(parameters, specs) if forward else "not wanted"
    if problem:
        return Seen("fields", fields, problem=problem)
    if any(x.dtype in _COARSE for x in model.parameters()):
        try:
            with _in_float32(model):
                return _look(model, specs, fields)
        except _NoForwardError:
            pass
    try:
        return _look(model, specs, fields)
    except _NoForwardError as error:
        return Seen("fields", fields, problem=str(error))


def _look(model: nn.Module, specs: Sequence[TensorSpec], fields: Mapping[int, Routing]) -> Seen:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    capture = _Capture(model, specs)
    tokens = _tokens(parameters, specs)
    try:
        with capture, torch.no_grad():
            logits = _logits(_run(model, tokens))
    except Exception as error:  # whatever a model of any kind raises on plain tokens
        raise _NoForwardError(f"{type(error).__name__}: {error}") from error
    routing = {layer: _routing(capture, layer, fields[layer]) for layer in fields}
    coarse = any(x.dtype in _COARSE for x in capture.outputs.values())
    if any(one.sums is None for one in routing.values()) and not coarse:
        same, sums = _same_for_any_router(model, specs, parameters, tokens)
        for layer, one in routing.items():
            if one.sums is None:
                found_sums = (sums[layer], sums[layer]) if layer in sums else None
                routing[layer] = replace(one, normalized=same, sums=found_sums)
    found: dict[str, tuple[float, float]] = {}
    for layer in capture.layers:
        found |= _layer_factors(capture, layer, routing.get(layer, Routing()))
    found |= _ends(capture, parameters, tokens, logits)
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


# -- running -------------------------------------------------------------------------------------------------------


class _NoForwardError(Exception):
    """No forward could run; the text says why."""


@contextmanager
def _in_float32(model: nn.Module) -> Iterator[None]:
    """Copies in float32 stand in for weights and buffers of 16 bits; the model's own are not written to."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    coarse = {id(x): x.detach() for _, x in named if x.dtype in _COARSE}
    try:
        # Tied tensors share a copy.
        copies = {key: nn.Parameter(x.float(), requires_grad=False) for key, x in coarse.items()}
    except RuntimeError as error:  # out of memory
        raise _NoForwardError(str(error)) from error
    buffers = {id(x) for x in model.buffers()}
    values = {name: copies[id(x)].data if id(x) in buffers else copies[id(x)] for name, x in named if id(x) in copies}
    with _holding(model, values):
        yield


def _holding(model: nn.Module, values: Mapping[str, Tensor]) -> AbstractContextManager[None]:
    """Other tensors in the places of a model's meanwhile. A module of several names, as where layers are shared, gets
    each of them once: put in twice, it would come back with the first of them for its own."""
    places = {name: name.rpartition(".") for name in values}
    names = {(id(model.get_submodule(owner)), leaf): name for name, (owner, _, leaf) in places.items()}
    held: AbstractContextManager[None] = torch.nn.utils.stateless._reparametrize_module(
        model, {name: values[name] for name in names.values()}
    )
    return held


def _cannot_run(parameters: Mapping[str, nn.Parameter], specs: Sequence[TensorSpec]) -> str:
    from torch.distributed.tensor import DTensor

    for name, parameter in parameters.items():
        if parameter.is_meta:
            return f"{name!r} is on the meta device"
        if isinstance(parameter, DTensor) or not parameter.numel():
            return f"{name!r} is sharded"
    if not any(_is_embedding(spec) for spec in specs):
        return "no embedding of tokens"
    return ""


def _is_embedding(spec: TensorSpec) -> bool:
    return spec.role is Role.EMBEDDING and spec.axes == ("vocab", "width")


def _tokens(parameters: Mapping[str, nn.Parameter], specs: Sequence[TensorSpec]) -> Tensor:
    table = parameters[next(spec.name for spec in specs if _is_embedding(spec))]
    # Any words will do, but not all alike.
    return (torch.arange(TOKENS, device=table.device) * 7 + 3).remainder(table.shape[0]).unsqueeze(0)


def _run(model: nn.Module, tokens: Tensor) -> Any:
    """The model's output on tokens, in eval mode, eager; modes and the random state are put back."""
    accepts = inspect.signature(model.forward).parameters
    options = {"use_cache": False} if "use_cache" in accepts else {}
    compiled = any(getattr(module, "_compiled_call_impl", None) is not None for module in model.modules())
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    exact = torch.autocast(tokens.device.type, enabled=False)
    with torch.random.fork_rng(devices=[]), stance, exact, _evaluating(model):
        return model(input_ids=tokens, **options) if "input_ids" in accepts else model(tokens)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode; afterwards modules hold what they held: the mode, and no table that a forward made in float32."""
    kept = [(held, dict(held)) for module in model.modules() for held in (vars(module), module._buffers)]
    try:
        model.eval()
        yield
    finally:
        for held, before in kept:
            for name in held.keys() - before.keys():
                del held[name]
            held.update((name, value) for name, value in before.items() if held.get(name) is not value)


def _logits(output: Any) -> Tensor | None:
    logits = getattr(output, "logits", output)
    return logits if isinstance(logits, Tensor) else None


class _Capture(TorchFunctionMode):
    """Hooks on what matters while they are open: inputs and outputs by module name, and every top-k by layer."""

    def __init__(self, model: nn.Module, specs: Sequence[TensorSpec]) -> None:
        super().__init__()
        self.model, self.specs = model, specs
        self.layers = _layer_names(specs)
        self.inputs: dict[str, tuple[Any, ...]] = {}
        self.outputs: dict[str, Tensor] = {}
        self.topk: dict[int, list[tuple[int, int]]] = {}  # by layer: scores chosen from, how many were taken
        self._layer: int | None = None
        self._stack = ExitStack()

    def __enter__(self) -> _Capture:
        branches = [_branch_modules(self.model, self.specs, layer) for layer in self.layers]
        wanted: dict[str, None] = {name: None for found in branches for name in found.values()}
        wanted |= {_owner(spec): None for spec in self.specs if spec.role in _WATCHED}
        for name in wanted:
            self._hook(name, None)
        for layer, name in self.layers.items():
            self._hook(name, layer)
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._stack.close()

    def _hook(self, name: str, layer: int | None) -> None:
        module = self.model.get_submodule(name)

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.inputs[name] = (*args, *kwargs.values())
            if layer is not None:
                self._layer = layer
                self._keep(f"{name} input", next(iter(floating(self.inputs[name])), None))

        def after(_: nn.Module, args: Any, output: Any) -> None:
            self._keep(name, output[0] if isinstance(output, tuple) and output else output)

        self._stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
        self._stack.callback(module.register_forward_hook(after).remove)

    def _keep(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            self.outputs[name] = value.detach().clone()  # a copy: residual streams may be added to in place

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.topk, Tensor.topk) and self._layer is not None:
            self.topk.setdefault(self._layer, []).append((args[0].shape[-1], result[1].shape[-1]))
        return result


# -- names ---------------------------------------------------------------------------------------------------------


def _owner(spec: TensorSpec) -> str:
    return spec.name.rpartition(".")[0]


def _layer_names(specs: Sequence[TensorSpec]) -> dict[int, str]:
    """The module of every layer: a tensor's name up to its first number."""
    found = {}
    for spec in specs:
        if spec.layer is not None and (match := re.match(r"(.*?\.\d+)\.", spec.name)):
            found[spec.layer] = match[1]
    return found


def _routed_layers(specs: Sequence[TensorSpec]) -> list[int]:
    layers = {spec.layer for spec in specs if spec.role is Role.EXPERT_DOWN and spec.layer is not None}
    return sorted(layers)


def _branch_modules(model: nn.Module, specs: Sequence[TensorSpec], layer: int) -> dict[str, str]:
    """By the name of a branch's last tensor, the module whose output is the branch: the smallest around its tensors.

    A list of experts is no module that is called: the one around it is.
    """
    here = [spec for spec in specs if spec.layer == layer]
    found, top = {}, _layer_names(here)[layer]
    for last, roles in _BRANCH_ROLES.items():
        names = [spec.name for spec in here if spec.role in roles and len(spec.axes) > 1]
        ends = [spec.name for spec in here if spec.role is last and spec.multiplied_as == ""]
        module = common_module(names)
        while module.startswith(top + ".") and type(model.get_submodule(module)).forward is nn.Module.forward:
            module = module.rpartition(".")[0]
        if ends and module == top and ends[0].endswith(".weight"):
            module = ends[0].removesuffix(".weight")  # no module around the branch: its last projection ends it
        if ends and module.startswith(top + "."):
            found[ends[0]] = module
    for spec in here:
        if spec.multiplied_as == "residual":
            found[spec.name] = _owner(spec)
    return found


# -- routing -------------------------------------------------------------------------------------------------------


def count_experts(model: nn.Module, specs: Sequence[TensorSpec], layer: int) -> int:
    """The routed experts of a layer, stacked or one by one."""
    found = [spec for spec in specs if spec.layer == layer and spec.role is Role.EXPERT_DOWN]
    sizes = [model.get_parameter(s.name).shape[s.axes.index("experts")] if "experts" in s.axes else 1 for s in found]
    return sum(sizes)


def _routing(capture: _Capture, layer: int, fields: Routing) -> Routing:
    """From what the experts were given, else from the last top-k over all experts; fields fill what stays open."""
    experts = next(s for s in capture.specs if s.layer == layer and s.role is Role.EXPERT_DOWN)
    given = _chosen(capture.inputs.get(_owner(experts), ()))
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
def _same_for_any_router(
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
    capture = _Capture(model, specs)
    with _holding(model, values), capture, observe(model, watched) as seen:
        seen.products = defaultdict(_Rows)
        logits = _logits(_run(model, tokens))
    sums: dict[int, float] = {}
    for layer in {s.layer for s in downs if s.layer is not None}:
        here = [s.name for s in downs if s.layer == layer]
        products = [rows for name, rows in seen.products.items() if name in here and isinstance(rows, _Rows)]
        module = next((m for n, m in _branch_modules(model, specs, layer).items() if n in here), None)
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
    owners, alike = {_owner(s) for s in single}, dict[Any, list[TensorSpec]]()
    for spec in specs:
        if _owner(spec) in owners and "experts" not in spec.axes:
            key = spec.layer, spec.role, parameters[spec.name].shape, any_number(spec.name)
            alike.setdefault(key, []).append(spec)
    return [*stacks, *alike.values()]


def _slack(x: Tensor) -> float:
    return max(1e-5, 2 * float(torch.finfo(x.dtype).eps))


def _field_routing(model: nn.Module, specs: Sequence[TensorSpec], layer: int) -> Routing:
    """What the modules around a router keep for themselves."""
    names = [_owner(s) for s in specs if s.layer == layer and s.role is Role.ROUTER and s.axes[0] == "experts"]
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


# -- multipliers ---------------------------------------------------------------------------------------------------


def _layer_factors(capture: _Capture, layer: int, routing: Routing) -> dict[str, tuple[float, float]]:
    """What a layer multiplies its branches with, and how exact that is."""
    branches = _branch_modules(capture.model, capture.specs, layer)
    roles = {spec.name: spec.role for spec in capture.specs if spec.layer == layer}
    gate = _gate(capture, layer)
    outputs: dict[str, Tensor] = {}
    for name, module in branches.items():
        output = capture.outputs.get(module)
        if output is None:
            continue
        if roles[name] is Role.SHARED_DOWN and gate is not None:
            output = (output.reshape(len(gate), -1) * gate.sigmoid()).reshape(output.shape)
        outputs[name] = output
    seen = {name: branches[name] for name in outputs}
    found = _summed(capture, layer, outputs) or _carried(capture, layer, seen)
    result = {}
    for name, (factor, error) in found.items():
        if roles[name] is Role.SHARED_DOWN and gate is not None:
            factor *= GATE_AT_START
        if roles[name] is Role.EXPERT_DOWN:
            if not routing.normalized or routing.sums is None:
                continue
            factor *= sum(routing.sums) / 2
        if error < _EXACT:
            result[name] = factor, error
    return result


def _summed(capture: _Capture, layer: int, branches: Mapping[str, Tensor]) -> dict[str, tuple[float, float]]:
    """output = input + sum of factor times branch; empty where that does not hold."""
    top = capture.layers[layer]
    before, after = capture.outputs.get(f"{top} input"), capture.outputs.get(top)
    if before is None or after is None or before.shape != after.shape or not branches:
        return {}
    if any(branch.numel() != after.numel() for branch in branches.values()):
        return {}
    x = torch.stack([branch.double().reshape(-1) for branch in branches.values()], 1)
    found = _fit(x, (after.double() - before.double()).reshape(-1), _noise(after))
    return dict(zip(branches, found, strict=True)) if all(error < math.inf for _, error in found) else {}


def _carried(capture: _Capture, layer: int, branches: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """What comes next = one factor times a branch's input + another times its output, as where a norm is carried on."""
    norms = [s for s in capture.specs if s.layer == layer and s.role is Role.NORM and s.axes == ("width",)]
    nexts = [x for s in norms for x in capture.inputs.get(_owner(s), ()) if isinstance(x, Tensor)]
    if (after := capture.outputs.get(capture.layers[layer])) is not None:
        nexts.append(after)
    found: dict[str, tuple[float, float]] = {}
    for name, module in branches.items():
        given = floating(capture.inputs.get(module, ()))
        for after in nexts:
            columns = [given[0], capture.outputs[module]] if given else []
            if not columns or any(column.numel() != after.numel() for column in columns):
                continue
            if after.dtype in _COARSE:  # several sums hold within its rounding
                continue
            x = torch.stack([column.double().reshape(-1) for column in columns], 1)
            fit = _fit(x, after.double().reshape(-1), _noise(after))[1]
            if fit[1] < found.get(name, (0.0, _EXACT))[1]:
                found[name] = fit
    return found


def _noise(x: Tensor) -> float:
    return 4 * float(torch.finfo(x.dtype).eps) * float(x.double().square().mean().sqrt())


def _gate(capture: _Capture, layer: int) -> Tensor | None:
    """The scores of a gate with one output per token, such as a shared expert's."""
    for spec in capture.specs:
        if spec.layer == layer and spec.role is Role.ROUTER and spec.axes[0] == "one":
            scores = capture.outputs.get(_owner(spec))
            return None if scores is None else scores.reshape(-1, 1)
    return None


def _fit(x: Tensor, y: Tensor, noise: float) -> list[tuple[float, float]]:
    """Least squares: every column's factor, and its error relative to it; infinite where the sum does not hold.

    ``noise`` is the rms error of one entry of ``y``; columns that are nearly alike cannot be told apart.
    """
    nothing = [(math.nan, math.inf)] * x.shape[1]
    if not bool(torch.isfinite(x).all() and torch.isfinite(y).all()) or bool((x.square().sum(0) == 0).any()):
        return nothing
    size = x.square().sum(0).sqrt()
    x = x / size
    gram = x.T @ x
    if float(torch.linalg.eigvalsh(gram)[0]) < _APART:
        return nothing
    factors: Tensor = torch.linalg.solve(gram, x.T @ y)
    left = float((y - x @ factors).square().mean().sqrt())
    if left > max(1e-4 * float(y.square().mean().sqrt()), 4 * noise):
        return nothing
    spread = torch.linalg.inv(gram).diagonal().sqrt() * max(left, noise) * math.sqrt(len(gram))
    return [(float(f / s), float(e / abs(f)) if f else math.inf) for f, e, s in zip(factors, spread, size, strict=True)]


def _ends(
    capture: _Capture, parameters: Mapping[str, nn.Parameter], tokens: Tensor, logits: Tensor | None
) -> dict[str, tuple[float, float]]:
    """What the embedding's rows and the readout's product are multiplied with."""
    found = {}
    tables = [spec for spec in capture.specs if spec.role is Role.EMBEDDING]
    first = capture.outputs.get(f"{capture.layers[min(capture.layers)]} input") if capture.layers else None
    if len(tables) == 1 and first is not None:
        rows = parameters[tables[0].name].detach()[tokens]
        found[tables[0].name] = _ratio(rows, first)
    heads = [spec for spec in capture.specs if spec.role is Role.READOUT]
    norms = [capture.outputs.get(_owner(spec)) for spec in capture.specs if spec.role is Role.FINAL_NORM]
    has_bias = any(spec.axes == ("vocab",) for spec in capture.specs)
    if len(heads) == 1 and norms and norms[0] is not None and logits is not None and not has_bias:
        head = parameters[heads[0].name].detach()
        found[heads[0].name] = _ratio(norms[0].double() @ head.double().T, logits)
    return {name: (factor, error) for name, (factor, error) in found.items() if error < _EXACT}


def _ratio(x: Tensor, y: Tensor) -> tuple[float, float]:
    if x.shape != y.shape:
        return math.nan, math.inf
    return _fit(x.double().reshape(-1, 1), y.double().reshape(-1), 4 * _noise(y))[0]


# -- norms ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _gain_offsets(model: nn.Module, specs: Sequence[TensorSpec]) -> tuple[dict[str, float], frozenset[str]]:
    """Whether a norm multiplies by w or by 1 + w, and what it adds: one look per class and tensor."""
    known: dict[tuple[type, str, bool], float | None] = {}
    found, shifts = {}, set()
    for spec in specs:
        if spec.role not in (Role.NORM, Role.FINAL_NORM) or spec.name.endswith("bias"):
            continue
        module, name = model.get_submodule(_owner(spec)), spec.name.rpartition(".")[2]
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
        with _evaluating(module):
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
