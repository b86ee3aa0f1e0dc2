"""Groups of points on a Ray cluster: a local one by default, any other by its address."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from complete_mue.errors import RunError
from complete_mue.lab.sweep.executor import Advanced, Event, Failed, Finished, Job, Lost, performed


class RayCluster:
    """One task per job, each on one CPU core or one GPU. A task whose worker or node dies is reported as lost.

    Ray's own retries are off: the sweep decides what runs again, as with every executor.
    """

    def __init__(self, address: str | None = None, *, gpu: bool = False) -> None:
        try:
            import ray
        except ImportError:
            raise RunError("the executor 'ray' needs Ray: install it with `pip install 'complete-mue[ray]'`") from None
        self._ray, self._gpu = ray, gpu
        self._own = not ray.is_initialized()
        if self._own:
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
            except (ConnectionError, RuntimeError, ValueError) as problem:
                raise RunError(
                    f"no Ray cluster at {address!r} ({problem}): start one, or leave the address out"
                ) from None
        needs: dict[str, Any] = {"num_gpus": 1} if gpu else {"num_cpus": 1}
        self._task = ray.remote(max_retries=0, **needs)(_perform)
        self._board: Any = ray.remote(num_cpus=0, max_restarts=-1)(_Board).remote()
        self._running: dict[Any, int] = {}

    def free(self) -> int:
        """Cores or GPUs of the cluster as it is now, less the jobs that run."""
        resources = self._ray.cluster_resources()
        return int(resources.get("GPU" if self._gpu else "CPU", 0)) - len(self._running)

    def start(self, job: Job) -> None:
        """Submit a task."""
        self._running[self._task.remote(job, self._board, 1 if not self._gpu else None)] = job.number

    def events(self, timeout: float) -> list[Event]:
        """Progress from the board, then the tasks that ended."""
        found: list[Event] = []
        ready, _ = self._ray.wait(list(self._running), timeout=timeout) if self._running else ([], [])
        with suppress(self._ray.exceptions.RayError):  # the board's node may be lost: progress shown late harms nothing
            found += self._ray.get(self._board.take.remote(), timeout=1)
        for reference in ready:
            number = self._running.pop(reference)
            try:
                found.append(self._ray.get(reference))
            except self._ray.exceptions.RayError as problem:
                found.append(Lost(number, type(problem).__name__))
        return found

    def close(self) -> None:
        """Cancel what runs; leave the cluster as it was found."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running = {}
        if self._own:
            self._ray.shutdown()


class _Board:
    """Where tasks post their progress; the newest of each job counts."""

    def __init__(self) -> None:
        self._newest: dict[int, Advanced] = {}

    def post(self, event: Advanced) -> None:
        self._newest[event.number] = event

    def take(self) -> list[Advanced]:
        taken, self._newest = list(self._newest.values()), {}
        return taken


def _perform(job: Job, board: Any, threads: int | None) -> Finished | Failed:
    return performed(job, threads, board.post.remote)
