"""Run a sweep: what has no record yet is trained, group by group, and entered in the ledger.

Only this process reads and writes the ledger. It claims a group's points before a worker gets them, so that several
sweeps may share one folder; a worker that dies costs its group's unfinished work, which runs again.
"""

from __future__ import annotations

import dataclasses
import fcntl
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from complete_mue.errors import RunError
from complete_mue.lab.records import Ledger, Outcome, read_sweep
from complete_mue.lab.records.merge import join_plans
from complete_mue.lab.records.store import SWEEP_FILE
from complete_mue.lab.sweep.executor import Advanced, Executor, Failed, Finished, Job
from complete_mue.lab.sweep.grid import Sweep, SweepPoint, fusible, pinned_sweep
from complete_mue.lab.sweep.known import Known
from complete_mue.lab.train.cuda_graph import WARM_UP
from complete_mue.lab.train.task import build
from complete_mue.storage import make_folder, open_lock, remove_parts, write_json

_MOST_LOSSES = 5  # a point whose worker died this many times is entered as failed
_WAIT = 0.2
NOTHING_KNOWN = Known()


@dataclass(frozen=True)
class Pace:
    """When something began, and how much of it was done by then."""

    since: float
    done: float

    def seconds_left(self, done: float, left: float) -> float | None:
        """The rest, as fast as from then until now."""
        return left * (time.monotonic() - self.since) / (done - self.done) if done > self.done else None


@dataclass
class Group:
    """Points that train in one program, and how far they are."""

    points: tuple[SweepPoint, ...]
    lost: int = 0
    step: int = 0
    best: float | None = None
    pace: Pace | None = None  # once it trains: what it compiles before that, and the wait for its turn, are no guide
    held: ExitStack = field(default_factory=ExitStack)

    @property
    def work(self) -> float:
        """Roughly its arithmetic."""
        config = self.points[0].config
        active = config.shape.parameters.active + config.shape.width * 512
        return len(self.points) * active * config.budget.tokens

    @property
    def steps(self) -> int:
        """All of them."""
        return self.points[0].config.budget.steps

    @property
    def seconds_left(self) -> float | None:
        """None until there is a pace."""
        return None if self.pace is None else self.pace.seconds_left(self.step, self.steps - self.step)

    @property
    def label(self) -> str:
        """``16e4a × 8``, with the rule set where it is one."""
        first = self.points[0]
        rules = {point.rules for point in self.points}
        return f"{first.target} × {len(self.points)}" + (f" · {first.rules}" if len(rules) == 1 else "")


@dataclass(frozen=True)
class Status:
    """Where a sweep stands."""

    done: int
    total: int
    failed: int
    running: tuple[Group, ...]
    best: tuple[float, str] | None
    seconds_left: float | None


Show = Callable[[Status], None]


def run(
    sweep: Sweep,
    folder: Path,
    executor: Executor,
    *,
    command: str = "mue sweep",
    request: dict[str, Any] | None = None,
    replicas: Callable[[SweepPoint], int],
    known: Known = NOTHING_KNOWN,
    retry_failed: bool = False,
    show: Show = lambda status: None,
    warn: Callable[[str], None] = lambda text: None,
) -> Status:
    """Train all points of ``sweep`` that ``folder`` has no record of; ``replicas`` says how many go in one program.
    What other sweeps have finished, ``known``, is taken from there.
    """
    sweep = pinned_sweep(sweep)
    enter(sweep, folder, command, request or {})
    ledger = Ledger(folder)
    take_known = partial(known.take, ledger, retry_failed=retry_failed, warn=warn)
    runner = _Runner(sweep, ledger, take_known, executor, replicas, retry_failed, show)
    try:
        return runner.run()
    finally:
        executor.close()
        runner.release()


def check_data(sweep: Sweep) -> None:
    """Refuse a sweep whose data is missing, or too short for one of its budgets, before anything is trained."""
    configs = {(target.config.task, target.config.budget): target.config for target in sweep.targets}
    for config in configs.values():
        build(dataclasses.replace(config, compile=False), device=torch.device("meta")).check_holds(config.budget)


def enter(sweep: Sweep, folder: Path, command: str, request: dict[str, Any]) -> None:
    """Write ``sweep.json``; a folder of another sweep is refused. Points of earlier calls stay: the plan is the union,
    so that a sweep grows by other rule sets, hyperparameters, seeds or a wider span."""
    path = folder / SWEEP_FILE
    old, sources = None, sweep.sources
    make_folder(folder)
    turn = open_lock(folder / ".sweep.lock")  # another sweep may enter its own points at this moment
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        remove_parts(folder)
        if path.exists():
            old = read_sweep(folder)
            sources = _same_data(folder, old.plan.sources, sources)
        plan = sweep.to_plan(command, {**request, "sources": sources}).to_dict()
        write_json(path, join_plans(old.raw, plan, str(folder), "give another folder") if old else plan)
    finally:
        os.close(turn)


def _same_data(folder: Path, known: dict[str, str] | None, sources: dict[str, str]) -> dict[str, str]:
    """What the data of both plans holds; other data at the same path is refused."""
    if known is None:  # an older sweep
        if any(held != source for source, held in sources.items()):  # all but sources that are known by their name
            raise RunError(
                f"{folder} holds an older sweep, which does not name what its data held; give another "
                f"folder, and `--known {folder} --trust-known` if you know that the data is the same"
            )
        return sources
    for source, held in sources.items():
        if known.get(source, held) != held:
            raise RunError(
                f"{folder} holds a sweep on other data: {source} held {known[source]} and now holds {held}; put the "
                "data back, or give another folder"
            )
    return {**known, **sources}


