"""How a sweep is started: which executor, and the command that its records name."""

from __future__ import annotations

import shlex

import pytest

pytest.importorskip("torch")

from complete_mue.errors import RunError
from complete_mue.lab.sweep.executor import Here, Processes
from complete_mue.lab.sweep.launch import Launch, as_typed


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("sweep width --known a --seeds 2", "mue sweep width --seeds 2"),
        ("sweep width --known=a --trust-known --out 'b c'", "mue sweep width --out 'b c'"),
        ("sweep width --known --known --seeds 2", "mue sweep width --seeds 2"),
        ("sweep width --known", "mue sweep width"),
    ],
)
def test_the_command_is_kept_without_what_it_took_over(typed: str, kept: str) -> None:
    assert as_typed(shlex.split(typed)) == kept


@pytest.mark.parametrize(
    ("launch", "gpu", "kind", "free"),
    [
        (Launch(), True, Processes, 2),
        (Launch(workers=3), True, Processes, 3),
        (Launch("here"), True, Here, 1),
        (Launch(workers=2), False, Processes, 2),
    ],
)
def test_executors_by_name(launch: Launch, gpu: bool, kind: type, free: int) -> None:
    executor = launch.pick_executor(gpu=gpu)
    assert isinstance(executor, kind)
    assert executor.free() == free


@pytest.mark.parametrize(("launch", "names"), [(Launch("procesess"), "processes"), (Launch(address="a:1"), "a:1")])
def test_what_does_not_fit_is_refused(launch: Launch, names: str) -> None:
    with pytest.raises(RunError, match=names):
        launch.pick_executor(gpu=False)
