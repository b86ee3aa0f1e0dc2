"""Ranks as torchrun starts them, without the import of torch in each: forks of a process that has it already."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_IMPORTED = ["complete_mue.lab.train.loop", "torch.distributed.fsdp", "transformers"]


def forked(function: Callable[..., None], ranks: int, *arguments: Any) -> None:
    """``function(rank, *arguments)`` in so many processes; an error in one of them is raised here."""
    multiprocessing.set_forkserver_preload(_IMPORTED)
    torch.multiprocessing.start_processes(function, args=arguments, nprocs=ranks, start_method="forkserver")


def connected(function: Callable[..., None], ranks: int, *arguments: Any) -> None:
    """``function(*arguments)`` in so many processes, each with the environment that torchrun gives a rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    forked(_as_rank, ranks, ranks, port, function, *arguments)


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
