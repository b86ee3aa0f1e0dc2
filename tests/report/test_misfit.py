"""Why the window is 1.5 octaves: within it the recorded curves are parabolas, as far as their noise tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from complete_mue.lab.records import find_sweeps
from complete_mue.lab.report.curves import Curve
from complete_mue.lab.report.estimator import WINDOW
from complete_mue.lab.report.summary import summarize

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def misfit(curve: Curve, window: float) -> tuple[float, int]:
    """Chi squared of a parabola through the means near the best value, with its degrees of freedom; 0 of too few."""
    points = [point for point in curve.points if point.losses and not point.diverged]
    if not points:
        return 0.0, 0
    x = np.log2([point.value for point in points])
    best = x[int(np.argmin([np.mean([loss for _, loss in point.losses]) for point in points]))]
    near = [(at, dict(point.losses)) for at, point in zip(x, points, strict=True) if abs(at - best) <= window + 0.05]
    seeds = sorted(set.intersection(*(set(losses) for _, losses in near)))
    if len(near) < 4 or len(seeds) < 2:
        return 0.0, 0
    table = np.array([[losses[seed] for _, losses in near] for seed in seeds])
    table -= table.mean(axis=1, keepdims=True)  # what a seed adds to all values alike
    means, at = table.mean(axis=0), np.array([place for place, _ in near])
    variance = ((table - means) ** 2).sum() / ((len(seeds) - 1) * (len(near) - 1))
    rest = means - np.polyval(np.polyfit(at, means, 2), at)
    return float(len(seeds) * (rest**2).sum() / variance), len(near) - 3


@pytest.mark.slow
def test_recorded_curves_are_parabolas_within_the_window_and_not_over_two_octaves() -> None:
    paths = [path for name in ("transfer", "roles") for path in find_sweeps(RESULTS / name)]
    curves = [curve for path in paths for scan in summarize(path).scans for curve in scan.curves]
    ratios = []
    for window in (WINDOW, 2.0):
        squares, freedom = np.sum([misfit(curve, window) for curve in curves], axis=0)
        ratios.append(squares / freedom)
    assert 0.5 < ratios[0] < 1.6
    assert ratios[1] > 2
    page = " ".join((RESULTS.parent / "report.md").read_text(encoding="utf-8").split())
    assert f"per degree of freedom is {ratios[0]:.1f} on average; over two octaves it would be {ratios[1]:.1f}" in page
