"""FSDP2: meta -> fully_shard -> to_empty -> mue.initialize -> train. ``torchrun --nproc-per-node 2 fsdp2.py`` (CPU)."""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, MixtralConfig

import complete_mue as mue

STEPS, BATCH = 20, 8


def main() -> list[float]:
    """Train on all ranks, and return the losses, averaged over them."""
    launched = "RANK" in os.environ  # by torchrun; else one process
    dist.init_process_group("gloo", **({} if launched else {"store": dist.HashStore(), "rank": 0, "world_size": 1}))
    rank, world = dist.get_rank(), dist.get_world_size()
    config = MixtralConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        num_local_experts=6, num_experts_per_tok=3, vocab_size=128, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    reference = mue.Reference(  # the small dense model that was tuned
        shape=mue.ModelShape(width=32, depth=2, feed_forward=mue.FeedForward.dense(48)),
        budget=mue.Budget(batch_tokens=BATCH * 32, steps=STEPS),
        hyper=mue.Hyper(lr=1e-2, weight_decay=0.1, init_std=0.05),
    )
    plan = mue.transfer(reference, mue.describe(model))
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    mue.initialize(model, plan)  # every rank draws the same whole tensor and keeps its part
    optimizer = torch.optim.AdamW(mue.param_groups(model, plan))
    losses = []
    for words in torch.randint(3, 20, (STEPS, BATCH, 32), generator=torch.Generator().manual_seed(0)):
        tokens = words.chunk(world)[rank]
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        mue.clip_grad_norm_(model, plan, 1.0)  # the norm over all ranks
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / world)
    if rank == 0:
        print("losses", *(f"{loss:.6f}" for loss in losses), flush=True)
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    main()
    os._exit(0)  # a thread of gloo that outlives the interpreter would abort a finished rank
