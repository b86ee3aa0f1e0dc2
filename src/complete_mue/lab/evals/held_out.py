"""Loss on what a run has not trained on: the text that was set apart, or other pictures."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from complete_mue.errors import RunError
from complete_mue.lab.data.digest import picture_identity
from complete_mue.lab.data.picture_sources import BUILT_IN, open_pictures
from complete_mue.lab.data.text import open_text
from complete_mue.lab.evals.scoring import Scorer, Tick
from complete_mue.lab.train.config import PictureTask, RunConfig, TextTask
from complete_mue.lab.train.task import interpolate, next_token_loss

PICTURES = 512  # that are drawn, where drawings never end
TIMES = 8  # parts of the way from noise to data, at a place in each of which every picture is judged
_TOGETHER = 64


@dataclass(frozen=True)
class HeldOut:
    """Mean loss per token in nats over all windows of the held-out split; ``error`` is its standard error.

    ``bits_per_byte`` counts bytes of text and can be compared between tokenizers.
    """

    loss: float
    error: float
    bits_per_byte: float
    windows: int
    tokens: int
    step: int
    split: str = "held_out"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)

    def to_text(self) -> str:
        """One line."""
        return (
            f"held-out loss {self.loss:.4f} ± {self.error:.4f} nats per token, {self.bits_per_byte:.4f} bits per byte "
            f"({self.tokens:,} tokens in {self.windows:,} windows) at step {self.step:,}"
        )


@torch.inference_mode()
def held_out_loss(config: RunConfig, scorer: Scorer, step: int, tick: Tick) -> HeldOut:
    """The loss of ``scorer``'s model, which is of this ``step``, on the held-out split of the text that ``config``
    trained on."""
    assert isinstance(config.task, TextTask)
    length = config.task.sequence
    data = open_text(config.task.source, sequence=length, rows=1, split="held_out")
    at_once = max(1, scorer.batch_tokens // length)
    losses: list[float] = []

    def windows() -> Iterator[torch.Tensor]:
        for first in range(0, data.windows, at_once):
            yield data.at(np.arange(first, min(first + at_once, data.windows)))

    for tokens in windows():
        tokens = tokens.to(scorer.device)
        logits = scorer.forward(tokens[:, :-1])
        losses += [float(next_token_loss(row[None], text[None])) for row, text in zip(logits, tokens, strict=True)]
        tick(len(losses), data.windows)
    parts = (tokens[:, 1:].flatten().numpy() for tokens in windows())
    texts = _documents(parts, scorer.tokenizer.end_of_text)
    size = sum(len(scorer.tokenizer.decode(text.tolist()).encode("utf-8")) for text in texts)
    mean = statistics.fmean(losses)
    spread = statistics.stdev(losses) if len(losses) > 1 else 0.0
    count = len(losses) * length
    error, bits = spread / math.sqrt(len(losses)), mean * count / size / math.log(2)
    return HeldOut(mean, error, bits, len(losses), count, step)


def _documents(parts: Iterator[NDArray[np.int64]], end: int) -> Iterator[NDArray[np.int64]]:
    """The documents of a stream that comes in parts. Only a whole one can be turned into text: a character may be
    several tokens, and a window may end in the middle of it.
    """
    held: list[NDArray[np.int64]] = []
    for part in parts:
        *ended, rest = np.split(part, np.flatnonzero(part == end) + 1)
        for document in ended:
            yield np.concatenate([*held, document[:-1]])
            held = []
        held.append(rest)
    yield np.concatenate(held)


@dataclass(frozen=True)
class HeldOutFlow:
    """Mean squared error of the velocity over pictures of ``source`` that a run has not trained on, with its standard
    error over pictures. Noise and times are the same for every model."""

    loss: float
    error: float
    pictures: int
    times: int
    step: int
    source: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)

    def to_text(self) -> str:
        """One line."""
        return (
            f"held-out flow loss {self.loss:.4f} ± {self.error:.4f} ({self.pictures:,} pictures of {self.source}, "
            f"{self.times} times each) at step {self.step:,}"
        )


@torch.inference_mode()
def held_out_flow(config: RunConfig, model: nn.Module, step: int, source: str | None, tick: Tick) -> HeldOutFlow:
    """The flow loss of a model, which is of this ``step``, on ``source``; without one, on new drawings of the kind
    that the run trained on."""
    task = config.task
    assert isinstance(task, PictureTask)
    place = source or task.source
    if place not in BUILT_IN and picture_identity(place) == (task.data or picture_identity(task.source)):
        raise RunError(f"{place}: the run trained on it; give --source with pictures that it has not seen")
    data = open_pictures(
        place, size=task.size, frames=task.frames, text_length=task.text_length, rows=1, seed=config.seed + 1
    )
    losses: list[float] = []
    total, weight = data.items or PICTURES, next(model.parameters())
    for first in range(0, total, _TOGETHER):
        batch = data.at(np.arange(first, min(first + _TOGETHER, total)))
        generator, rows = torch.Generator().manual_seed(first), len(batch.images)
        found = torch.zeros(rows, dtype=torch.float64)
        for part in range(TIMES):
            t = (part + torch.rand(rows, generator=generator)) / TIMES
            x, velocity = interpolate(torch.randn(batch.images.shape, generator=generator), batch.images, t)
            x, t = (moved.to(weight.device, weight.dtype) for moved in (x, t))
            difference = model(x, t, batch.text.to(weight.device)).cpu().double() - velocity
            found += difference.square().flatten(1).mean(1) / TIMES
        losses += found.tolist()
        tick(len(losses), total)
    spread = statistics.stdev(losses) if len(losses) > 1 else 0.0
    return HeldOutFlow(statistics.fmean(losses), spread / math.sqrt(total), total, TIMES, step, place)
