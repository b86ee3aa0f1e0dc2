from __future__ import annotations

import pytest

import complete_mue as mue

pytest.importorskip("torch")

import itertools

from complete_mue.lab.train.schedule import Schedule, decay_fraction, last_window


@pytest.mark.parametrize(
    ("steps", "decay", "window"),
    [(25_000, 0.20, 1000), (50_000, 0.20, 1500), (100_000, 0.15, 2000), (200_000, 0.10, 2000), (100, 0.20, 4)],
)
def test_the_papers_fractions(steps: int, decay: float, window: int) -> None:
    assert decay_fraction(steps) == pytest.approx(decay)
    assert last_window(steps) == window


def test_in_between() -> None:
    assert 0.15 < decay_fraction(70_000) < 0.20
    assert 1500 < last_window(70_000) < 2000


def test_warmup_stable_decay() -> None:
    schedule = Schedule(steps=100, warmup=10, decay=20)
    factors = [schedule.factor(step) for step in range(100)]
    assert factors[0] == 0.1
    assert factors[9:80] == [1.0] * 71
    assert list(schedule.stable) == list(range(10, 80))
    assert factors[80] < 1
    assert all(a > b for a, b in itertools.pairwise(factors[80:]))
    assert 0 < factors[-1] < 0.1
    assert Schedule.wsd(25_000) == Schedule(25_000, 1000, 5000)
    assert Schedule.wsd(100_000) == Schedule(100_000, 1000, 15_000)


def test_impossible() -> None:
    with pytest.raises(mue.MueError, match="all steps"):
        Schedule(10, 6, 6)
