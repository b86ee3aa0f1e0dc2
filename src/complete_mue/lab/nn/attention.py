"""Gated attention: softmax attention whose output is gated by a sigmoid of the block's input, then projected.

Axes: replica (optional, first), batch, tokens, heads, head_dim, width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from complete_mue.errors import ShapeError
from complete_mue.lab.kernels.steps import gated_attention, split_rotated
from complete_mue.lab.nn.linear import RmsNorm, linear, times
from complete_mue.lab.nn.rope import rotate
from complete_mue.layout import Role, TensorSpec


class KeyValues:
    """Keys and values of the tokens seen so far, for generation: one of these per layer."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    @property
    def length(self) -> int:
        """How many tokens are held."""
        return 0 if self.keys is None else self.keys.shape[-3]

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append [..., tokens, heads, head_dim] and return all."""
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], dim=-3)
        self.values = values if self.values is None else torch.cat([self.values, values], dim=-3)
        return self.keys, self.values


class Attention(nn.Module):
    """``into`` [4 width, width] makes query, key, value and gate; ``out`` [width, width] projects back.

    ``output`` multiplies the result: the residual multiplier of a plan.
    """

    def __init__(
        self,
        width: int,
        head_dim: int,
        *,
        scale: float | None = None,
        output: float = 1.0,
        qk_norm: bool = False,
        causal: bool = True,
        replicas: int | None = None,
    ) -> None:
        super().__init__()
        if width % head_dim or head_dim % 2:
            raise ShapeError(f"head_dim = {head_dim} at width = {width}: give an even head size that divides the width")
        self.width, self.head_dim, self.causal = width, head_dim, causal
        self.scale = 1 / math.sqrt(head_dim) if scale is None else scale
        self.output, self.replicas = output, replicas
        lead = () if replicas is None else (replicas,)
        self.into = nn.Parameter(torch.empty(*lead, 4 * width, width))
        self.out = nn.Parameter(torch.empty(*lead, width, width))
        self.query_norm = RmsNorm(head_dim, replicas=replicas) if qk_norm else None
        self.key_norm = RmsNorm(head_dim, replicas=replicas) if qk_norm else None
        for weight in (self.into, self.out):
            nn.init.normal_(weight, std=width**-0.5)

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every parameter by role and axes."""
        front = () if self.replicas is None else ("replica",)
        norms = [f"{name}_norm.gain" for name in ("query", "key") if self.query_norm is not None]
        return (
            TensorSpec("into", Role.ATTENTION_IN, (*front, "query_key_value_gate", "width"), "width"),
            TensorSpec("out", Role.ATTENTION_OUT, (*front, "width", "heads"), "heads"),
            *(TensorSpec(name, Role.NORM, (*front, "head_dim"), None) for name in norms),
        )

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], past: KeyValues | None = None) -> Tensor:
        """x [(K,) batch, tokens, width] -> the same shape; ``rotary`` is cos and sin of the tokens' positions."""
        joined = linear(x, self.into)
        mixed = None
        if past is None and self.query_norm is None:
            mixed = gated_attention(joined, *rotary, self.scale, self.causal)
        if mixed is None:
            mixed = self.mix(joined, rotary, past)
        y = linear(mixed, self.out)
        return times(self.output, y)

    def mix(self, joined: Tensor, rotary: tuple[Tensor, Tensor], past: KeyValues | None) -> Tensor:
        """[(K,) batch, tokens, 4 width] -> the gated mix of values, [(K,) batch, tokens, width]."""
        query, key, value, gate = self._split(joined, *rotary)
        seen = 0 if past is None else past.length
        if past is not None:
            key, value = past.extend(key, value)
        # [(K,) batch, tokens, heads, head_dim] -> [K * batch, heads, tokens, head_dim]
        query, key, value = (part.flatten(0, -4).transpose(1, 2) for part in (query, key, value))
        causal = self.causal and query.shape[-2] > 1
        mask = None
        if causal and seen:
            rows = torch.arange(query.shape[-2], device=joined.device)[:, None] + seen
            mask, causal = torch.arange(key.shape[-2], device=joined.device)[None, :] <= rows, False
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, scale=self.scale)
        return mixed.transpose(1, 2).flatten(-2).view(*joined.shape[:-1], -1) * torch.sigmoid(gate.flatten(-2))

    def _split(self, joined: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        """[..., tokens, 4 width] -> query and key (rotated), value and gate, each [..., tokens, heads, head_dim]."""
        if self.query_norm is None or self.key_norm is None:
            parts = split_rotated(joined, cos, sin)
            if parts is not None:
                return parts
        query, key, value, gate = (part.unflatten(-1, (-1, self.head_dim)) for part in joined.chunk(4, dim=-1))
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        return rotate(query, cos, sin), rotate(key, cos, sin), value, gate
