"""Grouped matrix products for Hopper, written in Gluon: persistent, warp specialized, with fused gathers and epilogues.

One block runs per multiprocessor. A producer fills a ring of shared-memory stages; two consumer warpgroups multiply
128 x 256 tiles out of it, 64 rows each. They wait for each other nowhere but in the ring, so the epilogue of one runs
under the products of the other. Rows picked by token come in by asynchronous copies, all other operands by the tensor
memory accelerator. Results leave through two small panels per consumer and are stored asynchronously while the next
tile's operands arrive; the SwiGLU gradient instead gets its gate and value tiles through the ring and writes its
results over them. Weight gradients can be added to float32 sums as they leave: the copy itself adds, in the L2 cache,
and since one block adds to a place, once, two runs give the same bits.

Axes: rows are (token, choice) pairs sorted by expert, see `triton_sort`. Widths are multiples of 8, in bfloat16 or
float16.
"""

import functools

import torch
import triton
from torch import Tensor
from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from complete_mue.lab.kernels.triton_sort import TILE, Rows

BLOCK_N = 256  # columns of an output tile
BLOCK_K = 64  # one swizzle atom of 128 bytes
HALF = TILE // 2  # rows of an output tile that one consumer warpgroup holds
STAGES = 4
ROWS_GROUP, EXPERTS_GROUP = 4, 16  # rows of tiles walked together, see `_tile_at`; chosen on whole layers
PLAIN, UP, GRAD = 0, 1, 2  # epilogues: store; SwiGLU; SwiGLU's gradient

_M = gl.constexpr(TILE)
_N = gl.constexpr(BLOCK_N)
_K = gl.constexpr(BLOCK_K)
_HALF = gl.constexpr(HALF)
_PLAIN = gl.constexpr(PLAIN)
_UP = gl.constexpr(UP)
_GRAD = gl.constexpr(GRAD)
_COPIERS = gl.constexpr(128)  # producer threads when rows are gathered
_PANEL = gl.constexpr(TILE * BLOCK_K * 2)  # bytes of a third of a stage, [128, 64]


@builtin
def _async_add_shared_to_global(tensor_desc, coord, src, _semantic=None):
    """`tma.async_copy_shared_to_global` that adds to what is there; Gluon has the operation, and no name for it."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)


@gluon.jit
def _tile_at(tile, tiles_m, tiles_n, group):
    """Walk `group` rows of tiles column by column, so that the blocks at work share operands in the L2 cache."""
    band = group * tiles_n
    first = tile // band * group
    size = gl.minimum(tiles_m - first, group)
    within = tile % band
    return first + within % size, within // size


@gluon.jit
def _split_columns(x, COLUMNS: gl.constexpr):
    """Split [64, 2 * COLUMNS] into its left and right [64, COLUMNS]; every value stays in its register."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    left, right = gl.split(gl.permute(gl.reshape(x, [_HALF, 2, COLUMNS]), (0, 2, 1)))
    return gl.convert_layout(left, layout, assert_trivial=True), gl.convert_layout(right, layout, assert_trivial=True)


@gluon.jit
def _sigmoid(x):
    # Two special-function instructions; a full division would take most of an epilogue's time.
    grown = 1 + gl.exp2(x * -1.4426950408889634)
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [grown], gl.float32, is_pure=True, pack=1)


@gluon.jit
def _panel(ring_a, ring_b, stage, WHICH: gl.constexpr):
    """One of the three [128, 64] panels of a stage."""
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    panel = ring_a.index(stage)._reinterpret(ring_a.dtype, [_M, _K], layout)
    if WHICH > 0:
        panel = ring_b.index(stage)._reinterpret(ring_b.dtype, [2, _M, _K], layout).index(WHICH - 1)
    return panel


@gluon.jit
def _half(panel, SIDE: gl.constexpr):
    """The 8 KiB of a panel that belong to one consumer, as [64, 64]."""
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    return panel._reinterpret(panel.dtype, [2, _HALF, _K], layout).index(SIDE)


