"""Processes seen from outside, through Linux's /proc: memory, open files, locks, who stays behind; signals to them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

MARK = "COMPLETE_MUE_SOAK"  # a variable in the environment of all that a soak starts
_TORCHS_OWN = ("torchelastic_", "torchinductor_")  # folders that torch leaves where temporary files go


def tree(pid: int) -> list[int]:
    """A process and all below it, that one first."""
    found = [pid]
    for at in found:
        with contextlib.suppress(OSError, ValueError):
            for thread in Path(f"/proc/{at}/task").iterdir():
                found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def marked(mark: str) -> list[int]:
    """Processes with this mark, also those whose parent is gone."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            zombie = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if not zombie and f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def megabytes(pid: int) -> float:
    """Resident memory; 0 for a process that is gone."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024
    return 0.0


def open_files(pid: int) -> int:
    """Open file descriptors; 0 for a process that is gone."""
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0


@dataclass
class Watched:
    """A process and all below it over time: seconds since its start, memory, open files."""

    began: float = field(default_factory=time.monotonic)
    times: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    first: float | None = None  # when it began to train

    def look(self, pid: int, training: Callable[[], bool]) -> float:
        """Take a sample; the seconds since the start."""
        pids, now = tree(pid), time.monotonic() - self.began
        self.times.append(now)
        self.memory.append(sum(map(megabytes, pids)))
        self.files.append(sum(map(open_files, pids)))
        if self.first is None and training():
            self.first = now
        return now

    def growth(self) -> tuple[float, int]:
        """Of memory in MB and of open files, from the middle of the training to its end."""
        steady = [place for place, at in enumerate(self.times) if self.first is not None and at >= self.first]
        steady = steady[: -max(2, len(steady) // 10)]  # the rest sees it leave
        if len(steady) < 8:
            return 0.0, 0
        middle, end = steady[len(steady) // 2 :][:3], steady[-3:]

        def more(values: list[float] | list[int]) -> float:
            return statistics.median(values[i] for i in end) - statistics.median(values[i] for i in middle)

        return more(self.memory), round(more(self.files))


# -- signals -------------------------------------------------------------------------------------------------------


def strike(pid: int, blow: str, draw: random.Random) -> bool:
    """Send the signal that ``blow`` begins with: to a process, ``to all`` of its tree, or ``to a rank`` or ``worker``
    below it; False if there is none yet.
    """
    name, _, whom = blow.partition(" to ")
    below = [child for child in tree(pid)[1:] if b"resource_tracker" not in _command_line(child)]
    if whom in ("a rank", "a worker"):
        targets = [draw.choice(below)] if below else []
    else:
        targets = [pid, *below] if whom == "all" else [pid]
    send(targets, signal.Signals[name])
    return bool(targets)


def send(pids: list[int], number: signal.Signals) -> None:
    """A signal to those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


# -- what stays behind ---------------------------------------------------------------------------------------------


def strays(run: Path, temporary: Path) -> Iterator[Path]:
    """Half-written files of a run, and temporary ones that are not torch's own."""
    yield from (path for path in run.rglob(".*") if path.name.endswith(".part") or path.name.startswith(".writing-"))
    yield from (path for path in temporary.iterdir() if not path.name.startswith(_TORCHS_OWN))


def held(run: Path) -> Iterator[Path]:
    """Lock files of a run or a sweep that some process holds."""
    for path in run.rglob("*"):
        if (path.name == ".lock" or path.parent.name == "claims") and path.is_file():
            with path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield path
