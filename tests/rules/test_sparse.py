"""rho_S: the rule set for sparse experts differs from the paper's in one cell, and obeys the same algebra."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from complete_mue.lab.report.summary import summarize
from complete_mue.layout import Budget, FeedForward, ModelShape, Reference, Role
from complete_mue.layout.reference import Hyper
from complete_mue.plan import transfer
from complete_mue.rules import CATALOG
from complete_mue.rules.sparse import EXPERT_UP_LR

BUDGET = Budget(16384, 2000)
DENSE = Reference(ModelShape(128, 4, FeedForward.dense(128)), BUDGET, Hyper(3e-3, 0.1, 0.02))
SPARSE = "complete_mue_sparse"
ROOT = Path(__file__).parents[2]


def shape(layout: str, width: int = 128) -> ModelShape:
    return ModelShape(width, 4, FeedForward.parse(layout))


layouts = st.builds(
    lambda a, n, h, s: f"{a * n}e{a}a{f'{s}s' if s else ''}@{h}",
    st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 8, 32, 100]), st.sampled_from([8, 16, 64]),
    st.integers(0, 2),
) | st.just("dense@128")  # fmt: skip


def test_one_cell_differs_from_the_papers_set() -> None:
    ours, theirs = CATALOG[SPARSE], CATALOG["complete_mue"]
    assert {role for role in Role if ours[role] != theirs[role]} == {Role.EXPERT_UP}
    assert dataclasses.replace(ours[Role.EXPERT_UP], lr=theirs[Role.EXPERT_UP].lr) == theirs[Role.EXPERT_UP]


@pytest.mark.parametrize(
    ("layout", "factor"),
    [("8e8a@16", 1.0), ("64e8a@16", 0.5), ("16e2a@64", 0.5), ("128e8a4g1s@16", 16 ** (-1 / 3)), ("216e8a@16", 1 / 3)],
)
def test_worked_numbers(layout: str, factor: float) -> None:
    ours, paper = (transfer(DENSE, shape(layout), rules=rules) for rules in (SPARSE, "complete_mue"))
    for row in ours.rows:
        expected = paper.row(row.role).lr * (factor if row.role is Role.EXPERT_UP else 1.0)
        assert row.lr == pytest.approx(expected, rel=1e-14)
    assert ours.ratios.sparsity == pytest.approx(factor**-3)


def test_a_sparse_reference_counts_from_its_own_sparsity() -> None:
    reference = Reference(shape("64e8a@16"), BUDGET, Hyper(3e-3, 0.1, 0.02))
    assert transfer(reference, shape("128e16a@8"), rules=SPARSE).row("expert_up").lr == 3e-3
    assert transfer(reference, shape("512e8a@16"), rules=SPARSE).row("expert_up").lr == pytest.approx(1.5e-3)
    assert transfer(reference, shape("dense@128"), rules=SPARSE).row("dense_up").lr == 3e-3


@given(layouts, layouts, st.sampled_from([64, 128, 512]))
def test_identity_composition_inverse(first: str, second: str, width: int) -> None:
    one, two = shape(first), shape(second, width)
    there = transfer(DENSE, one, rules=SPARSE)
    assert transfer(there.as_reference(), one, rules=SPARSE).isclose(there)
    assert transfer(there.as_reference(), two, rules=SPARSE).isclose(transfer(DENSE, two, rules=SPARSE))
    back = transfer(transfer(there.as_reference(), two, rules=SPARSE).as_reference(), one, rules=SPARSE)
    assert back.isclose(there)
    assert there.fold().unfold().isclose(there)


def test_a_block_with_groups_of_different_sparsity_is_planned_by_its_own() -> None:
    """48 experts, 4 active: as with their widths, a block has one row per role, so its groups count together."""
    mixed, alike = shape("32e2a@16+16e2a@16"), shape("32e2a@16+16e1a@32")
    assert transfer(DENSE, mixed, rules=SPARSE).row("expert_up").lr == pytest.approx(DENSE.hyper.lr * 12 ** (-1 / 3))
    assert transfer(DENSE, alike, rules=SPARSE).row("expert_up").lr == pytest.approx(DENSE.hyper.lr * 16 ** (-1 / 3))
    assert transfer(DENSE, mixed, rules="complete_mue").row("expert_up").lr == DENSE.hyper.lr


def test_the_exponent_is_that_of_its_records() -> None:
    (power,) = summarize(ROOT / "docs/results/roles/lm-roles.jsonl").powers
    assert power.exponent == pytest.approx(float(EXPERT_UP_LR.value), abs=EXPERT_UP_LR.error)
    assert power.error == pytest.approx(EXPERT_UP_LR.error, abs=0.0006)
    assert (power.low, power.high) == (EXPERT_UP_LR.low, EXPERT_UP_LR.high)


def test_explain_says_what_the_exponent_rests_on() -> None:
    text = transfer(DENSE, shape("64e8a@16"), rules=SPARSE).explain("expert_up")
    assert "ρ_S^-1/3" in text
    assert "N/a from" in text
    assert "docs/results/roles.md" in text