@gluon.jit
def _cube(memory, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Shared memory as one slice of a stack of matrices, the shape in which an expert's weights are copied."""
    return memory._reinterpret(memory.dtype, [1, ROWS, COLUMNS], gl.NVMMASharedLayout(128, 16, 3))


@gluon.jit
def _release(empty, step, pred, STAGES: gl.constexpr):
    """Give the stage of the step before `step` back, once all threads of this consumer are done with it."""
    gl.thread_barrier()
    mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=pred)


@gluon.jit
def _wait_ready(ready, step, STAGES: gl.constexpr):
    mbarrier.wait(ready.index(step % STAGES), step // STAGES & 1)


@gluon.jit
def _wait_empty(empty, step, STAGES: gl.constexpr):
    mbarrier.wait(empty.index(step % STAGES), (step // STAGES & 1) ^ 1)


@gluon.jit
def _make_ring(dtype: gl.constexpr, B_SHAPE: gl.constexpr, GATHER: gl.constexpr, STAGES: gl.constexpr):
    """The operands' ring, and for each stage a barrier that says it is filled and one that says it is free."""
    tiles: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    ring_a = gl.allocate_shared_memory(dtype, [STAGES, _M, _K], tiles)
    ring_b = gl.allocate_shared_memory(dtype, [STAGES, B_SHAPE[0], B_SHAPE[1]], tiles)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=_COPIERS + 1 if GATHER else 1)
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    return ring_a, ring_b, ready, empty


@gluon.jit
def _make_staging(dtype: gl.constexpr):
    """Two [64, 64] panels for each consumer, through which results leave in turn; of float32 [64, 32]."""
    bits: gl.constexpr = dtype.primitive_bitwidth
    return gl.allocate_shared_memory(dtype, [4, _HALF, 1024 // bits], gl.NVMMASharedLayout(128, bits, 2))


@gluon.jit
def _put(x, panel, FLIP: gl.constexpr):
    """Write [64, 64] to a panel for an asynchronous store; only the other panel's store may still be under way."""
    tma.store_wait(1)
    gl.thread_barrier()
    if FLIP:
        panel.permute((1, 0)).store(x.to(panel.dtype))
    else:
        panel.store(x.to(panel.dtype))
    fence_async_shared()
    gl.thread_barrier()


@gluon.jit
def _store_tile(acc, out, expert, row, column, staging, SIDE: gl.constexpr, STACKED: gl.constexpr, FLIP: gl.constexpr):
    """Store this consumer's [64, 256] at [row, column], or with `FLIP` its transpose at [column, row]."""
    left, right = _split_columns(acc, 128)
    part_0, part_1 = _split_columns(left, 64)
    part_2, part_3 = _split_columns(right, 64)
    for part in gl.static_range(4):
        x = part_0 if part == 0 else (part_1 if part == 1 else (part_2 if part == 2 else part_3))
        at = column + part * _K
        panel = staging.index(2 * SIDE + part % 2)
        _put(x, panel, FLIP)
        if not STACKED:
            tma.async_copy_shared_to_global(out, [row, at], panel)
        elif FLIP:
            tma.async_copy_shared_to_global(out, [expert, at, row], _cube(panel, _K, _HALF))
        else:
            tma.async_copy_shared_to_global(out, [expert, row, at], _cube(panel, _HALF, _K))


@gluon.jit
def _add_tile(acc, out, expert, row, column, staging, SIDE: gl.constexpr, FLIP: gl.constexpr):
    """Add this consumer's [64, 256] to float32 sums at [row, column], or with `FLIP` its transpose at [column, row]."""
    wide: gl.constexpr = _K // 2
    shape: gl.constexpr = [wide, _HALF] if FLIP else [_HALF, wide]
    left, right = _split_columns(acc, 128)
    part_0, part_1 = _split_columns(left, 64)
    part_2, part_3 = _split_columns(right, 64)
    for part in gl.static_range(8):
        quarter = part_0 if part < 2 else (part_1 if part < 4 else (part_2 if part < 6 else part_3))
        first, second = _split_columns(quarter, wide)
        x = first if part % 2 == 0 else second
        at = column + part * wide
        memory = staging.index(2 * SIDE + part % 2)
        panel = memory._reinterpret(memory.dtype, shape, gl.NVMMASharedLayout(128, 32, 2))
        _put(x, panel, FLIP)
        cube = memory._reinterpret(memory.dtype, [1, shape[0], shape[1]], gl.NVMMASharedLayout(128, 32, 3))
        if FLIP:
            _async_add_shared_to_global(out, [expert, at, row], cube)
        else:
            _async_add_shared_to_global(out, [expert, row, at], cube)


@gluon.jit
def _rows_producer(
    source, a_desc, b_desc, gate_in, value_in, token, tile_expert, start, experts, group, ring_a, ring_b, ready, empty,
    N: gl.constexpr, K: gl.constexpr, EPILOGUE: gl.constexpr, GATHER: gl.constexpr, TRANSPOSED: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    lanes: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    tiles_m = gl.load(start + experts) // _M
    per_tile: gl.constexpr = _M if EPILOGUE == _UP else _N
    tiles_n: gl.constexpr = (N + per_tile - 1) // per_tile
    step = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        m, n = _tile_at(tile, tiles_m, tiles_n, group)
        expert = gl.load(tile_expert + m)
        if GATHER:
            row = gl.arange(0, _M, gl.SliceLayout(1, lanes))
            column = gl.arange(0, _K, gl.SliceLayout(0, lanes))
            picked = gl.load(token + m * _M + row)
            live = gl.expand_dims(picked >= 0, 1)
            offset = gl.where(picked >= 0, picked, 0).to(gl.int64) * K
            pointers = source + gl.expand_dims(offset, 1) + gl.expand_dims(column, 0)
        for k in range(0, K, _K):
            stage = step % STAGES
            bar = ready.index(stage)
            _wait_empty(empty, step, STAGES)
            if GATHER:
                mbarrier.expect(bar, 2 * _PANEL)
            else:
                mbarrier.expect(bar, 3 * _PANEL)
                tma.async_copy_global_to_shared(a_desc, [m * _M, k], bar, ring_a.index(stage))
            if EPILOGUE == _UP:
                gate = _cube(_panel(ring_a, ring_b, stage, 1), _M, _K)
                value = _cube(_panel(ring_a, ring_b, stage, 2), _M, _K)
                tma.async_copy_global_to_shared(b_desc, [2 * expert, n * _M, k], bar, gate)
                tma.async_copy_global_to_shared(b_desc, [2 * expert + 1, n * _M, k], bar, value)
            elif TRANSPOSED:
                tma.async_copy_global_to_shared(b_desc, [expert, k, n * _N], bar, _cube(ring_b.index(stage), _K, _N))
            else:
                tma.async_copy_global_to_shared(b_desc, [expert, n * _N, k], bar, _cube(ring_b.index(stage), _N, _K))
            if GATHER:
                mask = live
                if K % _K != 0:
                    mask = live & gl.expand_dims(column + k < K, 0)
                async_copy.async_copy_global_to_shared(ring_a.index(stage), pointers + k, mask, cache_modifier=".cg")
                async_copy.mbarrier_arrive(bar, increment_count=False)
            step += 1
        if EPILOGUE == _GRAD:
            for part in gl.static_range(4):
                stage = step % STAGES
                bar = ready.index(stage)
                _wait_empty(empty, step, STAGES)
                mbarrier.expect(bar, 2 * _PANEL)
                at = n * _N + part * _K
                tma.async_copy_global_to_shared(gate_in, [m * _M, at], bar, _panel(ring_a, ring_b, stage, 0))
                tma.async_copy_global_to_shared(value_in, [m * _M, at], bar, _panel(ring_a, ring_b, stage, 1))
                if GATHER:
                    mbarrier.arrive(bar, count=_COPIERS)
                step += 1


@gluon.jit
def _rows_consumer(
    out_0, out_1, out_2, scale, partial, start, experts, rows, group, ring_a, ring_b, ready, empty, staging,
    SIDE: gl.constexpr, N: gl.constexpr, K: gl.constexpr, EPILOGUE: gl.constexpr, GATHER: gl.constexpr,
    TRANSPOSED: gl.constexpr, KEEP: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _N, 16])
    narrow: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _K, 16])
    dtype: gl.constexpr = ring_a.dtype
    tiles_m = gl.load(start + experts) // _M
    per_tile: gl.constexpr = _M if EPILOGUE == _UP else _N
    tiles_n: gl.constexpr = (N + per_tile - 1) // per_tile
    step = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        m, n = _tile_at(tile, tiles_m, tiles_n, group)
        acc = gl.zeros([_HALF, _N], gl.float32, layout)
        for k in range(0, K, _K):
            stage = step % STAGES
            _wait_ready(ready, step, STAGES)
            if GATHER:
                fence_async_shared()
            a = _half(ring_a.index(stage), SIDE)
            b = ring_b.index(stage)
            acc = warpgroup_mma(a, b if TRANSPOSED else b.permute((1, 0)), acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=(acc,))
            if EPILOGUE == _GRAD:
                if k == 0:
                    tma.store_wait(0)
                _release(empty, step, step > 0, STAGES)
            else:
                _release(empty, step, k > 0, STAGES)
            step += 1
        acc = warpgroup_mma_wait(0, deps=(acc,))
        _release(empty, step, True, STAGES)
        row = m * _M + SIDE * _HALF
        if EPILOGUE == _PLAIN:
            _store_tile(acc, out_0, 0, row, n * _N, staging, SIDE, False, False)
        elif EPILOGUE == _UP:
            gates, values = _split_columns(acc, 128)
            gate_0, gate_1 = _split_columns(gates, 64)
            value_0, value_1 = _split_columns(values, 64)
            for part in gl.static_range(2):
                gate = gate_0 if part == 0 else gate_1
                value = value_0 if part == 0 else value_1
                at = n * _M + part * _K
                panel = staging.index(2 * SIDE + part)
                other = staging.index(2 * SIDE + 1 - part)
                if KEEP:
                    _put(gate, panel, False)
                    tma.async_copy_shared_to_global(out_0, [row, at], panel)
                    _put(value, other, False)
                    tma.async_copy_shared_to_global(out_1, [row, at], other)
                _put(gate * _sigmoid(gate) * value, panel, False)
                tma.async_copy_shared_to_global(out_2, [row, at], panel)
        else:
            lines = row + gl.arange(0, _HALF, gl.SliceLayout(1, narrow))
            weight = gl.expand_dims(gl.load(scale + lines), 1)
            total = gl.zeros([_HALF], gl.float32, gl.SliceLayout(1, narrow))
            left, right = _split_columns(acc, 128)
            part_0, part_1 = _split_columns(left, 64)
            part_2, part_3 = _split_columns(right, 64)
            for part in gl.static_range(4):
                grad = part_0 if part == 0 else (part_1 if part == 1 else (part_2 if part == 2 else part_3))
                _wait_ready(ready, step, STAGES)
                stage = step % STAGES
                at = n * _N + part * _K
                panel_0 = _half(_panel(ring_a, ring_b, stage, 0), SIDE)
                panel_1 = _half(_panel(ring_a, ring_b, stage, 1), SIDE)
                panel_2 = _half(_panel(ring_a, ring_b, stage, 2), SIDE)
                gate = panel_0.load(narrow).to(gl.float32)
                value = panel_1.load(narrow).to(gl.float32)
                sigmoid = _sigmoid(gate)
                silu = gate * sigmoid
                act = silu * value
                total += gl.sum(grad * act, 1)
                grad = grad * weight
                slope = sigmoid + silu - silu * sigmoid
                gl.thread_barrier()
                panel_0.store((grad * value * slope).to(dtype))
                panel_1.store((grad * silu).to(dtype))
                panel_2.store((act * weight).to(dtype))
                fence_async_shared()
                gl.thread_barrier()
                tma.async_copy_shared_to_global(out_0, [row, at], panel_0)
                tma.async_copy_shared_to_global(out_1, [row, at], panel_1)
                tma.async_copy_shared_to_global(out_2, [row, at], panel_2)
                if part > 0:
                    tma.store_wait(3)
                    _release(empty, step, True, STAGES)
                step += 1
            gl.store(partial + n * rows.to(gl.int64) + lines, total)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["group"])
def _rows_kernel(
    source, a_desc, b_desc, gate_in, value_in, out_0, out_1, out_2, token, tile_expert, start, scale, partial,
    experts, rows, group,
    N: gl.constexpr, K: gl.constexpr, EPILOGUE: gl.constexpr, GATHER: gl.constexpr, TRANSPOSED: gl.constexpr,
    KEEP: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    B_SHAPE: gl.constexpr = (_K, _N) if TRANSPOSED else (_N, _K)
    ring_a, ring_b, ready, empty = _make_ring(b_desc.dtype, B_SHAPE, GATHER, STAGES)
    staging = ring_a if EPILOGUE == _GRAD else _make_staging(b_desc.dtype)
    gl.warp_specialize(
        [
            (_rows_consumer, (
                out_0, out_1, out_2, scale, partial, start, experts, rows, group, ring_a, ring_b, ready, empty,
                staging, 0, N, K, EPILOGUE, GATHER, TRANSPOSED, KEEP, STAGES,
            )),
            (_rows_consumer, (
                out_0, out_1, out_2, scale, partial, start, experts, rows, group, ring_a, ring_b, ready, empty,
                staging, 1, N, K, EPILOGUE, GATHER, TRANSPOSED, KEEP, STAGES,
            )),
            (_rows_producer, (
                source, a_desc, b_desc, gate_in, value_in, token, tile_expert, start, experts, group, ring_a, ring_b,
                ready, empty, N, K, EPILOGUE, GATHER, TRANSPOSED, STAGES,
            )),
        ],
        [4, 4 if GATHER else 1],
        [216 if GATHER else 232, 80 if GATHER else 40],
    )  # fmt: skip


@gluon.jit
def _expert_producer(
    source, rows_desc, token, start, count, experts, group, ring_a, ring_b, ready, empty,
    M: gl.constexpr, N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    lanes: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    tiles_m: gl.constexpr = (M + _M - 1) // _M
    tiles_n: gl.constexpr = (N + _N - 1) // _N
    line = gl.arange(0, _K, gl.SliceLayout(1, lanes))
    step = 0
    for tile in range(gl.program_id(0), experts * tiles_m * tiles_n, gl.num_programs(0)):
        expert = tile // (tiles_m * tiles_n)
        m, n = _tile_at(tile % (tiles_m * tiles_n), tiles_m, tiles_n, group)
        first = gl.load(start + expert)
        pairs = gl.load(count + expert)
        column = m * _M + gl.arange(0, _M, gl.SliceLayout(0, lanes))
        picked = gl.load(token + first + line, mask=line < pairs, other=-1)
        for k in range(0, pairs, _K):
            stage = step % STAGES
            bar = ready.index(stage)
            following = gl.load(token + first + k + _K + line, mask=k + _K + line < pairs, other=-1)
            mask = gl.expand_dims(picked >= 0, 1)
            if M % _M != 0:
                mask = mask & gl.expand_dims(column < M, 0)
            offset = gl.where(picked >= 0, picked, 0).to(gl.int64) * M
            pointers = source + gl.expand_dims(offset, 1) + gl.expand_dims(column, 0)
            _wait_empty(empty, step, STAGES)
            mbarrier.expect(bar, 2 * _PANEL)
            tma.async_copy_global_to_shared(rows_desc, [first + k, n * _N], bar, ring_b.index(stage))
            tile_a = ring_a.index(stage)._reinterpret(ring_a.dtype, [_K, _M], gl.NVMMASharedLayout(128, 16, 2))
            async_copy.async_copy_global_to_shared(tile_a, pointers, mask, cache_modifier=".cg")
            async_copy.mbarrier_arrive(bar, increment_count=False)
            picked = following
            step += 1


@gluon.jit
def _expert_consumer(
    out, count, experts, group, ring_a, ring_b, ready, empty, staging,
    SIDE: gl.constexpr, M: gl.constexpr, N: gl.constexpr, FLIP: gl.constexpr, ADD: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _N, 16])
    tiles_m: gl.constexpr = (M + _M - 1) // _M
    tiles_n: gl.constexpr = (N + _N - 1) // _N
    step = 0
    pairs = gl.load(count + gl.minimum(gl.program_id(0) // (tiles_m * tiles_n), experts - 1))
    for tile in range(gl.program_id(0), experts * tiles_m * tiles_n, gl.num_programs(0)):
        expert = tile // (tiles_m * tiles_n)
        m, n = _tile_at(tile % (tiles_m * tiles_n), tiles_m, tiles_n, group)
        following = gl.load(count + gl.minimum((tile + gl.num_programs(0)) // (tiles_m * tiles_n), experts - 1))
        acc = gl.zeros([_HALF, _N], gl.float32, layout)
        for k in range(0, pairs, _K):
            stage = step % STAGES
            _wait_ready(ready, step, STAGES)
            fence_async_shared()
            # [tokens, 128] lies in shared memory as two blocks of [tokens, 64], one for each consumer.
            a = _half(ring_a.index(stage), SIDE)
            acc = warpgroup_mma(a.permute((1, 0)), ring_b.index(stage), acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=(acc,))
            _release(empty, step, k > 0, STAGES)
            step += 1
        acc = warpgroup_mma_wait(0, deps=(acc,))
        _release(empty, step, pairs > 0, STAGES)
        if not ADD:
            _store_tile(acc, out, expert, m * _M + SIDE * _HALF, n * _N, staging, SIDE, True, FLIP)
        elif pairs > 0:
            _add_tile(acc, out, expert, m * _M + SIDE * _HALF, n * _N, staging, SIDE, FLIP)
        pairs = following
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["group"])
def _expert_kernel(
    source, rows_desc, out, token, start, count, experts, group,
    M: gl.constexpr, N: gl.constexpr, FLIP: gl.constexpr, ADD: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    ring_a, ring_b, ready, empty = _make_ring(rows_desc.dtype, (_K, _N), True, STAGES)
    staging = _make_staging(out.dtype)
    gl.warp_specialize(
        [
            (_expert_consumer, (
                out, count, experts, group, ring_a, ring_b, ready, empty, staging, 0, M, N, FLIP, ADD, STAGES,
            )),
            (_expert_consumer, (
                out, count, experts, group, ring_a, ring_b, ready, empty, staging, 1, M, N, FLIP, ADD, STAGES,
            )),
            (_expert_producer, (
                source, rows_desc, token, start, count, experts, group, ring_a, ring_b, ready, empty, M, N, STAGES,
            )),
        ],
        [4, 4],
        [216, 80],
    )  # fmt: skip


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _aligned(tensor: Tensor) -> Tensor:
    """The tensor, copied if it starts at an address that 16-byte copies cannot take."""
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _tiled(tensor: Tensor, *block: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout(128, 8 * tensor.itemsize, len(block))
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block), layout)


def _launch_rows(
    source: Tensor, b: TensorDescriptor, outs: tuple[Tensor, ...], rows: Rows, width_n: int, width_k: int,
    *, epilogue: int = PLAIN, gather: bool, transposed: bool, keep: bool = True,
    hidden: tuple[Tensor, Tensor] | None = None, partial: Tensor | None = None,
) -> None:  # fmt: skip
    stores = [_tiled(out, HALF, BLOCK_K) for out in outs]
    a = stores[0] if gather else _tiled(source, TILE, BLOCK_K)
    gate_in, value_in = [_tiled(half, TILE, BLOCK_K) for half in hidden] if hidden else (stores[0], stores[0])
    _rows_kernel[(_processors(source.device),)](
        source, a, b, gate_in, value_in, stores[0], stores[len(stores) // 2], stores[-1],
        rows.token, rows.expert, rows.start, rows.scale, rows.scale if partial is None else partial,
        rows.count.numel(), rows.token.numel(), ROWS_GROUP,
        width_n, width_k, epilogue, gather, transposed, keep, STAGES, num_warps=4,
    )  # fmt: skip


def up_swiglu(x: Tensor, up: Tensor, rows: Rows, keep: bool) -> tuple[Tensor, Tensor]:
    """Gather, up projection and SwiGLU in one product.

    x [tokens, width], up [experts, 2 * expert_width, width] -> hidden [rows, 2 * expert_width] (empty unless `keep`),
    activation [rows, expert_width]
    """
    x, up = _aligned(x), _aligned(up)
    experts, both, width = up.shape
    h, count = both // 2, rows.token.numel()
    hidden = x.new_empty(count if keep else 0, both)
    act = x.new_empty(count, h)
    _launch_rows(
        x, _tiled(up.view(2 * experts, h, width), 1, TILE, BLOCK_K),
        (hidden[:, :h], hidden[:, h:], act) if keep else (act,), rows, h, width,
        epilogue=UP, gather=True, transposed=False, keep=keep,
    )  # fmt: skip
    return hidden, act


def rows_product(a: Tensor, b: Tensor, rows: Rows, *, transposed: bool) -> Tensor:
    """Each row times its expert's matrix.

    a [rows, k]; b [experts, n, k], or [experts, k, n] when `transposed` -> [rows, n]
    """
    a, b = _aligned(a), _aligned(b)
    n, k = (b.shape[2], b.shape[1]) if transposed else (b.shape[1], b.shape[2])
    out = a.new_empty(a.shape[0], n)
    block = (1, BLOCK_K, BLOCK_N) if transposed else (1, BLOCK_N, BLOCK_K)
    _launch_rows(a, _tiled(b, *block), (out,), rows, n, k, gather=False, transposed=transposed)
    return out


def swiglu_grad(grad: Tensor, hidden: Tensor, down: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """Gather, down projection's gradient, SwiGLU's gradient and the routing weights' gradient in one product.

    grad [tokens, width], hidden [rows, 2 * expert_width], down [experts, width, expert_width] ->
    gradient of hidden, scale * activation [rows, expert_width], parts of the scale's gradient [parts, rows]
    """
    grad, down = _aligned(grad), _aligned(down)
    _, width, h = down.shape
    hidden_grad = torch.empty_like(hidden)
    scaled = grad.new_empty(hidden.shape[0], h)
    partial = torch.empty(triton.cdiv(h, BLOCK_N), hidden.shape[0], dtype=torch.float32, device=grad.device)
    _launch_rows(
        grad, _tiled(down, 1, BLOCK_K, BLOCK_N), (hidden_grad[:, :h], hidden_grad[:, h:], scaled), rows, h, width,
        epilogue=GRAD, gather=True, transposed=True, partial=partial, hidden=(hidden[:, :h], hidden[:, h:]),
    )  # fmt: skip
    return hidden_grad, scaled, partial


def expert_product(by_token: Tensor, by_row: Tensor, rows: Rows, *, flip: bool, total: Tensor | None = None) -> Tensor:
    """by_token^T by_row over each expert's rows, or with `flip` its transpose by_row^T by_token.

    by_token [tokens, m], by_row [rows, n] -> [experts, m, n] (`flip`: [experts, n, m]), exactly zero for an expert
    without rows; or added to a float32 `total` of that shape. The token side is always the 128-wide one of a tile,
    since its rows are gathered by threads.
    """
    by_token, by_row = _aligned(by_token), _aligned(by_row)
    experts, m, n = rows.count.numel(), by_token.shape[1], by_row.shape[1]
    if total is None:
        out = by_token.new_empty(experts, *((n, m) if flip else (m, n)))
        stored = _tiled(out, 1, HALF, BLOCK_K)
    else:
        out = total
        stored = _tiled(out, 1, *((BLOCK_K // 2, HALF) if flip else (HALF, BLOCK_K // 2)))
    _expert_kernel[(_processors(out.device),)](
        by_token, _tiled(by_row, BLOCK_K, BLOCK_N), stored, rows.token, rows.start, rows.count, experts, EXPERTS_GROUP,
        m, n, flip, total is not None, STAGES, num_warps=4,
    )  # fmt: skip
    return out
