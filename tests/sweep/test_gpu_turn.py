"""Programs that share a GPU: one trains at a time, and none waits for one that died."""

from __future__ import annotations

import io
import itertools
import multiprocessing
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from complete_mue.lab.models.residual_layer import LayerRunner
from complete_mue.lab.recipes import dit_tiny, lm_tiny
from complete_mue.lab.sweep import fused, gpu_turn, worker
from complete_mue.lab.sweep.fused import train_fused
from complete_mue.lab.sweep.gpu_turn import Turn, lock_of
from complete_mue.lab.train.config import RunConfig, override
from complete_mue.lab.train.cuda_graph import WARM_UP

FORK = multiprocessing.get_context("fork")


def hold(lock: Path, seconds: float, told: Any) -> None:
    with closing(Turn(lock)) as turn:
        turn.take()
        began = time.monotonic()
        told.send(began)
        time.sleep(seconds)
        told.send(time.monotonic())


def holder(lock: Path, seconds: float) -> tuple[Any, Any]:
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=hold, args=(lock, seconds, theirs), daemon=True)
    process.start()
    return process, ours


def test_turns_do_not_overlap(tmp_path: Path) -> None:
    holders = [holder(tmp_path / "gpu.lock", 0.2) for _ in range(3)]
    spans = sorted((told.recv(), told.recv()) for _, told in holders)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


def test_a_turn_ends_with_its_process(tmp_path: Path) -> None:
    process, told = holder(tmp_path / "gpu.lock", 600)
    told.recv()
    process.kill()
    process.join()
    with closing(Turn(tmp_path / "gpu.lock")) as turn:
        turn.take()
    assert turn.waited < 60


def test_waiting_is_counted(tmp_path: Path) -> None:
    _, told = holder(tmp_path / "gpu.lock", 0.3)
    began = told.recv()
    with closing(Turn(tmp_path / "gpu.lock")) as turn:
        turn.take()
        assert time.monotonic() - began >= 0.3
    assert turn.waited > 0


def test_a_long_wait_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, told = holder(tmp_path / "gpu.lock", 600)
    told.recv()

    class Told(io.StringIO):
        def write(self, text: str) -> int:
            process.kill()  # the wait ends once it is explained
            return super().write(text)

    said = Told()
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr(gpu_turn, "PATIENCE", 0.1)
    with closing(Turn(tmp_path / "gpu.lock")) as turn:
        turn.take()
    assert said.getvalue().count("waiting for the GPU") == 1


