"""What a plan costs does not depend on the depth; numbers that cannot be computed with are an error, not infinity."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given

import complete_mue as mue
from complete_mue.layout.notation import Parameters
from complete_mue.plan.plan_json import to_json
from strategies import shapes


def reference(depth: int = 4, **hyper: float) -> mue.Reference:
    values = {"lr": 1e-3, "weight_decay": 0.1, "init_std": 0.02} | hyper
    shape = mue.ModelShape(64, depth, mue.FeedForward.dense(64))
    return mue.Reference(shape, mue.Budget(1024, 100), mue.Hyper(**values))


def calls(depth: int) -> int:
    """How many functions a plan and all that is written of it call."""
    total = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal total
        total += event == "call"

    sys.setprofile(count)
    try:
        shape = mue.ModelShape(128, depth, mue.FeedForward.parse("16e4a1s", 32), dense_layers=depth // 2)
        plan = mue.transfer(reference(depth), shape)
        to_json(plan.fold())
        str(plan)
    finally:
        sys.setprofile(None)
    return total


def test_a_plan_costs_the_same_at_any_depth() -> None:
    calls(10)  # what is made once
    assert calls(1_000_000) < 2 * calls(10)  # a longer number wraps differently; a call per layer would show


@given(shapes())
def test_what_is_said_of_all_layers_is_what_the_layers_say(shape: mue.ModelShape) -> None:
    listed = mue.ModelShape(shape.width, shape.depth, shape.blocks, head_dim=shape.head_dim)
    assert len(shape.blocks) == shape.depth
    for each in (shape, listed):
        assert dict(each.layers) == Counter(shape.blocks)
        assert each.kinds == tuple(dict.fromkeys(shape.blocks))
        routed = [block for block in shape.blocks if block.groups]
        assert each.main == (routed or shape.blocks)[-1]
        blocks = sum((block.parameters(shape.width) for block in shape.blocks), Parameters(0, 0))
        attention = 5 * shape.width**2 * shape.depth
        assert each.parameters == blocks + Parameters(attention, attention)


@pytest.mark.parametrize(
    ("hyper", "width", "says"),
    [
        ({"init_std": 1.7e308}, 1, "init_std of .* comes out as inf"),
        ({"init_std": 5e-324}, 65_536, "init_std of .* comes out as 0.0"),
        ({"lr": 5e-324}, 65_536, "lr of .* comes out as 0.0"),
    ],
)
def test_numbers_beyond_what_can_be_computed_are_named(hyper: dict[str, float], width: int, says: str) -> None:
    shape = mue.ModelShape(width, 4, mue.FeedForward.dense(width))
    with pytest.raises(mue.MueError, match=says):
        mue.transfer(reference(**hyper), shape)


def test_a_fold_that_overflows_is_named() -> None:
    tuned = {"embedding": mue.Tuned(output=1e-200, weight_decay=1e200)}
    given_ = dataclasses.replace(reference(), tuned=tuned)
    plan = mue.transfer(given_, given_.shape)
    with pytest.raises(mue.MueError, match=r"weight_decay of embedding .*inf"):
        plan.fold()
