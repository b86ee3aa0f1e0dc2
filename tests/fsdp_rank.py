"""One rank of the FSDP2 test, in a module of its own so that spawned processes can import it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import complete_mue as mue
from stock_families import tiny_config, tiny_plan

STEPS, BATCH, MAX_NORM = 10, 4, 0.2


def train(world: int, folder: str) -> None:
    """meta -> fully_shard (two processes) -> to_empty -> initialize -> train; rank 0 leaves weights, losses, norms."""
    from torch import distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor
    from transformers import AutoModelForCausalLM

    rank = int(os.environ["RANK"]) if world > 1 else 0
    torch.set_num_threads(1)
    with torch.device("meta"):
        config = tiny_config("mixtral")
        # torch's grouped product takes no float64
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float64, experts_implementation="eager")
    plan = tiny_plan(model)
    if world > 1:
        dist.init_process_group("gloo")
        mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    torch.manual_seed(rank)  # the global seed has no say in the initial weights
    mue.initialize(model, plan, seed=3)

    def whole(tensor: torch.Tensor) -> torch.Tensor:
        return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()

    start = {name: whole(parameter) for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW(mue.param_groups(model, plan))
    generator = torch.Generator().manual_seed(0)
    losses, norms = [], []
    for _ in range(STEPS):
        words = torch.randint(3, 20, (BATCH, 16), generator=generator)
        tokens = words.chunk(world)[rank]
        logits = model(input_ids=tokens).logits  # the stock loss is taken in float32; this one keeps float64
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        norms.append(mue.clip_grad_norm_(model, plan, MAX_NORM).item())
        left = mue.clip_grad_norm_(model, plan, MAX_NORM).item()
        assert left == pytest.approx(MAX_NORM, rel=1e-3), "clipped gradients have the norm asked for"
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        if world > 1:
            dist.all_reduce(mean)
        losses.append(mean.item() / world)
    end = {name: whole(parameter) for name, parameter in model.named_parameters()}
    if rank == 0:
        torch.save((start, end, losses, norms), Path(folder) / f"{world}.pt")
    if world > 1:
        dist.destroy_process_group()
        os._exit(0)  # a thread of gloo that outlives the interpreter would abort it
