"""The router's product x W^T on tensor cores, as precise as float32.

A bfloat16 x is exact in a tensor core, and so is its product with a bfloat16 weight, summed in float32. A float32
weight is the sum of three bfloat16 parts, each the rounding of what the ones before it left: three products, side by
side in one, and their sum. The backward splits the logits' gradient likewise: in three parts for a float32 weight's
gradient, in two for gradients that are rounded to bfloat16 in the end.

Axes: (replicas,) tokens, width, experts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_EXACT, _ROUNDED = 3, 2  # parts of a float32, and parts that are more than bfloat16 keeps
_LARGE = 2**15  # weights: a smaller router waits for memory, not for products


def logits(x: Tensor, router: Tensor) -> Tensor | None:
    """x W^T in float32, [(replicas,) tokens, experts]; None for a small router, or x that is not bfloat16 on a GPU.

    Under autocast, x is rounded to its type first: the router sees what the experts see.
    """
    if not (x.is_cuda and x.ndim == router.ndim and router.shape[-1] * router.shape[-2] >= _LARGE):
        return None
    if torch.is_autocast_enabled("cuda"):
        x = x.to(torch.get_autocast_dtype("cuda"))
    if x.dtype != torch.bfloat16 or router.dtype not in (torch.bfloat16, torch.float32):
        return None
    out: Tensor = _Logits.apply(x, router)
    return out


class _Logits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, router: Tensor) -> Tensor:
        ctx.save_for_backward(x, router)
        return _logits(x, router)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return _logits_grad(*ctx.saved_tensors, grad)


@torch.library.custom_op("complete_mue::router_logits", mutates_args=())
def _logits(x: Tensor, router: Tensor) -> Tensor:
    parts = _parts(router, _EXACT)
    return _summed(_product(x, torch.cat(parts, dim=-2).mT), len(parts), dim=-1)


@_logits.register_fake
def _(x: Tensor, router: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], router.shape[-2], dtype=torch.float32)


@torch.library.custom_op("complete_mue::router_logits_grad", mutates_args=())
def _logits_grad(x: Tensor, router: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    high, middle, *rest = _parts(grad, _EXACT if router.dtype == torch.float32 else _ROUNDED)
    columns = torch.cat((high, middle, *rest), dim=-1)
    weight_grad = _summed(_product(columns.mT, x), 2 + len(rest), dim=-2).to(router.dtype)
    if router.dtype == torch.bfloat16:
        return _product(columns, torch.cat((router, router), dim=-2), x.dtype), weight_grad
    top, below = _parts(router, _ROUNDED)
    columns, rows = torch.cat((high, high, middle), dim=-1), torch.cat((top, below, top), dim=-2)
    return _product(columns, rows, x.dtype), weight_grad


@_logits_grad.register_fake
def _(x: Tensor, router: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(router)


def _parts(values: Tensor, count: int) -> list[Tensor]:
    """``values`` as a sum of bfloat16 tensors, each the rounding of what the ones before it left."""
    if values.dtype == torch.bfloat16:
        return [values]
    parts, left = [], values
    for _ in range(count):
        parts.append(left.to(torch.bfloat16))
        left = left - parts[-1]
    return parts


def _product(a: Tensor, b: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """a b, of bfloat16, summed in float32."""
    if not a.is_cuda:
        return (a.float() @ b.float()).to(dtype)
    if dtype == a.dtype:
        return a @ b
    return (torch.mm if a.ndim == 2 else torch.bmm)(a, b, out_dtype=dtype)


def _summed(values: Tensor, parts: int, dim: int) -> Tensor:
    """The parts' products, which lie one after another along ``dim``, added from the smallest on."""
    *larger, total = values.chunk(parts, dim)
    for value in reversed(larger):
        total = total + value
    return total
