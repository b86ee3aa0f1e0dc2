"""AdamW on K replicas at once: every parameter is [K, ...], every hyperparameter has one value per replica.

The arithmetic and its order are torch.optim.AdamW's, so that a replica's trajectory is its solo run's. All parameters
live side by side in one buffer of rows, short enough that each row belongs to one parameter of one replica: a step is a
dozen operations on whole buffers with one setting per row, however many parameters there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


class ReplicaAdamW:
    """AdamW and clipping, replica by replica; replicas marked as dead stay where they are.

    ``settings`` are, for each parameter, [4, K] in float64 on its device: lr, weight decay, eps, and how much of the
    forward multiplier is in the weights (clipping takes the norm over that times the gradient). The parameters' and
    gradients' storage is moved into this optimizer's buffers. ``compiled`` makes two kernels of a step's operations,
    one over rows and one over elements.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        settings: Mapping[str, Tensor],
        betas: Tensor,
        *,
        max_norm: float | None = None,
        compiled: bool = False,
    ) -> None:
        self.max_norm = max_norm
        self.betas = betas  # [2, K]
        self.steps = torch.zeros((), dtype=betas.dtype, device=betas.device)
        replicas, sizes = betas.shape[1], [parameter[0].numel() for parameter in parameters.values()]
        row = math.gcd(*sizes)
        rows = torch.tensor([size // row for size in sizes for _ in range(replicas)])

        def spread(values: Sequence[Tensor]) -> Tensor:
            """One value per parameter and replica -> one per row, [rows, 1]."""
            return torch.stack(values).flatten().repeat_interleave(rows.to(betas.device)).unsqueeze(-1)

        given = zip(*(settings[name] for name in parameters), strict=True)
        self.lr, self.weight_decay, self.eps, self.folded = map(spread, given)
        self.replica = spread([torch.arange(replicas, device=betas.device)] * len(parameters)).squeeze(-1)
        self._rows = [size // row * replicas for size in sizes]  # of each parameter, replica after replica
        self.weights = torch.cat([parameter.detach().flatten() for parameter in parameters.values()]).view(-1, row)
        self.grads, self.first, self.second = (torch.zeros_like(self.weights) for _ in range(3))
        self._views(list(parameters.values()))
        self._spread = torch.compile(_spread, dynamic=True) if compiled else _spread
        self._advance = torch.compile(_advance, dynamic=True) if compiled else _advance

    def _views(self, parameters: list[nn.Parameter]) -> None:
        """Parameters and their gradients become views into the buffers."""
        first = 0
        for parameter in parameters:
            last = first + parameter.numel()
            parameter.data = self.weights.flatten()[first:last].view(parameter.shape)
            parameter.grad = self.grads.flatten()[first:last].view(parameter.shape)
            first = last

    @torch.no_grad()
    def step(self, factor: Tensor, alive: Tensor) -> Tensor | None:
        """Clip, then one step at ``factor`` times each learning rate, for the replicas that are ``alive`` [K].

        Returns the gradients' norms [K] before clipping, if they are clipped; gradients become zero.
        """
        norms, scale = None, torch.ones_like(self.betas[0])
        if self.max_norm is not None:
            squares = (torch.linalg.vector_norm(self.grads, dim=1).to(scale.dtype) * self.folded[:, 0]).square()
            norms = torch.stack([rows.view(len(scale), -1).sum(1) for rows in squares.split(self._rows)]).sum(0).sqrt()
            scale = torch.clamp(self.max_norm / (norms + 1e-6), max=1.0)
        self.steps += 1
        beta1, beta2 = self.betas
        correction1, correction2 = 1 - beta1**self.steps, (1 - beta2**self.steps).sqrt()
        per_replica = torch.stack([beta1, beta2, correction1, correction2, scale, alive.to(scale.dtype)])
        settings = self._spread(
            per_replica, self.replica, self.lr * factor, self.weight_decay, self.eps, self.weights.dtype
        )
        self._advance(self.weights, self.grads, self.first, self.second, settings)
        self.grads.zero_()
        return norms


def _spread(
    per_replica: Tensor, replica: Tensor, lr: Tensor, weight_decay: Tensor, eps: Tensor, dtype: torch.dtype
) -> Tensor:
    """What a step needs of every row, [settings, rows, 1] in the weights' type: worked out in float64 once per row, not
    once per element."""
    beta1, beta2, correction1, correction2, scale, alive = per_replica[:, replica].unsqueeze(-1)
    kept = torch.where(alive > 0, 1 - lr * weight_decay, 1.0)
    taken = torch.where(alive > 0, lr / correction1, 0.0)
    return torch.stack([kept, taken, 1 - beta1, beta2, 1 - beta2, correction2, eps, scale, alive]).to(dtype)


def _advance(weights: Tensor, grads: Tensor, first: Tensor, second: Tensor, settings: Tensor) -> None:
    """One AdamW step of all rows [rows, row], in place."""
    kept, taken, new1, beta2, new2, correction2, eps, scale, alive = settings
    grad = torch.where(alive > 0, grads * scale, 0)
    weights.mul_(kept)
    first.lerp_(grad, new1)
    second.mul_(beta2).addcmul_(new2 * grad, grad)
    denominator = (second.sqrt() / correction2).add_(eps)
    weights.sub_(taken * (first / denominator))
