from __future__ import annotations

import math

import pytest

import complete_mue as mue


def reference(layout: str = "dense", width: int = 64) -> mue.Reference:
    shape = mue.ModelShape(64, 4, mue.FeedForward.parse(layout, width))
    return mue.Reference(shape, mue.Budget(1000, 10_000), mue.Hyper(1e-3, 0.1, 0.02))


def test_fixed_tokens_is_exact() -> None:
    base = reference()
    plan = mue.transfer(base, base.shape, mue.Budget(4000, 2500))
    assert plan.hyper.lr == pytest.approx(2e-3)
    assert plan.hyper.betas == pytest.approx((0.8, 0.8))
    assert plan.sde.exact
    assert (plan.sde.sigma0, plan.sde.lambda_, plan.sde.horizon) == pytest.approx((1, 1, 1))


def test_fixed_steps_moves_sigma0() -> None:
    base = reference()
    plan = mue.transfer(base, base.shape, mue.Budget(4000, 10_000))
    assert plan.hyper == base.hyper
    assert not plan.sde.exact
    assert plan.sde.sigma0 == pytest.approx(0.5)
    assert plan.sde.horizon == 1
    assert plan.sde.grade == "near"


def test_activated_experts_move_the_experts_sigma0_alone() -> None:
    base = reference("64e8a", 8)
    plan = mue.transfer(base, mue.ModelShape(64, 4, mue.FeedForward.parse("64e2a", 8)))
    assert plan.sde.sigma0 == 1
    assert plan.sde.expert_batch == plan.sde.expert_duration == pytest.approx(0.25)
    assert plan.sde.expert_sigma0 == pytest.approx(2)
    finer = mue.transfer(base, mue.ModelShape(64, 4, mue.FeedForward.parse("256e32a", 2)))
    assert finer.sde.exact  # fixed density


def test_dense_to_sparse() -> None:
    plan = mue.transfer(reference(), mue.ModelShape(64, 4, mue.FeedForward.parse("64e4a", 16)))
    assert plan.sde.expert_batch == pytest.approx(1 / 16)
    assert plan.sde.expert_sigma0 == pytest.approx(4)


def test_mixed_densities_identity() -> None:
    base = reference("dense@8+4e1a@8+32e1a@8")
    assert mue.transfer(base, base.shape).sde.exact


def test_measured_load() -> None:
    plan = mue.transfer(reference(), mue.ModelShape(64, 4, mue.FeedForward.parse("4e2a", 16)))
    balanced = plan.sde_with_load([0.5] * 4)
    assert balanced.minimum == balanced.median == balanced.maximum == pytest.approx(plan.sde.expert_sigma0)
    skewed = plan.sde_with_load([1.0, 0.5, 0.25, 0.25])
    assert skewed.sigma0 == pytest.approx((1, math.sqrt(2), 2, 2))
    assert (skewed.minimum, skewed.median, skewed.maximum) == pytest.approx((1, (math.sqrt(2) + 2) / 2, 2))
    assert plan.sde_with_load([1.0, 1.0, 0.0, 0.0]).maximum == math.inf
    with pytest.raises(mue.MueError, match="one per expert"):
        plan.sde_with_load([1.0])
    with pytest.raises(mue.MueError, match="active = 2"):
        plan.sde_with_load([1.0] * 4)


def test_betas_that_leave_the_range() -> None:
    base = reference()
    with pytest.raises(mue.MueError, match='betas="hold"'):
        mue.transfer(base, base.shape, mue.Budget(1000, 400))
    assert mue.transfer(base, base.shape, mue.Budget(1000, 400), betas="hold").hyper.betas == (0.95, 0.95)
    with pytest.raises(mue.MueError, match="betas = 'keep': give one of transfer, hold"):
        mue.transfer(base, base.shape, betas="keep")  # type: ignore[arg-type]


def test_an_expert_is_spoken_for_by_the_one_whose_noise_moves_most() -> None:
    base = reference()
    block = mue.FeedForward.parse("16e1a@32+4e1a@32")
    plan = mue.transfer(base, mue.ModelShape(64, 4, block), mue.Budget(4000, 40_000))
    # lr halves: experts that see 1/16 and 1/4 of four times the batch have 0.5 / sqrt(4/16) = 1 and 0.5 / sqrt(4/4).
    assert plan.sde.expert_sigma0 == pytest.approx(0.5)
    routed = mue.Reference(mue.ModelShape(64, 2, block), base.budget, base.hyper)
    turned = mue.FeedForward.parse("4e1a@32+16e1a@32")
    assert mue.transfer(routed, mue.ModelShape(64, 2, turned)).sde.exact


def test_a_dense_last_layer_does_not_hide_the_experts() -> None:
    moe, dense = mue.FeedForward.parse("8e2a@32"), mue.FeedForward.dense(64)
    for blocks in ((moe, dense), (dense, moe)):
        shape = mue.ModelShape(64, 2, blocks)
        assert shape.main == moe
        plan = mue.transfer(reference(), shape)
        assert plan.sde.expert_sigma0 == pytest.approx(2.0)
        again = mue.transfer(plan.as_reference(), shape)
        assert again.row("expert_down").route_scale == 2
        assert again.row("expert_down").factors.route_scale == 1
    sparse = mue.ModelShape(64, 2, (mue.FeedForward.parse("64e2a@32"), mue.FeedForward.parse("2e2a@32")))
    assert not mue.transfer(reference(), sparse).sde.exact


@pytest.mark.parametrize(
    ("batch", "steps", "grade"),
    [
        (1, 1, "exact"), (4, 0.25, "exact"), (4, 1, "near"), (0.25, 1, "near"),
        (4, 4, "beyond"), (8, 8, "beyond"), (16, 17, "far"), (100, 3000, "far"),
    ],
)  # fmt: skip
def test_the_verdict_is_graded_by_what_was_measured(batch: float, steps: float, grade: str) -> None:
    """σ0 = ρ_D^-1/2, measured from 1/2 to 2: four times beyond that is as far as a scan can mend."""
    base = reference()
    sde = mue.transfer(base, base.shape, mue.Budget(int(1000 * batch), int(10_000 * steps)), betas="hold").sde
    assert sde.grade == grade
    assert str(sde).startswith(f"{grade}:")
    assert sde.exact == (grade == "exact")


def test_experts_have_a_measured_range_of_their_own() -> None:
    sde = [mue.transfer(reference(), mue.ModelShape(64, 4, mue.FeedForward.parse(x, 8))).sde for x in SPARSER]
    assert [found.grade for found in sde] == ["near", "beyond", "far"]


SPARSER = ("64e2a", "256e4a", "4096e4a")


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        (0.25, "near: λ/η ×2, horizon ×0.25; optima measured so far out moved by up to 0.4 octaves"),
        (4, "near: λ/η ×0.5, horizon ×4; optima measured so far out moved by up to 1.1 octaves"),
        (
            0.0625,
            "beyond: λ/η ×4, horizon ×0.0625; measured only with λ/η ×0.5 to ×2.828, horizon ×0.125 to ×4: "
            "scan lr an octave to either side",
        ),
    ],
)
def test_a_fixed_duration_is_a_value_that_scans_held(steps: float, verdict: str) -> None:
    """Scans kept the planned weight decay, and so does this plan. Where weight decay is not planned, none was made."""
    base, rules = reference(), mue.Rules(duration="fixed")
    budget = mue.Budget(1000, int(10_000 * steps))
    assert str(mue.transfer(base, base.shape, budget, rules=rules, betas="hold").sde) == verdict
    assert "horizon kept" in str(mue.transfer(base, base.shape, budget, rules="sp").sde)
