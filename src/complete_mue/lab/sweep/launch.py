"""Start a sweep: pick the executor that was asked for, check the data, run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from complete_mue.errors import RunError, nearest
from complete_mue.lab.sweep.capacity import cores, replicas_that_fit
from complete_mue.lab.sweep.executor import Executor, Here, Processes
from complete_mue.lab.sweep.grid import Sweep, pinned_sweep
from complete_mue.lab.sweep.ray_cluster import RayCluster
from complete_mue.lab.sweep.run import Show, check_data, run
from complete_mue.lab.train.trainer import pick_device

EXECUTORS = ("auto", "here", "processes", "ray")


@dataclass(frozen=True)
class Launch:
    """Where the runs of a sweep train, how many at a time, and which finished ones are taken over."""

    executor: str = "auto"
    workers: int | None = None
    address: str | None = None
    replicas: int | None = None
    known: Sequence[Path] = ()
    trust_known: bool = False

    def run(
        self, sweep: Sweep, folder: Path, *, command: str, show: Show, warn: Callable[[str], None],
        request: dict[str, Any] | None = None, retry_failed: bool = False,
    ) -> list[str]:  # fmt: skip
        """Train what ``folder`` has no record of; the ids of all points, failed ones too."""
        sweep = pinned_sweep(sweep)
        if self.address is None:  # a cluster may have the data where this machine has none
            check_data(sweep)
        device = pick_device(sweep.reference.config.device)
        run(
            sweep, folder, self.pick_executor(gpu=device.type == "cuda"), command=command, request=request,
            known=self.known, trust_known=self.trust_known, retry_failed=retry_failed, show=show, warn=warn,
            replicas=lambda point: self.replicas or replicas_that_fit(point.config, device, workers=self.workers or 1),
        )  # fmt: skip
        return [point.id for point in sweep.points()]

    def pick_executor(self, *, gpu: bool) -> Executor:
        """The executor of this name."""
        if self.executor not in EXECUTORS:
            near = nearest(self.executor, EXECUTORS)
            raise RunError(f"executor {self.executor!r}{near}: give one of {', '.join(EXECUTORS)}")
        if self.executor == "ray":
            return RayCluster(self.address, gpu=gpu)
        if self.address:
            raise RunError(f"--address {self.address!r} without --executor ray: an address is a Ray cluster's")
        if self.executor == "here" or (self.executor == "auto" and gpu and not self.workers):
            return Here()
        return Processes(self.workers or (1 if gpu else cores()))


def as_typed(words: Sequence[str]) -> str:
    """What the records' reader would type: without `--known`, which saves work and changes no result."""
    kept, rest = ["mue"], iter(words)
    for word in rest:
        if word == "--known":
            next(rest, None)
        elif word != "--trust-known" and not word.startswith("--known="):
            kept.append(word)
    return shlex.join(kept)
