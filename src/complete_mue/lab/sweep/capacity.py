"""How many runs to train in one program: as many as memory holds, and no more than keep the device busy."""

from __future__ import annotations

import os

import torch

from complete_mue.lab.data.manifest import Manifest
from complete_mue.lab.train.config import RunConfig, TextTask

# Tokens per step, times width, from where a GPU gains little more: 16 runs of 16k tokens at width 128.
_SATURATED = 16 * 16_384 * 128
_ON_CPU = 4  # more runs together gain nothing there and leave cores idle at the end (`mue bench sweep --device cpu`)
_SHARE = 0.8  # of the free memory


def replicas_that_fit(config: RunConfig, device: torch.device, *, workers: int = 1) -> int:
    """K for runs like this one; ``workers`` processes share the device. A group that runs out of memory is halved."""
    if device.type != "cuda":
        return _ON_CPU
    free = torch.cuda.mem_get_info(device)[0] * _SHARE / workers
    work = config.budget.batch_tokens * config.shape.width
    return max(1, min(round(_SATURATED / work), int(free / replica_bytes(config))))


def replica_bytes(config: RunConfig) -> float:
    """Weights, gradients and moments of one run, and the activations of its largest micro-batch: an estimate."""
    shape, vocab = config.shape, _vocab(config)
    states = 16 * (shape.parameters.total + 2 * vocab * shape.width)
    active = sum(group.active for group in shape.main.groups)
    per_layer = 40 * shape.width + 4 * active * shape.width + 8 * shape.active_width
    tokens = config.budget.batch_tokens / config.accumulate
    return states + tokens * (shape.depth * per_layer + 12 * vocab)


def _vocab(config: RunConfig) -> int:
    if isinstance(config.task, TextTask) and config.task.source != "stdlib":
        return Manifest.read(config.task.source).tokenizer.vocab
    return 256


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
