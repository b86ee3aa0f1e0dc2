"""The routed part of an MoE layer on one NVIDIA Hopper GPU.

Forward: sort the (token, choice) pairs by expert; up projection with the gather in its loads and SwiGLU in its
epilogue; down projection; each token gathers and sums its rows. Backward: one product reads the output's gradient by
token and the saved gate and value, and writes the gradient of both, the scaled activation and the routing weights'
gradient, so the experts' outputs are never stored; then the weight gradients, which gather in their loads, and the
gather-sum of dx.

Everything is deterministic and free of host syncs. bfloat16 and float16 with widths that are multiples of 8 take the
Hopper kernels; narrow experts, other dtypes and other widths take plain Triton kernels, float32 in full precision.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from complete_mue.lab.kernels.triton_sort import Rows

MAX_EXPERTS = 1023
NARROW = 32  # experts as wide as this, or less, are served by tiles of their own width


def unavailable(x: Tensor, up: Tensor) -> str | None:
    """Why `routed_experts` cannot run on these tensors of a Hopper GPU, in one line; None when it can."""
    import triton

    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 6):
        return f"needs Triton 3.6 or newer; this one is {triton.__version__}"
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"takes float32, bfloat16 or float16; this tensor is {x.dtype}"
    if up.dtype != x.dtype and not torch.is_autocast_enabled("cuda"):
        return f"takes one dtype outside autocast; x is {x.dtype} and the experts are {up.dtype}"
    if up.shape[0] > MAX_EXPERTS:
        return f"takes at most {MAX_EXPERTS} experts; this layer has {up.shape[0]}"
    return None


def routed_experts(
    x: Tensor, up: Tensor, down: Tensor, index: Tensor, weight: Tensor, *, totals: tuple[Tensor, Tensor] | None = None,
    replicas: int = 1,
) -> Tensor:  # fmt: skip
    """y[t] = sum_j weight[t, j] * down[index[t, j]] @ (silu(gate) * value), [gate; value] = up[index[t, j]] @ x[t].

    x [tokens, width], up [experts, 2 * expert_width, width] (gate rows first), down [experts, width, expert_width],
    index [tokens, active] (distinct per token), weight [tokens, active] -> [tokens, width] in the dtype of x
    (under autocast in the autocast dtype). Gradients flow to x, up, down and weight.

    The Hopper kernels add the gradients of up and down to ``totals`` instead, float32 and of their shapes, where they
    are given. ``replicas`` says how many models' tokens and experts lie side by side, as many of each; it changes no
    result and saves time.
    """
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, up, down = x.to(dtype), up.to(dtype), down.to(dtype)
    # Inside `forward` no tensor says that it needs a gradient, so whether to keep the hidden rows is decided here.
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (x, up, down, weight))
    up_total, down_total = totals if totals and _hopper(down.shape[2], down.shape[1], x.dtype) else (None, None)
    index = index.reshape(replicas, index.shape[0] // replicas, index.shape[1])
    with torch.autocast(x.device.type, enabled=False):
        return _RoutedExperts.apply(x, up, down, index, weight, keep, up_total, down_total)


class _RoutedExperts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, up: Tensor, down: Tensor, index: Tensor, weight: Tensor, keep: bool,
        up_total: Tensor | None, down_total: Tensor | None,
    ) -> Tensor:  # fmt: skip
        x, up, down = x.contiguous(), up.contiguous(), down.contiguous()
        ctx.weight_dtype = weight.dtype
        if index.numel() == 0:
            ctx.save_for_backward(x, up, down, weight)
            return torch.zeros_like(x)
        rows = _sort(index.flatten(0, 1), weight, up.shape[0], index.shape[0])
        hidden, act = _up_swiglu(x, up, *rows, keep)
        y = _gather_sum(_rows_product(act, down, *rows, False), rows[2], weight)
        totals = () if up_total is None or down_total is None else (up_total, down_total)
        ctx.save_for_backward(x, up, down, hidden, *rows, *totals)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, up, down, hidden, *rest = ctx.saved_tensors
        rows, totals = rest[:6], rest[6:]
        if not rows:  # no pairs at all
            dx, dup, ddown, dweight = (torch.zeros_like(t) for t in (x, up, down, hidden))
            return dx, dup, ddown, None, dweight, None, None, None
        if not torch.compiler.is_compiling():
            # Lets the hidden rows go before the largest gradient is allocated, unless the graph is kept.
            ctx.maybe_clear_saved_tensors()
        need_x, need_up, need_down, _, need_weight, *_ = ctx.needs_input_grad
        add = len(totals) > 0 and need_up and need_down and need_weight
        grad = grad.contiguous()
        dx = dup = ddown = dweight = None
        hidden_grad, scaled, partial = _swiglu_grad(grad, hidden, down, *rows)
        del hidden
        if add:
            dweight = _add_expert_products(*totals, x, hidden_grad, grad, scaled, partial, *rows)
        elif need_weight:
            dweight = _collect_scale_grad(partial, rows[2])
        if need_down and not add:
            ddown = _expert_product(grad, scaled, *rows, False)
        del scaled, partial
        if need_x:
            dx = _gather_sum(_rows_product(hidden_grad, up, *rows, True), rows[2], None)
        if need_up and not add:
            dup = _expert_product(x, hidden_grad, *rows, True)
        return dx, dup, ddown, None, None if dweight is None else dweight.to(ctx.weight_dtype), None, None, None


def _on_its_device(step: Callable[..., Any]) -> Callable[..., Any]:
    """Launch on the device of the step's first tensor, whichever device is current."""

    @functools.wraps(step)
    def run(*args: Any) -> Any:
        with torch.cuda.device_of(args[0]):
            return step(*args)

    return run


