"""The language model: pre-norm, RMSNorm, gated attention, SwiGLU or MoE, rotary positions, untied head.

Built from a ModelShape; a plan brings the multipliers, which the forward applies as plain floats. A leading replica
axis K on every parameter makes K models of one shape run as one program.

Axes: replica (optional, first), batch, tokens, width, vocab.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from complete_mue.errors import ShapeError
from complete_mue.layout import FeedForward as FeedForwardSpec
from complete_mue.layout import ModelShape, Role, TensorSpec
from complete_mue.layout.numbers import count
from complete_mue.nn.attention import Attention, KeyValues
from complete_mue.nn.feed_forward import FeedForward
from complete_mue.nn.linear import RmsNorm, linear
from complete_mue.nn.rope import rotary_table
from complete_mue.nn.router import DEFAULT_ROUTER, RouterConfig, Routing
from complete_mue.plan.plan import Plan

DEFAULT_HEAD_DIM = 64


class Layer(nn.Module):
    """x + attention(norm x), then x + feed_forward(norm x); both branches carry their own multipliers."""

    def __init__(
        self,
        block: FeedForwardSpec,
        width: int,
        *,
        attention: Attention,
        output: float,
        route_scale: float | None,
        router: RouterConfig,
        kernel: str | None,
        replicas: int | None,
    ) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(width, replicas=replicas)
        self.attention = attention
        self.feed_forward_norm = RmsNorm(width, replicas=replicas)
        self.feed_forward = FeedForward(
            block, width, output=output, route_scale=route_scale, router=router, kernel=kernel, replicas=replicas
        )

    def forward(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor],
        past: KeyValues | None = None,
        routings: list[Routing] | None = None,
    ) -> Tensor:
        """One residual layer; ``routings`` collects where tokens went."""
        x = x + self.attention(self.attention_norm(x), rotary, past)
        inner = self.feed_forward_norm(x)
        routing = self.feed_forward.route(inner)
        if routings is not None and routing is not None:
            routings.append(routing)
        return x + self.feed_forward(inner, routing)

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every parameter, with what the forward multiplies it by."""
        block = self.feed_forward
        down = {Role.EXPERT_DOWN: block.output * block.route_scale}
        down |= dict.fromkeys((Role.DENSE_DOWN, Role.SHARED_DOWN), block.output)
        front = () if block.replicas is None else ("replica",)
        return (
            TensorSpec("attention_norm.gain", Role.NORM, (*front, "width"), None),
            *_inside("attention", self.attention.tensors(), {Role.ATTENTION_OUT: self.attention.output}),
            TensorSpec("feed_forward_norm.gain", Role.NORM, (*front, "width"), None),
            *_inside("feed_forward", block.tensors(), down),
        )


def _inside(
    prefix: str, tensors: tuple[TensorSpec, ...], multipliers: dict[Role, float], layer: int | None = None
) -> tuple[TensorSpec, ...]:
    return tuple(
        dataclasses.replace(
            tensor,
            name=f"{prefix}.{tensor.name}",
            layer=tensor.layer if layer is None else layer,
            multiplier=multipliers.get(tensor.role, tensor.multiplier),
        )
        for tensor in tensors
    )


