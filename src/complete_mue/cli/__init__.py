"""The command `mue`: parse, call, print. Every error is one line on stderr and exit status 2."""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import NoReturn

import typer

from complete_mue.cli import bench, check, cluster, data, evaluate, files, quickstart, report, sweep, theory, train, web
from complete_mue.cli.app import app
from complete_mue.errors import FileError, MueError

__all__ = [
    "app", "bench", "check", "cluster", "data", "evaluate", "files", "main", "quickstart", "report", "sweep", "theory",
    "train", "web",
]  # fmt: skip

_ORDER = (
    "quickstart", "init", "plan", "layout", "check", "tune", "sweep", "report", "train", "sample", "eval", "export",
    "speedup", "cluster", "web",
)  # fmt: skip
app.registered_commands.sort(key=lambda command: _ORDER.index(str(command.name)))  # as one meets them, in `mue --help`

# typer's own usage errors; some versions of typer carry click inside, so the class is taken from where both have it.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def main() -> None:
    """Entry point: our errors and usage errors become one line on stderr and status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without Greek letters still gets its table
            stream.reconfigure(errors="replace")
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as leaving:  # typer's own way out
        if not isinstance(leaving.__context__, BrokenPipeError):
            raise
        status = _reader_left()
    except typer.Exit as leaving:
        status = leaving.exit_code
    except MueError as problem:
        status = _fail(str(problem))
    except (typer.Abort, KeyboardInterrupt):
        status = 130
    except UsageError as problem:
        context = getattr(problem, "ctx", None)
        said = getattr(problem, "format_message", problem.__str__)().replace("Value error, ", "")
        status = _fail(f"{said}  (see `{context.command_path if context else 'mue'} --help`)")
    except BrokenPipeError:
        status = _reader_left()
    except (MemoryError, RuntimeError) as problem:
        if not _out_of_memory(problem):
            raise
        reason = str(problem).partition("\n")[0] or "Python has no more"
        status = _fail(f"not enough memory ({reason}); give a smaller shape, batch or sequence")
    except OSError as problem:
        status = _fail(str(FileError(f"{problem.filename or 'output'}: {problem.strerror or problem}")))
    _leave(status if isinstance(status, int) else 0)


def _leave(status: int) -> NoReturn:
    if "torch" in sys.modules and ("RANK" in os.environ or _still_trains()):
        from complete_mue.lab.train.parallel import leave

        leave(status, at_once=True)
    sys.exit(status)


def _still_trains() -> bool:
    """Whether a sweep in this process was ended within a step."""
    from complete_mue.lab.sweep.executor import TRAINING

    return any(thread.name == TRAINING for thread in threading.enumerate())


def _out_of_memory(problem: Exception) -> bool:
    """Python's, a GPU's or torch's on the CPU, which has no class of its own; torch need not be here."""
    named = isinstance(problem, MemoryError) or type(problem).__name__ == "OutOfMemoryError"
    return named or "can't allocate memory" in str(problem)


def _reader_left() -> int:
    """The reader of our output has seen enough, as `head` has: no error. Nothing may be flushed to it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _fail(message: str) -> int:
    rank = f" rank {os.environ['RANK']}:" if "RANK" in os.environ else ""
    print(f"mue:{rank} error: {' '.join(message.split())}", file=sys.stderr)
    return 2
