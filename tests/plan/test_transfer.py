"""Transfers as algebra: identity, composition, inverse, folding; and the worked numbers."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import complete_mue as mue
from complete_mue.plan.row import Factors
from strategies import budgets, references, shapes


def test_worked_numbers(lm_plan: mue.Plan) -> None:
    """RULES section 7, number 1."""
    assert lm_plan.shape.active_width == 4608
    assert lm_plan.ratios.active_width == 4.5
    assert lm_plan.ratios.schedule == 0.5
    assert lm_plan.hyper.lr == 5e-4
    assert lm_plan.hyper.weight_decay == 0.05
    down = lm_plan.row("expert_down")
    assert down.output == pytest.approx(0.222222, rel=1e-5)
    assert down.route_scale == 8
    assert down.init_std == pytest.approx(0.0075, rel=1e-12)
    assert down.lr == pytest.approx(6.25e-5, rel=1e-12)
    assert down.weight_decay == pytest.approx(0.4, rel=1e-12)
    assert lm_plan.row("expert_up").init_std == pytest.approx(0.0035355339, rel=1e-8)
    assert lm_plan.row("shared_down").multiplier == pytest.approx(2 / 9)


@given(references())
def test_identity_is_exact(reference: mue.Reference) -> None:
    plan = mue.transfer(reference, reference.shape, reference.budget)
    for row in (*plan.rows, *plan.absent):
        assert row.factors == Factors(1, 1, 1, 1, 1, 1, 1)
    assert plan.hyper == reference.hyper
    assert plan.sde.exact
    if reference.route_scale is not None:
        assert plan.row("expert_down").route_scale == reference.route_scale
    elif not reference.shape.main.is_dense:
        assert plan.row("expert_down").route_scale == reference.shape.main.active


@given(references(), shapes(), budgets, shapes(), budgets)
def test_composition(
    a: mue.Reference, b: mue.ModelShape, b_budget: mue.Budget, c: mue.ModelShape, c_budget: mue.Budget
) -> None:
    """A -> B -> C is A -> C."""
    middle = mue.transfer(a, b, b_budget, betas="hold").as_reference()
    assert mue.transfer(middle, c, c_budget, betas="hold").isclose(mue.transfer(a, c, c_budget, betas="hold"), 1e-10)


@given(references(), shapes(), budgets)
def test_inverse(a: mue.Reference, b: mue.ModelShape, budget: mue.Budget) -> None:
    """A -> B -> A is the identity."""
    there = mue.transfer(a, b, budget, betas="hold")
    back = mue.transfer(there.as_reference(), a.shape, a.budget, betas="hold")
    assert back.isclose(mue.transfer(a, a.shape, a.budget), 1e-10)


@given(st.integers(2, 9), st.integers(2, 9))
def test_betas_compose(one: int, two: int) -> None:
    shape = mue.ModelShape(64, 4, mue.FeedForward.dense(64))
    a = mue.Reference(shape, mue.Budget(1000, 1000), mue.Hyper(1e-3, 0.1, 0.02, betas=(0.9, 0.95)))
    middle = mue.transfer(a, shape, mue.Budget(1000, 1000 * one)).as_reference()
    direct = mue.transfer(a, shape, mue.Budget(1000, 1000 * one * two))
    assert mue.transfer(middle, shape, mue.Budget(1000, 1000 * one * two)).isclose(direct)


@pytest.mark.parametrize("rules", ["completep", "mup", "mup_moe", "sp"])
@given(a=references(), b=shapes(), c=shapes())
def test_alternatives_compose_too(rules: str, a: mue.Reference, b: mue.ModelShape, c: mue.ModelShape) -> None:
    middle = mue.transfer(a, b, rules=rules).as_reference()
    assert mue.transfer(middle, c, rules=rules).isclose(mue.transfer(a, c, rules=rules), 1e-10)


@given(references(), shapes(), budgets)
def test_fold_and_unfold(a: mue.Reference, b: mue.ModelShape, budget: mue.Budget) -> None:
    plan = mue.transfer(a, b, budget, betas="hold")
    folded = plan.fold()
    assert folded.is_folded
    assert folded.fold() == folded
    assert folded.unfold().isclose(plan)
    for before, after in zip(plan.rows, folded.rows, strict=True):
        m = before.multiplier
        assert after.multiplier == 1
        assert math.isclose(after.lr, before.lr * m, rel_tol=1e-12)
        assert math.isclose(after.lr * after.weight_decay, before.lr * before.weight_decay, rel_tol=1e-12)
        assert math.isclose(after.eps * m, before.eps, rel_tol=1e-12)


@given(references(), shapes(), budgets)
def test_json_loses_nothing(a: mue.Reference, b: mue.ModelShape, budget: mue.Budget) -> None:
    plan = mue.transfer(a, b, budget, betas="hold")
    assert mue.Plan.from_json(plan.to_json()) == plan
    assert mue.Plan.from_json(plan.fold().to_json(indent=None)) == plan.fold()


def test_an_moe_reference_keeps_its_own_route_scale() -> None:
    """kappa = c*/a* stays with the reference; dense and shared rows do not change."""
    shape = mue.ModelShape(64, 4, mue.FeedForward.parse("16e4a1s", 16))
    hyper, budget = mue.Hyper(1e-3, 0.1, 0.02), mue.Budget(100, 100)
    target = mue.ModelShape(64, 4, mue.FeedForward.parse("64e8a1s", 16))
    usual = mue.transfer(mue.Reference(shape, budget, hyper), target)
    halved = mue.transfer(mue.Reference(shape, budget, hyper, route_scale=2.0), target)
    assert usual.row("expert_down").route_scale == 8
    assert halved.row("expert_down").route_scale == 4
    assert halved.row("shared_down") == usual.row("shared_down")


def test_a_reference_has_one_sparsity(lm_reference: mue.Reference) -> None:
    """Where it has two, no ratio of sparsities is 1 for both, and a transfer to itself would change something."""
    sparse, denser = (mue.FeedForward.parse(layout, 32) for layout in ("64e2a", "8e2a"))
    plan = mue.transfer(lm_reference, mue.ModelShape(64, 2, (denser, sparse)))
    assert plan.row("expert_up", "8e2a").lr > plan.row("expert_up", "64e2a").lr
    with pytest.raises(mue.MueError, match=r"4 and 32 experts per active one.*one layout"):
        mue.transfer(plan.as_reference(), plan.shape)
    paper = mue.transfer(lm_reference, plan.shape, rules="complete_mue")  # knows no sparsity
    assert mue.transfer(paper.as_reference(), plan.shape, rules="complete_mue").isclose(paper)


@pytest.mark.parametrize("rules", ["mup", "dmft_moe", "sp"])
def test_a_reference_has_one_fan_in_per_role(rules: str, lm_reference: mue.Reference) -> None:
    """Where it has two, the layers that are not the main one's would change in a transfer to itself."""
    blocks = tuple(map(mue.FeedForward.parse, ("dense@32+16e2a@16", "16e2a@32")))
    plan = mue.transfer(lm_reference, mue.ModelShape(64, 2, blocks), rules=rules)
    with pytest.raises(mue.MueError, match=rf"inputs to a (shared|expert)_down, and the rules {rules}.*one layout"):
        mue.transfer(plan.as_reference(), plan.shape, rules=rules)
    dense_first = mue.ModelShape(64, 2, blocks[0], dense_layers=1)
    reference = mue.transfer(lm_reference, dense_first, rules=rules).as_reference()
    assert mue.transfer(reference, dense_first, rules=rules).row("expert_down").factors.init_std == 1


