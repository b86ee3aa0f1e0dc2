"""AdamW on K replicas at once: every parameter is [K, ...], every hyperparameter a vector of K.

The arithmetic and its order are torch.optim.AdamW's, so that a replica's trajectory is its solo run's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ReplicaSettings:
    """One parameter's settings, each [K], on the parameter's device in float64."""

    lr: Tensor
    weight_decay: Tensor
    eps: Tensor
    folded: Tensor  # how much of the forward multiplier is in the weights: clipping takes the norm over folded * grad


class ReplicaAdamW:
    """AdamW and clipping, replica by replica; replicas marked as dead stay where they are."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], settings: Mapping[str, ReplicaSettings], betas: Tensor
    ) -> None:
        self.parameters, self.settings = dict(parameters), dict(settings)
        self.betas = betas  # [2, K]
        self.steps = 0
        self.first = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.second = {name: torch.zeros_like(p) for name, p in self.parameters.items()}

    @torch.no_grad()
    def clip(self, max_norm: float) -> Tensor:
        """Scale each replica's gradients to at most ``max_norm``; returns the norms [K]."""
        total = torch.zeros_like(self.betas[0])
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                norm = torch.linalg.vector_norm(parameter.grad.flatten(1), dim=1).to(total.dtype)
                total += (norm * self.settings[name].folded).square()
        total = total.sqrt()
        scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad.mul_(_along(scale, parameter))
        return total

    @torch.no_grad()
    def step(self, factor: float, alive: Tensor) -> None:
        """One step at ``factor`` times each learning rate; ``alive`` [K] says which replicas still train."""
        self.steps += 1
        beta1, beta2 = self.betas
        correction1, correction2 = 1 - beta1**self.steps, (1 - beta2**self.steps).sqrt()
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                continue
            given, first, second = self.settings[name], self.first[name], self.second[name]
            lr = given.lr * factor
            grad = torch.where(_along(alive, parameter), parameter.grad, 0)
            shrink = torch.where(alive, 1 - lr * given.weight_decay, 1.0)
            parameter.mul_(_along(shrink, parameter))
            first.lerp_(grad, _along(1 - beta1, parameter))
            second.mul_(_along(beta2, parameter)).addcmul_(_along(1 - beta2, parameter) * grad, grad)
            denominator = (second.sqrt() / _along(correction2, parameter)).add_(_along(given.eps, parameter))
            size = torch.where(alive, lr / correction1, 0.0)
            parameter.sub_(_along(size, parameter) * (first / denominator))

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None


def _along(values: Tensor, parameter: Tensor) -> Tensor:
    """[K] -> [K, 1, ...], in the parameter's dtype (masks stay masks)."""
    values = values if values.dtype == torch.bool else values.to(parameter.dtype)
    return values.view(-1, *(1,) * (parameter.dim() - 1))
