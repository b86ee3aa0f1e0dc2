"""A plan in which every ratio differs from 1, small enough to build in each tool."""

from __future__ import annotations

import pytest

import complete_mue as mue


@pytest.fixture
def tiny_reference() -> mue.Reference:
    return mue.Reference(
        shape=mue.ModelShape(width=16, depth=2, feed_forward=mue.FeedForward.dense(32)),
        budget=mue.Budget(batch_tokens=64, steps=100),
        hyper=mue.Hyper(lr=3e-3, weight_decay=0.1, init_std=0.05, betas=(0.9, 0.95), eps=1e-8),
    )


@pytest.fixture
def tiny_plan(tiny_reference: mue.Reference) -> mue.Plan:
    block = mue.FeedForward.parse("8e4a2g1s", expert_width=8)
    shape = mue.ModelShape(width=32, depth=3, feed_forward=block, dense_layers=1)
    return mue.transfer(tiny_reference, shape, mue.Budget(batch_tokens=128, steps=200))
