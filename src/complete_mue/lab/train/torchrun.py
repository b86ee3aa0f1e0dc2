"""A run on all ranks that torchrun started: each has a GPU of its own, and ranks started again go on.

Without torchrun, one process on one device.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from complete_mue.lab.train.config import RunConfig
from complete_mue.lab.train.loop import Report, Result, divergence, repeated, train
from complete_mue.lab.train.parallel import launched
from complete_mue.lab.train.trainer import pick_device


def train_on_ranks(
    config: RunConfig, run: Path, *, resume: bool, restart: bool, report: Report, warn: Callable[[str], None]
) -> Result:
    """Train on this rank together with the others; ``report`` is called on the first."""
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    if (resume or again) and (ended := divergence(run, config)) is not None:
        # torchrun counts a divergence as a failure and starts the ranks again: they must not repeat it.
        warn(repeated(run, ended, config))
        return ended
    device = local_device(config.device)
    with launched(config.expert_parallel, device) as ranks:
        return train(
            config, run, resume=resume or (restart and again), restart=restart and not again, report=report, warn=warn,
            ranks=ranks, device=device,
        )  # fmt: skip


def local_device(name: str) -> torch.device:
    """Each rank its own GPU of its machine."""
    device = pick_device(name)
    local = os.environ.get("LOCAL_RANK")
    return torch.device("cuda", int(local)) if device.type == "cuda" and local is not None else device
