"""Grouped matrix products in plain Triton, for every float dtype and width.

These serve what the Hopper kernels do not take (float32, widths that are no multiple of 8). float32 is computed in
float32 (`ieee`), never in tf32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from complete_mue.kernels.triton_sort import TILE, Rows


@triton.jit
def _rows_product(
    a, b, out, token, start, tile_expert, experts, width_n, width_k, stride_e, stride_n, stride_k,
    GATHER: tl.constexpr, TILE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    blocks_n = tl.cdiv(width_n, BLOCK_N)
    tile = tl.program_id(0) // blocks_n
    if tile * TILE >= tl.load(start + experts):
        return
    expert = tl.load(tile_expert + tile).to(tl.int64)
    row = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    source = row
    live = row >= 0
    if GATHER:
        source = tl.load(token + row).to(tl.int64)
        live = source >= 0
    column = tl.program_id(0) % blocks_n * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([TILE, BLOCK_N], tl.float32)
    for first in range(0, width_k, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        left = tl.load(a + source[:, None] * width_k + k[None, :], mask=live[:, None] & (k < width_k)[None, :], other=0)
        at = b + expert * stride_e + column[None, :] * stride_n + k[:, None] * stride_k
        right = tl.load(at, mask=(column < width_n)[None, :] & (k < width_k)[:, None], other=0)
        total = tl.dot(left, right, total, input_precision="ieee")
    at = out + row[:, None] * width_n + column[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=(column < width_n)[None, :])


def rows_product(a: Tensor, b: Tensor, rows: Rows, *, gather: bool, transposed: bool) -> Tensor:
    """Each row times its expert's matrix.

    a [rows or tokens, k]; b [experts, n, k], or [experts, k, n] when `transposed` -> [rows, n]
    """
    b = b.contiguous()
    n, k = (b.shape[2], b.shape[1]) if transposed else (b.shape[1], b.shape[2])
    out = torch.empty(rows.token.shape[0], n, dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(n, 64) * (out.shape[0] // TILE),)
    _rows_product[grid](
        a.contiguous(), b, out, rows.token, rows.start, rows.expert, b.shape[0], n, k,
        b.stride(0), 1 if transposed else k, n if transposed else 1, gather, TILE, 64, 32, num_warps=8,
    )  # fmt: skip
    return out


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
    grid = (triton.cdiv(m, 64), triton.cdiv(n, 64), experts)
    _expert_product[grid](
        by_token.contiguous(), by_row.contiguous(), out, rows.token, rows.start, rows.count, m, n,
        1 if flip else n, m if flip else 1, 64, 64, 32, num_warps=4,
    )  # fmt: skip
    return out