@pytest.mark.parametrize("tuned", [{"embedding": {"lr": 4e-3}}, [mue.Tuned(lr=4e-3)], None])
def test_what_is_not_tuned_by_role_is_refused(tuned: Any, lm_reference: mue.Reference) -> None:
    with pytest.raises(mue.MueError, match=r"tuned = .*: give a Tuned per role"):
        dataclasses.replace(lm_reference, tuned=tuned)


@pytest.mark.parametrize("budget", [{"batch_tokens": 64, "steps": 10}, (64, 10), 0])
def test_what_is_no_budget_is_refused(budget: Any, lm_reference: mue.Reference) -> None:
    with pytest.raises(mue.MueError, match=r"budget = .*give a Budget"):
        mue.transfer(lm_reference, lm_reference.shape, budget)
    with pytest.raises(mue.MueError, match=r"budget = .*give a Budget"):
        mue.Reference(lm_reference.shape, budget, lm_reference.hyper)


def test_blocks_of_several_widths_have_rows_of_their_own(lm_reference: mue.Reference) -> None:
    blocks = (mue.FeedForward.dense(512), mue.FeedForward.dense(1024), mue.FeedForward.parse("8e2a", 256))
    plan = mue.transfer(lm_reference, mue.ModelShape(256, 3, blocks))
    with pytest.raises(mue.MueError, match="block kind"):
        plan.row("dense_down")
    assert plan.row("dense_down", block="dense@512").output == 0.5
    assert plan.row("dense_down", block="dense@1024").output == 0.25
    assert plan.row("expert_down").output == 0.5
    with pytest.raises(mue.MueError, match="one active width"):
        plan.as_reference()


def test_rows_and_roles(lm_plan: mue.Plan) -> None:
    with pytest.raises(mue.MueError, match="'expert_down'"):
        lm_plan.row("expert_dwn")
    dense = mue.transfer(lm_plan.reference, lm_plan.reference.shape)
    with pytest.raises(mue.MueError, match="'router'"):
        dense.row("router")


