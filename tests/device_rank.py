"""The only rank of the test of many GPUs on one device: ``torchrun device_rank.py OUT KEY=VALUE…``.

The same run alone, and with its experts dealt out over a mesh of one rank, which takes every path but the wire: process
group, mesh, FSDP2, DTensors, all-to-all.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import distributed as dist

from complete_mue.lab.nn.feed_forward import FeedForward
from complete_mue.lab.train.config import RunConfig
from complete_mue.lab.train.loop import local_device
from complete_mue.lab.train.parallel import ALONE, Ranks, launched, leave
from complete_mue.lab.train.trainer import Trainer
from parallel_rank import config_of

FULL = ("accumulate=2", "shape.width=64", "shape.head_dim=32", "budget.batch_tokens=512", "task.sequence=64")


class Dealt(Ranks):
    """Experts are dealt out, be it to one rank."""

    def deals_out(self, block: FeedForward) -> bool:
        return bool(block.spec.groups)


def losses(config: RunConfig, ranks: Ranks, device: torch.device) -> list[float]:
    torch.compiler.reset()
    trainer = Trainer(config, device, ranks=ranks)
    trainer.start()
    return [float(trainer.step(number).loss) for number in range(config.budget.steps)]


def main(out: str, *keys: str) -> None:
    config = config_of("shared", *keys)
    device = local_device(config.device)
    found: dict[str, object] = {"device": str(device)}
    with launched(1, device) as ranks:
        backends = dict(entry.split(":") for entry in dist.get_backend_config().split(","))
        found["backend"] = backends[device.type]
        dealt = Dealt(ranks.rank, ranks.world, ranks.expert_parallel, ranks.mesh)
        for way, those in {"alone": ALONE, "dealt": dealt}.items():
            found[way] = losses(config, those, device)
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave()
