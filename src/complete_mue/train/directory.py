"""A run's directory: one process at a time, metrics as JSON lines, records that appear whole or not at all.

config.json   plan.json   metrics.jsonl   checkpoints/   result.json   (and TensorBoard's files, if installed)
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from complete_mue.errors import RunError


@contextlib.contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold the directory; a second process is refused. The lock ends with the process, however it ends."""
    run.mkdir(parents=True, exist_ok=True)
    handle = os.open(run / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "another process"
            raise RunError(
                f"{run} is in use by process {holder}: wait for it, or give this run another directory"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def write_json(path: Path, data: Any) -> None:
    """Whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as problem:
        draft.unlink(missing_ok=True)
        raise RunError(f"{path} could not be written ({problem.strerror}); free some space and resume") from None


class Metrics:
    """metrics.jsonl: one line per logged step; on resume, lines of steps that will be run again are cut."""

    def __init__(self, run: Path, start: int) -> None:
        self.path = run / "metrics.jsonl"
        kept = [line for line in read_metrics(run) if line["step"] < start]
        draft = run / f".metrics.{os.getpid()}"
        draft.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        draft.replace(self.path)
        self._file = self.path.open("a", encoding="utf-8")
        self._board = _tensorboard(run)

    def write(self, lines: list[dict[str, Any]]) -> None:
        """Append lines and hand them to the system."""
        try:
            self._file.write("".join(json.dumps(line) + "\n" for line in lines))
            self._file.flush()
        except OSError as problem:
            raise RunError(
                f"{self.path} could not be written ({problem.strerror}); free some space and resume"
            ) from None
        for line in lines if self._board is not None else ():
            for key, value in line.items():
                if isinstance(value, int | float) and key != "step":
                    self._board.add_scalar(key, value, line["step"])

    def close(self) -> None:
        """Done."""
        with contextlib.suppress(OSError):
            self._file.close()
        if self._board is not None:
            self._board.close()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """All whole lines of a run's metrics; a line cut off by a kill is left out."""
    path, lines = run / "metrics.jsonl", []
    if not path.exists():
        return []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict) and isinstance(line.get("step"), int):
                lines.append(line)
    return lines


def _tensorboard(run: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(run / "tensorboard"))
