"""One rank of the tests of many ranks: the runs they train, by name; a name with @N has experts over N ranks."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from complete_mue.lab.recipes import recipe
from complete_mue.lab.train.config import RunConfig, override
from complete_mue.lab.train.parallel import ALONE, Ranks, arranged, launched, leave
from complete_mue.lab.train.trainer import Trainer

CPU = torch.device("cpu")
TEXT = (
    "shape.width=16", "shape.depth=2", "shape.head_dim=8", "betas=hold", "budget.steps=20", "task.sequence=16",
    "budget.batch_tokens=128", "bias_rate=0.003", "reference.hyper.lr=1e-3",  # calm: rounding stays rounding
)  # fmt: skip
PICTURES = (*TEXT[:5], *TEXT[-2:], "task.size=16", "task.patch=4", "budget.batch_tokens=128")
BALANCED = ("router.balance_loss=0.05", "router.z_loss=0.01", "router.selection_bias=true", "bias_rate=0.01")
RUNS = {
    "dense": ("lm_tiny", *TEXT),
    "sparse": ("lm_tiny:8e2a", *TEXT),
    "shared": ("lm_tiny:8e2a1s", *TEXT),
    "grouped": ("lm_tiny:8e4a2g", *TEXT),
    "all": (
        "lm_tiny:8e4a2g1s", *TEXT, *BALANCED, "shape.dense_layers=1", "qk_norm=true", "accumulate=2", "recompute=1",
    ),
    "balanced": ("lm_tiny:8e2a", *TEXT, *BALANCED),
    "bfloat16": ("lm_tiny:8e2a1s", *TEXT, "precision=bfloat16", "accumulate=2"),
    "pictures": ("dit_tiny:8e2a1s", *PICTURES),
}  # fmt: skip


def config_of(name: str, *more: str) -> RunConfig:
    kind, _, over = name.partition("@")
    base, *overrides = RUNS[kind]
    return override(recipe(base), *overrides, f"expert_parallel={over or 1}", *more)


def wide(batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in batch)


def trained(name: str, steps: int, ranks: Ranks = ALONE) -> dict[str, Any]:
    """Losses and norms of all steps, details of the last; in float64, where the order of a sum tips no choice."""
    config = config_of(name if ranks.mesh is not None else name.partition("@")[0])
    usual = torch.get_default_dtype()
    if config.precision == "float32":
        torch.set_default_dtype(torch.float64)
    try:
        trainer = Trainer(config, CPU, ranks=ranks)
    finally:
        torch.set_default_dtype(usual)
    if config.precision == "float32":
        assert {parameter.dtype for parameter in trainer.model.parameters()} == {torch.float64}
        trainer._placed = wide  # type: ignore[method-assign]
    trainer.start()
    taken = [trainer.step(number, detailed=number + 1 == steps) for number in range(steps)]
    norms = [step.norm for step in taken if step.norm is not None]
    return {
        "losses": [float(step.loss) for step in taken],
        "norms": [float(norm) for norm in norms],
        "details": taken[-1].details(),
    }


def train_all(out: str, steps: int, *names: str) -> None:
    """The first rank leaves losses, norms and details of every run in ``out``."""
    with launched(1, CPU) as ranks:
        found = {}
        for name in names:
            torch.manual_seed(ranks.rank)  # the global seed has no say in anything
            found[name] = trained(name, steps, arranged(int(name.partition("@")[2] or 1), CPU))
        if ranks.first:
            Path(out).write_text(json.dumps(found))
    leave()


def hang_once(folder: str) -> None:
    """Wait forever, but not the second time."""
    begun = Path(folder) / os.environ["RANK"]
    if not begun.exists():
        begun.touch()
        time.sleep(3600)
