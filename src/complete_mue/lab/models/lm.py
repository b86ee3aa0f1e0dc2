"""The language model: pre-norm, RMSNorm, gated attention, SwiGLU or MoE, rotary positions, untied head.

Built from a ModelShape; a plan brings the multipliers, which the forward applies as plain floats. A leading replica
axis K on every parameter makes K models of one shape run as one program.

Axes: replica (optional, first), batch, tokens, width, vocab.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from complete_mue.errors import ShapeError
from complete_mue.lab.models.residual_layer import (
    Layer,
    LayerOptions,
    LayerRunner,
    build_layers,
    head_dim,
    inside,
    multiplier,
)
from complete_mue.lab.nn.attention import KeyValues
from complete_mue.lab.nn.linear import RmsNorm, embedding, linear, times
from complete_mue.lab.nn.rope import text_rotary
from complete_mue.lab.nn.router import Routing
from complete_mue.layout import ModelShape, Role, TensorSpec
from complete_mue.layout.numbers import count
from complete_mue.plan.plan import Plan


class LanguageModel(nn.Module):
    """Next-token logits from tokens.

    Without a plan every multiplier is 1 but the route scale, which is the number of activated experts, and attention
    logits are scaled by ``attention_scale`` (1 / sqrt(head_dim) unless given).
    """

    def __init__(
        self, shape: ModelShape, vocab: int, plan: Plan | None = None, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__()
        replicas = options.get("replicas")
        self.shape, self.vocab, self.replicas = shape, count("vocab", vocab), replicas
        self.head_dim = head_dim(shape)
        lead = () if replicas is None else (replicas,)
        self.embedding = nn.Parameter(torch.empty(*lead, vocab, shape.width))
        self.embedding_output = multiplier(plan, Role.EMBEDDING)
        self.layers = build_layers(shape, plan, causal=True, **options)
        self.run_layer = LayerRunner(Layer.__call__)
        self.run_head: Callable[[RmsNorm, Tensor, Tensor, float], Tensor] = _logits
        self.final_norm = RmsNorm(shape.width, replicas=replicas)
        self.readout = nn.Parameter(torch.empty(*lead, vocab, shape.width))
        self.readout_output = multiplier(plan, Role.READOUT)
        nn.init.normal_(self.embedding)
        nn.init.normal_(self.readout, std=shape.width**-0.5)

    def forward(
        self,
        tokens: Tensor,
        past: list[KeyValues] | None = None,
        routings: list[Routing] | None = None,
        at: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """tokens [(K,) batch, tokens] -> logits [(K,) batch, tokens, vocab]; [batch, tokens] may serve all replicas.

        ``at``, row and position of the logits that are wanted, gives [wanted, vocab] and saves the rest.
        """
        if self.replicas is not None and tokens.ndim == 2:
            tokens = tokens.expand(self.replicas, *tokens.shape)
        x = times(self.embedding_output, embedding(tokens, self.embedding))
        seen = past[0].length if past else 0
        rotary = text_rotary(seen, seen + tokens.shape[-1], self.head_dim, x)
        for number, layer in enumerate(self.layers):
            x = self.run_layer(number, routings, layer, x, rotary, past[number] if past else None)
        return self.run_head(self.final_norm, self.readout, x if at is None else x[at], self.readout_output)

    def compile_parts(self) -> None:
        """Compile the layers, one for all of a kind, and the head."""
        self.run_layer.compile()
        self.run_head = torch.compile(self.run_head, dynamic=False)

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every parameter by name, role and axes, with what the forward multiplies it by."""
        front = () if self.replicas is None else ("replica",)
        return (
            TensorSpec("embedding", Role.EMBEDDING, (*front, "vocab", "width"), None, multiplier=self.embedding_output),
            *(
                tensor
                for number, layer in enumerate(self.layers)
                for tensor in inside(f"layers.{number}", layer.tensors(), {}, number)
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
                shares = (logits / temperature).softmax(-1)
                drawn = shares if generator is None else shares.to(generator.device)  # the same draws on any device
                step = torch.multinomial(drawn, 1, generator=generator).to(tokens.device)
            tokens = torch.cat([tokens, step], dim=1)
        return tokens


def _logits(norm: RmsNorm, readout: Tensor, x: Tensor, multiplier: float) -> Tensor:
    """The head: multiplier * readout norm(x)."""
    vocab = readout.shape[-2]
    spare = -vocab % 8 if x.is_cuda and torch.compiler.is_compiling() else 0
    if spare:  # a product of 257 columns does not get the tensor cores' full speed
        readout = F.pad(readout, (0, 0, 0, spare))
    logits = linear(norm(x), readout)
    return times(multiplier, logits[..., :vocab] if spare else logits)
