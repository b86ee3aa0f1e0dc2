"""The speedup of a pair of runs with a known ratio."""

from __future__ import annotations

import math
import random

import pytest

from complete_mue.errors import RunError
from complete_mue.lab.report.speedup import bin_middles, speedup_curves


def run(speed: float, steps: int = 4000, noise: float = 0.02, seed: int = 0) -> tuple[list[float], list[float]]:
    state = random.Random(seed)
    times = [t + 0.5 for t in range(steps)]
    return times, [1.5 + 4.0 * (speed * t) ** -0.35 + state.gauss(0, noise) for t in times]


@pytest.mark.parametrize("ratio", [1.0, 1.7, 3.0, 0.5])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_known_ratio_is_recovered_to_one_percent(ratio: float, seed: int) -> None:
    found = speedup_curves(*run(1.0, seed=10 * seed), *run(ratio, seed=seed), (160, 3200))
    assert found.median == pytest.approx(ratio, rel=0.01)
    assert all(r == pytest.approx(ratio, rel=0.06) for r in found.ratio)
    for level, a, b in zip(found.loss, found.reference_steps, found.target_steps, strict=True):
        assert 160 <= a < 3200
        assert 160 <= b < 3200
        assert 1.5 + 4.0 * a**-0.35 == pytest.approx(level, abs=0.02)


def test_the_whole_stable_phase_counts_evenly() -> None:
    """The loss of a run falls fast at first: levels that are even in loss would leave its second half out."""
    found = speedup_curves(*run(1.0, noise=0.0), *run(1.7, noise=0.0), (160, 3200))
    assert found.reference_steps[-1] > 0.85 * 3200
    below = sum(step < math.sqrt(160 * 1.7 * 3200) for step in found.reference_steps)
    assert abs(below - len(found.ratio) / 2) <= 1


def test_a_ratio_that_changes_is_followed_to_the_end() -> None:
    """Loss of the target at t as of the reference at t^1.1: the ratio is t^0.1."""
    times, losses = run(1.0, noise=0.0)
    faster = [1.5 + 4.0 * t ** (-0.35 * 1.1) for t in times]
    found = speedup_curves(times, losses, times, faster, (160, 3200))
    for ratio, step in zip(found.ratio, found.target_steps, strict=True):
        assert ratio == pytest.approx(step**0.1, rel=0.01)


def test_swapped_runs_have_the_inverse_ratio() -> None:
    one, other = run(1.0, seed=3), run(1.7, seed=4)
    there, back = speedup_curves(*one, *other, (160, 3200)), speedup_curves(*other, *one, (160, 3200))
    assert there.loss == back.loss
    assert [a * b for a, b in zip(there.ratio, back.ratio, strict=True)] == pytest.approx([1.0] * len(there.ratio))


def test_phases_of_their_own_and_binned_losses() -> None:
    def binned(speed: float, steps: int) -> tuple[tuple[float, ...], list[float]]:
        _, losses = run(speed, steps, noise=0.01)
        ends = range(10, steps + 1, 10)
        return bin_middles(ends), [sum(losses[end - 10 : end]) / 10 for end in ends]

    found = speedup_curves(*binned(1.0, 4000), *binned(2.0, 2000), ((160, 3200), (80, 1600)))
    assert found.median == pytest.approx(2.0, rel=0.01)


def test_the_decay_and_a_divergence_do_not_count() -> None:
    times, losses = run(2.0)
    plain = speedup_curves(*run(1.0), times, losses, (160, 3200))
    losses[3200:] = [math.nan] * 800
    assert speedup_curves(*run(1.0), times, losses, (160, 3200)) == plain


def test_no_common_level() -> None:
    times, losses = run(1.0)
    found = speedup_curves(times, losses, times, [loss + 5 for loss in losses], (160, 3200))
    assert found.ratio == ()
    assert found.median is None
    assert speedup_curves([], [], times, losses, (0, 10)).median is None
    with pytest.raises(RunError):
        speedup_curves([1.0], [], times, losses, (0, 10))
