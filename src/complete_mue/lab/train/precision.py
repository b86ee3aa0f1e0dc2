"""Experts in bfloat16 for a whole step: cast once, not at every micro-batch.

Under autocast a weight is cast where it is used. That is little work for a matrix that all tokens pass, and much for
experts, of which a token passes few: at 6 B of them the casts of one micro-batch move 36 GB. So the model computes with
copies that are made once per step, and their gradients are summed into the float32 weights', as autocast would have
done: the numbers are the same to the bit. On a Hopper GPU the product of a gradient adds to the sum itself, before
anything is rounded to bfloat16; to write 6 B gradients, read them again and add them took an eighth of a step.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from complete_mue.apply.bind import Binding
from complete_mue.layout import Role

EXPERTS = (Role.EXPERT_UP, Role.EXPERT_DOWN)


class ExpertCopies:
    """bfloat16 copies of a model's experts, in the model's place of them; ``masters`` are the float32 weights by name,
    which the optimizer trains and checkpoints hold.
    """

    def __init__(self, model: nn.Module, binding: Binding) -> None:
        self.masters = {b.name: b.parameter for b in binding if b.spec.role in EXPERTS}
        self._copies: list[nn.Parameter] = []
        for name, master in self.masters.items():
            copy = nn.Parameter(master.detach().to(torch.bfloat16))
            copy.register_post_accumulate_grad_hook(partial(_hand_over, master))
            parent, _, leaf = name.rpartition(".")
            block: Any = model.get_submodule(parent)
            setattr(block, leaf, copy)
            self._copies.append(copy)
            if master.is_cuda:
                master.grad = torch.zeros_like(master)
                block.totals = (block.totals or {}) | {leaf: master.grad}

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights anew, after the optimizer changed them."""
        if self._copies:
            torch._foreach_copy_(self._copies, list(self.masters.values()))


def _hand_over(master: nn.Parameter, copy: Tensor) -> None:
    """Add the copy's gradient to the weight's, in float32, unless a kernel did."""
    grad, copy.grad = copy.grad, None
    if grad is not None:
        master.grad = grad.to(master.dtype) if master.grad is None else master.grad.add_(grad)
