"""Small steps around attention and routing that have a Triton kernel of their own; None elsewhere tells the caller to
take the plain way. Each is one opaque operator, so that torch.compile sees a graph without breaks.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor

_TRITON = importlib.util.find_spec("triton") is not None
_MOST_EXPERTS = 1024  # of one group: a row is held by one program
_MOST_TOKENS, _LARGEST_HEAD = 128, 64  # of attention's rows, likewise


def top_experts(score: Tensor, active: int) -> Tensor | None:
    """The ``active`` best of the last axis, best first, [..., experts] -> [..., active]; float32 on a GPU."""
    if not (_TRITON and score.is_cuda and score.dtype == torch.float32 and score.shape[-1] <= _MOST_EXPERTS):
        return None
    return _top_experts(score.flatten(0, -2), active).view(*score.shape[:-1], active)


def split_rotated(joined: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...] | None:
    """Query, key (both rotated), value and gate, each [..., tokens, heads, head_dim], of joined [..., tokens, 4 width].

    cos and sin are [tokens, head_dim / 2]; 32 or 16 bits on a GPU.
    """
    if not (_TRITON and joined.is_cuda and joined.element_size() <= 4):
        return None
    parts: tuple[Tensor, ...] = _SplitRotated.apply(joined, cos, sin)
    return parts


def gated_attention(joined: Tensor, cos: Tensor, sin: Tensor, scale: float, causal: bool) -> Tensor | None:
    """sigmoid(gate) * attention over each row, [..., tokens, width], of joined [..., tokens, 4 width].

    Query and key are rotated by cos and sin [tokens, head_dim / 2]; short rows in 16 bits on a GPU.
    """
    short = joined.shape[-2] <= _MOST_TOKENS and 2 * cos.shape[-1] <= _LARGEST_HEAD
    if not (_TRITON and joined.is_cuda and joined.element_size() == 2 and short):
        return None
    out: Tensor = _GatedRows.apply(joined, cos, sin, scale, causal)
    return out


class _SplitRotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, joined: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(cos, sin)
        return _split(joined, cos, sin).unbind(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _join(list(grads), *ctx.saved_tensors), None, None


class _GatedRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, joined: Tensor, cos: Tensor, sin: Tensor, scale: float, causal: bool) -> Tensor:
        ctx.save_for_backward(joined, cos, sin)
        ctx.settings = scale, causal
        return _gated_rows(joined, cos, sin, scale, causal)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _gated_rows_grad(*ctx.saved_tensors, grad, *ctx.settings), None, None, None, None


@torch.library.custom_op("complete_mue::top_experts", mutates_args=())
def _top_experts(score: Tensor, active: int) -> Tensor:
    from complete_mue.lab.kernels.triton_select import top_experts

    with torch.cuda.device_of(score):
        return top_experts(score, active)


@_top_experts.register_fake
def _(score: Tensor, active: int) -> Tensor:
    return score.new_empty(score.shape[0], active, dtype=torch.int64)


@torch.library.custom_op("complete_mue::split_rotated", mutates_args=())
def _split(joined: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    from complete_mue.lab.kernels.triton_rotary import split

    with torch.cuda.device_of(joined):
        return split(joined, cos, sin)


@_split.register_fake
def _(joined: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    head_dim = 2 * cos.shape[-1]
    return joined.new_empty(4, *joined.shape[:-1], joined.shape[-1] // 4 // head_dim, head_dim)


@torch.library.custom_op("complete_mue::join_rotated", mutates_args=())
def _join(parts: list[Tensor], cos: Tensor, sin: Tensor) -> Tensor:
    from complete_mue.lab.kernels.triton_rotary import join

    with torch.cuda.device_of(parts[0]):
        return join(parts, cos, sin)


@_join.register_fake
def _(parts: list[Tensor], cos: Tensor, sin: Tensor) -> Tensor:
    *lead, heads, head_dim = parts[0].shape
    return parts[0].new_empty(*lead, 4 * heads * head_dim)


@torch.library.custom_op("complete_mue::gated_rows", mutates_args=())
def _gated_rows(joined: Tensor, cos: Tensor, sin: Tensor, scale: float, causal: bool) -> Tensor:
    from complete_mue.lab.kernels.triton_attention import gated_rows

    with torch.cuda.device_of(joined):
        return gated_rows(joined, cos, sin, scale, causal)


@_gated_rows.register_fake
def _(joined: Tensor, cos: Tensor, sin: Tensor, scale: float, causal: bool) -> Tensor:
    return joined.new_empty(*joined.shape[:-1], joined.shape[-1] // 4)


@torch.library.custom_op("complete_mue::gated_rows_grad", mutates_args=())
def _gated_rows_grad(joined: Tensor, cos: Tensor, sin: Tensor, grad: Tensor, scale: float, causal: bool) -> Tensor:
    from complete_mue.lab.kernels.triton_attention import gated_rows_grad

    with torch.cuda.device_of(joined):
        return gated_rows_grad(joined, cos, sin, grad, scale, causal)


@_gated_rows_grad.register_fake
def _(joined: Tensor, cos: Tensor, sin: Tensor, grad: Tensor, scale: float, causal: bool) -> Tensor:
    return joined.new_empty(joined.shape)
