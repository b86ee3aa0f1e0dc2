"""The one function behind which every kernel stands, and the choice among them.

Choice, unless one is forced by ``kernel=`` or the environment variable ``MUE_KERNEL``: ``triton`` where it can run
(Hopper), else ``grouped``, else ``reference`` (float64, or shapes the others refuse).

Replica axis: with up [replicas, experts, ...] the replicas' experts are laid side by side, replica k's expert e
becoming expert k * experts + e, so K models of one shape are one kernel call (several where a call would take more
than ``grouped.MOST_EXPERTS`` experts).

Axes: replicas, tokens, width, experts, expert_width, active (experts per token).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from complete_mue.errors import KernelError, nearest
from complete_mue.lab.kernels import grouped, plain_loop
from complete_mue.lab.kernels.grouped import MOST_EXPERTS

ENVIRONMENT_VARIABLE = "MUE_KERNEL"


@dataclass(frozen=True)
class Kernel:
    """One kernel: its module has ``routed_experts`` and ``unavailable(x, up)``, which says what else it needs.

    ``load`` returns that module. It holds an import statement where the module needs an optional ``package``, and is
    called only where that is installed: torch.compile follows such a statement, and not ``importlib``.
    """

    name: str
    load: Callable[[], ModuleType]
    summary: str
    automatic: bool = True  # taken unasked where it can run; else only by its name
    package: str | None = None
    hopper: bool = False
    takes: tuple[str, ...] = ()  # what its ``routed_experts`` takes beside tensors: ``totals``, ``replicas``
    missing: bool = field(init=False)  # its package is not installed

    def __post_init__(self) -> None:
        missing = self.package is not None and importlib.util.find_spec(self.package) is None
        object.__setattr__(self, "missing", missing)


KERNELS: dict[str, Kernel] = {}  # in order of preference


def register(kernel: Kernel) -> None:
    """Add a kernel behind those known by now; `MUE_KERNEL`, ``kernel=`` and `mue bench moe` take it by its name."""
    if kernel.name in KERNELS:
        raise KernelError(f"kernel {kernel.name!r} is known already: give another name")
    KERNELS[kernel.name] = kernel


def _triton() -> ModuleType:
    from complete_mue.lab.kernels import triton_experts

    return triton_experts


def _sonic() -> ModuleType:
    from complete_mue.lab.kernels import sonic

    return sonic


register(
    Kernel(
        "triton", _triton, "fused Triton kernels for NVIDIA Hopper; bfloat16", package="triton", hopper=True,
        takes=("totals", "replicas"),
    )
)  # fmt: skip
register(
    Kernel(
        "sonic", _sonic,
        "SonicMoE's kernels for NVIDIA Hopper, where it is installed; bfloat16; only when asked for",
        automatic=False, package="sonicmoe", hopper=True,
    )
)  # fmt: skip
register(Kernel("grouped", lambda: grouped, grouped.SUMMARY))
register(Kernel("reference", lambda: plain_loop, plain_loop.SUMMARY))


@dataclass(frozen=True)
class KernelInfo:
    """One kernel, and whether it can run on this machine; ``reason`` says why not."""

    name: str
    runs_here: bool
    reason: str | None
    summary: str


def routed_experts(
    x: Tensor, up: Tensor, down: Tensor, index: Tensor, weight: Tensor, *, kernel: str | None = None,
    totals: tuple[Tensor, Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Weighted sum of each token's experts: y[t] = sum over slots j of weight[t, j] * expert index[t, j] at x[t].

    x [tokens, width]; up [experts, 2 expert_width, width], gate rows first; down [experts, width, expert_width];
    index, weight [tokens, active]. Every argument but x takes a leading replica axis together; x may (else it is
    shared). Returns [(replicas,) tokens, width] in x's dtype; under autocast, in autocast's dtype.

    ``totals`` are float32, of the shapes of up and down. A kernel that can adds their gradients there and returns none:
    a step of many micro-batches would sum them anyway. Not for replicas.
    """
    if x.is_meta:
        return x.new_empty(*index.shape[:-1], x.shape[-1])
    device = x.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            return _in_one_dtype(x.to(dtype), up.to(dtype), down.to(dtype), index, weight, kernel, totals)
    return _in_one_dtype(x, up, down, index, weight, kernel, totals)


