"""The forward-variance factor of a router, F = a E[sum over active experts of pi^2] (Eq. moe-forward).

F is 1 for equal weights and stays near 1 for normalized sigmoid. The exact forward correction r = a / sqrt(F)
(Eq. route-scale-exact) is off by default: r = a already matches the update size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from complete_mue.layout.numbers import count, real


def forward_factor(weights: Sequence[Sequence[float]]) -> float:
    """F measured: one row of normalized routing weights per token, active experts only."""
    active = count("active", len(weights[0]) if weights else 0)
    return active * sum(sum(pi * pi for pi in row) for row in weights) / len(weights)


def forward_factor_softmax(active: int, logit_deviations: float) -> float:
    """F of normalized softmax to second order (Eq. f-softmax-expand).

    ``logit_deviations`` is E[sum over the active experts of delta^2], with delta the selected logits about their mean.
    """
    return 1 + real("logit_deviations", logit_deviations, positive=False) / count("active", active)


def forward_factor_sigmoid(active: int, logit_deviations: float, mean_logit: float = 0.0) -> float:
    """F of normalized sigmoid to second order (Eq. f-sigmoid-expand): softmax's, damped by kappa^2 = (1 - sigma)^2."""
    kappa = 1 / (1 + math.exp(min(mean_logit, 700.0)))
    return 1 + kappa**2 * (forward_factor_softmax(active, logit_deviations) - 1)


def corrected_route_scale(active: int, factor: float) -> float:
    """r = a / sqrt(F) (Eq. route-scale-exact)."""
    return count("active", active) / math.sqrt(real("forward factor F", factor))
