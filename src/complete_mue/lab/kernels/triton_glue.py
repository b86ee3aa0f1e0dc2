"""What stands after the matrix products: a token sums its rows, in float32 and in a fixed order."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _gather_sum(
    rows, place, weight, out, tokens, width,
    ACTIVE: tl.constexpr, WEIGHTED: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = token < tokens
    inside = known[:, None] & (column < width)[None, :]
    total = tl.zeros([TOKENS, BLOCK], tl.float32)
    for choice in tl.static_range(ACTIVE):
        row = tl.load(place + token * ACTIVE + choice, mask=known, other=0).to(tl.int64)
        part = tl.load(rows + row[:, None] * width + column[None, :], mask=inside, other=0).to(tl.float32)
        if WEIGHTED:
            part *= tl.load(weight + token * ACTIVE + choice, mask=known, other=0).to(tl.float32)[:, None]
        total += part
    tl.store(out + token[:, None] * width + column[None, :], total.to(out.dtype.element_ty), mask=inside)


_ELEMENTS = 2048  # that one program sums: a wide token's, or several narrow ones'


def gather_sum(rows: Tensor, place: Tensor, weight: Tensor | None) -> Tensor:
    """out[t] = sum_j weight[t, j] * rows[place[t, j]]; without a weight, the plain sum.

    rows [rows, width], place and weight [tokens, active] -> [tokens, width]
    """
    tokens, active = place.shape
    width = rows.shape[1]
    out = torch.empty(tokens, width, dtype=rows.dtype, device=rows.device)
    block = min(triton.next_power_of_2(width), _ELEMENTS)
    together = _ELEMENTS // block
    grid = (triton.cdiv(tokens, together), triton.cdiv(width, block))
    _gather_sum[grid](
        rows, place, place if weight is None else weight.contiguous(), out, tokens, width,
        active, weight is not None, together, block, num_warps=4,
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
