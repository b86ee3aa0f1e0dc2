"""Experts that live on several ranks: tokens travel to them and come back (expert parallelism).

Rank p of P holds experts p E/P … (p + 1) E/P. Rows (a token once per expert it takes) are sorted by expert, so each
rank's part is one run; one all-to-all brings the rows there with their weights, another brings the outputs back.

    counts -> rows, weights -> the kernel on the experts here -> rows back -> sum over each token's slots

The host waits once per call, for the counts: the sizes of what is sent depend on the routing.

Axes: tokens, width, experts (of all ranks), active; rows = tokens * active.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from complete_mue.lab.kernels import dispatch
from complete_mue.lab.kernels.grouped import sort_by_expert


@torch.compiler.disable  # every routing has other sizes: a graph would be compiled anew for each
def routed_experts(
    x: Tensor, up: Tensor, down: Tensor, index: Tensor, weight: Tensor, *, group: Any, kernel: str | None = None
) -> Tensor:
    """As ``dispatch.routed_experts``, with this rank's experts alone in ``up`` and ``down``; ``index`` counts through
    the experts of all ranks of ``group``. Every rank of the group must call it, also without a token.
    """
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    ranks, here = dist.get_world_size(group), len(up)
    order, inverse, ends = sort_by_expert(index, ranks * here)
    send = ends.diff(prepend=ends.new_zeros(1)).view(ranks, here)
    take = torch.empty_like(send)  # from each rank, for each expert here
    dist.all_to_all_single(take, send, group=group)
    sent, taken = torch.stack((send.sum(1), take.sum(1))).tolist()
    expert = torch.arange(here, device=x.device).repeat(ranks).repeat_interleave(take.flatten(), output_size=sum(taken))

    rows = _Exchange.apply(x.index_select(0, order // index.shape[1]), sent, taken, group)
    share = _Exchange.apply(weight.reshape(-1)[order], sent, taken, group)
    rows = dispatch.routed_experts(rows, up, down, expert[:, None], share[:, None], kernel=kernel)
    rows = _Exchange.apply(rows, taken, sent, group)
    return rows.index_select(0, inverse).unflatten(0, index.shape).sum(1)


class _Exchange(torch.autograd.Function):
    """``sent[p]`` rows go to rank p, ``taken[p]`` come from it; gradients go the other way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], taken: list[int], group: Any) -> Tensor:
        ctx.back = (taken, sent, group)
        return _exchanged(rows, sent, taken, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(grad, *ctx.back), None, None, None


def _exchanged(rows: Tensor, sent: list[int], taken: list[int], group: Any) -> Tensor:
    out = rows.new_empty(sum(taken), *rows.shape[1:])
    dist.all_to_all_single(out, rows.contiguous(), taken, sent, group=group)
    return out
