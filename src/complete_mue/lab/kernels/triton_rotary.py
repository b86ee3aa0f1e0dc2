"""Query, key, value and gate out of their common product, query and key rotated; and their gradients back into one.

The compiler's own backward puts the four gradients together element by element, far below the memory's speed.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PARTS = 4
_ROTATED = 2  # query and key
_TILE = 4096  # pairs of channels that one program moves


@triton.jit
def _move_part(
    joined, part, cos, sin, rows, tokens, heads,
    HALF: tl.constexpr, NUMBER: tl.constexpr, PARTS: tl.constexpr, ROTATE: tl.constexpr, BACK: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of one part, both halves of its heads, rows being (token, head); ``BACK`` turns back and into joined."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < HALF)[None, :]
    token, head = row // heads, row % heads
    apart = part + (row * 2 * HALF)[:, None] + column[None, :]
    together = joined + ((token * PARTS + NUMBER) * heads * 2 * HALF + head * 2 * HALF)[:, None] + column[None, :]
    if BACK:
        source, target = apart, together
    else:
        source, target = together, apart
    first = tl.load(source, mask=inside, other=0)
    second = tl.load(source + HALF, mask=inside, other=0)
    if ROTATE:
        at = ((token % tokens) * HALF)[:, None] + column[None, :]
        c = tl.load(cos + at, mask=inside, other=0).to(tl.float32)
        s = tl.load(sin + at, mask=inside, other=0).to(tl.float32)
        if BACK:
            s = -s
        a, b = first.to(tl.float32), second.to(tl.float32)
        first = (a * c - b * s).to(part.dtype.element_ty)
        second = (b * c + a * s).to(part.dtype.element_ty)
    tl.store(target, first, mask=inside)
    tl.store(target + HALF, second, mask=inside)


def _move(joined: Tensor, parts: list[Tensor], cos: Tensor, sin: Tensor, *, back: bool) -> None:
    *_, tokens, heads, head_dim = parts[0].shape
    rows, half = parts[0].numel() // head_dim, head_dim // 2
    columns = triton.next_power_of_2(half)
    block = max(_TILE // columns, 1)
    for number, part in enumerate(parts if rows else []):
        _move_part[(triton.cdiv(rows, block),)](
            joined, part, cos, sin, rows, tokens, heads, half, number, PARTS, number < _ROTATED, back, block, columns
        )


def split(joined: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """joined [..., tokens, 4 width] -> [4, ..., tokens, heads, head_dim]; cos, sin [tokens, head_dim / 2]."""
    head_dim = 2 * cos.shape[-1]
    shape = (*joined.shape[:-1], joined.shape[-1] // PARTS // head_dim, head_dim)
    parts = torch.empty(PARTS, *shape, dtype=joined.dtype, device=joined.device)
    _move(joined.contiguous(), list(parts), cos.contiguous(), sin.contiguous(), back=False)
    return parts


def join(parts: list[Tensor], cos: Tensor, sin: Tensor) -> Tensor:
    """The gradient of ``split``: four of [..., tokens, heads, head_dim] -> [..., tokens, 4 width]."""
    *lead, heads, head_dim = parts[0].shape
    joined = torch.empty(*lead, PARTS * heads * head_dim, dtype=parts[0].dtype, device=parts[0].device)
    _move(joined, [part.contiguous() for part in parts], cos.contiguous(), sin.contiguous(), back=True)
    return joined
