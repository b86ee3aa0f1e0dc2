"""Where groups of points train: in this process, in worker processes, or on a Ray cluster.

An executor takes jobs and reports what became of them. Only the sweep's own process reads and writes the ledger, so a
worker that dies, or a node that is lost, takes nothing with it but the work it had not finished.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from complete_mue.errors import first_line
from complete_mue.lab.records import Outcome
from complete_mue.lab.train.config import RunConfig
from complete_mue.layout.numbers import count

TRAINING = "training"  # the thread's name
_LEAVE = 5.0  # seconds; about one is enough


@dataclass(frozen=True)
class Job:
    """Configs to train in one program."""

    number: int
    configs: tuple[RunConfig, ...]


@dataclass(frozen=True)
class Advanced:
    """A job is at a step, its replicas at these losses."""

    number: int
    step: int
    losses: tuple[float, ...]


@dataclass(frozen=True)
class Finished:
    """What a job's runs gave, one per config, in order."""

    number: int
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class Failed:
    """A job that raised."""

    number: int
    outcome: Outcome


@dataclass(frozen=True)
class Lost:
    """A job whose worker died."""

    number: int
    reason: str


Event = Advanced | Finished | Failed | Lost


class Executor(Protocol):
    """Runs jobs."""

    def free(self) -> int:
        """How many more jobs it takes now."""

    def start(self, job: Job) -> None:
        """Take a job."""

    def events(self, timeout: float) -> list[Event]:
        """What happened; waits at most ``timeout`` seconds for the first event."""

    def close(self) -> None:
        """End all work, finished or not."""


class Here:
    """In this process, one job at a time."""

    def __init__(self) -> None:
        self._events: queue.Queue[Event] = queue.Queue()
        self._running = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def free(self) -> int:
        """One, when idle."""
        return 1 - self._running

    def start(self, job: Job) -> None:
        """Train in a thread, so that the caller can show progress."""
        self._running = 1
        self._thread = threading.Thread(target=_perform, args=(job, None, self._tell), daemon=True, name=TRAINING)
        self._thread.start()

    def events(self, timeout: float) -> list[Event]:
        """All that happened since."""
        found: list[Event] = []
        with suppress(queue.Empty):
            found.append(self._events.get(timeout=timeout))
            while True:
                found.append(self._events.get_nowait())
        self._running -= sum(not isinstance(event, Advanced) for event in found)
        return found

    def close(self) -> None:
        """The thread ends when it next reports. A step that takes long is not waited for: it ends with the process."""
        self._closed = True
        if self._thread is not None:
            self._thread.join(_LEAVE)

    def _tell(self, event: Event) -> None:
        if self._closed:
            raise SystemExit  # of the thread
        self._events.put(event)


class Processes:
    """Worker processes with one thread each: on small models, two such beat one process with two threads."""

    def __init__(self, workers: int, ahead: Sequence[Worker] = ()) -> None:
        """``ahead`` are workers that were started before there was a job."""
        self._workers = count("workers", workers)
        self._idle = [*ahead]
        self._busy: dict[Connection, Worker] = {}

    def free(self) -> int:
        """Workers without a job; they are started when first needed."""
        return self._workers - len(self._busy)

    def start(self, job: Job) -> None:
        """Give a worker the job."""
        worker = self._idle.pop() if self._idle else start_worker()
        try:
            worker.pipe.send(job)
        except OSError:  # it died while idle
            worker.close()
            worker = start_worker()
            worker.pipe.send(job)
        worker.job, worker.compiled = job.number, any(config.compile for config in job.configs)
        self._busy[worker.pipe] = worker

    def events(self, timeout: float) -> list[Event]:
        """What the workers report, and which of them died."""
        found: list[Event] = []
        for pipe in wait(list(self._busy), timeout) if self._busy else ():
            assert isinstance(pipe, Connection)
            worker = self._busy[pipe]
            try:
                event = pipe.recv()
            except (EOFError, OSError):
                del self._busy[pipe]
                worker.process.join()
                found.append(Lost(worker.job, f"its process ended with exit code {worker.process.exitcode}"))
                continue
            found.append(event)
            if not isinstance(event, Advanced):
                self._idle.append(self._busy.pop(pipe))
        return found

    def close(self) -> None:
        """Kill the workers; idle ones that compiled may leave by themselves first, and end the compiler's processes."""
        done = [worker for worker in self._idle if worker.compiled]
        for worker in done:
            worker.pipe.close()
        for worker in done:
            worker.process.join(_LEAVE)
        for worker in (*self._idle, *self._busy.values()):
            worker.close()
        self._idle, self._busy = [], {}

    def pids(self) -> list[int]:
        """Process ids of the workers that are alive."""
        return [worker.process.pid for worker in (*self._idle, *self._busy.values())]


@dataclass
class Worker:
    """A worker process and the pipe to it."""

    process: Any
    pipe: Connection
    job: int = -1
    compiled: bool = False

    def close(self) -> None:
        """Kill it, if it lives."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def start_worker(ahead: RunConfig | None = None) -> Worker:
    """A process that waits for jobs. One that is started ``ahead`` of a job like this config loads, meanwhile, what
    the job will need."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, ahead), daemon=True)
    process.start()
    theirs.close()
    return Worker(process, ours)


def _serve(pipe: Connection, ahead: RunConfig | None = None) -> None:
    """A worker process: job after job, until the other end of the pipe is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the sweep's own process
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is loaded, which is not yet
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    if ahead is not None:
        with suppress(Exception):  # the job will say what is wrong
            from complete_mue.lab.sweep.worker import warm_up

            warm_up(ahead)
    with suppress(EOFError, OSError):
        while True:
            _perform(pipe.recv(), 1, pipe.send)


def _leave_with_parent() -> None:
    """A worker whose sweep was killed stops training: nobody would learn of the result."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _perform(job: Job, threads: int | None, tell: Callable[[Event], None]) -> None:
    """Train a job and tell how it goes."""
    tell(performed(job, threads, tell))


def performed(job: Job, threads: int | None, tell: Callable[[Advanced], None]) -> Finished | Failed:
    """What a job gave; its progress goes to ``tell``."""
    from complete_mue.lab.sweep.worker import work

    def report(step: int, losses: Sequence[float]) -> None:
        tell(Advanced(job.number, step, tuple(losses)))

    try:
        return Finished(job.number, tuple(work(job.configs, threads=threads, report=report)))
    except BrokenPipeError:
        raise
    except Exception as problem:
        if os.environ.get("MUE_TRACEBACK") and not isinstance(problem, OSError):
            traceback.print_exc()
        return Failed(job.number, Outcome("failed", error=first_line(problem, 500)))
