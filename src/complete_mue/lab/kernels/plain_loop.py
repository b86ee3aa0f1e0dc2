"""The routed experts as a plain loop: one expert at a time, as the formula reads.

Every faster kernel is compared with this one. Any floating dtype, any device, deterministic; the choice of tokens
per expert has data-dependent sizes, so it synchronizes with the GPU and is not for speed.

Axes: tokens, width (residual), experts, active (experts per token), expert_width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SUMMARY = "a plain loop over experts; any dtype and device"


def unavailable(x: Tensor, up: Tensor) -> str | None:
    """Why this kernel cannot run on these tensors here; None if it can."""
    if not (x.is_floating_point() and x.dtype == up.dtype):
        return f"x is {x.dtype} and the experts are {up.dtype}: both must have one floating dtype"
    return None


def routed_experts(x: Tensor, up: Tensor, down: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Weighted sum of each token's experts (routed term of Eq. hybrid-general), SwiGLU inside.

    x [tokens, width]; up [experts, 2 expert_width, width], gate rows first; down [experts, width, expert_width];
    index, weight [tokens, active]. Returns [tokens, width] in x's dtype; the sum is kept in at least float32.
    """
    y = x.new_zeros(x.shape, dtype=torch.promote_types(x.dtype, torch.float32))
    for expert in range(len(up)):
        token, slot = torch.where(index == expert)
        gate, value = (x[token] @ up[expert].T).chunk(2, dim=-1)
        output = (F.silu(gate) * value) @ down[expert].T
        # index_put_ with accumulate adds in a fixed order on every device; index_add_ does not on CUDA.
        y.index_put_((token,), (weight[token, slot, None] * output).to(y.dtype), accumulate=True)
    return y.to(x.dtype)
