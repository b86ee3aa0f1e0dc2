"""What stands between the matrix products: gather-sum over a token's rows, SwiGLU and its gradient.

The fused Hopper products do SwiGLU themselves; the separate kernels here serve the dtypes and widths those do not take.
All sums run in float32 and in a fixed order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _gather_sum(
    rows, place, weight, out, width, ACTIVE: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(ACTIVE):
        row = tl.load(place + token * ACTIVE + choice).to(tl.int64)
        part = tl.load(rows + row * width + column, mask=inside, other=0).to(tl.float32)
        if WEIGHTED:
            part *= tl.load(weight + token * ACTIVE + choice).to(tl.float32)
        total += part
    tl.store(out + token * width + column, total.to(out.dtype.element_ty), mask=inside)


def gather_sum(rows: Tensor, place: Tensor, weight: Tensor | None) -> Tensor:
    """out[t] = sum_j weight[t, j] * rows[place[t, j]]; without a weight, the plain sum.

    rows [rows, width], place and weight [tokens, active] -> [tokens, width]
    """
    tokens, active = place.shape
    width = rows.shape[1]
    out = torch.empty(tokens, width, dtype=rows.dtype, device=rows.device)
    block = min(triton.next_power_of_2(width), 2048)
    grid = (tokens, triton.cdiv(width, block))
    _gather_sum[grid](
        rows, place, place if weight is None else weight.contiguous(), out, width,
        active, weight is not None, block, num_warps=max(block // 512, 1),
    )  # fmt: skip
    return out


@triton.jit
def _collect_scale_grad(partial, place, out, pairs, rows, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < pairs
    row = tl.load(place + pair, mask=inside, other=0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    for part in range(PARTS):
        total += tl.load(partial + part * rows.to(tl.int64) + row, mask=inside, other=0)
    tl.store(out + pair, total, mask=inside)


def collect_scale_grad(partial: Tensor, place: Tensor) -> Tensor:
    """The routing weights' gradient: partial [parts, rows], place [tokens, active] -> [tokens, active] float32."""
    parts, rows = partial.shape
    out = torch.empty(place.shape, dtype=torch.float32, device=place.device)
    _collect_scale_grad[(triton.cdiv(out.numel(), 512),)](partial, place, out, out.numel(), rows, parts, 512)
    return out


@triton.jit
def _swiglu(hidden, out, start, experts, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    if row >= tl.load(start + experts):
        return
    for first in range(0, width, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < width
        gate = tl.load(hidden + row * 2 * width + column, mask=inside, other=0).to(tl.float32)
        value = tl.load(hidden + row * 2 * width + width + column, mask=inside, other=0).to(tl.float32)
        result = gate / (1 + tl.exp(-gate)) * value
        tl.store(out + row * width + column, result.to(out.dtype.element_ty), mask=inside)


def swiglu(hidden: Tensor, start: Tensor) -> Tensor:
    """hidden [rows, 2 * expert_width] (gate, then value) -> silu(gate) * value, on the rows in use."""
    rows, width = hidden.shape[0], hidden.shape[1] // 2
    out = torch.empty(rows, width, dtype=hidden.dtype, device=hidden.device)
    block = min(triton.next_power_of_2(width), 1024)
    _swiglu[(rows,)](hidden, out, start, start.numel() - 1, width, block)
    return out


@triton.jit
def _swiglu_grad(hidden, act_grad, scale, start, hidden_grad, scaled, partial, experts, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    if row >= tl.load(start + experts):
        return
    weight = tl.load(scale + row)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, width, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < width
        gate = tl.load(hidden + row * 2 * width + column, mask=inside, other=0).to(tl.float32)
        value = tl.load(hidden + row * 2 * width + width + column, mask=inside, other=0).to(tl.float32)
        grad = tl.load(act_grad + row * width + column, mask=inside, other=0).to(tl.float32)
        sigmoid = 1 / (1 + tl.exp(-gate))
        silu = gate * sigmoid
        total += grad * silu * value
        tl.store(scaled + row * width + column, (weight * silu * value).to(scaled.dtype.element_ty), mask=inside)
        grad *= weight
        gate_grad = grad * value * (sigmoid + silu * (1 - sigmoid))
        out = hidden_grad + row * 2 * width + column
        tl.store(out, gate_grad.to(hidden_grad.dtype.element_ty), mask=inside)
        tl.store(out + width, (grad * silu).to(hidden_grad.dtype.element_ty), mask=inside)
    tl.store(partial + row, tl.sum(total))


def swiglu_grad(hidden: Tensor, act_grad: Tensor, scale: Tensor, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From the activation's gradient before scaling: hidden's gradient, scale * activation, <act_grad, activation>."""
    rows, width = act_grad.shape
    hidden_grad, scaled = torch.empty_like(hidden), torch.empty_like(act_grad)
    partial = torch.empty(1, rows, dtype=torch.float32, device=hidden.device)
    block = min(triton.next_power_of_2(width), 1024)
    _swiglu_grad[(rows,)](hidden, act_grad, scale, start, hidden_grad, scaled, partial, start.numel() - 1, width, block)
    return hidden_grad, scaled, partial
