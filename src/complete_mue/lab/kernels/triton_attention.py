"""Gated attention over short rows, from the common product of query, key, value and gate to the gated output.

    out = sigmoid(gate) * softmax(scale * rotated(query) rotated(key)^T) value

One program holds a whole row of one head, so nothing in between is written to memory, and the backward needs the
product alone. A general kernel cuts rows into tiles of 64 or 128 tokens and spends most of its time on tiles' edges.

Axes: rows (one per sequence), tokens, part (query, key, value, gate), heads, head_dim, in this order in memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOG2_E = 1.4426950408889634


@triton.jit
def _rotated(at, c, s, inside, HALF: tl.constexpr):
    """The two halves of a head [TOKENS, COLUMNS], rotated, in the type they are kept in."""
    first = tl.load(at, mask=inside, other=0)
    second = tl.load(at + HALF, mask=inside, other=0)
    a, b = first.to(tl.float32), second.to(tl.float32)
    return (a * c - b * s).to(first.dtype), (b * c + a * s).to(first.dtype)


@triton.jit
def _turn_back(at, first, second, c, s, inside, HALF: tl.constexpr):
    """Store the gradient of a head's two halves, given that of the rotated ones."""
    kind = at.dtype.element_ty
    tl.store(at, (first * c + second * s).to(kind), mask=inside)
    tl.store(at + HALF, (second * c - first * s).to(kind), mask=inside)


@triton.jit
def _softmax(q1, q2, k1, k2, token, tokens, scale, CAUSAL: tl.constexpr):
    """[TOKENS, TOKENS]: how much each token takes of each other; ``scale`` holds log2 e."""
    logits = (tl.dot(q1, tl.trans(k1)) + tl.dot(q2, tl.trans(k2))) * scale
    seen = (token < tokens)[None, :]
    if CAUSAL:
        seen = seen & (token[None, :] <= token[:, None])
    logits = tl.where(seen, logits, float("-inf"))
    share = tl.exp2(logits - tl.max(logits, 1)[:, None])
    return share / tl.sum(share, 1)[:, None]


