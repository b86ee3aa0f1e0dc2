"""How long a sweep takes on one GPU, on paper, before it starts.

Small models wait for memory, not for arithmetic. So a token's time is what its layers read and write, over the speed of
the memory, and its products, over that of the tensor cores; a step adds the time of launching its kernels and that of
AdamW. The constants are fitted to fused runs on one NVIDIA H200 (docs/sweep.md) and hold within a third there.

Runs of one program take turns with others, so all compiling but the first is hidden behind training.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from complete_mue.errors import MueError
from complete_mue.lab.data.manifest import Manifest
from complete_mue.lab.sweep.grid import SweepPoint, fusible
from complete_mue.lab.train.config import PictureTask, RunConfig, TextTask
from complete_mue.lab.train.gpus import GPUS

FITTED = "H200"
_REACHED = 0.75  # of the memory's speed
_FLOPS = 4e14 / GPUS[FITTED].bandwidth  # products, as much slower on a GPU as its memory
_FLASH = 2e14 / GPUS[FITTED].bandwidth  # attention over long rows
_SHORT = 128  # tokens of a row that one program holds whole
_COMPILE = 35.0  # seconds, of the first program
_SATURATED = 32 * 16_384 * 128  # tokens per step, times width, from where more runs in one program gain little


def sweep_seconds(points: Sequence[SweepPoint], gpu: str = FITTED, replicas: int | None = None) -> float:
    """All points of a sweep on a GPU of that name, ``replicas`` runs in one program or as many as help."""
    total = _COMPILE
    for group in fusible(points):
        config = group[0].config
        together = min(len(group), replicas or saturating(config))
        programs = -(-len(group) // together)
        total += programs * config.budget.steps * step_seconds(config, len(group) / programs, gpu)
    return total


def saturating(config: RunConfig) -> int:
    """Runs in one program from where a GPU gains little more: 32 of 16k tokens at width 128."""
    return max(1, round(_SATURATED / (config.budget.batch_tokens * config.shape.width)))


def step_seconds(config: RunConfig, replicas: float, gpu: str = FITTED) -> float:
    """One step of so many runs in one program."""
    memory, shape = bandwidth(gpu), config.shape
    task, pictures = config.task, isinstance(config.task, PictureTask)
    row = task.tokens_per_row() + (task.text_length if isinstance(task, PictureTask) else 0)
    tokens = config.budget.batch_tokens * row / task.tokens_per_row()
    moved, flops, attention, launches = 0.0, 6.0 * shape.parameters.active, 0.0, 0.0
    for block in shape.blocks:  # bytes of a token, forward and backward
        routed = bool(block.groups)
        active = sum(group.active for group in block.groups)
        moved += (120 + 28 * routed + 108 * pictures + 30 * active) * shape.width + 50 * block.experts
        moved += 41 * sum(block.branches)
        attention += 12 * shape.width * row if row > _SHORT else 0
        launches += 0.48e-3 if routed else 0.19e-3
    words = 256  # of text that is not here
    with suppress(MueError):
        words = vocabulary(config)
    moved += 80 * shape.width + 12 * words
    flops += 6 * words * shape.width
    per_token = moved / (_REACHED * memory) + flops / (_FLOPS * memory) + attention / (_FLASH * memory)
    weights = shape.parameters.total + 2 * words * shape.width
    return launches + replicas * (tokens * per_token + 36 * weights / (_REACHED * memory))


def bandwidth(gpu: str) -> float:
    """Of a GPU's memory, by a word in its name."""
    return next(kind.bandwidth for name, kind in GPUS.items() if name in gpu)


def vocabulary(config: RunConfig) -> int:
    """Of the text that a model reads: bytes, unless it was prepared with a tokenizer."""
    if isinstance(config.task, TextTask) and config.task.source != "stdlib":
        return Manifest.read(config.task.source).tokenizer.vocab
    return 256
