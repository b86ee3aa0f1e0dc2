"""A role probe on curves whose optimum is known."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from complete_mue.lab.report.curves import Curve, ValuePoint, fit_curve
from complete_mue.lab.report.roles import changes, judged, power_of

PLAN = 0.003


def points(optimum: float, seeds: int, state: random.Random, low: float = -3.0) -> list[ValuePoint]:
    """A parabola in octaves with a level of its own for every seed."""
    levels = [state.gauss(1.3, 0.01) for _ in range(seeds)]
    found = []
    for k in range(7):
        x = low + k / 2
        losses = tuple((seed, level + 0.007 * (x - optimum) ** 2) for seed, level in enumerate(levels))
        mean = statistics.fmean(loss for _, loss in losses)
        found.append(ValuePoint(PLAN * 2**x, mean, None, seeds, False, 0, losses))
    return found


def test_the_drift_is_from_the_plans_value() -> None:
    found = judged(fit_curve("expert_up.lr", "complete_mue", "64e8a", PLAN, points(-1.3, 4, random.Random(0))), "nats")
    assert found.drift == pytest.approx(-1.3, abs=1e-6)
    assert found.regret == pytest.approx(0.007 * 1.3**2, abs=1e-8)
    assert found.drift_error == pytest.approx(0, abs=1e-6)
    assert found.status == "missed"


def test_no_minimum_is_no_drift() -> None:
    open_ = judged(fit_curve("expert_up.lr", "complete_mue", "64e8a", PLAN, points(3.0, 4, random.Random(2))), "nats")
    assert (open_.drift, open_.status) == (None, "open")


def curve(target: str, drift: float, error: float) -> Curve:
    return Curve("expert_up.lr", "complete_mue", target, PLAN, (), drift=drift, drift_error=error)


def test_a_power_law_is_recovered_and_needs_three_sparsities() -> None:
    sparsity: dict[str, float | None] = {"8e8a": 1.0, "32e8a": 4.0, "64e8a": 8.0, "256e8a": 32.0, "dense": None}
    curves = [curve(name, -0.3 * math.log2(x), 0.1) for name, x in sparsity.items() if x]
    power = power_of([*curves, curve("dense", 5.0, 0.1)], sparsity)
    assert power is not None
    assert power.exponent == pytest.approx(-0.3)
    assert power.error == pytest.approx(0.1 / math.sqrt(2**2 + 3**2 + 5**2))
    assert (power.low, power.high) == (1, 32)
    assert power_of(curves[:3], sparsity) is None


def test_changes_are_paired_with_the_plans_value() -> None:
    found = points(-1.0, 3, random.Random(3))
    paired = changes(Curve("expert_up.lr", "complete_mue", "64e8a", PLAN, tuple(found)))
    for octaves, change, error in paired:
        assert change == pytest.approx(0.007 * ((octaves + 1) ** 2 - 1), abs=1e-12)
        assert error == pytest.approx(0, abs=1e-12)
