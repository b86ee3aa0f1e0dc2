"""What is minimized: next-token cross entropy, and flow-matching velocity on the linear interpolant.

With replicas, a loss has one entry per replica; their sum is what is differentiated, so that replicas do not mix.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def next_token_loss(logits: Tensor, tokens: Tensor, z_loss: float = 0.0) -> Tensor:
    """Mean cross entropy of tokens[..., 1:] under logits [..., tokens, vocab] of tokens[..., :-1], in nats.

    logits [batch, tokens, vocab] give a scalar, [K, batch, tokens, vocab] a loss per replica, [K]. ``z_loss`` adds
    z_loss * logsumexp(logits)^2, which keeps the softmax's normalizer near 1.
    """
    targets = tokens[..., 1:]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    targets = targets.expand(logits.shape[:-1])
    loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)
    if z_loss:
        loss = loss + z_loss * logits.logsumexp(-1).square()
    return loss.mean(dim=(-2, -1))


def interpolate(noise: Tensor, data: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """x_t = (1 - t) x_0 + t x_1 and its velocity dx_t = x_1 - x_0, for t [..., batch]."""
    t = t.view(*t.shape, *(1,) * (data.ndim - t.ndim))
    return (1 - t) * noise + t * data, data - noise


def velocity_loss(predicted: Tensor, velocity: Tensor, axes: int) -> Tensor:
    """Mean squared error over batch, channels and ``axes`` picture axes; a leading replica axis stays."""
    difference = predicted.float() - velocity.float() if predicted.dtype != torch.float64 else predicted - velocity
    return difference.square().mean(dim=tuple(range(-2 - axes, 0)))
