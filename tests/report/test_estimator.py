"""The optimum of a curve: on parabolas it is exact, with noise close, and at edges it says so."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from complete_mue.errors import RunError
from complete_mue.lab.report.estimator import Noise, estimate, noise_of, optimum_of, pooled, runs_of

GRID = [2.0**k for k in range(-12, -4)]


def parabola(
    values: list[float], at: float, curvature: float = 0.05, cubic: float = 0.0, floor: float = 2.0
) -> list[float]:
    return [floor + curvature * (math.log2(v) - at) ** 2 + cubic * (math.log2(v) - at) ** 3 for v in values]


@given(
    at=st.floats(-11.4, -5.6),
    curvature=st.floats(1e-3, 0.15),  # steeper ones may rise by more than CLIFF from one value to the next
    floor=st.floats(0.0, 20),
    step=st.sampled_from([0.25, 0.5, 1.0]),
)
def test_a_parabola_is_recovered(at: float, curvature: float, floor: float, step: float) -> None:
    values = [2.0 ** (-12 - 2 * step + step * k) for k in range(int(8 / step) + 5)]
    found = optimum_of(values, parabola(values, at, curvature, floor=floor))
    assert found.log2 == pytest.approx(at, abs=1e-4)
    assert found.loss == pytest.approx(floor, abs=1e-6)
    assert found.open is None
    assert found.fitted


@given(order=st.permutations(range(8)), at=st.floats(-10, -7))
def test_order_of_the_values_does_not_matter(order: list[int], at: float) -> None:
    losses = parabola(GRID, at)
    assert optimum_of([GRID[i] for i in order], [losses[i] for i in order]) == optimum_of(GRID, losses)


@given(at=st.floats(-9.6, -6.4), cubic=st.floats(-0.008, 0.008))
def test_a_lopsided_curve_is_found_to_a_tenth_of_an_octave(at: float, cubic: float) -> None:
    values = [v for v in GRID if abs(math.log2(v) - at) < 3]  # beyond, a cubic falls again
    found = optimum_of(values, parabola(values, at, 0.05, cubic))
    assert found.open is None
    assert found.log2 == pytest.approx(at, abs=0.12)


def test_open_edges() -> None:
    assert optimum_of(GRID, parabola(GRID, -20)).open == "low"
    assert optimum_of(GRID, parabola(GRID, 3)).open == "high"
    one = optimum_of([0.1], [2.0])
    assert (one.open, one.fitted, one.value) == ("both", False, 0.1)


def test_an_edge_beside_a_diverged_value_is_closed() -> None:
    losses: list[float | None] = [*parabola(GRID, -5)[:-1], None]
    found = optimum_of(GRID, losses)
    assert (found.open, found.diverges, found.fitted) == (None, "above", False)
    assert found.value == GRID[-2]
    assert found.basin.high == GRID[-2]
    assert not found.basin.high_open
    mirrored = optimum_of(GRID, [math.nan, *parabola(GRID, -12)[1:]])
    assert (mirrored.open, mirrored.diverges) == (None, "below")
    assert optimum_of(GRID[:3], [math.inf, 2.0, math.nan]).diverges == "both"


def test_a_cliff_has_no_part_in_the_parabola() -> None:
    """A dense model of width 256 (docs/results/medium.md): its loss falls slowly, up to 0.0057, and then jumps."""
    values = [0.001 * 2 ** (k / 2) for k in range(8)]
    losses = [3.2987, 3.2982, 3.2629, 3.2215, 3.1676, 3.1374, 3.5119, 4.4318]
    found = estimate(runs_of(values, [losses]), transferred=0.002)
    assert (found.optimum.value, found.optimum.fitted, found.optimum.open) == (values[5], False, None)
    assert found.regret == pytest.approx(3.2629 - 3.1374)
    assert found.optimum.cliff == values[6]
    bowl = [0.1 * (k - 3.4) ** 2 / 4 for k in range(6)]
    calm = optimum_of(values, [*bowl, 0.7, 5.0])
    assert calm.log2 == pytest.approx(math.log2(0.001) + 1.7)
    assert calm.cliff is None  # it is an octave and a half away


def test_three_points_beside_a_wall() -> None:
    found = optimum_of(GRID, [*parabola(GRID, -7)[:-1], math.inf])
    assert found.fitted
    assert found.log2 == pytest.approx(-7)


def test_level_losses_have_their_optimum_amid_the_grid() -> None:
    found = optimum_of([1.0, 2.0, 4.0], [2.0, 2.0, 2.0])
    assert (found.value, found.fitted, found.open) == (2.0, False, None)


@given(at=st.floats(-10.5, -6.5), curvature=st.floats(0.01, 0.15))
def test_the_basin_holds_the_optimum_and_ends_at_the_level(at: float, curvature: float) -> None:
    losses = parabola(GRID, at, curvature)
    found = optimum_of(GRID, losses)
    basin = found.basin
    assert basin.low <= found.best_value <= basin.high
    assert basin.low <= found.value <= basin.high
    for end, is_open in ((basin.low, basin.low_open), (basin.high, basin.high_open)):
        rise = found.loss + curvature * (math.log2(end) - at) ** 2 - found.best_loss
        if not is_open:  # in the window by the parabola; farther out the chord lies above the curve
            inside = abs(math.log2(end / found.best_value)) < 1
            assert rise == pytest.approx(0.01, abs=1e-6) if inside else rise <= 0.01 + 1e-9


def regret(value: float, values: list[float], losses: list[float | None]) -> float | None:
    return estimate(runs_of(values, [losses]), value).regret


def test_the_regret_of_a_value() -> None:
    """By the parabola in the window, also between grid values; farther out by what was measured."""
    losses: list[float | None] = [*parabola(GRID, -8.3)]
    for x in (-8.7, -8.0, -7.2, -9.0):
        assert regret(2**x, GRID, losses) == pytest.approx(0.05 * (x + 8.3) ** 2)
    assert regret(GRID[0], GRID, losses) == pytest.approx(0.05 * 3.7**2)
    assert regret(2**-11.5, GRID, losses) == pytest.approx((losses[0] + losses[1]) / 2 - 2)  # type: ignore[operator]
    assert regret(2**-13, GRID, losses) is None
    assert regret(1.0, GRID, losses) is None
    assert regret(0.0, GRID, losses) is None
    walled = [None if v == 2**-6 else y for v, y in zip(GRID, losses, strict=True)]
    assert regret(2**-5.5, GRID, walled) is None
    assert regret(2**-8.7, GRID, walled) == pytest.approx(0.05 * 0.4**2)


def test_beside_a_cliff_the_parabola_does_not_dip_too_far() -> None:
    """1.30, 1.29, 1.28 and then 1.40: the lines meet at 1.28, three points would fall to 1.26."""
    found = optimum_of(
        [1, 2, 4, 8, 16],
        [
            1.31,
            1.30,
            1.29,
            1.28,
            1.40,
        ][:5],
    )
    assert found.best_value == 8
    assert found.loss == pytest.approx(1.28 - 0.01 / 13 * 1, abs=0.01)
    assert found.loss > 1.27


def test_what_a_seed_adds_everywhere_counts_for_nothing() -> None:
    """Levels of the seeds, also where a value lacks one; they are no noise either."""
    plain = parabola(GRID, -8.3)
    rows: list[list[float | None]] = [[y + level for y in plain] for level in (0.0, 0.3, -0.2)]
    rows[1][3] = rows[2][5] = None
    runs = runs_of(GRID, rows)
    found = estimate(runs, GRID[4], noise_of(runs))
    assert found.optimum.log2 == pytest.approx(-8.3)
    assert found.regret == pytest.approx(0.05 * 0.3**2)
    assert found.optimum_error == pytest.approx(0, abs=1e-6)


def test_the_noise_of_a_curve_and_of_a_scan() -> None:
    state = random.Random(1)
    many = [
        runs_of(GRID, [[y + level + state.gauss(0, 0.01) for y in parabola(GRID, -8.3)] for level in (0.0, 0.5, 1.0)])
        for _ in range(50)
    ]
    noises = [noise for runs in many if (noise := noise_of(runs)) is not None]
    assert {noise.freedom for noise in noises} == {4}  # three seeds at three values, less three seeds and two
    scan = pooled(noises)
    assert scan is not None
    assert math.sqrt(scan.variance) == pytest.approx(0.01, rel=0.2)
    assert Noise(1.0, 4).beside(Noise(2.0, 100)) == Noise(pytest.approx(1.6), 10)
    assert Noise(1.0, 4).beside(None) == Noise(1.0, 4)
    assert pooled(noises[:1]) is None
    assert noise_of(runs_of(GRID, [parabola(GRID, -8.3)])) is None


@pytest.mark.parametrize(
    ("values", "losses"),
    [
        ([], []),
        ([1.0], []),
        ([0.0], [1.0]),
        ([1.0, 1.0], [1.0, 2.0]),
        ([math.nan], [1.0]),
        ([1.0, 2.0], [None, math.nan]),
    ],
)
def test_what_cannot_be_fitted_is_refused(values: list[float], losses: list[float | None]) -> None:
    with pytest.raises(RunError):
        optimum_of(values, losses)


@given(
    losses=st.lists(
        st.one_of(st.none(), st.floats(-1e100, 1e100), st.sampled_from([math.nan, math.inf])), min_size=1, max_size=9
    ),
)
def test_any_losses_give_an_optimum_on_the_grid_or_a_refusal(losses: list[float | None]) -> None:
    values = [0.001 * 2**i for i in range(len(losses))]
    try:
        found = optimum_of(values, losses)
    except RunError:
        assert not any(loss is not None and math.isfinite(loss) for loss in losses)
        return
    assert values[0] <= found.value <= values[-1]
    assert found.best_loss == min(loss for loss in losses if loss is not None and math.isfinite(loss))
