"""Loss on the text that was set apart: what a language model has learned that is not the training text itself."""

from __future__ import annotations

import dataclasses
import math
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

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
    size = 0
    for first in range(0, data.windows, at_once):
        tokens = data.at(np.arange(first, min(first + at_once, data.windows)))
        size += sum(len(scorer.tokenizer.decode(row[1:]).encode("utf-8")) for row in tokens.tolist())
        tokens = tokens.to(scorer.device)
        logits = scorer.forward(tokens[:, :-1])
        losses += [float(next_token_loss(row[None], text[None])) for row, text in zip(logits, tokens, strict=True)]
        tick(len(losses), data.windows)
    mean = statistics.fmean(losses)
    spread = statistics.stdev(losses) if len(losses) > 1 else 0.0
    count = len(losses) * length
    error, bits = spread / math.sqrt(len(losses)), mean * count / size / math.log(2)
    return HeldOut(mean, error, bits, len(losses), count, step)
