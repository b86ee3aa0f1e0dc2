"""The best experts of every token, where torch's top-k is slow: many rows of few numbers.

A score and its expert become one 64-bit integer whose order is that of the scores, ties to the lower expert, so that
each of the ``active`` rounds is one maximum over the row. Keys are distinct, so also a row of NaN gives experts that
exist, each once: a replica that diverged cannot reach into another's memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 4096  # scores that one program holds


@triton.jit
def _top_experts(
    score, out, rows, experts, ACTIVE: tl.constexpr, EXPERTS: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    expert = tl.arange(0, EXPERTS)
    inside = (row < rows)[:, None] & (expert < experts)[None, :]
    value = tl.load(score + row[:, None] * experts + expert[None, :], mask=inside, other=0.0)
    bits = value.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    key = ordered.to(tl.int64) * 4294967296 + (EXPERTS - 1 - expert)[None, :]
    key = tl.where(inside, key, -9223372036854775808)  # below every score's key
    for choice in range(ACTIVE):
        best = tl.max(key, 1)
        tl.store(out + row * ACTIVE + choice, EXPERTS - 1 - (best & (EXPERTS - 1)), mask=row < rows)
        key = tl.where(key == best[:, None], -9223372036854775808, key)


def top_experts(score: Tensor, active: int) -> Tensor:
    """The ``active`` largest of each row, best first: score [rows, experts] float32 -> [rows, active] int64."""
    rows, experts = score.shape
    out = torch.empty(rows, active, dtype=torch.int64, device=score.device)
    padded = triton.next_power_of_2(experts)
    block = max(_TILE // padded, 1)
    if rows:
        _top_experts[(triton.cdiv(rows, block),)](score.contiguous(), out, rows, experts, active, padded, block)
    return out
