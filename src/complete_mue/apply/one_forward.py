"""One forward pass of any model in eval mode on a few tokens, with hooks that keep what its modules take and give.

Nothing is changed and nothing is stored on the model; weights of 16 bits are replaced by float32 copies meanwhile.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from complete_mue.apply.observe import common_module, floating, logits_of
from complete_mue.layout import Role, TensorSpec

TOKENS = 16
COARSE = (torch.bfloat16, torch.float16)  # their rounding hides what is looked for
_BRANCH_ROLES = {
    Role.ATTENTION_OUT: (Role.ATTENTION_IN, Role.ATTENTION_OUT),
    Role.DENSE_DOWN: (Role.DENSE_UP, Role.DENSE_DOWN),
    Role.SHARED_DOWN: (Role.SHARED_UP, Role.SHARED_DOWN),
    Role.EXPERT_DOWN: (Role.EXPERT_UP, Role.EXPERT_DOWN),
}
_WATCHED = (Role.NORM, Role.FINAL_NORM, Role.ROUTER, Role.EXPERT_DOWN)


class NoForwardError(Exception):
    """No forward could run; the text says why."""


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Copies in float32 stand in for weights and buffers of 16 bits; the model's own are not written to."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    coarse = {id(x): x.detach() for _, x in named if x.dtype in COARSE}
    try:
        # Tied tensors share a copy.
        copies = {key: nn.Parameter(x.float(), requires_grad=False) for key, x in coarse.items()}
    except RuntimeError as error:  # out of memory
        raise NoForwardError(str(error)) from error
    buffers = {id(x) for x in model.buffers()}
    values = {name: copies[id(x)].data if id(x) in buffers else copies[id(x)] for name, x in named if id(x) in copies}
    with holding(model, values):
        yield


def holding(model: nn.Module, values: Mapping[str, Tensor]) -> AbstractContextManager[None]:
    """Other tensors in the places of a model's meanwhile. A module of several names, as where layers are shared, gets
    each of them once: put in twice, it would come back with the first of them for its own."""
    places = {name: name.rpartition(".") for name in values}
    names = {(id(model.get_submodule(place)), leaf): name for name, (place, _, leaf) in places.items()}
    held: AbstractContextManager[None] = torch.nn.utils.stateless._reparametrize_module(
        model, {name: values[name] for name in names.values()}
    )
    return held


def cannot_run(parameters: Mapping[str, nn.Parameter], specs: Sequence[TensorSpec]) -> str:
    """Why no forward can run; empty where one can."""
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


def some_tokens(parameters: Mapping[str, nn.Parameter], specs: Sequence[TensorSpec]) -> Tensor:
    """A row of tokens."""
    table = parameters[next(spec.name for spec in specs if _is_embedding(spec))]
    # Any words will do, but not all alike.
    return (torch.arange(TOKENS, device=table.device) * 7 + 3).remainder(table.shape[0]).unsqueeze(0)


def run(model: nn.Module, tokens: Tensor) -> Tensor | None:
    """The model's logits on tokens, if it has them, in eval mode, eager; modes and the random state are put back."""
    accepts = inspect.signature(model.forward).parameters
    options = {"use_cache": False} if "use_cache" in accepts else {}
    compiled = any(getattr(module, "_compiled_call_impl", None) is not None for module in model.modules())
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    exact = torch.autocast(tokens.device.type, enabled=False)
    with torch.random.fork_rng(devices=[]), stance, exact, evaluating(model):
        return logits_of(model(input_ids=tokens, **options) if "input_ids" in accepts else model(tokens))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
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


class Capture(TorchFunctionMode):
    """Hooks on what matters while they are open: inputs and outputs by module name, and every top-k by layer."""

    def __init__(self, model: nn.Module, specs: Sequence[TensorSpec]) -> None:
        super().__init__()
        self.model, self.specs = model, specs
        self.layers = layer_names(specs)
        self.inputs: dict[str, tuple[Any, ...]] = {}
        self.outputs: dict[str, Tensor] = {}
        self.topk: dict[int, list[tuple[int, int]]] = {}  # by layer: scores chosen from, how many were taken
        self._layer: int | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Capture:
        found = [branch_modules(self.model, self.specs, layer) for layer in self.layers]
        branches = [name for each in found for name in each.values()]
        for name in dict.fromkeys([*branches, *(owner(spec) for spec in self.specs if spec.role in _WATCHED)]):
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


def owner(spec: TensorSpec) -> str:
    """The module that holds a tensor."""
    return spec.name.rpartition(".")[0]


def layer_names(specs: Sequence[TensorSpec]) -> dict[int, str]:
    """The module of every layer: a tensor's name up to its first number."""
    found = {}
    for spec in specs:
        if spec.layer is not None and (match := re.match(r"(.*?\.\d+)\.", spec.name)):
            found[spec.layer] = match[1]
    return found


def routed_layers(specs: Sequence[TensorSpec]) -> list[int]:
    """The layers that have experts."""
    return sorted({spec.layer for spec in specs if spec.role is Role.EXPERT_DOWN and spec.layer is not None})


def branch_modules(model: nn.Module, specs: Sequence[TensorSpec], layer: int) -> dict[str, str]:
    """By the name of a branch's last tensor, the module whose output is the branch: the smallest around its tensors.

    A list of experts is no module that is called: the one around it is.
    """
    here = [spec for spec in specs if spec.layer == layer]
    found, top = {}, layer_names(here)[layer]
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
            found[spec.name] = owner(spec)
    return found