def choose(x: Tensor, up: Tensor, *, kernel: str | None = None) -> str:
    """Name of the kernel that ``routed_experts`` takes for these tensors (one replica of them)."""
    forced = kernel or os.environ.get(ENVIRONMENT_VARIABLE)
    if not forced:
        for name, known in KERNELS.items():
            if known.automatic and unavailable(name, x, up) is None:
                return name
        raise KernelError(f"no kernel can run here: reference: {unavailable('reference', x, up)}")
    if forced not in KERNELS:
        raise KernelError(f"kernel {forced!r}{nearest(forced, KERNELS)}: kernels are {', '.join(KERNELS)}")
    reason = unavailable(forced, x, up)
    if reason is not None:
        raise KernelError(
            f"kernel {forced!r} cannot run here: {reason}. "
            f"Leave the choice open (no kernel=, no {ENVIRONMENT_VARIABLE}) or take another of {', '.join(KERNELS)}"
        )
    return forced


def list_kernels() -> list[KernelInfo]:
    """Every kernel, and whether it runs on this machine (on its best device, in a dtype it takes)."""
    cuda = torch.cuda.is_available()
    x = torch.empty(16, 128, dtype=torch.bfloat16, device="cuda" if cuda else "cpu")
    up = x.new_empty(4, 256, 128)
    infos = []
    for name, kernel in KERNELS.items():
        reason = unavailable(name, x, up)
        infos.append(KernelInfo(name, reason is None, reason, kernel.summary))
    return infos


def unavailable(name: str, x: Tensor, up: Tensor) -> str | None:
    """Why the kernel of that name cannot run on these tensors here, in one line; None when it can."""
    kernel = KERNELS[name]
    if kernel.hopper and (not x.is_cuda or torch.version.hip is not None):
        return f"needs an NVIDIA Hopper GPU; these tensors are on {x.device.type}"
    if kernel.missing:
        return f"needs the package {kernel.package}, which is not installed"
    if kernel.hopper and torch.cuda.get_device_capability(x.device) != (9, 0):
        return f"needs an NVIDIA Hopper GPU; this one is {torch.cuda.get_device_name(x.device)}"
    return kernel.load().unavailable(x, up)


def _in_one_dtype(
    x: Tensor, up: Tensor, down: Tensor, index: Tensor, weight: Tensor, kernel: str | None,
    totals: tuple[Tensor, Tensor] | None,
) -> Tensor:  # fmt: skip
    if up.ndim == 3:
        return _run(KERNELS[choose(x, up, kernel=kernel)], x, up, down, index, weight, totals=totals)
    replicas, experts = up.shape[:2]
    chosen = KERNELS[choose(x, up[0], kernel=kernel)]
    if x.ndim == 2:
        x = x.expand(replicas, *x.shape)
    calls = -(-replicas // max(1, MOST_EXPERTS // experts))
    if calls == 1:
        return _side_by_side(chosen, x, up, down, index, weight)
    chunks = zip(*(tensor.tensor_split(calls) for tensor in (x, up, down, index, weight)), strict=True)
    return torch.cat([_side_by_side(chosen, *chunk) for chunk in chunks])


def _side_by_side(kernel: Kernel, x: Tensor, up: Tensor, down: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    replicas, experts = up.shape[:2]
    first = torch.arange(replicas, device=index.device)[:, None, None] * experts
    flat = (tensor.flatten(0, 1) for tensor in (x, up, down, index + first, weight))
    return _run(kernel, *flat, replicas=replicas).unflatten(0, (replicas, -1))


def _run(kernel: Kernel, *tensors: Tensor, **options: Any) -> Tensor:
    """The kernel, with those options that it takes."""
    return kernel.load().routed_experts(*tensors, **{k: v for k, v in options.items() if k in kernel.takes})
