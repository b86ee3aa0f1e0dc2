"""Shared by all tests: the paper's large language model, and a hypothesis profile without time limits."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

import complete_mue as mue

sys.path.insert(0, str(Path(__file__).parent))
ROOT = Path(__file__).parents[1]

with contextlib.suppress(ModuleNotFoundError):  # GPU machines may come without it; the algebra is tested elsewhere
    from hypothesis import settings

    settings.register_profile("mue", deadline=None, derandomize=True)
    settings.load_profile("mue")


@pytest.fixture
def root() -> Path:
    return ROOT


@pytest.fixture
def lm_reference() -> mue.Reference:
    return mue.Reference(
        shape=mue.ModelShape(width=128, depth=32, feed_forward=mue.FeedForward.dense(128)),
        budget=mue.Budget(batch_tokens=128 * 2048, steps=25_000),
        hyper=mue.Hyper(lr=1e-3, weight_decay=0.1, init_std=0.01, betas=(0.95, 0.95), eps=1e-8),
    )


@pytest.fixture
def lm_plan(lm_reference: mue.Reference) -> mue.Plan:
    block = mue.FeedForward.parse("128e8a4g1s", expert_width=512)
    shape = mue.ModelShape(width=1024, depth=32, feed_forward=block, dense_layers=2)
    return mue.transfer(lm_reference, shape, mue.Budget(batch_tokens=512 * 2048, steps=100_000))
