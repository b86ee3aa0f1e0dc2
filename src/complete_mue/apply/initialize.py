"""Initial weights from a plan, in place; the same values whatever the device, the order or the sharding."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from complete_mue.apply.bind import Bound, bind, family_of, forget, unwrapped
from complete_mue.apply.family import Family, plain_name
from complete_mue.errors import BindError
from complete_mue.layout import Role
from complete_mue.plan.plan import Plan


@torch.no_grad()
def initialize(
    model: nn.Module,
    plan: Plan,
    *,
    seed: int = 0,
    family: Family | None = None,
    buffers: Callable[[nn.Module], None] | None = None,
) -> nn.Module:
    """Draw every trainable parameter as the plan says; frozen parameters are left alone.

    Each tensor has its own generator, seeded by ``seed`` and its name, and is drawn whole in float32 on the CPU; a
    shard takes its part. The global random state is not touched. Buffers are restored by ``buffers(model)``, by the
    model's own ``reset_buffers()``, or, for Hugging Face models, by the model's stock initialization of modules that
    hold buffers; what a family lists as ``state`` starts at zero.
    """
    binding = bind(model, plan, family, forward=False)  # what memory holds before may be anything
    meta = [bound.name for bound in binding if bound.parameter.is_meta]
    if meta:
        raise BindError(
            f"{len(meta)} parameters are on the meta device, {meta[0]!r} among them: "
            "call model.to_empty(device=…) first"
        )
    inner = unwrapped(model)
    _restore_buffers(inner, buffers)
    if known := family_of(inner, family):
        for name, parameter in inner.named_parameters():
            if not parameter.requires_grad and known.is_state(name):
                parameter.zero_()
    for bound in binding:
        _write(bound.parameter, initial_value(bound, seed))
    forget(inner)
    return model


def initial_value(bound: Bound, seed: int = 0) -> Tensor:
    """The whole initial tensor of one parameter, float32 on the CPU (float64 parameters: drawn in float64).

    A replica axis holds independent models: replica k is drawn with seed + k, so that it starts as its solo run does.
    """
    if bound.spec.axes[:1] == ("replica",):
        return torch.stack([initial_replica(bound, seed + k) for k in range(bound.parameter.shape[0])])
    return _initial(bound, bound.parameter.shape, seed)


def initial_replica(bound: Bound, seed: int) -> Tensor:
    """The initial tensor of one replica of a parameter with a replica axis."""
    return _initial(bound, bound.parameter.shape[1:], seed)


def _initial(bound: Bound, shape: torch.Size, seed: int) -> Tensor:
    dtype = torch.float64 if bound.parameter.dtype == torch.float64 else torch.float32
    drawn = torch.empty(shape, dtype=dtype, device="cpu")  # whatever the default device
    if bound.spec.start in _STARTS:
        return _STARTS[bound.spec.start](drawn, generator_of(bound, seed))
    if bound.row.init_std is None:
        gain = bound.spec.role in (Role.NORM, Role.FINAL_NORM) and not bound.name.endswith("bias")
        return drawn.fill_(bound.folded - bound.spec.gain_offset if gain else 0.0)
    return drawn.normal_(0.0, bound.row.init_std, generator=generator_of(bound, seed))


def generator_of(bound: Bound, seed: int) -> torch.Generator:
    """A parameter's own random numbers: by the seed and its name, whatever it is wrapped in."""
    digest = hashlib.sha256(f"{seed}:{plain_name(bound.name)}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") % 2**63)


def _time_step(x: Tensor, generator: torch.Generator) -> Tensor:
    """The inverse softplus of steps from 0.001 to 0.1, even in their log."""
    step = x.uniform_(math.log(1e-3), math.log(0.1), generator=generator).exp()
    return step + (-torch.expm1(-step)).log()


# Vectors that a model starts at values of its own, as TensorSpec.start names them.
_STARTS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "ones": lambda x, generator: x.fill_(1.0),
    "log_uniform": lambda x, generator: x.uniform_(0.01, 16.0, generator=generator).log_(),
    "log_uniform_1": lambda x, generator: x.uniform_(1.0, 16.0, generator=generator).log_(),
    "dt": _time_step,
}


def _write(parameter: nn.Parameter, value: Tensor) -> None:
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(parameter, DTensor):
        value = value.to(parameter.device, parameter.dtype)
        parameter.copy_(distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None))
    else:
        parameter.copy_(value)


def _restore_buffers(model: nn.Module, restore: Callable[[nn.Module], None] | None) -> None:
    if restore is not None:
        restore(model)
        return
    for module in model.modules():
        if callable(own := getattr(module, "reset_buffers", None)):
            own()
    stock = getattr(model, "_init_weights", None)
    if stock is None:
        return
    for module in model.modules():
        if any(True for _ in module.buffers(recurse=False)):
            with _marked_initialized(module):
                stock(module)


@contextmanager
def _marked_initialized(module: nn.Module) -> Iterator[None]:
    """Stock initialization passes over a module's parameters meanwhile: only its buffers are written."""
    mark = "_is_hf_initialized"
    marked = [parameter for parameter in module.parameters(recurse=False) if not hasattr(parameter, mark)]
    for parameter in marked:
        setattr(parameter, mark, True)
    try:
        yield
    finally:
        for parameter in marked:
            delattr(parameter, mark)
