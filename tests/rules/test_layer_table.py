"""The layer table of RULES section 3, as a theorist would check it, and the rule sets line by line."""

from __future__ import annotations

import dataclasses
import math

import pytest

import complete_mue as mue
from complete_mue.layout.tensors import Role
from complete_mue.rules.catalog import CATALOG
from complete_mue.rules.layer_table import COLUMNS, REASONS, reason_for
from complete_mue.rules.monomial import Monomial

# d, L, H and s chosen so that no two products coincide.
D, L, H, S, A = 8.0, 3.0, 4.5, 0.5, 8.0
HIDDEN = (D**-0.5, S / D, S * D, 1 / (D * L * S))
# role -> output, route scale, residual, init std, lr, weight decay, eps (None: not part of the row)
EXPECTED = {
    "embedding": (1, 1, 1, 1, S, S, 1 / (D * S)),
    "attention_in": (1, 1, 1, *HIDDEN),
    "attention_out": (1, 1, 1 / L, *HIDDEN),
    "dense_up": (1, 1, 1, *HIDDEN),
    "shared_up": (1, 1, 1, *HIDDEN),
    "expert_up": (1, 1, 1, *HIDDEN),
    "router": (1, 1, 1, *HIDDEN),
    "dense_down": (1 / H, 1, 1 / L, HIDDEN[0] * math.sqrt(H), *HIDDEN[1:]),
    "shared_down": (1 / H, 1, 1 / L, HIDDEN[0] * math.sqrt(H), *HIDDEN[1:]),
    "expert_down": (1 / H, A, 1 / L, HIDDEN[0] * math.sqrt(H), *HIDDEN[1:]),
    "modulation": (1, 1, 1, *HIDDEN),
    "norm": (1, 1, 1, None, S, None, 1 / (D * L * S)),
    "bias": (1, 1, 1, None, S, None, 1 / (D * L * S)),
    "final_norm": (1, 1, 1, None, S, None, 1 / S),
    "readout": (1 / D, 1, 1, 1, S, S, 1 / (D * S)),
}


@pytest.fixture
def reference() -> mue.Reference:
    return mue.Reference(
        mue.ModelShape(128, 8, mue.FeedForward.dense(128)), mue.Budget(1000, 1000), mue.Hyper(1e-3, 0.1, 0.01)
    )


def target(layout: str = "128e8a4g1s") -> mue.ModelShape:
    return mue.ModelShape(1024, 24, mue.FeedForward.parse(layout, 512), dense_layers=2)


@pytest.mark.parametrize("role", EXPECTED)
def test_complete_mue(reference: mue.Reference, role: str) -> None:
    row = mue.transfer(reference, target(), mue.Budget(2000, 4000), rules="complete_mue").row(role)
    hyper = reference.hyper
    base = (1, 1, 1, hyper.init_std, hyper.lr, hyper.weight_decay, hyper.eps)
    got = (row.output, row.route_scale, row.residual, row.init_std, row.lr, row.weight_decay, row.eps)
    for column, factor, start, value in zip(COLUMNS, EXPECTED[role], base, got, strict=True):
        if factor is None:
            assert value is None if column == "init_std" else value == 0
        else:
            assert value == pytest.approx(factor * start, rel=1e-12), column


def test_every_role_is_expected() -> None:
    assert set(EXPECTED) == {role.value for role in Role}


def test_every_cell_of_every_rule_set_has_a_reason() -> None:
    for rules in CATALOG.values():
        for rule in rules.values():
            for column in COLUMNS:
                for symbol, _ in getattr(rule, column).powers:
                    reason = REASONS[column, symbol]
                    assert reason.words
                    assert reason.equation


def test_a_power_turned_around_has_not_the_papers_reason() -> None:
    for name in ("complete_mue", "complete_mue_sparse"):
        for rule in CATALOG[name].values():
            for column in COLUMNS:
                for symbol, power in getattr(rule, column).powers:
                    assert reason_for(column, symbol, power) is REASONS[column, symbol], (column, symbol)
                    assert reason_for(column, symbol, -power).words == "as the rule set says"


