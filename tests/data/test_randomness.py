"""Permutations are bijections that shuffle; sampling covers every item once, whatever the number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from complete_mue.errors import RunError, ShapeError
from complete_mue.lab.data.item_order import Rows, Shuffled
from complete_mue.lab.data.randomness import Permutation, choice, uniform


@given(st.integers(1, 3000), st.integers(-(2**70), 2**70))
def test_every_number_once(size: int, seed: int) -> None:
    assert sorted(Permutation(size, seed)(np.arange(size)).tolist()) == list(range(size))


def test_it_shuffles_and_seeds_differ() -> None:
    size = 10_000
    orders = [Permutation(size, seed, epoch)(np.arange(size)) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    for order in orders:
        assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < 0.05
        assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.05
        assert 0.2 < (np.abs(np.diff(order)) > size / 2).mean() < 0.3  # of two random numbers: 1/4
    assert (orders[0] == orders[1]).mean() < 0.01
    assert (orders[0] == orders[2]).mean() < 0.01


def test_it_is_the_same_everywhere() -> None:
    assert Permutation(1000, 3, 0)(np.arange(5)).tolist() == [778, 557, 36, 83, 613]
    assert uniform(7, np.array([0, 1]), 2) == pytest.approx([0.6328898949076937, 0.16462594624005322], abs=0)


def test_large_domains_need_no_table() -> None:
    size = 10**14
    drawn = Permutation(size, 1)(np.arange(1000))
    assert len(set(drawn.tolist())) == 1000
    assert 0 <= drawn.min() < drawn.max() < size


def test_uniform_numbers_are_uniform_and_independent() -> None:
    items = np.arange(100_000)
    first, second, other = uniform(0, items, 0), uniform(0, items, 1), uniform(1, items, 0)
    counts = np.histogram(first, bins=50, range=(0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 90  # chi squared of 49 degrees: 0.03 %
    for numbers in (second, other):
        assert abs(np.corrcoef(first, numbers)[0, 1]) < 0.015
    assert set(choice(0, items[:1000], 0, 3).tolist()) == {0, 1, 2}


@pytest.mark.parametrize("world", [1, 2, 4])
def test_an_epoch_takes_every_item_once_over_all_ranks(world: int) -> None:
    items, rows = 96, 8
    seen: list[int] = []
    for step in range(items // rows):
        batch = [Shuffled(items, rows, seed=5, rank=rank, world=world).indices(step) for rank in range(world)]
        whole = Shuffled(items, rows, seed=5).indices(step)
        assert np.concatenate(batch).tolist() == whole.tolist()
        seen += whole.tolist()
    assert sorted(seen) == list(range(items))


def test_repeated_epochs_have_their_own_order() -> None:
    sampling = Shuffled(100, 8, epochs="repeat")
    assert len(sampling) == 12
    epochs = [np.concatenate([sampling.indices(12 * e + s) for s in range(12)]).tolist() for e in range(2)]
    assert all(len(set(epoch)) == 96 for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_past_the_end_says_how_many_steps_there_are() -> None:
    with pytest.raises(RunError, match=r"step 12 .*12 steps of 8 rows"):
        Shuffled(100, 8).indices(12)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Rows(9, 0, 2), "multiple of world"),
        (lambda: Rows(8, 2, 2), "rank = 2: give a whole number from 0 to 1"),
        (lambda: Rows(0), "rows = 0"),
        (lambda: Shuffled(3, 8), "fewer than one batch"),
        (lambda: Shuffled(8, 8, epochs="many"), "single, repeat"),
        (lambda: Shuffled(8, 8).indices(-1), "step = -1"),
    ],
)
def test_impossible_numbers_are_named(make: object, says: str) -> None:
    with pytest.raises((ShapeError, RunError), match=says):
        make()  # type: ignore[operator]