@triton.jit
def _gated_row(
    joined, cos, sin, out, tokens, heads, scale, CAUSAL: tl.constexpr,
    HEAD_DIM: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, HALF_COLUMNS: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    token, column, half = tl.arange(0, TOKENS), tl.arange(0, COLUMNS), tl.arange(0, HALF_COLUMNS)
    width = heads * HEAD_DIM
    inside = (token < tokens)[:, None] & (column < HEAD_DIM)[None, :]
    inside_half = (token < tokens)[:, None] & (half < HEAD_DIM // 2)[None, :]
    at = joined + row * tokens * 4 * width + head * HEAD_DIM + (token * 4 * width)[:, None]
    turn = token[:, None] * (HEAD_DIM // 2) + half[None, :]
    c = tl.load(cos + turn, mask=inside_half, other=0).to(tl.float32)
    s = tl.load(sin + turn, mask=inside_half, other=0).to(tl.float32)
    q1, q2 = _rotated(at + half[None, :], c, s, inside_half, HEAD_DIM // 2)
    k1, k2 = _rotated(at + width + half[None, :], c, s, inside_half, HEAD_DIM // 2)
    value = tl.load(at + 2 * width + column[None, :], mask=inside, other=0)
    gate = tl.load(at + 3 * width + column[None, :], mask=inside, other=0).to(tl.float32)
    share = _softmax(q1, q2, k1, k2, token, tokens, scale, CAUSAL)
    mixed = tl.dot(share.to(value.dtype), value) * tl.sigmoid(gate)
    to = out + row * tokens * width + head * HEAD_DIM + (token * width)[:, None] + column[None, :]
    tl.store(to, mixed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gated_row_grad(
    joined, cos, sin, grad, out, tokens, heads, scale, CAUSAL: tl.constexpr,
    HEAD_DIM: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, HALF_COLUMNS: tl.constexpr,
    LOG2_E: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    token, column, half = tl.arange(0, TOKENS), tl.arange(0, COLUMNS), tl.arange(0, HALF_COLUMNS)
    width = heads * HEAD_DIM
    inside = (token < tokens)[:, None] & (column < HEAD_DIM)[None, :]
    inside_half = (token < tokens)[:, None] & (half < HEAD_DIM // 2)[None, :]
    first = row * tokens * 4 * width + head * HEAD_DIM
    joined += first
    out += first
    grad += row * tokens * width + head * HEAD_DIM
    spot = token[:, None] * (4 * width) + column[None, :]
    half_spot = token[:, None] * (4 * width) + half[None, :]
    turn = token[:, None] * (HEAD_DIM // 2) + half[None, :]
    c = tl.load(cos + turn, mask=inside_half, other=0).to(tl.float32)
    s = tl.load(sin + turn, mask=inside_half, other=0).to(tl.float32)
    q1, q2 = _rotated(joined + half_spot, c, s, inside_half, HEAD_DIM // 2)
    k1, k2 = _rotated(joined + width + half_spot, c, s, inside_half, HEAD_DIM // 2)
    value = tl.load(joined + 2 * width + spot, mask=inside, other=0)
    kind = value.dtype
    share = _softmax(q1, q2, k1, k2, token, tokens, scale * LOG2_E, CAUSAL)
    kept = share.to(kind)
    open_ = tl.sigmoid(tl.load(joined + 3 * width + spot, mask=inside, other=0).to(tl.float32))
    gated = tl.load(grad + token[:, None] * width + column[None, :], mask=inside, other=0).to(tl.float32)
    mixed = (gated * open_).to(kind)
    gate_grad = gated * tl.dot(kept, value) * open_ * (1 - open_)
    tl.store(out + 3 * width + spot, gate_grad.to(kind), mask=inside)
    tl.store(out + 2 * width + spot, tl.dot(tl.trans(kept), mixed).to(kind), mask=inside)
    share_grad = tl.dot(mixed, tl.trans(value))
    logit_grad = share * (share_grad - tl.sum(share * share_grad, 1)[:, None]) * scale
    logit_grad = logit_grad.to(kind)
    _turn_back(out + half_spot, tl.dot(logit_grad, k1), tl.dot(logit_grad, k2), c, s, inside_half, HEAD_DIM // 2)
    across = tl.trans(logit_grad)
    _turn_back(out + width + half_spot, tl.dot(across, q1), tl.dot(across, q2), c, s, inside_half, HEAD_DIM // 2)


def _sizes(joined: Tensor, cos: Tensor) -> tuple[tuple[int, int, int], dict[str, int]]:
    """(programs, tokens, heads) and the tile of joined [..., tokens, 4 width]."""
    tokens, head_dim = joined.shape[-2], 2 * cos.shape[-1]
    heads = joined.shape[-1] // 4 // head_dim
    tile = {
        "HEAD_DIM": head_dim,
        "TOKENS": max(triton.next_power_of_2(tokens), 16),
        "COLUMNS": max(triton.next_power_of_2(head_dim), 16),
        "HALF_COLUMNS": max(triton.next_power_of_2(head_dim // 2), 16),
    }
    return (joined.numel() // (tokens * 4 * head_dim), tokens, heads), tile


def gated_rows(joined: Tensor, cos: Tensor, sin: Tensor, scale: float, causal: bool) -> Tensor:
    """joined [..., tokens, 4 width] -> [..., tokens, width]; cos, sin [tokens, head_dim / 2]."""
    (programs, tokens, heads), tile = _sizes(joined, cos)
    joined, cos, sin = joined.contiguous(), cos.contiguous(), sin.contiguous()
    out = joined.new_empty(*joined.shape[:-1], joined.shape[-1] // 4)
    if programs:
        _gated_row[(programs,)](
            joined, cos, sin, out, tokens, heads, scale * _LOG2_E, causal, **tile, num_warps=_warps(tile)
        )
    return out


def gated_rows_grad(joined: Tensor, cos: Tensor, sin: Tensor, grad: Tensor, scale: float, causal: bool) -> Tensor:
    """The gradient of ``gated_rows`` by joined, given that by its output."""
    (programs, tokens, heads), tile = _sizes(joined, cos)
    joined, cos, sin, grad = joined.contiguous(), cos.contiguous(), sin.contiguous(), grad.contiguous()
    out = joined.new_empty(joined.shape)
    if programs:
        _gated_row_grad[(programs,)](
            joined, cos, sin, grad, out, tokens, heads, scale, causal, **tile, LOG2_E=_LOG2_E, num_warps=_warps(tile),
            **_registers(tile),
        )  # fmt: skip
    return out


def _warps(tile: dict[str, int]) -> int:
    return max(tile["TOKENS"] // 16, 1)


def _registers(tile: dict[str, int]) -> dict[str, int]:
    """For small tiles as few registers as let an NVIDIA multiprocessor hold four rows at a time, not three."""
    small = tile["TOKENS"] <= 64 and tile["COLUMNS"] <= 32 and torch.version.hip is None
    return {"maxnreg": 128} if small else {}
