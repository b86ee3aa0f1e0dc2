"""Ranks as torchrun starts them, without the import of torch in each: forks of a process that has it already."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_IMPORTED = ["complete_mue.lab.train.loop", "torch.distributed.fsdp", "transformers"]


_LONGEST = 240.0  # seconds; the longest takes about forty


def connected(function: Callable[..., None], ranks: int, *arguments: Any) -> None:
    """``function(*arguments)`` in so many processes, each with the environment that torchrun gives a rank; an error in
    one of them is raised here.

    Once in many runs one of gloo's threads waits forever, in the destructor of its own buffer. Then all start again.
    """
    multiprocessing.set_forkserver_preload(_IMPORTED)
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        given = (ranks, port, function, *arguments)
        if _ended(torch.multiprocessing.start_processes(_as_rank, given, ranks, False, start_method="forkserver")):
            return
    raise TimeoutError(f"{function.__name__} on {ranks} ranks took longer than {_LONGEST:g} s, twice")


def _ended(started: torch.multiprocessing.ProcessContext) -> bool:
    """Wait for processes; those that take too long are killed."""
    until = time.monotonic() + _LONGEST
    while not started.join(timeout=1):
        if time.monotonic() > until:
            for process in started.processes:
                process.kill()
                process.join()
            return False
    return True


def mue(ranks: int, log: Path, *words: str) -> str:
    """What `mue WORDS` prints on so many ranks."""
    connected(_mue, ranks, str(log), *words)
    return log.read_text(encoding="utf-8")


def _as_rank(rank: int, world: int, port: int, function: Callable[..., None], *arguments: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    function(*arguments)


def _mue(log: str, *words: str) -> None:
    from complete_mue.cli import main

    sys.argv = ["mue", *words]
    with open(log, "a", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        main()
