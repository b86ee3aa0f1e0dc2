"""Diffusion recipes: each a function of a layout that returns a complete config."""

from __future__ import annotations

from complete_mue.errors import RunError, one_of
from complete_mue.lab.recipes.lm import micro_batches
from complete_mue.lab.train.config import PictureTask, RunConfig
from complete_mue.layout import Budget, FeedForward, Hyper, ModelShape, Reference


def dit_tiny(layout: str = "dense") -> RunConfig:
    """A minute or two on two CPU cores: width 64, four layers, one captioned shape of 16 pixels."""
    task = PictureTask("shapes", size=16, patch=2, text_length=28)
    reference = Reference(
        ModelShape(64, 4, FeedForward.dense(64), head_dim=16),
        Budget(batch_tokens=16 * task.tokens_per_row(), steps=1000),
        Hyper(lr=5e-3, weight_decay=0.01, init_std=0.08, betas=(0.95, 0.95), eps=1e-8),
    )
    shape = ModelShape(64, 4, FeedForward.parse(layout, 64 if layout == "dense" else 16), head_dim=16)
    return RunConfig(f"dit_tiny-{layout}", task, reference, shape, reference.budget)


def dit_proxy(layout: str = "dense") -> RunConfig:
    """The paper's diffusion proxy: width 128, 32 layers, 1024 latents per picture, batch 256, 100k steps."""
    reference = Reference(
        ModelShape(128, 32, FeedForward.dense(128), head_dim=64),
        Budget(batch_tokens=256 * 1024, steps=100_000),
        Hyper(lr=1.6e-3, weight_decay=0.01, init_std=0.02, betas=(0.95, 0.95), eps=1e-8),
    )
    shape = ModelShape(128, 32, FeedForward.parse(layout, 128 if layout == "dense" else 16), head_dim=64)
    return RunConfig(
        f"dit_proxy-{layout}", PictureTask(size=32, patch=1), reference, shape, reference.budget,
        precision="bfloat16", compile=True, log_every=50, checkpoint_every=1000,
    )  # fmt: skip


# workload -> latents per side after 16x compression (patch 1), frames, batch
WORKLOADS = {"256px": (16, 1, 3072), "512px": (32, 1, 768), "keyframes": (15, 8, 96), "video": (15, 30, 48)}


def dit_large(layout: str = "128e8a4g1s", workload: str = "512px") -> RunConfig:
    """The paper's large diffusion model on one of its four workloads: 256px, 512px, keyframes, video."""
    one_of("workload", workload, WORKLOADS, RunError)
    side, frames, batch = WORKLOADS[workload]
    block = FeedForward.dense(4608) if layout == "dense" else FeedForward.parse(layout, 512)
    shape = ModelShape(1024, 32, block, dense_layers=0 if block.is_dense else 2, head_dim=128)
    task = PictureTask("sprites" if frames > 1 else "scenes", size=side, patch=1, frames=frames)
    return RunConfig(
        f"dit_large-{layout}-{workload}", task, dit_proxy().reference, shape,
        Budget(batch_tokens=batch * task.tokens_per_row(), steps=100_000), precision="bfloat16", compile=True,
        accumulate=micro_batches(batch, task.tokens_per_row() + task.text_length, dense=block.is_dense),
        log_every=10, checkpoint_every=1000,
    )  # fmt: skip
