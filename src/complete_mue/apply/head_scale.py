"""The size of a stock model's attention heads, and the factor it puts on attention logits.

transformers' attention modules say both: ``head_dim`` (latent attention: ``qk_head_dim``) and ``scaling``. Where heads
grow with the width the rules ask for sqrt(head_dim*) / head_dim, which no optimizer group can stand in for; so the
model itself must be told.
"""

from __future__ import annotations

import math

from torch import nn

from complete_mue.errors import BindError
from complete_mue.plan.plan import Plan


def head_size(model: nn.Module) -> int | None:
    """The one size of all attention heads, where the model's modules say it."""
    sizes = {_size(module) for module in _attentions(model)}
    return sizes.pop() if len(sizes) == 1 else None


def check_attention_scale(model: nn.Module, plan: Plan) -> None:
    """Refuse a stock model whose attention logits are not scaled as the plan says.

    Where the plan leaves it open, as with a reference that does not name its head size, heads are of fixed size: their
    logits are divided by the root of it.
    """
    for module in _attentions(model):
        size = _size(module)
        wanted = plan.attention_scale or 1 / math.sqrt(size)
        if not math.isclose(float(module.scaling), wanted, rel_tol=1e-6):
            theirs = plan.reference.shape.head_dim or "the same size"
            raise BindError(
                f"the model multiplies attention logits by {module.scaling:.6g}, the plan by {wanted:.6g} (heads of "
                f"{size}, the reference's of {theirs}): set `module.scaling = {wanted!r}` on every attention module "
                "(Granite: config.attention_multiplier, Gemma: config.query_pre_attn_scalar, before the model is "
                "built), or keep the reference's head size"
            )


def _size(module: nn.Module) -> int:
    size = getattr(module, "qk_head_dim", None)
    return int(size if isinstance(size, int) else module.head_dim)


def _attentions(model: nn.Module) -> list[nn.Module]:
    return [
        module
        for module in model.modules()
        if isinstance(getattr(module, "scaling", None), float)
        and any(isinstance(getattr(module, name, None), int) for name in ("qk_head_dim", "head_dim"))
    ]
