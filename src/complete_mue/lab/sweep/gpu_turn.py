"""Programs that share a GPU train one after another, and compile one after another, beside what trains.

Side by side they would get the GPU, or the cores, in slices of time, and each would take longer. In turn, the first is
done sooner; compiling, which takes about as long as training a small model, costs no time of its own; and a program
like the last one finds it compiled.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import torch

from complete_mue.errors import FileError
from complete_mue.storage import open_lock

PATIENCE = 600.0  # seconds after which a wait is no longer an ordinary turn
_POLL = 0.05


def lock_of(device: torch.device, kind: str) -> Path | None:
    """The file that this user's programs on a GPU lock in turn for work of a kind; None on any other device."""
    if device.type != "cuda":
        return None
    gpu = torch.cuda.get_device_properties(device).uuid
    return Path(tempfile.gettempdir()) / f"complete-mue-{os.getuid()}-{gpu}-{kind}.lock"


class Turn:
    """One program's turn, from `take` to `close`, or to the end of its process. A lock that cannot be had is none."""

    def __init__(self, lock: Path | None) -> None:
        self._lock, self._handle = lock, -1
        self.waited = 0.0  # seconds

    def take(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait until no other program has it; if one has, do something ``meanwhile``, once."""
        if self._lock is None or self._handle >= 0:
            return
        began, told = time.perf_counter(), False
        with suppress(OSError, FileError):
            self._handle = open_lock(self._lock)
            if not _locked(self._handle):
                meanwhile()
            while not _locked(self._handle):
                time.sleep(_POLL)
                if not told and time.perf_counter() - began > PATIENCE:
                    print("waiting for the GPU: another sweep trains on it, or was stopped there", file=sys.stderr)
                    told = True
        self.waited = time.perf_counter() - began

    def close(self) -> None:
        """Let the next one begin."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


NO_TURN = Turn(None)


@contextmanager
def alone(device: str | None = None) -> Iterator[None]:
    """The GPU to oneself, unless ``device`` is a CPU: what is timed must not share it with a sweep."""
    name = "cuda" if device in (None, "auto") else device
    on_gpu = torch.cuda.is_available() and name.startswith("cuda")
    with closing(Turn(lock_of(torch.device(name), "train") if on_gpu else None)) as turn:
        turn.take()
        yield


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
