"""Loss on the text that was set apart: what a language model has learned that is not the training text itself."""

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

from complete_mue.lab.data.text import open_text
from complete_mue.lab.evals.scoring import Scorer, Tick
from complete_mue.lab.train.config import RunConfig, TextTask
from complete_mue.lab.train.task import next_token_loss


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