# rule set -> (init std, lr, weight decay) factor of an expert's down projection, and its multiplier,
# for d x8, reference H* = 128, expert width 512, H = 4608, a = 8, L x3, s = 1/2.
ALTERNATIVES = {
    "completep": (8**-0.5, 1 / 8, 8, 1 / 3),
    "mup": (4**-0.5, 1 / 4, 4, 1),
    "mup_moe": (8**-0.5, 1 / 8, 8, 1),
    "sp": (4**-0.5, 1, 1, 1),
}


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_alternatives(reference: mue.Reference, name: str) -> None:
    plan = mue.transfer(reference, target(), mue.Budget(2000, 4000), rules=name)
    row, (std, lr, decay, multiplier) = plan.row("expert_down"), ALTERNATIVES[name]
    assert row.factors.init_std == pytest.approx(std)
    assert row.factors.lr == pytest.approx(lr)
    assert row.factors.weight_decay == pytest.approx(decay)
    assert row.multiplier == pytest.approx(multiplier)
    assert plan.hyper == reference.hyper  # none of them knows batch or duration


def test_fan_in_mup_is_bridge_one_folded(reference: mue.Reference) -> None:
    """On a dense FFN, muP by fan-in and the active-width rule are one rule in two forms."""
    shape = mue.ModelShape(256, 8, mue.FeedForward.dense(1024))
    ours, theirs = (
        mue.transfer(reference, shape, rules=name).fold().row("dense_down") for name in ("complete_mue", "mup")
    )
    assert ours.init_std == pytest.approx(theirs.init_std)
    assert ours.lr == pytest.approx(theirs.lr)
    assert ours.weight_decay == pytest.approx(theirs.weight_decay)


def test_other_readings(reference: mue.Reference) -> None:
    plan = mue.transfer(reference, target(), mue.Budget(2000, 4000), rules=mue.Rules(eps="fixed", weight_decay="fixed"))
    row = plan.row("expert_down")
    assert row.factors.eps == pytest.approx(1 / S)
    assert row.factors.weight_decay == pytest.approx(S)
    assert row.factors.lr == pytest.approx(S / D)
    corrected = mue.transfer(reference, target(), rules=mue.Rules(forward_factor=1.21))
    assert corrected.row("expert_down").route_scale == pytest.approx(8 / 1.1)
    assert corrected.row("shared_down").route_scale == 1


@pytest.mark.parametrize("name", ["complete_mue", "complete_mue_sparse", "completep", "sp"])
def test_lr_without_the_number_of_steps(reference: mue.Reference, name: str) -> None:
    """Every lr has the fourth root of the batch in place of s, all else is as it was; and the same by any route."""
    scaled, fixed = mue.Rules(name), mue.Rules(name, duration="fixed")
    for steps in (250, 1000, 4000):
        budget = mue.Budget(2000, steps)
        ours, theirs = (mue.transfer(reference, target(), budget, rules=r) for r in (fixed, scaled))
        s = theirs.hyper.lr / reference.hyper.lr
        assert s == pytest.approx((1000 / steps) ** 0.5 if scaled.scales_schedule else 1)
        batch = (2000 / reference.budget.batch_tokens) ** 0.25 if scaled.scales_schedule else 1
        assert ours.hyper.lr == pytest.approx(reference.hyper.lr * batch)
        assert dataclasses.replace(ours.hyper, lr=theirs.hyper.lr) == theirs.hyper
        for row, other in zip(ours.rows, theirs.rows, strict=True):
            assert row.lr == pytest.approx(other.lr / s * batch)
            assert (row.forward, row.init_std, row.weight_decay, row.eps) == (
                other.forward, other.init_std, other.weight_decay, other.eps
            )  # fmt: skip
        assert ("although lr does not" in ours.explain("expert_up")) == fixed.scales_schedule
        between = mue.transfer(reference, target(), mue.Budget(500, 8000), rules=fixed).as_reference()
        again = mue.transfer(between, target(), budget, rules=fixed)
        assert [row.lr for row in again.rows] == pytest.approx([row.lr for row in ours.rows])