class LanguageModel(nn.Module):
    """Next-token logits from tokens.

    Without a plan every multiplier is 1 but the route scale, which is the number of activated experts.
    """

    def __init__(
        self,
        shape: ModelShape,
        vocab: int,
        plan: Plan | None = None,
        *,
        qk_norm: bool = False,
        router: RouterConfig = DEFAULT_ROUTER,
        kernel: str | None = None,
        replicas: int | None = None,
    ) -> None:
        super().__init__()
        if plan is not None and plan.shape != shape:
            raise ShapeError("the plan is for another shape: make it with transfer(reference, shape, budget)")
        self.shape, self.vocab, self.replicas = shape, count("vocab", vocab), replicas
        self.head_dim = shape.head_dim or min(DEFAULT_HEAD_DIM, shape.width)
        lead = () if replicas is None else (replicas,)
        self.embedding = nn.Parameter(torch.empty(*lead, vocab, shape.width))
        self.embedding_output = _multiplier(plan, Role.EMBEDDING)
        self.layers = nn.ModuleList(
            Layer(
                block,
                shape.width,
                attention=Attention(
                    shape.width,
                    self.head_dim,
                    scale=None if plan is None else plan.attention_scale,
                    output=_multiplier(plan, Role.ATTENTION_OUT),
                    qk_norm=qk_norm,
                    replicas=replicas,
                ),
                output=_block_output(plan, shape, block),
                route_scale=_route_scale(plan, shape, block),
                router=router,
                kernel=kernel,
                replicas=replicas,
            )
            for block in shape.blocks
        )
        self.final_norm = RmsNorm(shape.width, replicas=replicas)
        self.readout = nn.Parameter(torch.empty(*lead, vocab, shape.width))
        self.readout_output = _multiplier(plan, Role.READOUT)
        nn.init.normal_(self.embedding)
        nn.init.normal_(self.readout, std=shape.width**-0.5)

    def forward(
        self,
        tokens: Tensor,
        past: list[KeyValues] | None = None,
        routings: list[Routing] | None = None,
    ) -> Tensor:
        """tokens [(K,) batch, tokens] -> logits [(K,) batch, tokens, vocab]; [batch, tokens] may serve all replicas."""
        x = self.embedding_output * self._embed(tokens)
        seen = past[0].length if past else 0
        rotary = rotary_table(torch.arange(seen, seen + tokens.shape[-1], device=x.device), self.head_dim)
        for number, layer in enumerate(self.layers):
            x = layer(x, rotary, past[number] if past else None, routings)
        return self.readout_output * linear(self.final_norm(x), self.readout)

    def _embed(self, tokens: Tensor) -> Tensor:
        if self.replicas is None:
            return F.embedding(tokens, self.embedding)
        if tokens.ndim == 2:
            tokens = tokens.expand(self.replicas, *tokens.shape)
        # One table of K * vocab rows, so that the backward is one scatter.
        offset = torch.arange(self.replicas, device=tokens.device).view(-1, 1, 1) * self.vocab
        return F.embedding(tokens + offset, self.embedding.flatten(0, 1))

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every parameter by name, role and axes, with what the forward multiplies it by."""
        front = () if self.replicas is None else ("replica",)
        return (
            TensorSpec("embedding", Role.EMBEDDING, (*front, "vocab", "width"), None, multiplier=self.embedding_output),
            *(
                tensor
                for number, layer in enumerate(self.layers)
                for tensor in _inside(f"layers.{number}", layer.tensors(), {}, number)
            ),
            TensorSpec("final_norm.gain", Role.FINAL_NORM, (*front, "width"), None),
            TensorSpec("readout", Role.READOUT, (*front, "vocab", "width"), "width", multiplier=self.readout_output),
        )

    @torch.no_grad()
    def generate(
        self, tokens: Tensor, count: int, *, temperature: float = 1.0, generator: torch.Generator | None = None
    ) -> Tensor:
        """Continue tokens [batch, tokens] by ``count`` more, with a key-value cache; temperature 0 takes the best."""
        if self.replicas is not None:
            raise ShapeError("generate works on one model: build it without replicas")
        past = [KeyValues() for _ in self.layers]
        step = tokens
        for _ in range(count):
            logits = self(step, past)[:, -1].float()
            if temperature == 0:
                step = logits.argmax(-1, keepdim=True)
            else:
                step = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
            tokens = torch.cat([tokens, step], dim=1)
        return tokens


def _multiplier(plan: Plan | None, role: Role) -> float:
    return 1.0 if plan is None else plan.unfold().row(role).multiplier


def _block_output(plan: Plan | None, shape: ModelShape, block: FeedForwardSpec) -> float:
    if plan is None:
        return 1.0
    row = plan.unfold().row(Role.DENSE_DOWN if block.is_dense else Role.EXPERT_DOWN, shape.label(block))
    return row.output * row.residual


def _route_scale(plan: Plan | None, shape: ModelShape, block: FeedForwardSpec) -> float | None:
    if plan is None or block.is_dense:
        return None
    return plan.unfold().row(Role.EXPERT_DOWN, shape.label(block)).route_scale
