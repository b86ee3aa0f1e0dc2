"""Matrix products and norms that take an optional leading replica axis.

Axes: replica (optional, first, on weights and then on inputs), tokens, and the last axis as named.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., in] times weight [out, in] -> [..., out]; with replicas, x [K, ..., in] and weight [K, out, in]."""
    if weight.ndim == 2:
        return F.linear(x, weight)
    y = torch.bmm(x.flatten(1, -2), weight.mT)  # [K, tokens, out]
    return y.view(*x.shape[:-1], y.shape[-1])


def embedding(numbers: Tensor, table: Tensor) -> Tensor:
    """Rows of table [rows, width] by number; with replicas, numbers [K, ...] and table [K, rows, width]."""
    if table.ndim == 2:
        return F.embedding(numbers, table)
    # One table of K * rows, so that the backward is one scatter.
    offset = torch.arange(table.shape[0], device=numbers.device).view(-1, 1, 1) * table.shape[1]
    return F.embedding(numbers + offset, table.flatten(0, 1))


def times(factor: float, x: Tensor) -> Tensor:
    """factor * x, at no cost where the factor is 1."""
    return x if factor == 1 else factor * x


class RmsNorm(nn.Module):
    """x / rms(x) * gain, the mean in float32 at least; ``gain`` is [size], with replicas [K, size]."""

    def __init__(self, size: int, *, replicas: int | None = None, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(*(() if replicas is None else (replicas,)), size))

    def forward(self, x: Tensor) -> Tensor:
        """x [..., size] -> the same shape."""
        gain = self.gain
        if gain.ndim == 2:  # one gain per replica: [K, 1, ..., size]
            gain = gain.view(gain.shape[0], *(1,) * (x.ndim - 2), gain.shape[1])
        wide = x if x.dtype == torch.float64 else x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * gain.to(x.dtype)
