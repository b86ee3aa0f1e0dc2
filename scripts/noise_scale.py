"""Is gradient noise what limits a reference's learning rate? The noise scale of its gradients, through training.

    TINY="stdlib --scale tiny --set reference.hyper.lr=0.004"
    LATE="--at 100 200 400 600 --seeds 1"
    python scripts/noise_scale.py $TINY --at 40 80 150 220 --name small_batch
    python scripts/noise_scale.py $TINY --at 20 40 75 110 --name larger_batch \\
        --set budget.batch_tokens=8192 --set budget.steps=150
    python scripts/noise_scale.py DATA --reference docs/results/pair/reference.toml $LATE --name language
    python scripts/noise_scale.py scenes --task dit --reference docs/results/dit-reference.toml $LATE --name diffusion

The dense reference trains as in a sweep. At the steps ``--at``, gradients of many small batches that are never trained
on tell their mean G from their spread: the noise scale is the batch at which the noise of a gradient is as large as G
(McCandlish et al. 2018, tr(S) / |G|^2, here in tokens). AdamW divides each weight's gradient by the root of its second
moment; ``as AdamW`` is the same with gradients so divided. Writes OUT/NAME.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from complete_mue.lab.sweep.figures import SCALES, base_config
from complete_mue.lab.train.config import RunConfig, override
from complete_mue.lab.train.trainer import Trainer, pick_device
from complete_mue.layout.toml_files import read_reference
from complete_mue.storage import write_json

KINDS = ("plain", "as AdamW")


def noise_scale(sums: list[Tensor], squares: list[Tensor], n: int, tokens: int, *, as_adamw: bool) -> float:
    """Tokens at which a gradient's noise is as large as its mean, from n gradients g_i of so many tokens each.

    sums = sum g_i and squares = sum g_i^2, weight by weight. The expectation of mean g_i^2 is G^2 + S/tokens, that of
    (mean g_i)^2 is G^2 + S/(n tokens), which gives unbiased estimates of both parts. Infinite where no mean is seen
    beside the noise.
    """
    signal = noise = 0.0
    for total, square in zip(sums, squares, strict=True):
        mean, second = (total.double() / n).square(), square.double() / n
        divisor = second.where(second > 0, 1.0) if as_adamw else 1.0
        signal += float(((n * mean - second) / divisor).sum()) / (n - 1)
        noise += float(((second - mean) / divisor).sum()) * n / (n - 1)
    return tokens * noise / signal if signal > 0 else math.inf


def gradients(trainer: Trainer, batches: int, parts: int) -> dict[str, float]:
    """Noise scales at the weights as they are, from fresh batches that are cut into parts."""
    model, config = trainer.model, trainer.config
    weights = [b.parameter for b in trainer.binding]
    sums, squares = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    for number in range(batches):
        batch = [tensor.to(trainer.device) for tensor in trainer.task.batch(config.budget.steps + number)]
        for part in zip(*(tensor.chunk(parts) for tensor in batch), strict=True):
            model.zero_grad(set_to_none=True)
            trainer.task.loss(model, part, []).backward()
            for weight, total, square in zip(weights, sums, squares, strict=True):
                if weight.grad is not None:
                    total += weight.grad
                    square += weight.grad.square()
    model.zero_grad(set_to_none=True)
    n, tokens = batches * parts, config.budget.batch_tokens // parts
    return {kind: noise_scale(sums, squares, n, tokens, as_adamw=kind != "plain") for kind in KINDS}


def measured(config: RunConfig, marks: list[int], batches: int, parts: int) -> list[dict[str, Any]]:
    """Train up to the last mark, and measure at each."""
    trainer = Trainer(config, pick_device(config.device))
    trainer.start()
    found = []
    for number in range(marks[-1]):
        loss = trainer.step(number).loss
        if number + 1 in marks:
            found.append({"step": number + 1, "loss": float(loss), **gradients(trainer, batches, parts)})
            print(found[-1], flush=True)
    return found


def main() -> int:
    """Train, measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a folder that `mue data prepare` made, or a built-in source")
    parser.add_argument("--task", choices=("lm", "dit"), default="lm")
    parser.add_argument("--scale", default="small", choices=SCALES)
    parser.add_argument("--reference", type=Path, help="a tuned reference.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the reference's config")
    parser.add_argument("--name", default="noise", help="of the record")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--at", type=int, nargs="+", default=[30, 60, 120, 180])
    parser.add_argument("--batches", type=int, default=16, help="fresh ones at every mark")
    parser.add_argument("--parts", type=int, default=4, help="that each batch is cut into")
    parser.add_argument("--out", type=Path, default=Path("runs/noise"))
    given = parser.parse_args()
    reference = read_reference(given.reference) if given.reference else None
    base = base_config(given.task, given.scale, reference, [f"task.source={given.source}", *given.set])
    base = dataclasses.replace(base, rules="complete_mue", compile=False, precision="float32")
    seeds = [
        measured(override(base, f"seed={seed}"), sorted(given.at), given.batches, given.parts)
        for seed in range(given.seeds)
    ]
    batch = base.budget.batch_tokens
    given.out.mkdir(parents=True, exist_ok=True)
    write_json(given.out / f"{given.name}.json", {"batch_tokens": batch, "steps": base.budget.steps, "seeds": seeds})
    for kind in KINDS:
        found = [line[kind] for lines in seeds for line in lines]
        middle = statistics.median(found)
        print(
            f"{given.name}, {kind}: noise scale {middle:,.0f} tokens (from {min(found):,.0f} to {max(found):,.0f}), "
            f"{middle / batch:.1f} times the batch of {batch:,}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
