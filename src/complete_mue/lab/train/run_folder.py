"""A run's directory: one process at a time, metrics as JSON lines, records that appear whole or not at all.

config.json   plan.json   metrics.jsonl   checkpoints/   result.json   (and TensorBoard's files, if installed;
W&B's, if asked for)
metrics-cut.jsonl   lines of steps that were run again
before-1/           all of this of an earlier run, set aside by a restart
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from complete_mue.errors import RunError
from complete_mue.lab.train.config import RunConfig
from complete_mue.storage import whole


class Metrics:
    """metrics.jsonl: one line per step; on resume, lines of steps that will be run again go to metrics-cut.jsonl."""

    def __init__(self, run: Path, start: int, config: RunConfig, warn: Callable[[str], None]) -> None:
        path = run / "metrics.jsonl"
        self._wandb = _wandb(run, config) if config.wandb else None
        _cut(path, start)
        self._file = path.open("a", encoding="utf-8")
        self._board = _Board(run / "tensorboard", warn)

    def write(self, lines: list[dict[str, Any]]) -> None:
        """Append lines and hand them to the system."""
        self._file.write("".join(json.dumps(line) + "\n" for line in lines))
        self._file.flush()
        for line in lines:
            numbers = _numbers(line)
            self._board.write(numbers, line["step"])
            if self._wandb is not None:
                self._wandb.log(numbers, step=line["step"])

    def close(self) -> None:
        """Done."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """All whole lines of a run's metrics; a line cut off by a kill is left out."""
    path = run / "metrics.jsonl"
    texts = path.read_bytes().splitlines() if path.is_file() else []
    return [line for text in texts if (line := _line(text)) is not None]


def with_loss(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those lines that have a loss: a step that diverged has none, and a file may have been changed by hand."""
    return [line for line in lines if isinstance(line.get("loss"), int | float)]


def _line(text: bytes) -> dict[str, Any] | None:
    """A line of metrics, if that is what it is."""
    with contextlib.suppress(ValueError, RecursionError):
        line = json.loads(text)
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            return line
    return None


def _cut(path: Path, start: int) -> None:
    """Keep the lines before ``start``; the others are first added to the file of those that were cut."""
    texts = path.read_bytes().splitlines() if path.is_file() else []
    kept = [text for text in texts if (line := _line(text)) is not None and line["step"] < start]
    held = set(kept)
    if cut := [text for text in texts if text not in held]:
        with path.with_name("metrics-cut.jsonl").open("ab") as file:
            file.write(b"".join(text + b"\n" for text in cut))
            file.flush()
            os.fsync(file.fileno())
    with whole(path) as file:
        file.write(b"".join(text + b"\n" for text in kept))


_OF_A_RUN = (
    "config.json", "plan.json", "metrics.jsonl", "metrics-cut.jsonl", "result.json", "checkpoints", "tensorboard",
)  # fmt: skip


def set_aside(run: Path, warn: Callable[[str], None]) -> None:
    """Move what an earlier run left in its directory into a folder there."""
    found = [run / name for name in _OF_A_RUN if os.path.lexists(run / name)]
    if not found:
        return
    place = next(path for n in itertools.count(1) if not os.path.lexists(path := run / f"before-{n}"))
    place.mkdir()
    for path in found:
        path.rename(place / path.name)
    warn(f"files of an earlier run in {run} are now in {place}; remove them when you no longer need them")


def _numbers(line: dict[str, Any]) -> dict[str, float]:
    """A line's numbers, those of tables as ``table/key``."""
    flat: dict[str, float] = {}
    for key, value in line.items():
        if isinstance(value, dict):
            flat |= {f"{key}/{inner}": number for inner, number in value.items() if number is not None}
        elif isinstance(value, int | float) and key != "step":
            flat[key] = value
    return flat


def _wandb(run: Path, config: RunConfig) -> Any:
    """The run at Weights & Biases. Its id comes from directory, config and number of restarts, so that a resumed run is
    the same one."""
    try:
        import wandb
    except ImportError:
        raise RunError(
            f"wandb={config.wandb}: W&B is not installed; pip install 'complete-mue[logging]', or leave wandb out"
        ) from None
    restarts = len(list(run.glob("before-*")))
    name = hashlib.sha256(f"{run.resolve()} {config.fingerprint} {restarts}".encode()).hexdigest()[:16]
    return wandb.init(
        project=config.wandb, name=config.name, id=name, resume="allow", dir=str(run), config=config.to_dict()
    )


class _Board:
    """TensorBoard's event file, where TensorBoard is installed; if it cannot be written, the run goes on without it.

    Events are written at once, without torch's SummaryWriter. That one writes from a thread: what fails there is raised
    in the run, and if the thread is killed, the run waits for it forever.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self._folder, self._warn, self._file = folder, warn, None
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            return
        self._event = Event
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"  # read in this order
        try:
            folder.mkdir(exist_ok=True)
            self._file = RecordWriter((folder / name).open("xb"))
        except OSError as problem:
            self._give_up(problem)
        self._append(wall_time=time.time(), file_version="brain.Event:2")

    def write(self, numbers: dict[str, float], step: int) -> None:
        """Append a step's numbers and hand them to the system."""
        values = [{"tag": key, "simple_value": number} for key, number in numbers.items()]
        self._append(wall_time=time.time(), step=step, summary={"value": values})

    def close(self) -> None:
        """Done."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _append(self, **event: Any) -> None:
        if self._file is None:
            return
        try:
            self._file.write(self._event(**event).SerializeToString())
            self._file.flush()
        except OSError as problem:
            self._give_up(problem)

    def _give_up(self, problem: OSError) -> None:
        self.close()
        self._file = None
        self._warn(f"{self._folder} could not be written ({problem.strerror}); the run goes on without TensorBoard")
