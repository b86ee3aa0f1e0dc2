"""Our language model as a check sees it: bytes, with the check's own text."""

from __future__ import annotations

import torch

from complete_mue.apply.initialize import initialize
from complete_mue.apply.optim import param_groups
from complete_mue.apply.setup import Setup
from complete_mue.lab.models.lm import LanguageModel
from complete_mue.plan.plan import Plan

BYTES = 256


def language_model_setup(plan: Plan, seed: int = 0) -> Setup:
    """A byte-level language model of the plan's shape, initialized, with its AdamW."""
    model = LanguageModel(plan.shape, BYTES, plan, kernel="reference")
    initialize(model, plan, seed=seed)
    return Setup(model, torch.optim.AdamW(param_groups(model, plan)))