class _Runner:
    def __init__(
        self, sweep: Sweep, ledger: Ledger, take_known: Callable[[Sequence[SweepPoint]], None], executor: Executor,
        replicas: Callable[[SweepPoint], int], retry_failed: bool, show: Show,
    ) -> None:  # fmt: skip
        self.ledger, self.take_known, self.executor = ledger, take_known, executor
        self.retry_failed, self.show = retry_failed, show
        self.points = {point.id: point for point in sweep.points}
        take_known(sweep.points)
        missing = set(ledger.open_points(self.points, retry_failed=retry_failed))
        groups = [
            Group(chunk)
            for alike in fusible([point for point in self.points.values() if point.id in missing])
            for chunk in _chunks(alike, max(1, replicas(alike[0])))
        ]
        self.waiting = deque(sorted(groups, key=lambda group: -group.work))
        self.running: dict[int, Group] = {}
        self.elsewhere: list[Group] = []
        self.jobs, self.work_done = 0, 0.0
        self.began = Pace(time.monotonic(), 0.0)
        self.pace: Pace | None = None  # once a group trains, or is done
        self.done, self.failed = len(self.points) - len(missing), 0
        self.best: tuple[float, str] | None = None

    def run(self) -> Status:
        while self.waiting or self.running or self.elsewhere:
            self._start()
            if self.running:
                for event in self.executor.events(_WAIT):
                    self._take(event)
            elif self.elsewhere:  # another process holds the rest: see from time to time whether it still does
                time.sleep(_WAIT)
                self.waiting, self.elsewhere = deque(self.elsewhere), []
            self.show(self.status())
        return self.status()

    def release(self) -> None:
        for group in self.running.values():
            group.held.close()

    def status(self) -> Status:
        done = self._done()
        left = sum(group.work for group in (*self.waiting, *self.running.values(), *self.elsewhere))
        seconds = self.pace.seconds_left(done, left - (done - self.work_done)) if self.pace else None
        return Status(self.done, len(self.points), self.failed, tuple(self.running.values()), self.best, seconds)

    def _done(self) -> float:
        return self.work_done + sum(group.work * group.step / group.steps for group in self.running.values())

    def _start(self) -> None:
        while self.waiting and self.executor.free() > 0:
            group = self.waiting.popleft()
            held = ExitStack()
            ids = [point.id for point in group.points]
            self.take_known(group.points)
            mine = held.enter_context(self.ledger.claim(ids, retry_failed=self.retry_failed))
            others, entered = [point for point in group.points if point.id not in mine], self.ledger.done()
            busy = tuple(point for point in others if point.id not in entered)
            self.done += len(others) - len(busy)
            if busy:
                self.elsewhere.append(Group(busy))
            if not mine:
                held.close()
                continue
            points = tuple(point for point in group.points if point.id in mine)
            self.jobs += 1
            self.running[self.jobs] = Group(points, group.lost, held=held)
            self.executor.start(Job(self.jobs, tuple(point.config for point in points)))

    def _take(self, event: Any) -> None:
        group = self.running.get(event.number)
        if group is None:
            return
        if isinstance(event, Advanced):
            group.step = event.step + 1
            if event.step > WARM_UP and group.pace is None:
                group.pace = Pace(time.monotonic(), group.step)
                self.pace = self.pace or Pace(group.pace.since, self._done())
            group.best = min((loss for loss in event.losses if loss == loss), default=None)
            return
        del self.running[event.number]
        with group.held:
            if isinstance(event, Finished):
                self._enter(group, event.outcomes)
            elif len(group.points) == 1 and isinstance(event, Failed):
                self._enter(group, (event.outcome,))
            elif isinstance(event, Failed):  # too much memory, or one bad config among good ones
                self._halve(group)
            elif group.lost + 1 >= _MOST_LOSSES and len(group.points) == 1:
                reason = f"its worker died {_MOST_LOSSES} times; {event.reason}"
                self._enter(group, (Outcome("failed", error=reason),))
            elif group.lost >= 1 and len(group.points) > 1:  # died twice: perhaps of too much memory
                self._halve(group)
            else:
                self.waiting.appendleft(Group(group.points, group.lost + 1))

    def _halve(self, group: Group) -> None:
        middle = len(group.points) // 2
        self.waiting.extendleft([Group(group.points[:middle], group.lost), Group(group.points[middle:], group.lost)])

    def _enter(self, group: Group, outcomes: tuple[Outcome, ...]) -> None:
        self.work_done += group.work
        self.pace = self.pace or self.began
        for point, outcome in zip(group.points, outcomes, strict=True):
            self.ledger.write(point.id, outcome)
            self.done += 1
            self.failed += outcome.status == "failed"
            loss = outcome.loss
            if loss is not None and (self.best is None or loss < self.best[0]):
                self.best = (loss, point.label)


def _chunks(points: tuple[SweepPoint, ...], size: int) -> list[tuple[SweepPoint, ...]]:
    """Cut into as few, equal parts as ``size`` allows."""
    parts = -(-len(points) // size)
    cuts = [round(number * len(points) / parts) for number in range(parts + 1)]
    return [points[a:b] for a, b in itertools.pairwise(cuts)]
