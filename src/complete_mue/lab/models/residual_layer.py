"""One residual layer, as both models use it, and what a plan brings to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from complete_mue.errors import ShapeError
from complete_mue.lab.nn.attention import Attention, KeyValues
from complete_mue.lab.nn.feed_forward import FeedForward
from complete_mue.lab.nn.linear import RmsNorm
from complete_mue.lab.nn.router import Routing
from complete_mue.lab.nn.router_config import DEFAULT_ROUTER, RouterConfig
from complete_mue.layout import FeedForward as FeedForwardSpec
from complete_mue.layout import ModelShape, Role, TensorSpec
from complete_mue.plan.plan import Plan

DEFAULT_HEAD_DIM = 64


class LayerOptions(TypedDict, total=False):
    """What the layers of any model can be asked for; ``attention_scale`` where no plan gives it."""

    attention_scale: float | None
    qk_norm: bool
    router: RouterConfig
    kernel: str | None
    replicas: int | None


class Layer(nn.Module):
    """x + attention(norm x), then x + feed_forward(norm x); both branches carry their own multipliers."""

    def __init__(self, attention: Attention, feed_forward: FeedForward) -> None:
        super().__init__()
        width, replicas = attention.width, attention.replicas
        self.attention_norm = RmsNorm(width, replicas=replicas)
        self.attention = attention
        self.feed_forward_norm = RmsNorm(width, replicas=replicas)
        self.feed_forward = feed_forward

    def forward(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor],
        past: KeyValues | None = None,
    ) -> tuple[Tensor, Routing | None]:
        """One residual layer, and where its tokens went (None for a dense block)."""
        x = x + self.attention(self.attention_norm(x), rotary, past)
        inner = self.feed_forward_norm(x)
        routing = self.feed_forward.route(inner)
        return x + self.feed_forward(inner, routing), routing

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every parameter, with what the forward multiplies it by."""
        block = self.feed_forward
        down = {Role.EXPERT_DOWN: block.output * block.route_scale}
        down |= dict.fromkeys((Role.DENSE_DOWN, Role.SHARED_DOWN), block.output)
        front = () if block.replicas is None else ("replica",)
        return (
            TensorSpec("attention_norm.gain", Role.NORM, (*front, "width"), None),
            *inside("attention", self.attention.tensors(), {Role.ATTENTION_OUT: self.attention.output}),
            TensorSpec("feed_forward_norm.gain", Role.NORM, (*front, "width"), None),
            *inside("feed_forward", block.tensors(), down),
        )


class LayerRunner:
    """How a model calls its layers. ``call`` is the call itself (compiled, if asked for); the first ``recompute``
    layers keep their input alone in training and compute the rest again in the backward.
    """

    def __init__(self, call: Callable[..., tuple[Tensor, Routing | None]]) -> None:
        self.call, self.recompute = call, 0

    def compile(self) -> None:
        """Compile one layer at a time: layers of one kind share the code, so depth costs no compile time."""
        self.call = torch.compile(self.call, dynamic=False)

    def __call__(self, number: int, routings: list[Routing] | None, layer: Layer, *arguments: Any) -> Tensor:
        """Layer ``number`` on these arguments; ``routings`` collects where tokens went."""
        if number < self.recompute and torch.is_grad_enabled():
            x, routing = checkpoint(
                self.call, layer, *arguments, use_reentrant=False, preserve_rng_state=False, determinism_check="none"
            )
        else:
            x, routing = self.call(layer, *arguments)
        if routings is not None and routing is not None:
            routings.append(routing)
        return x


def inside(
    prefix: str, tensors: tuple[TensorSpec, ...], multipliers: dict[Role, float], layer: int | None = None
) -> tuple[TensorSpec, ...]:
    """A part's tensors under the whole's name, with the multipliers that the whole's forward applies."""
    return tuple(
        dataclasses.replace(
            tensor,
            name=f"{prefix}.{tensor.name}",
            layer=tensor.layer if layer is None else layer,
            multiplier=multipliers.get(tensor.role, tensor.multiplier),
        )
        for tensor in tensors
    )


def build_layers(
    shape: ModelShape,
    plan: Plan | None,
    *,
    causal: bool,
    attention_scale: float | None = None,
    qk_norm: bool = False,
    router: RouterConfig = DEFAULT_ROUTER,
    kernel: str | None = None,
    replicas: int | None = None,
) -> nn.ModuleList:
    """All layers of a shape, with the plan's multipliers (1 without a plan, and the route scale a)."""
    if plan is not None and plan.shape != shape:
        raise ShapeError("the plan is for another shape: make it with transfer(reference, shape, budget)")
    layers = nn.ModuleList()
    for block in shape.blocks:
        attention = Attention(
            shape.width,
            head_dim(shape),
            scale=attention_scale if plan is None else planned_attention_scale(plan, shape),
            output=multiplier(plan, Role.ATTENTION_OUT),
            qk_norm=qk_norm,
            causal=causal,
            replicas=replicas,
        )
        output, route_scale = _multipliers(plan, shape, block)
        feed_forward = FeedForward(
            block, shape.width, output=output, route_scale=route_scale, router=router, kernel=kernel, replicas=replicas
        )
        layers.append(Layer(attention, feed_forward))
    return layers


def head_dim(shape: ModelShape) -> int:
    """The shape's head size, or 64 (the whole width of a narrower model)."""
    return shape.head_dim or min(DEFAULT_HEAD_DIM, shape.width)


def planned_attention_scale(plan: Plan, shape: ModelShape) -> float | None:
    """The plan's factor on logits; where it leaves head sizes open, by those that models of these shapes have. None:
    1 / sqrt(head_dim)."""
    if plan.attention_scale is not None:
        return plan.attention_scale
    ours, theirs = head_dim(shape), head_dim(plan.reference.shape)
    if ours == theirs and plan.reference.attention_scale is None:
        return None
    return plan.attention_scale_of(ours, theirs)


def multiplier(plan: Plan | None, role: Role) -> float:
    """What the forward puts on a role's product: the plan's, or 1."""
    return 1.0 if plan is None else plan.unfold().row(role).multiplier


def _multipliers(plan: Plan | None, shape: ModelShape, block: FeedForwardSpec) -> tuple[float, float | None]:
    """What a block's output is multiplied by, and the route scale where the plan gives one."""
    if plan is None:
        return 1.0, None
    row = plan.unfold().row(Role.DENSE_DOWN if block.is_dense else Role.EXPERT_DOWN, shape.label(block))
    return row.output * row.residual, None if block.is_dense else row.route_scale
