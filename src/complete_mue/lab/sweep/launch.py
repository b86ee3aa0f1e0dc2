"""Start a sweep: pick the executor that was asked for, check the data, run.

Torch takes seconds to load, here and in every worker: the first workers are started before it is loaded here.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from complete_mue.errors import RunError, one_of
from complete_mue.lab.records import Ledger
from complete_mue.lab.records.store import SWEEP_FILE
from complete_mue.lab.sweep.cost import saturating, vocabulary
from complete_mue.lab.sweep.executor import Executor, Here, Processes, Worker, start_worker
from complete_mue.lab.sweep.grid import Sweep, SweepPoint, fusible, pinned_sweep
from complete_mue.lab.sweep.known import Known
from complete_mue.lab.sweep.ray_cluster import RayCluster
from complete_mue.lab.train.config import RunConfig

if TYPE_CHECKING:
    import torch

    from complete_mue.lab.sweep.run import Show

EXECUTORS = ("processes", "here", "ray")
_ON_CPU = 4  # more runs together gain nothing there and leave cores idle at the end (`mue bench sweep --device cpu`)
_SHARE = 0.8  # of the free memory
_ON_GPU = 2  # workers: one trains while the other compiles


@dataclass(frozen=True)
class Launch:
    """Where the runs of a sweep train, how many at a time, and which finished ones are taken over."""

    executor: str = "processes"
    workers: int | None = None
    address: str | None = None
    replicas: int | None = None
    known: Known = field(default_factory=Known)

    def __post_init__(self) -> None:
        one_of("executor", self.executor, EXECUTORS, RunError)
        if self.address and self.executor != "ray":
            raise RunError(f"--address {self.address!r} without --executor ray: an address is a Ray cluster's")

    def run(
        self, sweep: Sweep, folder: Path, *, command: str, show: Show, warn: Callable[[str], None],
        request: dict[str, Any] | None = None, retry_failed: bool = False,
    ) -> list[str]:  # fmt: skip
        """Train what ``folder`` has no record of; the ids of all points, failed ones too."""
        sweep = pinned_sweep(sweep)
        config = sweep.reference.config
        with ExitStack() as stack:
            needed = range(self.needed_at_first(sweep, folder, retry_failed))
            ahead = [stack.enter_context(closing(start_worker(config))) for _ in needed]
            from complete_mue.lab.sweep.run import check_data, run
            from complete_mue.lab.train.trainer import pick_device

            if self.address is None:  # a cluster may have the data where this machine has none
                check_data(sweep)
            device = pick_device(config.device)
            gpu = device.type == "cuda"
            workers = self.workers or (_ON_GPU if gpu and self.executor == "processes" else 1)
            run(
                sweep, folder, self.pick_executor(ahead, gpu=gpu), command=command, request=request,
                known=self.known, retry_failed=retry_failed, show=show, warn=warn,
                replicas=lambda point: self.replicas or replicas_that_fit(point.config, device, workers=workers),
            )  # fmt: skip
        return [point.id for point in sweep.points]

    def needed_at_first(self, sweep: Sweep, folder: Path, retry_failed: bool) -> int:
        """Workers to start at once: one per group of open points, and no more than a GPU or the cores take."""
        if self.executor != "processes":
            return 0
        shapes = fusible(self.left(sweep, folder, retry_failed))
        groups = sum(-(-len(alike) // (self.replicas or len(alike))) for alike in shapes)
        return min(groups, self.workers or _ON_GPU, cores())

    def left(self, sweep: Sweep, folder: Path, retry_failed: bool) -> list[SweepPoint]:
        """The points that neither ``folder`` nor a known sweep has a result of."""
        points = list(sweep.points)
        if (folder / SWEEP_FILE).exists():
            left = set(Ledger(folder).open_points([point.id for point in points], retry_failed=retry_failed))
            points = [point for point in points if point.id in left]
        return [point for point in points if not self.known.holds(point)]

    def pick_executor(self, ahead: Sequence[Worker] = (), *, gpu: bool) -> Executor:
        """The executor of this name; ``ahead`` are workers that run already."""
        if self.executor == "ray":
            return RayCluster(self.address, gpu=gpu)
        if self.executor == "here":
            return Here()
        return Processes(self.workers or (_ON_GPU if gpu else cores()), ahead)


def as_typed(words: Sequence[str]) -> str:
    """What the records' reader would type: without `--known`, which saves work and changes no result."""
    kept, rest = ["mue"], iter(words)
    for word in rest:
        if word == "--known":
            next(rest, None)
        elif word != "--trust-known" and not word.startswith("--known="):
            kept.append(word)
    return shlex.join(kept)


# -- how many runs in one program: as many as memory holds, and no more than keep the device busy --------------------


def replicas_that_fit(config: RunConfig, device: torch.device, *, workers: int = 1) -> int:
    """K for runs like this one; ``workers`` processes share the device. A group that runs out of memory is halved."""
    if device.type != "cuda":
        return _ON_CPU
    import torch

    free = torch.cuda.mem_get_info(device)[0] * _SHARE / workers
    return max(1, min(saturating(config), int(free / replica_bytes(config))))


def replica_bytes(config: RunConfig) -> float:
    """Weights, gradients and moments of one run, and the activations of its largest micro-batch: an estimate."""
    shape, vocab = config.shape, vocabulary(config)
    states = 16 * (shape.parameters.total + 2 * vocab * shape.width)
    active = sum(group.active for group in shape.main.groups)
    per_layer = 40 * shape.width + 4 * active * shape.width + 8 * shape.active_width
    tokens = config.budget.batch_tokens / config.accumulate
    return states + tokens * (shape.depth * per_layer + 12 * vocab)


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
