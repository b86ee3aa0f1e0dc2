"""Batch and duration: the global AdamW factors (Table optimizer-rules, combined rule).

    lr, wd x s      eps x 1/s      (1 - beta) x rho_B / rho_D        with  s = sqrt(rho_B / rho_D)

Since D = B T, rho_B / rho_D = T* / T: the whole rule depends on the number of steps alone. Beyond the paper, lr may go
with rho_B^(1/4) in place of s: the power that fits the optima of our sweeps (docs/results/steps.md).
"""

from __future__ import annotations

import math
from fractions import Fraction

from complete_mue.errors import TransferError

BATCH_LR = Fraction(1, 4)


def schedule_factor(steps_ratio: float) -> float:
    """s = sqrt(T* / T)."""
    return math.sqrt(1 / steps_ratio)


def transfer_beta(name: str, beta: float, steps_ratio: float) -> float:
    """beta with (1 - beta) multiplied by T* / T, so that the averaging window covers the same share of training."""
    if steps_ratio == 1:
        return beta
    window = (1 - beta) / steps_ratio
    if window >= 1:
        raise TransferError(
            f"{name} = {beta:g} at {1 / steps_ratio:g} times fewer steps gives 1 - {name} = {window:g}, "
            "which must stay below 1; "
            'keep the reference\'s betas with betas="hold" (`mue plan --betas hold`, `mue train … betas=hold`, '
            "`mue sweep … --set betas=hold`), or train for more steps"
        )
    return 1 - window
