"""The error bars against simulated scans whose truth is known: a reference and three targets, with paired seeds.

One ± should hold the truth 68 times of a hundred, two 95 times. They are set by the second and a little wide by the
first, since few seeds tell the noise badly.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest

from complete_mue.lab.report.curves import Curve, ValuePoint, fit_curve, scan_noise
from complete_mue.lab.report.summary import _judged

SHAPES: dict[str, Callable[[float], float]] = {
    "parabola": lambda x: 0.03 * x * x,
    "flat": lambda x: 0.01 * x * x,
    "quartic": lambda x: 0.03 * x * x + 0.002 * x**4,
    "steep quartic": lambda x: 0.015 * x * x + 0.01 * x**4,
    "cubic": lambda x: 0.03 * x * x + 0.004 * x**3,
    "cliff": lambda x: 0.01 * x * x + 0.1 * max(0.0, x - 1) ** 2,
}
GRIDS = {"octaves, 3 seeds": (np.arange(-3.0, 3.5), 3), "half octaves, 4 seeds": (np.arange(-1.5, 1.6, 0.5), 4)}


def points(shape: str, drift: float, grid: str, noise: float, state: np.random.RandomState) -> list[ValuePoint]:
    """A level of its own for each seed, and noise of its own for each run."""
    places, seeds = GRIDS[grid]
    levels = state.normal(2, 0.01, seeds)
    found = []
    for place in places:
        losses = [float(y) for y in levels + SHAPES[shape](place - drift) + state.normal(0, noise, seeds)]
        mean, std = statistics.fmean(losses), statistics.stdev(losses)
        found.append(ValuePoint(2.0**place, mean, std, seeds, False, 0, tuple(enumerate(losses))))
    return found


def targets(shape: str, drift: float, grid: str, noise: float, scans: int) -> list[Curve]:
    """Those of so many scans, judged: with drift and regret of the value 1."""
    state, found = np.random.RandomState(5), []
    for _ in range(scans):
        curves = [points(shape, place, grid, noise, state) for place in (0.0, drift, drift, drift)]
        together = scan_noise(curves)
        reference, *others = (fit_curve("lr", "ours", "layout", 1.0, curve, together) for curve in curves)
        found += [_judged(curve, reference, "nats") for curve in others]
    return found


def covered(misses: list[tuple[float, float]], errors: int) -> float:
    return statistics.fmean(abs(miss) <= errors * error for miss, error in misses)


def misses(curves: list[Curve], shape: str, drift: float) -> dict[str, list[tuple[float, float]]]:
    regret = SHAPES[shape](-drift)
    known = [c for c in curves if c.optimum is not None and c.optimum.open is None]
    assert len(known) >= 0.98 * len(curves)
    return {
        "drift": [((c.drift or 0.0) - drift, c.drift_error or 0.0) for c in known],
        "regret": [((c.regret or 0.0) - regret, c.regret_error or 0.0) for c in known],
    }


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(
    ("shape", "noise"),
    [
        ("parabola", 0.005),
        pytest.param("quartic", 0.005, marks=pytest.mark.slow),
        pytest.param("parabola", 0.002, marks=pytest.mark.slow),
        pytest.param("flat", 0.005, marks=pytest.mark.slow),
    ],
)
def test_the_errors_cover_the_truth(shape: str, noise: float, grid: str) -> None:
    """Within three standard deviations of a binomial, of 68 % (a tenth more is let pass) and of 95 %."""
    scans = 50
    for name, found in misses(targets(shape, 0.3, grid, noise, scans), shape, 0.3).items():
        if (name, shape) == ("regret", "quartic"):  # the shape moves it by more than this noise does
            assert abs(statistics.fmean(miss for miss, _ in found)) < 0.001
            continue
        for errors, low, high in ((1, 0.68, 0.78), (2, 0.95, 0.97)):
            spread = 3 * math.sqrt(low * (1 - low) / (scans * 3))
            assert low - spread <= covered(found, errors) <= high + spread, (name, errors)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("shape", ["steep quartic", "cubic", "cliff"])
def test_what_is_no_parabola_costs_a_tenth_of_an_octave(shape: str, grid: str) -> None:
    """Errors hold the noise alone; this is how far the shape may move drift and regret besides."""
    found = misses(targets(shape, 0.3, grid, 0.0005, 3), shape, 0.3)
    assert max(abs(miss) for miss, _ in found["drift"]) < 0.15
    assert abs(statistics.fmean(miss for miss, _ in found["drift"])) < 0.11
    assert max(abs(miss) for miss, _ in found["regret"]) < 0.004


def test_a_flat_basin_has_no_place() -> None:
    """Noise hides the minimum: the error says so, and the cost is still known."""
    for grid in GRIDS:
        curves = targets("flat", 0.0, grid, 0.03, 10)
        assert statistics.median(c.drift_error or 0.0 for c in curves) > 0.5
    heights = [2.001, 2.0, 2.003, 2.004, 2.003, 2.0005, 2.001]  # no parabola has a minimum near the second
    bumpy = [ValuePoint(2 ** (k / 2), y, 0.0, 2, False, 0, ((0, y), (1, y))) for k, y in enumerate(heights)]
    curve = fit_curve("lr", "ours", "layout", 1.0, bumpy)
    assert curve.optimum is not None
    assert (curve.optimum.value, curve.optimum.fitted) == (2**0.5, False)
    assert (curve.optimum_error or 0.0) >= 0.5  # a quarter of the window


def test_the_regret_between_grid_values_shows() -> None:
    """The best measured value is the transferred one, and yet a basin 0.45 octaves away costs something."""
    for curve in targets("parabola", 0.45, "octaves, 3 seeds", 1e-4, 2):
        assert curve.optimum is not None
        assert curve.optimum.best_value == 1.0
        assert curve.regret == pytest.approx(0.03 * 0.45**2, rel=0.05)


def test_one_seed_has_no_error_and_the_draws_are_fixed() -> None:
    runs = points("parabola", 0.3, "octaves, 3 seeds", 0.004, np.random.RandomState(3))
    assert fit_curve("lr", "ours", "layout", 1.0, runs) == fit_curve("lr", "ours", "layout", 1.0, runs)
    alone = [ValuePoint(p.value, p.loss, None, 1, False, 0, p.losses[:1]) for p in runs]
    curve = fit_curve("lr", "ours", "layout", 1.0, alone)
    assert (curve.optimum_error, curve.regret_error, curve.noise) == (None, None, None)