@pytest.mark.parametrize("place", ["missing/gpu.lock", "link"])
def test_a_lock_that_cannot_be_had_is_none(tmp_path: Path, place: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with closing(Turn(tmp_path / place)) as turn:
        turn.take()
    assert not (tmp_path / "elsewhere").exists()


def test_a_cpu_has_no_turns() -> None:
    assert lock_of(torch.device("cpu"), "train") is None
    with closing(Turn(None)) as turn:
        turn.take()
    assert turn.waited == 0


class Noted(Turn):
    """A turn that writes down what is done with it; of a busy one, somebody else has it at first."""

    def __init__(self, name: str, said: list[str], busy: bool = False) -> None:
        super().__init__(None)
        self.name, self.said, self.busy = name, said, busy

    def take(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        if self.busy:
            meanwhile()
        self.said.append(f"take {self.name}")

    def close(self) -> None:
        self.said.append(f"close {self.name}")


def tiny(layout: str, task: str = "lm", *changes: str) -> RunConfig:
    made, sizes = (lm_tiny(layout), ["task.sequence=16"]) if task == "lm" else (dit_tiny(layout), ["task.size=8"])
    return override(
        made, *sizes, "shape.width=16", "shape.depth=2", "shape.head_dim=8", f"budget.steps={WARM_UP + 3}",
        "budget.batch_tokens=64", "log_every=1", "betas=hold", "device=cpu", *changes,
    )  # fmt: skip


def test_training_takes_each_turn_once() -> None:
    said: list[str] = []
    train_fused(
        [tiny("8e2a")],
        report=lambda step, losses: said.append(f"step {step}"),
        compiling=Noted("compile", said),
        training=Noted("train", said),
    )
    first, *steps = [f"step {step}" for step in range(WARM_UP + 3)]
    assert said == ["take compile", first, *steps[:WARM_UP], "close compile", "take train", *steps[WARM_UP:]]


@pytest.mark.parametrize("task", ["lm", "dit"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(("layout", "dense_layers"), [("dense", 0), ("8e2a1s", 0), ("8e2a", 1)])
def test_what_is_tried_while_waiting_changes_no_bit(
    task: str, layout: str, dense_layers: int, accumulate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [f"accumulate={accumulate}", f"shape.dense_layers={dense_layers}"]
    configs = [tiny(layout, task, *changes), tiny(layout, task, *changes, "seed=1")]
    straight, model = train_fused(configs)
    calls: list[int] = []
    once = LayerRunner.__call__

    def called(runner: LayerRunner, number: int, *rest: Any) -> Any:
        calls.append(number)
        return once(runner, number, *rest)

    monkeypatch.setattr(LayerRunner, "__call__", called)
    waited, after = train_fused(configs, compiling=Noted("compile", [], busy=True))
    assert waited == straight
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), after.parameters(), strict=True))
    tried = [0, 1] if dense_layers else [0]
    assert calls == [*tried * accumulate, *[0, 1] * accumulate * (WARM_UP + 3)]


@pytest.mark.parametrize("error", [ValueError("no such kernel"), torch.OutOfMemoryError("full")])
def test_what_fails_while_waiting_fails_no_run(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    straight, _ = train_fused([tiny("8e2a")])

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(fused, "_try_kernels", fail)
    said = (
        []
        if isinstance(error, torch.OutOfMemoryError)
        else ["kernels were not compiled ahead: ValueError: no such kernel"]
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        waited, _ = train_fused([tiny("8e2a")], compiling=Noted("compile", [], busy=True))
    assert waited == straight
    heard = [str(warning.message) for warning in caught]  # torch may have warnings of its own
    assert [text for text in heard if text.startswith("kernels were")] == said


@pytest.mark.parametrize("busy", [False, True])
def test_a_wait_is_used_once(tmp_path: Path, busy: bool) -> None:
    used: list[float] = []
    if busy:
        process, told = holder(tmp_path / "gpu.lock", 600)
        told.recv()

    def use() -> None:
        used.append(time.monotonic())
        process.kill()

    with closing(Turn(tmp_path / "gpu.lock")) as turn:
        turn.take(use)
    assert len(used) == busy


def test_a_group_compiles_in_its_turn_and_trains_in_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a group trains, the next one may compile."""
    monkeypatch.setattr(worker, "lock_of", lambda device, kind: tmp_path / kind)
    held: dict[int, tuple[bool, bool]] = {}

    def taken(kind: str) -> bool:
        with (tmp_path / kind).open("a") as file:
            return not gpu_turn._locked(file.fileno())

    worker.work([tiny("dense")], report=lambda step, losses: held.update({step: (taken("compile"), taken("train"))}))
    assert held == {step: (step <= WARM_UP, step > WARM_UP) for step in range(WARM_UP + 3)}


def test_what_is_timed_waits_for_its_turn_and_a_cpu_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_turn, "lock_of", lambda device, kind: tmp_path / f"{device}-{kind}")
    process, told = holder(tmp_path / "cuda-train", 600)
    told.recv()
    with gpu_turn.alone("cpu"):
        assert process.is_alive()
    ended = threading.Event()

    def end() -> None:
        ended.set()
        process.kill()

    threading.Timer(0.2, end).start()
    with gpu_turn.alone():
        assert ended.is_set()
