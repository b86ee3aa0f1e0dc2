"""How a sweep is started: which executor, and the command that its records name."""

from __future__ import annotations

import dataclasses
import shlex
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from complete_mue.errors import MueError, RunError
from complete_mue.lab.sweep.executor import Here, Processes, Worker, start_worker
from complete_mue.lab.sweep.grid import Sweep, Target, pinned_sweep
from complete_mue.lab.sweep.launch import Launch, as_typed
from complete_mue.lab.sweep.run import run
from complete_mue.lab.train.config import RunConfig
from small_sweeps import base, losses, sweep_of


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


@pytest.mark.parametrize(("asked", "names"), [({"executor": "procesess"}, "processes"), ({"address": "a:1"}, "a:1")])
def test_what_does_not_fit_is_refused(asked: dict[str, str], names: str) -> None:
    with pytest.raises(RunError, match=names):
        Launch(**asked)


@pytest.mark.parametrize(
    ("launch", "started"),
    [
        (Launch(), 2),  # a group of each shape
        (Launch(replicas=1), 2),
        (Launch(replicas=1, workers=4), 4),
        (Launch(workers=4), 2),
        (Launch(workers=1), 1),
        (Launch("here"), 0),
    ],
)
def test_only_workers_that_get_a_job_are_started_ahead(
    launch: Launch, started: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("complete_mue.lab.sweep.launch.cores", lambda: 8)
    assert launch.needed_at_first(sweep_of(), tmp_path / "new", False) == started
    assert not (tmp_path / "new").exists()


def test_none_is_started_ahead_where_all_is_done(tmp_path: Path) -> None:
    run(sweep_of(1e-3), tmp_path, Here(), replicas=lambda point: 1)
    assert Launch().needed_at_first(pinned_sweep(sweep_of(1e-3)), tmp_path, False) == 0
    assert Launch(workers=9).needed_at_first(pinned_sweep(sweep_of(1e-3, 2e-3)), tmp_path, False) == 2


def test_workers_are_started_ahead_and_never_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One takes a job, one that died is replaced, and where the data is missing all are ended."""
    started: list[Worker] = []

    def start(config: RunConfig) -> Worker:
        started.append(start_worker(config))
        return started[-1]

    monkeypatch.setattr("complete_mue.lab.sweep.launch.start_worker", start)
    monkeypatch.setattr("complete_mue.lab.sweep.launch.cores", lambda: 2)

    def go(sweep: Sweep) -> None:
        Launch(workers=2, replicas=1).run(sweep, tmp_path, command="mue sweep", show=lambda status: None, warn=print)

    def kill_the_idle(device: str) -> torch.device:
        started[-1].process.kill()
        started[-1].process.join()
        return torch.device(device)

    with monkeypatch.context() as patch:
        patch.setattr("complete_mue.lab.train.trainer.pick_device", kill_the_idle)
        go(sweep_of(1e-3))
    assert len(started) == 2
    assert len(losses(tmp_path)) == 2
    away = Target("dense", None, base("task.source=nowhere"))
    with pytest.raises(MueError, match="nowhere"):
        go(dataclasses.replace(sweep_of(), targets=(away,)))
    assert len(started) == 4
    assert not any(worker.process.is_alive() for worker in started)


@pytest.mark.parametrize(("compiled", "left_with"), [(True, 0), (False, -signal.SIGKILL)])
def test_an_idle_worker_that_compiled_leaves_by_itself(
    compiled: bool, left_with: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed, it would leave the compiler's processes to find out, and a warning about its semaphores."""
    monkeypatch.setattr("complete_mue.lab.sweep.executor._LEAVE", 60.0)
    worker = start_worker()
    worker.compiled = compiled
    Processes(1, [worker]).close()
    assert worker.process.exitcode == left_with
