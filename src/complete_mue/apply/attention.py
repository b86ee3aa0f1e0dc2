"""The size of a stock model's attention heads, and the factor it puts on attention logits.

transformers' attention modules say both: ``head_dim`` and ``scaling``. Where heads grow with the width the rules ask
for sqrt(head_dim*) / head_dim, which no optimizer group can stand in for; so the model itself must be told.
"""

from __future__ import annotations

import math

from torch import nn

from complete_mue.errors import BindError
from complete_mue.plan.plan import Plan


def head_size(model: nn.Module) -> int | None:
    """The one size of all attention heads, where the model's modules say it."""
    sizes = {module.head_dim for module in _attentions(model)}
    return int(sizes.pop()) if len(sizes) == 1 else None


def check_attention_scale(model: nn.Module, plan: Plan) -> None:
    """Refuse a stock model whose attention logits are not scaled as the plan says."""
    wanted = plan.attention_scale
    if wanted is None:
        return
    wrong = {module.scaling for module in _attentions(model) if not math.isclose(module.scaling, wanted, rel_tol=1e-6)}
    if wrong:
        found = ", ".join(f"{scale:.6g}" for scale in sorted(wrong))
        raise BindError(
            f"the model multiplies attention logits by {found}, the plan by {wanted:.6g} (heads of "
            f"{plan.shape.head_dim}, the reference's of {plan.reference.shape.head_dim}): set `module.scaling = "
            f"{wanted!r}` on every attention module, or keep the reference's head size"
        )


def _attentions(model: nn.Module) -> list[nn.Module]:
    return [
        module
        for module in model.modules()
        if isinstance(getattr(module, "scaling", None), float) and isinstance(getattr(module, "head_dim", None), int)
    ]
