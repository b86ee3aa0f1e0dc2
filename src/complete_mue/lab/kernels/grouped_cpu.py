"""The grouped product on a CPU without a compiler, where small steps cost as much as the products.

The arithmetic is ``grouped``'s. Rows of sorted tokens lie along the last axis, hidden [2 expert_width, rows]: gate and
value are whole blocks of memory and a row's weight stands beside the row's numbers, so that vector units are full even
where an expert is eight wide. Rows by expert are found by counting.

Kept for backward: x, the weights, U, silu(gate) and A (exponentials are dear here); X[token] is gathered again.

Axes: tokens, width, experts, expert_width, active; rows = tokens * active, sorted by expert.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_grouped_mm = getattr(F, "grouped_mm", None) or torch._grouped_mm
_MULTIPLE = 8  # of rows: grouped_mm wants strides of whole 16 bytes, in 16 bits as in 32


def sort_by_expert(index: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """As ``grouped.sort_by_expert``: NumPy sorts 16 bits by counting, several times as fast as torch sorts."""
    expert = index.reshape(-1)
    small = expert.to(torch.int16) if experts <= np.iinfo(np.int16).max else expert
    order = torch.from_numpy(small.numpy().argsort(kind="stable"))
    inverse = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel()))
    return order, inverse, torch.bincount(expert, minlength=experts).cumsum(0, dtype=torch.int32)


def routed_experts(x: Tensor, up: Tensor, down: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """As ``grouped.routed_experts``, for at least one row."""
    return _RoutedExperts.apply(x, up, down, index, weight)


class _RoutedExperts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor, down: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        order, inverse, ends = sort_by_expert(index, up.shape[0])
        order = F.pad(order, (0, -order.numel() % _MULTIPLE))  # rows of no expert
        token = torch.from_numpy(order.numpy() // index.shape[1])  # torch divides integers one by one
        bags = inverse.view_as(index)
        w = weight.reshape(-1).index_select(0, order)
        hidden = _without_rest(_grouped_mm(up, x.index_select(0, token).t(), offs=ends), index)
        gate, value = hidden.chunk(2)
        silu = F.silu(gate)
        activation = (silu * value).mul_(w)
        ctx.save_for_backward(x, up, down, w, hidden, silu, activation, token, bags, ends)
        return _combine(_grouped_mm(activation.t(), down.mT, offs=ends), bags)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, up, down, w, hidden, silu, activation, token, bags, ends = ctx.saved_tensors
        need_x, need_up, need_down, _, need_weight = ctx.needs_input_grad
        dy = dy.index_select(0, token)
        d_down = _grouped_mm(dy.t(), activation.t(), offs=ends) if need_down else None
        # of the weighted activation, [expert_width, rows]
        grad = _without_rest(_grouped_mm(down.mT, dy.t(), offs=ends), bags)
        gate, value = hidden.chunk(2)
        d_hidden = torch.empty_like(hidden)
        d_gate, d_value = d_hidden.chunk(2)
        u = torch.mul(grad, value, out=d_gate)
        d_weight = _sum((u * silu).to(w.dtype))[bags] if need_weight else None
        torch.ops.aten.silu_backward.grad_input(u.mul_(w), gate, grad_input=d_gate)
        torch.mul(grad.mul_(w), silu, out=d_value)
        d_up = _grouped_mm(d_hidden, x.index_select(0, token), offs=ends) if need_up else None
        d_x = _combine(_grouped_mm(d_hidden.t(), up, offs=ends), bags) if need_x else None
        return d_x, d_up, d_down, None, d_weight


def _without_rest(columns: Tensor, index: Tensor) -> Tensor:
    """Zeros in the columns of no expert, which a product leaves unwritten. CPUs with bfloat16 units read a few of them
    past the end of the last expert's, and multiply by zero whatever stands there: also what is not finite."""
    columns[:, index.numel() :] = 0
    return columns


def _combine(rows: Tensor, bags: Tensor) -> Tensor:
    """Sum of each token's own rows, without a copy of them: [rows, width], bags [tokens, active] -> [tokens, width]."""
    return F.embedding_bag(bags, rows, mode="sum")


def _sum(parts: Tensor) -> Tensor:
    """Sum over the first axis, by halves. torch's own sum adds in an order that depends on where a column stands, and
    then a replica's bits would not be those of its run alone."""
    while len(parts) > 1:
        half = len(parts) // 2
        left = parts[2 * half :]  # none, or one
        parts = parts[:half] + parts[half : 2 * half]
        parts[: len(left)] += left
    return parts[0]
