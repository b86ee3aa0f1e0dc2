"""A training setup as a check sees it: a model, its optimizer, a loss, and perhaps a scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from complete_mue.apply.family import Family
from complete_mue.errors import MueError, RunError
from complete_mue.plan.plan import Plan


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


def built(build: Callable[[Plan], Setup], plan: Plan) -> Setup:
    """``build(plan)``, or an error that says what is wrong with it."""
    try:
        setup = build(plan)
    except MueError:
        raise
    except Exception as problem:
        raise RunError(
            f"build(plan) failed with {type(problem).__name__}: {problem}; call it in Python to see where"
        ) from problem
    if not isinstance(setup, Setup):
        raise RunError(f"build(plan) returned a {type(setup).__name__}: return mue.Setup(model, optimizer, loss)")
    return setup
