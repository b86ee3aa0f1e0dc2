"""A training setup as a check sees it: a model, its optimizer, a loss, and perhaps a scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from complete_mue.apply.family import Family


@dataclass(frozen=True)
class Setup:
    """What ``build(plan)`` returns: the model initialized, the optimizer made, ready for the first step.

    ``loss(model, step)`` gives the training loss of a step; the same step gives the same batch.
    """

    model: nn.Module
    optimizer: Optimizer
    loss: Callable[[nn.Module, int], Tensor]
    scheduler: Any = None
    family: Family | None = None
