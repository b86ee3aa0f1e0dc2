"""Arithmetic and memory of a run, for utilisation figures and dry runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from complete_mue.lab.train.config import RunConfig
from complete_mue.lab.train.gpus import GPUS
from complete_mue.lab.train.task import Task


@dataclass(frozen=True)
class Cost:
    """Per token of the budget, and bytes of a whole run's states."""

    flops_per_token: float
    state_bytes: int

    @classmethod
    def of(cls, config: RunConfig, task: Task) -> Cost:
        """6 FLOPs per active weight and token, and attention's products (12 width sequence per layer, causal or not).
        Text tokens of a picture are computed too, so a patch bears its share. States are fp32 weights, gradients and
        two moments, and the experts' bfloat16 copies where a step has several micro-batches.
        """
        shape, weights = config.shape, dict(task.model.named_parameters())
        parameters = sum(weight.numel() for weight in weights.values())
        experts = sum(w.numel() for name, w in weights.items() if name.rpartition(".")[2].startswith("expert_"))
        copied = experts if config.precision == "bfloat16" and config.accumulate > 1 else 0
        active = shape.parameters.active + task.embedding
        attention = 12 * shape.depth * shape.width * task.sequence
        share = task.sequence / config.task.tokens_per_row()
        return cls((6 * active + attention) * share, 16 * parameters + 2 * copied)


class Meter:
    """Tokens per second, utilisation and time left, since the last reading."""

    def __init__(self, config: RunConfig, task: Task, device: torch.device, devices: int = 1) -> None:
        self.config, self.device, self.cost = config, device, Cost.of(config, task)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        # FLOP/s in bfloat16; 0 where that is not known
        self.peak = devices * next((kind.flops for word, kind in GPUS.items() if word in name), 0.0)
        self._last: tuple[float, int] | None = None

    def read(self, step: int) -> dict[str, Any]:
        """Since the last reading; read where the device has been waited for."""
        now, last = time.perf_counter(), self._last
        self._last = (now, step)
        if last is None or step == last[1]:
            return {}
        speed = (step - last[1]) * self.config.budget.batch_tokens / (now - last[0])
        values = {"tokens_per_second": speed}
        values["seconds_left"] = (self.config.budget.steps - step) * self.config.budget.batch_tokens / speed
        if self.peak:
            values["mfu"] = speed * self.cost.flops_per_token / self.peak
        if self.device.type == "cuda":
            values["peak_gib"] = torch.cuda.max_memory_reserved(self.device) / 2**30  # a graph's own included
        return values