def test_bad_rules(reference: mue.Reference) -> None:
    with pytest.raises(mue.MueError, match="'complete_mue'"):
        mue.transfer(reference, target(), rules="complete_mu")
    with pytest.raises(mue.MueError, match="eps = 'none': give one of groups, fixed"):
        mue.Rules(eps="none")  # type: ignore[arg-type]
    with pytest.raises(mue.MueError, match="above 0"):
        mue.Rules(forward_factor=0.0)


def test_monomials() -> None:
    cell = Monomial.parse("d^-1/2 H^1/2")
    assert str(cell) == "ρ_d^-1/2 ρ_H^1/2"
    assert cell.evaluate({"d": 4.0, "H": 9.0}) == pytest.approx(1.5)
    assert (cell * Monomial.parse("d^1/2 H^-1/2")).powers == ()
    assert cell.evaluate({"d": 1.0, "H": 1.0}) == 1.0


def test_worked_numbers_shared_and_activated() -> None:
    """RULES section 7, numbers 2 to 4."""
    d = 256
    reference = mue.Reference(
        mue.ModelShape(d, 4, mue.FeedForward.dense(d)), mue.Budget(10, 10), mue.Hyper(1e-3, 0.1, 0.02)
    )
    shared = mue.ModelShape(4 * d, 4, mue.FeedForward.moe(16, 3, 2 * d, shared=1))
    plan = mue.transfer(reference, shared)
    assert shared.active_width == 2 * shared.width
    for role in ("shared_down", "expert_down"):
        assert plan.row(role).output == 0.5
        assert plan.row(role).init_std == pytest.approx(4**-0.5 * math.sqrt(2) * 0.02)
    for active, expansion in ((2, 0.25), (4, 0.5), (8, 1), (16, 2)):
        block = mue.FeedForward.parse(f"64e{active}a", d // 8)
        assert mue.transfer(reference, mue.ModelShape(d, 4, block)).ratios.active_width == expansion
    coarse, fine = (
        mue.transfer(reference, mue.ModelShape(d, 4, mue.FeedForward.parse(text, h))).row("expert_down")
        for text, h in (("16e2a", 64), ("64e8a", 16))
    )
    assert coarse.output == fine.output
    assert (coarse.route_scale, fine.route_scale) == (2, 8)


@pytest.mark.parametrize(("width", "depth", "layout"), [(256, 4, "64e8a"), (512, 8, "128e16a"), (1024, 16, "16e2a")])
def test_the_mean_field_rules_are_ours_at_the_same_active_width(width: int, depth: int, layout: str) -> None:
    reference = mue.Reference(
        mue.ModelShape(256, 4, mue.FeedForward.dense(256)), mue.Budget(10, 10), mue.Hyper(1e-3, 0.1, 0.02)
    )
    block = mue.FeedForward.parse(layout, width // int(layout.partition("e")[2][:-1]))
    shape = mue.ModelShape(width, depth, block)
    theirs, ours = (mue.transfer(reference, shape, rules=rules).fold() for rules in ("dmft_moe", "complete_mue"))
    for row in theirs.rows:
        for name in ("init_std", "lr", "weight_decay"):
            one, other = (getattr(plan.row(row.role, row.block), name) or 0.0 for plan in (theirs, ours))
            assert one == pytest.approx(other, rel=1e-12), (row.role, name)


def test_the_mean_field_rules_part_from_ours_where_fewer_are_active(reference: mue.Reference) -> None:
    """Experts an eighth of the dense block wide take 8 times its std and lr, however many are active."""
    width = reference.shape.active_width // 8
    shape = mue.ModelShape(reference.shape.width, reference.shape.depth, mue.FeedForward.parse("64e2a", width))
    row = mue.transfer(reference, shape, rules="dmft_moe").row("expert_down")
    assert row.init_std == pytest.approx(8 * reference.hyper.init_std)
    assert row.lr == pytest.approx(8 * reference.hyper.lr)
    assert mue.transfer(reference, shape, rules="complete_mue").fold().row("expert_down").init_std == pytest.approx(
        4 * reference.hyper.init_std
    )
