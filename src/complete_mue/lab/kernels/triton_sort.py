"""Sort token-expert pairs by expert on the GPU: histogram, scan, scatter.

No argsort, no host sync and no atomics, so two runs give the same bits. The order is stable: within one expert the
rows follow the tokens. Every expert's rows start at a multiple of `TILE` and the gap is filled with empty rows
(token -1, scale 0), so that a tile of a grouped matrix product belongs to exactly one expert and is always written in
full.

Where several replicas' experts lie side by side and every block of pairs is one replica's, a block counts and sorts
among that replica's experts alone.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 128
PAIRS = 1024  # token-expert pairs that one program counts and scatters


class Rows(NamedTuple):
    """Where each (token, choice) pair sits among the rows sorted by expert."""

    token: Tensor  # [rows] int32, the token of a row; -1 for an empty row
    scale: Tensor  # [rows] float32, the routing weight of a row; 0 for an empty row
    place: Tensor  # [tokens, active] int32, the row of a pair
    start: Tensor  # [experts + 1] int32, the first row of an expert; the last entry is the number of rows in use
    count: Tensor  # [experts] int32, the pairs of an expert
    expert: Tensor  # [rows / TILE] int32, the expert of a tile


def row_capacity(pairs: int, experts: int) -> int:
    """Rows that hold any routing of `pairs` pairs: only an expert with a pair pads its last tile."""
    return triton.cdiv(pairs + min(pairs, experts) * (TILE - 1), TILE) * TILE


# In these kernels `experts` and `blocks` are those of one replica; its experts follow those of the replicas before it.


@triton.jit
def _count_pairs(index, block_count, pairs, experts, blocks, EXPERTS: tl.constexpr, PAIRS: tl.constexpr):
    block = tl.program_id(0)
    at = block * PAIRS + tl.arange(0, PAIRS)
    choice = tl.load(index + at, mask=at < pairs, other=0).to(tl.int32) - block // blocks * experts
    bins = tl.histogram(choice, EXPERTS, mask=at < pairs)
    expert = tl.arange(0, EXPERTS)
    tl.store(block_count + block * experts + expert, bins, mask=expert < experts)


@triton.jit
def _scan_blocks(block_count, count, blocks, experts, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr):
    """Turn each block's counts into the pairs of the same expert in earlier blocks, and total them."""
    replica = tl.program_id(1)
    block_count += replica * blocks * experts
    expert = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.int32)
    for first in range(0, blocks, BLOCKS):
        block = first + tl.arange(0, BLOCKS)
        at = block_count + block[:, None] * experts + expert[None, :]
        inside = (block < blocks)[:, None] & (expert < experts)[None, :]
        here = tl.load(at, mask=inside, other=0)
        tl.store(at, tl.cumsum(here, 0) - here + total[None, :], mask=inside)
        total += tl.sum(here, 0)
    tl.store(count + replica * experts + expert, total, mask=expert < experts)


@triton.jit
def _place_experts(count, start, tile_expert, experts, EXPERTS: tl.constexpr, TILE: tl.constexpr):
    """The first row of every expert of all replicas, and the expert of every tile; one program per expert."""
    mine = tl.program_id(0)
    expert = tl.arange(0, EXPERTS)
    tiles = (tl.load(count + expert, mask=expert < experts, other=0) + TILE - 1) // TILE
    before = tl.sum(tl.where(expert < mine, tiles, 0))
    own = tl.sum(tl.where(expert == mine, tiles, 0))
    tl.store(start + mine, before * TILE)
    if mine == experts - 1:
        tl.store(start + experts, (before + own) * TILE)
    for tile in range(before, before + own):
        tl.store(tile_expert + tile, mine)


@triton.jit
def _scatter_pairs(
    index, weight, block_count, start, token, scale, place, pairs, experts, blocks,
    ACTIVE: tl.constexpr, EXPERTS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Sort one block's pairs by (expert, position) and send each run to its expert's rows."""
    block = tl.program_id(0)
    lane = tl.arange(0, PAIRS)
    at = block * PAIRS + lane
    before = block // blocks * experts  # experts of the replicas before
    choice = tl.load(index + at, mask=at < pairs, other=0).to(tl.int32) - before
    choice = tl.where(at < pairs, choice, EXPERTS)
    key = tl.sort(choice * PAIRS + lane)
    choice = key // PAIRS
    pair = block * PAIRS + key % PAIRS
    inside = choice < EXPERTS
    # The run of an expert begins after all smaller keys of this block: the first lane that holds that expert.
    bins = tl.histogram(choice, EXPERTS, mask=inside)
    first = tl.gather(tl.cumsum(bins, 0) - bins, tl.where(inside, choice, 0), 0)
    row = tl.load(start + before + choice, mask=inside, other=0)
    row += tl.load(block_count + block * experts + choice, mask=inside, other=0) + lane - first
    tl.store(token + row, pair // ACTIVE, mask=inside)
    tl.store(scale + row, tl.load(weight + pair, mask=inside, other=0).to(tl.float32), mask=inside)
    tl.store(place + pair, row, mask=inside)


def sort_rows(index: Tensor, weight: Tensor, experts: int, replicas: int = 1) -> Rows:
    """Sort the pairs of `index` [tokens, active] by expert; `weight` [tokens, active] travels along.

    With `replicas`, each has as many of the tokens and of the experts, side by side, and chooses among its own. The
    result is the same without; known, it saves time.
    """
    tokens, active = index.shape
    pairs = tokens * active
    rows = row_capacity(pairs, experts)
    if pairs % (replicas * PAIRS):  # a block would have pairs of two replicas
        replicas = 1
    own, blocks = experts // replicas, triton.cdiv(pairs, replicas * PAIRS)
    padded = _padded(own)

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=index.device)

    out = Rows(
        token=torch.full((rows,), -1, dtype=torch.int32, device=index.device),
        scale=torch.zeros(rows, dtype=torch.float32, device=index.device),
        place=empty(tokens, active),
        start=empty(experts + 1),
        count=empty(experts),
        expert=empty(rows // TILE),
    )
    index, weight = index.contiguous(), weight.contiguous()
    block_count = empty(replicas * blocks, own)
    _count_pairs[(replicas * blocks,)](index, block_count, pairs, own, blocks, padded, PAIRS)
    at_once = min(_padded(blocks), 128)
    _scan_blocks[(triton.cdiv(own, 16), replicas)](block_count, out.count, blocks, own, at_once, 16)
    _place_experts[(experts,)](out.count, out.start, out.expert, experts, _padded(experts), TILE)
    _scatter_pairs[(replicas * blocks,)](
        index, weight, block_count, out.start, out.token, out.scale, out.place, pairs, own, blocks,
        active, padded, PAIRS, num_warps=4,
    )  # fmt: skip
    return out


def _padded(size: int) -> int:
    """A size that the kernels' histograms and scans take."""
    return max(triton.next_power_of_2(size), 16)
