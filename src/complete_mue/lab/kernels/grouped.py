"""The routed experts through torch's grouped matrix product: the default on CPU, and on GPUs in general.

Tokens are sorted by expert, all experts' matrices are applied by one ``grouped_mm`` each, and every token gathers its
own rows back and sums them: no atomic adds, no read of a device value on the host, the same bits each time.

    forward    U = X[token] up^T     A = silu(gate) * value     Y = (w A) down^T     y = sum over slots of Y
    backward   dA' = dy[token] down  dw = <dA', A>              dA = w dA'           Y is never needed, so never kept

Kept for backward: x, the weights and U; A is recomputed and X[token] gathered again. ``grouped_cpu`` does the same on a
CPU, where other things are dear, unless it is compiled.

Axes: tokens, width, experts, expert_width, active; rows = tokens * active, sorted by expert.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from complete_mue.lab.kernels import grouped_cpu, plain_loop

SUMMARY = "torch grouped_mm over sorted tokens; float32, bfloat16, float16"

MOST_EXPERTS = 1023  # the CUDA kernel takes fewer than 1024 groups
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ALIGNMENT = 16  # bytes; what grouped_mm asks of every row stride

_torch_grouped_mm = getattr(F, "grouped_mm", None) or torch._grouped_mm


@torch.library.custom_op(
    "complete_mue::grouped_mm", mutates_args=(), schema="(Tensor a, Tensor b, Tensor ends) -> Tensor"
)
def _opaque_grouped_mm(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    return _torch_grouped_mm(a, b, offs=ends)


@_opaque_grouped_mm.register_fake
def _(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    if b.ndim == 3:
        return a.new_empty(a.shape[0], b.shape[2])
    return a.new_empty(ends.shape[0], a.shape[0], b.shape[1])


def _grouped_mm(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """a [rows, in], b [experts, in, out] -> [rows, out]; or a [out, rows], b [rows, in] -> [experts, out, in]."""
    # The compiler knows grouped_mm for bfloat16 on CUDA alone; elsewhere it calls it as it stands.
    if torch.compiler.is_compiling() and not (a.is_cuda and a.dtype == torch.bfloat16):
        return _opaque_grouped_mm(a, b, ends)
    return _torch_grouped_mm(a, b, offs=ends)


def unavailable(x: Tensor, up: Tensor) -> str | None:
    """Why this kernel cannot run on these tensors here; None if it can."""
    if x.device.type not in ("cpu", "cuda"):
        return f"grouped_mm runs on cpu and cuda, and these tensors are on {x.device.type}"
    if x.dtype != up.dtype or x.dtype not in _DTYPES:
        return f"grouped_mm takes float32, bfloat16 or float16, one dtype for all; x is {x.dtype}, experts {up.dtype}"
    experts, double_width, width = up.shape
    if experts > MOST_EXPERTS:
        return f"{experts} experts: grouped_mm takes at most {MOST_EXPERTS} in one call"
    multiple = _ALIGNMENT // x.dtype.itemsize
    if width % multiple or (double_width // 2) % multiple:
        return (
            f"width {width} and expert width {double_width // 2} must both be multiples of {multiple} in {x.dtype} "
            f"(grouped_mm wants rows of whole {_ALIGNMENT} bytes)"
        )
    return None


def routed_experts(x: Tensor, up: Tensor, down: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """As ``plain_loop.routed_experts``."""
    if index.numel() == 0:
        return plain_loop.routed_experts(x, up, down, index, weight)  # not every device's grouped_mm takes no rows
    if _eager_on_cpu(x):
        return grouped_cpu.routed_experts(x, up, down, index, weight)
    return _RoutedExperts.apply(x, up, down, index, weight)


def sort_by_expert(index: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """``order`` [rows] lists (token, slot) pairs by expert, ``inverse`` undoes it, ``ends`` [experts] closes groups.

    ``ends[-1]`` is always ``rows``, so no row of a grouped product is left unwritten.
    """
    if _eager_on_cpu(index):
        return grouped_cpu.sort_by_expert(index, experts)
    expert, order = torch.sort(index.reshape(-1), stable=True)
    ends = torch.searchsorted(expert, torch.arange(experts, device=index.device), right=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel(), device=index.device)
    return order, inverse, ends.to(torch.int32)


def _eager_on_cpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def _combine(rows: Tensor, inverse: Tensor, active: int) -> Tensor:
    """Sum of each token's own rows, [rows, width] -> [tokens, width]."""
    return rows.index_select(0, inverse).unflatten(0, (-1, active)).sum(1)


class _RoutedExperts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor, down: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        order, inverse, ends = sort_by_expert(index, up.shape[0])
        active = index.shape[1]
        hidden = _grouped_mm(x.index_select(0, order // active), up.transpose(1, 2), ends)
        _, activation = _swiglu(hidden, weight.reshape(-1)[order, None])
        ctx.save_for_backward(x, up, down, weight, hidden, order, inverse, ends)
        return _combine(_grouped_mm(activation, down.transpose(1, 2), ends), inverse, active)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, up, down, weight, hidden, order, inverse, ends = ctx.saved_tensors
        need_x, need_up, need_down, _, _ = ctx.needs_input_grad
        active = weight.shape[1]
        token, w = order // active, weight.reshape(-1)[order, None]
        silu, activation = _swiglu(hidden, w)
        dy = dy.index_select(0, token)
        d_hidden, d_weight = _swiglu_backward(_grouped_mm(dy, down, ends), hidden, silu, w)
        d_weight = d_weight[inverse].view_as(weight)
        d_down = _grouped_mm(dy.t(), activation, ends) if need_down else None
        d_up = _grouped_mm(d_hidden.t(), x.index_select(0, token), ends) if need_up else None
        d_x = _combine(_grouped_mm(d_hidden, up, ends), inverse, active) if need_x else None
        return d_x, d_up, d_down, None, d_weight


def _swiglu(hidden: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """silu(gate), and the weighted activation w silu(gate) value; hidden [rows, 2 expert_width], w [rows, 1]."""
    gate, value = hidden.chunk(2, dim=-1)
    silu = F.silu(gate)
    return silu, (silu * value).mul_(w)


def _swiglu_backward(grad: Tensor, hidden: Tensor, silu: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of hidden and of w [rows], from that of the weighted activation; ``grad`` is overwritten.

    With u = grad * value: dw = <u, silu>, d_gate = w u silu'(gate), d_value = w grad silu.
    """
    gate, value = hidden.chunk(2, dim=-1)
    if torch.compiler.is_compiling():  # fuses this, and takes no `out=` that is part of a tensor
        u = grad * value
        d_weight = (u * silu).sum(-1, dtype=w.dtype)
        d_gate = torch.ops.aten.silu_backward(u.mul_(w), gate)
        return torch.cat((d_gate, grad.mul_(w).mul_(silu)), dim=-1), d_weight
    d_hidden = torch.empty_like(hidden)
    d_gate, d_value = d_hidden.chunk(2, dim=-1)
    u = torch.mul(grad, value, out=d_gate)
    d_weight = (u * silu).sum(-1, dtype=w.dtype)
    torch.ops.aten.silu_backward.grad_input(u.mul_(w), gate, grad_input=d_gate)
    torch.mul(grad.mul_(w), silu, out=d_value)
    return d_hidden, d_weight
