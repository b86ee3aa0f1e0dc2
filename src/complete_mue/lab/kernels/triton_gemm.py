"""Grouped matrix products in plain Triton, for every float dtype and width, with SwiGLU in their epilogues.

They serve narrow experts, whose products wait for memory and would leave most of a Hopper tile empty, and whatever the
Hopper kernels do not take (float32, widths that are no multiple of 8). float32 is computed in float32 (`ieee`), never
in tf32.

Axes: rows are (token, choice) pairs sorted by expert, see `triton_sort`; a program has one tile of them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from complete_mue.lab.kernels.triton_sort import TILE, Rows


def _block(width: int, most: int) -> int:
    """The side of a tile that covers `width`, as far as `most`; products need 16 at least."""
    return min(max(triton.next_power_of_2(width), 16), most)


def _deep(tensor: Tensor) -> int:
    """Elements along the summed axis that are loaded at once: 128 bytes of them."""
    return 128 // tensor.element_size()


def _stages(width: int, block: int) -> int:
    """Loads under way at once; memory for more than there are would only keep other programs out."""
    return min(triton.cdiv(width, block), 3)


@triton.jit
def _up_swiglu(
    x, up, hidden, act, token, start, tile_expert, experts, h, width,
    KEEP: tl.constexpr, TILE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    blocks_n = tl.cdiv(h, BLOCK_N)
    tile = tl.program_id(0) // blocks_n
    if tile * TILE >= tl.load(start + experts):
        return
    up += tl.load(tile_expert + tile).to(tl.int64) * 2 * h * width
    row = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    source = tl.load(token + row).to(tl.int64)
    column = tl.program_id(0) % blocks_n * BLOCK_N + tl.arange(0, BLOCK_N)
    gate = tl.zeros([TILE, BLOCK_N], tl.float32)
    value = tl.zeros([TILE, BLOCK_N], tl.float32)
    for first in range(0, width, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        live = (source >= 0)[:, None] & (k < width)[None, :]
        left = tl.load(x + source[:, None] * width + k[None, :], mask=live, other=0)
        at = up + column[None, :] * width + k[:, None]
        inside = (column < h)[None, :] & (k < width)[:, None]
        gate = tl.dot(left, tl.load(at, mask=inside, other=0), gate, input_precision="ieee")
        value = tl.dot(left, tl.load(at + h * width, mask=inside, other=0), value, input_precision="ieee")
    inside = (column < h)[None, :]
    if KEEP:
        at = hidden + row[:, None] * 2 * h + column[None, :]
        tl.store(at, gate.to(hidden.dtype.element_ty), mask=inside)
        tl.store(at + h, value.to(hidden.dtype.element_ty), mask=inside)
    result = gate / (1 + tl.exp(-gate)) * value
    tl.store(act + row[:, None] * h + column[None, :], result.to(act.dtype.element_ty), mask=inside)


def up_swiglu(x: Tensor, up: Tensor, rows: Rows, keep: bool) -> tuple[Tensor, Tensor]:
    """Gather, up projection and SwiGLU in one product.

    x [tokens, width], up [experts, 2 * expert_width, width] -> hidden [rows, 2 * expert_width] (empty unless `keep`),
    activation [rows, expert_width]
    """
    experts, both, width = up.shape
    h, count = both // 2, rows.token.numel()
    hidden, act = x.new_empty(count if keep else 0, both), x.new_empty(count, h)
    block = _block(h, 64)
    _up_swiglu[(triton.cdiv(h, block) * (count // TILE),)](
        x, up, hidden, act, rows.token, rows.start, rows.expert, experts, h, width,
        keep, TILE, block, _deep(x), num_warps=8 if block > 32 else 4, num_stages=_stages(width, _deep(x)),
    )  # fmt: skip
    return hidden, act


@triton.jit
def _rows_product(
    a, b, out, start, tile_expert, experts, width_n, width_k, stride_n, stride_k,
    TILE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    blocks_n = tl.cdiv(width_n, BLOCK_N)
    tile = tl.program_id(0) // blocks_n
    if tile * TILE >= tl.load(start + experts):
        return
    b += tl.load(tile_expert + tile).to(tl.int64) * width_n * width_k
    row = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    column = tl.program_id(0) % blocks_n * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([TILE, BLOCK_N], tl.float32)
    for first in range(0, width_k, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        left = tl.load(a + row[:, None] * width_k + k[None, :], mask=(k < width_k)[None, :], other=0)
        at = b + column[None, :] * stride_n + k[:, None] * stride_k
        right = tl.load(at, mask=(column < width_n)[None, :] & (k < width_k)[:, None], other=0)
        total = tl.dot(left, right, total, input_precision="ieee")
    at = out + row[:, None] * width_n + column[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=(column < width_n)[None, :])


def rows_product(a: Tensor, b: Tensor, rows: Rows, *, transposed: bool) -> Tensor:
    """Each row times its expert's matrix.

    a [rows, k]; b [experts, n, k], or [experts, k, n] when `transposed` -> [rows, n]
    """
    experts, n, k = (b.shape[0], b.shape[2], b.shape[1]) if transposed else b.shape
    out = a.new_empty(a.shape[0], n)
    block, deep = _block(n, _deep(a) * 2), _block(k, _deep(a))
    _rows_product[(triton.cdiv(n, block) * (out.shape[0] // TILE),)](
        a, b, out, rows.start, rows.expert, experts, n, k, 1 if transposed else k, n if transposed else 1,
        TILE, block, deep, num_warps=8 if block > 32 else 4, num_stages=_stages(k, deep),
    )  # fmt: skip
    return out


@triton.jit
def _swiglu_grad(
    grad, down, hidden, hidden_grad, scaled, partial, token, scale, start, tile_expert, experts, h, width,
    TILE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    if tile * TILE >= tl.load(start + experts):
        return
    down += tl.load(tile_expert + tile).to(tl.int64) * width * h
    row = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    source = tl.load(token + row).to(tl.int64)
    weight = tl.load(scale + row)[:, None]
    weight_grad = tl.zeros([TILE], tl.float32)
    for first_column in range(0, h, BLOCK_N):
        column = first_column + tl.arange(0, BLOCK_N)
        act_grad = tl.zeros([TILE, BLOCK_N], tl.float32)
        for first in range(0, width, BLOCK_K):
            k = first + tl.arange(0, BLOCK_K)
            live = (source >= 0)[:, None] & (k < width)[None, :]
            left = tl.load(grad + source[:, None] * width + k[None, :], mask=live, other=0)
            inside = (column < h)[None, :] & (k < width)[:, None]
            right = tl.load(down + k[:, None] * h + column[None, :], mask=inside, other=0)
            act_grad = tl.dot(left, right, act_grad, input_precision="ieee")
        inside = (column < h)[None, :]
        at = row[:, None] * 2 * h + column[None, :]
        gate = tl.load(hidden + at, mask=inside, other=0).to(tl.float32)
        value = tl.load(hidden + at + h, mask=inside, other=0).to(tl.float32)
        sigmoid = 1 / (1 + tl.exp(-gate))
        silu = gate * sigmoid
        act = silu * value
        weight_grad += tl.sum(act_grad * act, 1)
        tl.store(scaled + row[:, None] * h + column[None, :], (weight * act).to(scaled.dtype.element_ty), mask=inside)
        act_grad *= weight
        gate_grad = act_grad * value * (sigmoid + silu * (1 - sigmoid))
        tl.store(hidden_grad + at, gate_grad.to(hidden_grad.dtype.element_ty), mask=inside)
        tl.store(hidden_grad + at + h, (act_grad * silu).to(hidden_grad.dtype.element_ty), mask=inside)
    tl.store(partial + row, weight_grad)


def swiglu_grad(grad: Tensor, hidden: Tensor, down: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """Gather, down projection's gradient, SwiGLU's gradient and the routing weights' gradient in one product.

    grad [tokens, width], hidden [rows, 2 * expert_width], down [experts, width, expert_width] ->
    gradient of hidden, scale * activation [rows, expert_width], the scale's gradient [1, rows]
    """
    experts, width, h = down.shape
    hidden_grad, scaled = torch.empty_like(hidden), hidden.new_empty(hidden.shape[0], h)
    partial = torch.empty(1, hidden.shape[0], dtype=torch.float32, device=grad.device)
    block = _block(h, 64)
    _swiglu_grad[(hidden.shape[0] // TILE,)](
        grad, down, hidden, hidden_grad, scaled, partial, rows.token, rows.scale, rows.start, rows.expert, experts,
        h, width, TILE, block, _deep(grad), num_warps=8, num_stages=_stages(width, _deep(grad)),
    )  # fmt: skip
    return hidden_grad, scaled, partial


@triton.jit
def _expert_product(
    by_token, by_row, out, token, start, count, width_m, width_n, stride_m, stride_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(2)
    first_row = tl.load(start + expert).to(tl.int64)
    pairs = tl.load(count + expert)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, pairs, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        live = k < pairs
        row = first_row + k
        source = tl.load(token + row, mask=live, other=0).to(tl.int64)
        at = by_token + source[None, :] * width_m + m[:, None]
        left = tl.load(at, mask=live[None, :] & (m < width_m)[:, None], other=0)
        at = by_row + row[:, None] * width_n + n[None, :]
        right = tl.load(at, mask=live[:, None] & (n < width_n)[None, :], other=0)
        total = tl.dot(left, right, total, input_precision="ieee")
    out += expert.to(tl.int64) * width_m * width_n
    at = out + m[:, None].to(tl.int64) * stride_m + n[None, :].to(tl.int64) * stride_n
    tl.store(at, total.to(out.dtype.element_ty), mask=(m < width_m)[:, None] & (n < width_n)[None, :])


def expert_product(by_token: Tensor, by_row: Tensor, rows: Rows, *, flip: bool) -> Tensor:
    """by_token^T by_row over each expert's rows, or with `flip` its transpose by_row^T by_token.

    by_token [tokens, m], by_row [rows, n] -> [experts, m, n] (`flip`: [experts, n, m]), exactly zero for an expert
    without rows
    """
    experts, m, n = rows.count.numel(), by_token.shape[1], by_row.shape[1]
    out = by_token.new_empty(experts, *((n, m) if flip else (m, n)))
    block_m, block_n = _block(m, _deep(by_token) * 2), _block(n, 64)
    _expert_product[(triton.cdiv(m, block_m), triton.cdiv(n, block_n), experts)](
        by_token, by_row, out, rows.token, rows.start, rows.count, m, n,
        1 if flip else n, m if flip else 1, block_m, block_n, _deep(by_token), num_warps=2 if block_n <= 32 else 4,
    )  # fmt: skip
    return out