def _products(expert_width: int, width: int, dtype: torch.dtype) -> Any:
    """The module of the matrix products for experts of that width."""
    if _hopper(expert_width, width, dtype):
        from complete_mue.lab.kernels import triton_hopper

        return triton_hopper
    from complete_mue.lab.kernels import triton_gemm

    return triton_gemm


def _hopper(expert_width: int, width: int, dtype: torch.dtype) -> bool:
    return expert_width > NARROW and dtype.itemsize == 2 and expert_width % 8 == 0 and width % 8 == 0


def _rows(*parts: Tensor) -> "Rows":
    from complete_mue.lab.kernels.triton_sort import Rows

    return Rows(*parts)


# Each step is one opaque operator, so that torch.compile sees a graph without breaks and frees buffers in between.
# `token, scale, place, start, count, expert` are the fields of `triton_sort.Rows`.


@torch.library.custom_op("complete_mue::sort_rows", mutates_args=())
@_on_its_device
def _sort(
    index: Tensor, weight: Tensor, experts: int, replicas: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    from complete_mue.lab.kernels.triton_sort import sort_rows

    return tuple(sort_rows(index, weight, experts, replicas))


@_sort.register_fake
def _(index: Tensor, weight: Tensor, experts: int, replicas: int) -> tuple[Tensor, ...]:
    from complete_mue.lab.kernels.triton_sort import TILE

    def empty(*shape: Any, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=index.device)

    pairs = index.shape[0] * index.shape[1]
    tiles = (pairs + torch.sym_min(pairs, experts) * (TILE - 1) + TILE - 1) // TILE
    rows = tiles * TILE
    return (
        empty(rows), empty(rows, dtype=torch.float32), empty(*index.shape),
        empty(experts + 1), empty(experts), empty(tiles),
    )  # fmt: skip


@torch.library.custom_op("complete_mue::up_swiglu", mutates_args=())
@_on_its_device
def _up_swiglu(
    x: Tensor, up: Tensor, token: Tensor, scale: Tensor, place: Tensor, start: Tensor, count: Tensor, expert: Tensor,
    keep: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    products = _products(up.shape[1] // 2, x.shape[1], x.dtype)
    return products.up_swiglu(x, up, _rows(token, scale, place, start, count, expert), keep)


@_up_swiglu.register_fake
def _(x: Tensor, up: Tensor, token: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    keep = rest[-1]
    return x.new_empty(token.shape[0] if keep else 0, up.shape[1]), x.new_empty(token.shape[0], up.shape[1] // 2)


@torch.library.custom_op("complete_mue::rows_product", mutates_args=())
@_on_its_device
def _rows_product(
    a: Tensor, b: Tensor, token: Tensor, scale: Tensor, place: Tensor, start: Tensor, count: Tensor, expert: Tensor,
    transposed: bool,
) -> Tensor:  # fmt: skip
    expert_width, width = (b.shape[1] // 2, b.shape[2]) if transposed else (b.shape[2], b.shape[1])
    products = _products(expert_width, width, a.dtype)
    return products.rows_product(a, b, _rows(token, scale, place, start, count, expert), transposed=transposed)


@_rows_product.register_fake
def _(a: Tensor, b: Tensor, *rest: Any) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[2] if rest[-1] else b.shape[1])


@torch.library.custom_op("complete_mue::swiglu_grad", mutates_args=())
@_on_its_device
def _swiglu_grad(
    grad: Tensor, hidden: Tensor, down: Tensor,
    token: Tensor, scale: Tensor, place: Tensor, start: Tensor, count: Tensor, expert: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    products = _products(down.shape[2], down.shape[1], grad.dtype)
    return products.swiglu_grad(grad, hidden, down, _rows(token, scale, place, start, count, expert))


@_swiglu_grad.register_fake
def _(grad: Tensor, hidden: Tensor, down: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    h = down.shape[2]
    parts = (h + 255) // 256 if _hopper(h, down.shape[1], grad.dtype) else 1
    partial = hidden.new_empty(parts, hidden.shape[0], dtype=torch.float32)
    return torch.empty_like(hidden), hidden.new_empty(hidden.shape[0], h), partial


@torch.library.custom_op("complete_mue::expert_product", mutates_args=())
@_on_its_device
def _expert_product(
    by_token: Tensor, by_row: Tensor,
    token: Tensor, scale: Tensor, place: Tensor, start: Tensor, count: Tensor, expert: Tensor, flip: bool,
) -> Tensor:  # fmt: skip
    products = _products(by_row.shape[1] // (2 if flip else 1), by_token.shape[1], by_token.dtype)
    return products.expert_product(by_token, by_row, _rows(token, scale, place, start, count, expert), flip=flip)


@_expert_product.register_fake
def _(by_token: Tensor, by_row: Tensor, *rest: Any) -> Tensor:
    m, n = by_token.shape[1], by_row.shape[1]
    return by_token.new_empty(rest[4].shape[0], *((n, m) if rest[-1] else (m, n)))


# It changes the totals and does not say so, lest torch.compile copy them to keep them as they were: nothing else in a
# graph reads them. It returns the routing weights' gradient, so that it is not dropped as without effect.
@torch.library.custom_op("complete_mue::add_expert_products", mutates_args=())
@_on_its_device
def _add_expert_products(
    up_total: Tensor, down_total: Tensor, x: Tensor, hidden_grad: Tensor, grad: Tensor, scaled: Tensor, partial: Tensor,
    token: Tensor, scale: Tensor, place: Tensor, start: Tensor, count: Tensor, expert: Tensor,
) -> Tensor:  # fmt: skip
    from complete_mue.lab.kernels.triton_glue import collect_scale_grad
    from complete_mue.lab.kernels.triton_hopper import expert_product

    rows = _rows(token, scale, place, start, count, expert)
    expert_product(grad, scaled, rows, flip=False, total=down_total)
    expert_product(x, hidden_grad, rows, flip=True, total=up_total)
    return collect_scale_grad(partial, place)


@_add_expert_products.register_fake
def _(*tensors: Tensor) -> Tensor:
    return tensors[6].new_empty(tensors[9].shape)


@torch.library.custom_op("complete_mue::gather_sum", mutates_args=())
@_on_its_device
def _gather_sum(rows: Tensor, place: Tensor, weight: Tensor | None) -> Tensor:
    from complete_mue.lab.kernels.triton_glue import gather_sum

    return gather_sum(rows, place, weight)


@_gather_sum.register_fake
def _(rows: Tensor, place: Tensor, weight: Tensor | None) -> Tensor:
    return rows.new_empty(place.shape[0], rows.shape[1])


@torch.library.custom_op("complete_mue::collect_scale_grad", mutates_args=())
@_on_its_device
def _collect_scale_grad(partial: Tensor, place: Tensor) -> Tensor:
    from complete_mue.lab.kernels.triton_glue import collect_scale_grad

    return collect_scale_grad(partial, place)


@_collect_scale_grad.register_fake
def _(partial: Tensor, place: Tensor) -> Tensor:
    return partial.new_empty(place.shape)
