"""The optimum of a curve: on parabolas it is exact, with noise close, and at edges it says so."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from complete_mue.errors import RunError
from complete_mue.lab.report.fit import loss_at, optimum_of

GRID = [2.0**k for k in range(-12, -4)]


def parabola(
    values: list[float], at: float, curvature: float = 0.05, cubic: float = 0.0, floor: float = 2.0
) -> list[float]:
    return [floor + curvature * (math.log2(v) - at) ** 2 + cubic * (math.log2(v) - at) ** 3 for v in values]


@given(
    at=st.floats(-11.4, -5.6),
    curvature=st.floats(1e-3, 10),
    floor=st.floats(0.0, 20),
    step=st.sampled_from([0.5, 1.0, 2.0]),
)
def test_a_parabola_is_recovered(at: float, curvature: float, floor: float, step: float) -> None:
    values = [2.0 ** (-12 - 2 * step + step * k) for k in range(int(8 / step) + 5)]
    found = optimum_of(values, parabola(values, at, curvature, floor=floor))
    assert found.log2 == pytest.approx(at, abs=1e-4)
    assert found.loss == pytest.approx(floor, abs=1e-6)
    assert found.open is None
    assert found.method == "5 points"
    assert found.step == pytest.approx(step)


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


def test_five_points_average_noise_and_three_follow_a_lopsided_curve() -> None:
    state = random.Random(1)
    misses = {"plain": [], "told": []}
    for _ in range(300):
        noisy = [y + state.gauss(0, 0.01) for y in parabola(GRID, -8.2)]
        misses["plain"].append(optimum_of(GRID, noisy).log2 + 8.2)
        misses["told"].append(optimum_of(GRID, noisy, [0.01] * len(GRID)).log2 + 8.2)
    rms = {name: math.sqrt(sum(m * m for m in found) / len(found)) for name, found in misses.items()}
    assert rms["told"] < 0.75 * rms["plain"]  # who knows the noise may use five points where it rules
    assert rms["told"] < 0.07
    steep = parabola(GRID, -8.2, 0.05, 0.02)[2:]
    assert optimum_of(GRID[2:], steep).method == "3 points"


def test_open_edges() -> None:
    assert optimum_of(GRID, parabola(GRID, -20)).open == "low"
    assert optimum_of(GRID, parabola(GRID, 3)).open == "high"
    one = optimum_of([0.1], [2.0])
    assert (one.open, one.method, one.step) == ("both", "grid", 0.0)


def test_an_edge_beside_a_diverged_value_is_closed() -> None:
    losses: list[float | None] = [*parabola(GRID, -5)[:-1], None]
    found = optimum_of(GRID, losses)
    assert (found.open, found.diverges, found.method) == (None, "above", "grid")
    assert found.value == GRID[-2]
    assert found.basin.high == GRID[-2]
    assert not found.basin.high_open
    mirrored = optimum_of(GRID, [math.nan, *parabola(GRID, -12)[1:]])
    assert (mirrored.open, mirrored.diverges) == (None, "below")
    assert optimum_of(GRID[:3], [math.inf, 2.0, math.nan]).diverges == "both"


def test_three_points_beside_a_wall() -> None:
    found = optimum_of(GRID, [*parabola(GRID, -7)[:-1], math.inf])
    assert found.method == "3 points"
    assert found.log2 == pytest.approx(-7)


def test_level_losses_have_their_optimum_amid_the_grid() -> None:
    found = optimum_of([1.0, 2.0, 4.0], [2.0, 2.0, 2.0])
    assert (found.value, found.method, found.open) == (2.0, "grid", None)


@given(at=st.floats(-10.5, -6.5), curvature=st.floats(0.01, 0.2))
def test_the_basin_holds_the_optimum_and_ends_at_the_level(at: float, curvature: float) -> None:
    losses = parabola(GRID, at, curvature)
    found = optimum_of(GRID, losses)
    basin = found.basin
    assert basin.low <= found.best_value <= basin.high
    assert basin.low <= found.value <= basin.high
    for end, is_open in ((basin.low, basin.low_open), (basin.high, basin.high_open)):
        rise = found.loss + curvature * (math.log2(end) - at) ** 2 - found.best_loss
        beside = (
            abs(math.log2(end / found.best_value)) < 1
        )  # by the parabola; farther out the chord lies above the curve
        if not is_open:
            assert rise == pytest.approx(0.01, abs=1e-6) if beside else rise <= 0.01 + 1e-9


def test_loss_between_grid_values() -> None:
    losses = parabola(GRID, -8.3)
    assert loss_at(2**-8.7, GRID, losses) == pytest.approx(parabola([2**-8.7], -8.3)[0])
    assert loss_at(GRID[3], GRID, losses) == losses[3]
    assert loss_at(2**-13, GRID, losses) is None
    assert loss_at(1.0, GRID, losses) is None
    assert loss_at(2**-8.5, GRID, [None if v == 2**-8 else y for v, y in zip(GRID, losses, strict=True)]) is None
    assert loss_at(1.5, [1.0, 2.0], [3.0, 4.0]) == pytest.approx(3 + math.log2(1.5))


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
    losses=st.lists(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)), min_size=1, max_size=9),
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
