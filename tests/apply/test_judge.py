"""Slopes with error bars, and what they allow to say."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from complete_mue.apply.judge import MOVES, OK, UNSURE, Slope, judge_roles, slope_of  # noqa: E402
from complete_mue.apply.measure import Measured, Observed  # noqa: E402
from complete_mue.apply.setup import text  # noqa: E402
from complete_mue.layout import Role  # noqa: E402

XS = (1.0, 2.0, 4.0)


@pytest.mark.parametrize(
    ("value", "error", "expected", "says"),
    [
        (0.0, 0.1, 0.0, OK),
        (0.29, 0.2, 0.0, OK),
        (0.0, 0.4, 0.0, UNSURE),
        (0.4, 0.2, 0.0, UNSURE),
        (-0.51, 0.05, 0.0, MOVES),
        (-0.51, 0.05, -0.5, OK),
        (0.0, 0.05, -0.5, MOVES),
        (float("inf"), 0.0, 0.0, MOVES),
    ],
)
def test_a_slope_is_right_wrong_or_not_known(value: float, error: float, expected: float, says: str) -> None:
    assert Slope(value, error).verdict(expected, 0.3) == says


def test_errors_come_from_the_spread_between_seeds() -> None:
    same = slope_of(XS, [[1, 2, 4], [1, 2, 4]])
    assert (same.value, same.error) == (pytest.approx(1), 0)
    spread = slope_of(XS, [[1, 2, 4], [4, 2, 1]])  # slopes +1 and -1
    assert spread.value == pytest.approx(0, abs=1e-12)
    assert spread.error > 1
    assert slope_of(XS, [[1, 2, 4]]).error == 0


def line(change: float, formula: float, size: float = 0.0) -> list[Observed]:
    """A role whose size, change and formula have these slopes."""
    return [
        Observed(
            {Role.READOUT: Measured(x**size, x**change, x**formula, 1.0)}, {Role.READOUT: "head"}, 1.0, 0.0, (), {}
        )
        for x in XS
    ]


@pytest.mark.parametrize(
    ("change", "formula", "says"),
    [(0.0, 0.0, OK), (-0.5, -0.5, UNSURE), (-0.5, 0.0, MOVES), (0.5, -0.5, MOVES), (-1.0, -0.5, MOVES)],
)
def test_what_the_data_did_is_not_blamed_on_the_setup(change: float, formula: float, says: str) -> None:
    (role,) = judge_roles("width", XS, [line(change, formula)], {}, 0.3)
    assert role.verdict == says, role.why
    assert role.tensor == "head"


def test_a_readout_that_falls_is_right_only_where_the_plan_says_so() -> None:
    falls = [line(0.0, 0.0, size=-0.51)]
    (as_planned,) = judge_roles("width", XS, falls, {Role.READOUT: -0.5}, 0.3)
    assert as_planned.verdict == OK
    (not_planned,) = judge_roles("active", XS, falls, {Role.READOUT: 0.0}, 0.3)
    assert not_planned.verdict == MOVES
    (flat,) = judge_roles("width", XS, [line(0.0, 0.0)], {Role.READOUT: -0.5}, 0.3)
    assert flat.verdict == MOVES


def test_the_checks_text_is_skewed_repeatable_and_fits_any_vocabulary() -> None:
    tokens = text(100_000, rows=64, step=3)
    assert torch.equal(tokens, text(100_000, rows=64, step=3))
    assert not torch.equal(tokens, text(100_000, rows=64, step=4))
    assert tokens.shape == (64, 65)
    shares = torch.bincount(tokens.flatten()).sort(descending=True).values / tokens.numel()
    assert shares[0] > 0.2  # rank^-1.5 gives the first of 256 tokens two fifths, and hints spread a quarter of that
    assert int(text(8, rows=4, step=0).max()) < 8


@pytest.mark.parametrize(
    ("change", "planned", "says"),
    [
        (0.5, 1 / 3, OK),
        (0.0, 1 / 3, OK),
        (-0.5, 1 / 3, MOVES),
        (0.7, 1 / 3, MOVES),
        (0.5, 0.0, MOVES),
        (-0.5, -1 / 3, OK),
    ],
)
def test_a_change_may_go_with_a_learning_rate_that_the_plan_moves(change: float, planned: float, says: str) -> None:
    (role,) = judge_roles("active", XS, [line(change, 0.0)], {}, 0.3, {Role.READOUT: planned})
    assert role.verdict == says, role.why