def test_explain_derives_the_number(lm_plan: mue.Plan) -> None:
    text = lm_plan.explain("expert_down")
    assert "0.01 × ρ_d^-1/2 ρ_H^1/2 = 0.01 × 8^-1/2 × 4.5^1/2 = 0.0075" in text
    assert "r ∝ a" in text
    assert "route scale (Eq. 3)" in text
    assert "folded: the forward multiplier m = 1.77778" in lm_plan.fold().explain("expert_down")
    for row in lm_plan.rows:
        assert row.role.value in lm_plan.explain()


def test_a_plan_without_multipliers_is_not_called_folded(lm_reference: mue.Reference) -> None:
    plan = mue.transfer(lm_reference, lm_reference.shape)
    assert "multiplier form" in str(plan)
    grown = mue.transfer(lm_reference, mue.ModelShape(256, 32, mue.FeedForward.dense(256)))
    assert "multiplier form" in str(grown)
    assert "folded form" in str(grown.fold())


def test_json_keys(lm_plan: mue.Plan) -> None:
    data = json.loads(lm_plan.to_json())
    assert set(data["ratios"]) == {"width", "depth", "batch", "tokens", "active_width", "sparsity"}
    assert set(data["global"]) == {"lr", "weight_decay", "eps", "betas"}
    keys = {"role", "multiplier", "route_scale", "residual", "init_std", "lr", "weight_decay", "eps", "because"}
    assert all(keys <= set(row) for row in data["rows"] + data["folded"])
    assert all(row["multiplier"] == 1 for row in data["folded"])
    sde = {"exact", "sigma0", "lambda", "horizon", "expert_sigma0", "expert_batch", "expert_duration"}
    assert sde <= set(data["sde"])
    assert data["parameters"] == {"active": 624689152, "total": 6286999552}
    assert data["feed_forward"] == {
        "notation": "128e8a4g1s", "active_width": 4608, "route_scale": 8.0, "density": 0.0625,
    }  # fmt: skip


@pytest.mark.parametrize("spoil", ["rows", "reference", "target", "rules", "betas", "global", "format"])
def test_spoiled_plans_are_refused(lm_plan: mue.Plan, spoil: str) -> None:
    data = lm_plan.to_dict()
    for wrong in ([{}], {"x": 1}, "text", None, 7):
        with pytest.raises(mue.MueError):
            mue.Plan.from_dict({**data, spoil: wrong})
    del data[spoil]
    with pytest.raises(mue.MueError, match="not a plan"):
        mue.Plan.from_dict(data)
    with pytest.raises(mue.MueError, match="not a plan"):
        mue.Plan.from_json("{")


def test_attention_scale(lm_reference: mue.Reference) -> None:
    reference = dataclasses.replace(lm_reference, shape=dataclasses.replace(lm_reference.shape, head_dim=64))
    block = mue.FeedForward.dense(256)
    fixed = mue.transfer(reference, mue.ModelShape(256, 32, block, head_dim=64))
    grown = mue.transfer(reference, mue.ModelShape(256, 32, block, head_dim=128))
    assert fixed.attention_scale == pytest.approx(1 / math.sqrt(64))
    assert grown.attention_scale == pytest.approx(fixed.attention_scale / 2)
    assert mue.transfer(lm_reference, mue.ModelShape(256, 32, block)).attention_scale is None
    again = mue.Plan.from_json(mue.transfer(grown.as_reference(), fixed.shape).to_json())
    assert again.attention_scale == pytest.approx(fixed.attention_scale)  # composed, it is that of the direct way
    assert not again.isclose(mue.transfer(again.as_reference(), grown.shape))
    with pytest.raises(mue.MueError, match=r"attention_scale = 0\.1 for heads of unknown size"):
        dataclasses.replace(lm_reference, attention_scale=0.1)


@pytest.mark.parametrize("own", [None, 0.1])
def test_heads_left_open_on_the_way_are_the_references(lm_reference: mue.Reference, own: float | None) -> None:
    shape = dataclasses.replace(lm_reference.shape, head_dim=64)
    reference = dataclasses.replace(lm_reference, shape=shape, attention_scale=own)
    larger = mue.ModelShape(256, 32, mue.FeedForward.dense(256), head_dim=128)
    counted = dataclasses.replace(larger, head_dim=None).counted(mue.FeedForward.dense(8).parameters(8))
    between = mue.transfer(reference, counted).as_reference()
    assert mue.transfer(between, larger).attention_scale == mue.transfer(reference, larger).attention_scale
    assert mue.transfer(between, between.shape).attention_scale == (own or 1 / 8)
    assert between.shape.parameters == counted.parameters
    nowhere = mue.transfer(lm_reference, counted).as_reference()
    assert nowhere.shape == counted
    assert mue.transfer(nowhere, larger).attention_scale is None
