"""Language-model recipes: each a function of a layout that returns a complete config."""

from __future__ import annotations

from complete_mue.lab.train.config import RunConfig, TextTask
from complete_mue.layout import Budget, FeedForward, Hyper, ModelShape, Reference


def lm_tiny(layout: str = "dense") -> RunConfig:
    """A minute or two on two CPU cores: width 64, four layers, bytes of Python's standard library."""
    reference = Reference(
        ModelShape(64, 4, FeedForward.dense(64), head_dim=16),
        Budget(batch_tokens=16 * 128, steps=400),
        Hyper(lr=8e-3, weight_decay=0.1, init_std=0.06, betas=(0.95, 0.95), eps=1e-8),
    )
    # Experts of a quarter of the width: any layout with four of them active has the dense reference's active width.
    shape = ModelShape(64, 4, FeedForward.parse(layout, 64 if layout == "dense" else 16), head_dim=16)
    return RunConfig(f"lm_tiny-{layout}", TextTask(sequence=128), reference, shape, reference.budget)


def lm_proxy(layout: str = "dense") -> RunConfig:
    """The paper's language proxy: width 128, 32 layers, 128 x 2048 tokens, 25k steps."""
    reference = Reference(
        ModelShape(128, 32, FeedForward.dense(128), head_dim=64),
        Budget(batch_tokens=128 * 2048, steps=25_000),
        Hyper(lr=1e-3, weight_decay=0.1, init_std=0.01, betas=(0.95, 0.95), eps=1e-8),
    )
    shape = ModelShape(128, 32, FeedForward.parse(layout, 128 if layout == "dense" else 16), head_dim=64)
    return RunConfig(
        f"lm_proxy-{layout}", TextTask(sequence=2048), reference, shape, reference.budget,
        precision="bfloat16", compile=True, log_every=50, checkpoint_every=1000,
    )  # fmt: skip


def lm_large(layout: str = "128e8a4g1s") -> RunConfig:
    """The paper's large language model: width 1024, 32 layers, 0.62 B active of 6.29 B, 512 x 2048 tokens, 100k steps.

    ``dense`` is its twin of the same active width.
    """
    block = FeedForward.dense(4608) if layout == "dense" else FeedForward.parse(layout, 512)
    shape = ModelShape(1024, 32, block, dense_layers=0 if block.is_dense else 2, head_dim=64)
    return RunConfig(
        f"lm_large-{layout}", TextTask(sequence=2048), lm_proxy().reference, shape,
        Budget(batch_tokens=512 * 2048, steps=100_000), precision="bfloat16", compile=True,
        accumulate=micro_batches(512, 2048, dense=block.is_dense), log_every=10, checkpoint_every=1000,
    )  # fmt: skip


def micro_batches(rows: int, tokens: int, *, dense: bool) -> int:
    """Micro-batches of a large model on one device of 140 GB: the fewest whose activations fit beside its states.

    Some 1.5 MB of activations per token at width 1024 and 32 layers; the states take 105 GiB of an MoE and 10 GiB of
    its dense twin.
    """
    most = 32_768 if dense else 16_384
    return next(parts for parts in range(1, rows + 1) if rows % parts == 0 and rows // parts * tokens <= most)
