"""Our language model as a check sees it: a few steps on real text, the Python sources of the machine."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from complete_mue.apply.initialize import initialize
from complete_mue.apply.optim import param_groups
from complete_mue.apply.setup import Setup
from complete_mue.models.lm import LanguageModel
from complete_mue.plan.plan import Plan

BYTES, SEQUENCE = 256, 64


def language_model_setup(plan: Plan, seed: int = 0) -> Setup:
    """A byte-level language model of the plan's shape, initialized, with its AdamW; batches of the plan's tokens."""
    model = LanguageModel(plan.shape, BYTES, plan, kernel="reference")
    initialize(model, plan, seed=seed)
    text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
    rows = max(1, plan.budget.batch_tokens // SEQUENCE)

    def loss(model: nn.Module, step: int) -> Tensor:
        starts = torch.randint(0, len(text) - SEQUENCE - 1, (rows,), generator=torch.Generator().manual_seed(step))
        window = text[starts[:, None] + torch.arange(SEQUENCE + 1)]  # [rows, tokens + 1]
        return F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())

    return Setup(model, torch.optim.AdamW(param_groups(model, plan)), loss)
