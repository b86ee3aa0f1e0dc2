"""The arithmetic of a rank's step in seconds, from the speeds of its kernels.

Measured on one NVIDIA H200 with torch 2.11 by ``mue bench train RECIPE --profile``: each record in docs/results/train
holds the time of every kernel of a step, and a test compares the sum of what is below with the step as it was timed.
Other GPUs are taken to be as far from their own peak and bandwidth; that is not measured.
"""

from __future__ import annotations

from complete_mue.lab.train.config import PictureTask, RunConfig
from complete_mue.lab.train.gpus import GPUS
from complete_mue.lab.train.task import Task

# Shares of the peak in bfloat16, and of the memory's speed. Attention counts all pairs of tokens, causal or not.
_PRODUCTS, _EXPERTS, _ATTENTION, _MEMORY = 0.68, 0.61, 0.69, 0.875
_PADDING = 64  # rows: half of the last tile of each expert

# Bytes moved, per weight and step: AdamW, the norm of gradients, their scaling and zeroing, the experts' copies.
_OPTIMIZER = 56
_SUMS = 8  # per weight of an expert and micro-batch: its float32 gradient, read and written
# Bytes moved, per token and layer: times the width, or the hidden width of a dense branch.
_LAYER, _MODULATION, _ROUTING, _ATTENTION_BYTES, _SWIGLU = 140, 60, 60, 70, 26
_OVERHEAD = 1.015  # the step against the sum of its kernels


def compute_seconds(
    config: RunConfig, task: Task, gpu: str, *, tokens: int, parts: int, weights: float, experts: float, deal: int = 1
) -> float:
    """One rank's step of ``tokens`` (a picture's text included) in ``parts`` micro-batches.

    ``weights`` are those its optimizer updates and ``experts`` those of experts whose gradients it sums; ``deal`` ranks
    share a set of experts and send each other tokens.
    """
    shape, peak, bandwidth = config.shape, GPUS[gpu].flops, _MEMORY * GPUS[gpu].bandwidth
    plain = shape.parameters.active + task.embedding  # active weights outside of experts
    routed = moved = 0.0
    for block in shape.blocks:
        active, number = sum(group.active for group in block.groups), sum(group.experts for group in block.groups)
        moved += (_LAYER + _ATTENTION_BYTES) * shape.width + _SWIGLU * sum(block.branches)
        if isinstance(config.task, PictureTask):
            moved += _MODULATION * shape.width
        if active:
            inside = 3 * shape.width * sum(group.active * group.expert_width for group in block.groups)
            rows = tokens / parts * deal * active / number
            plain -= inside
            routed += inside * (1 + _PADDING / rows)
            moved += (_ROUTING + 4 * (active + 1)) * shape.width  # each token's rows are read and summed, twice
    attention = 12 * shape.depth * shape.width * task.sequence
    per_token = (6 * plain / _PRODUCTS + 6 * routed / _EXPERTS + attention / _ATTENTION) / peak + moved / bandwidth
    return _OVERHEAD * (tokens * per_token + (_OPTIMIZER * weights + _SUMS * experts * parts) / bandwidth)
