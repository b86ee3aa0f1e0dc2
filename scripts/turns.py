"""How the scripts behind the pages of results run their commands: sweeps, some at a time; other steps one by one."""

from __future__ import annotations

import math
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from complete_mue.errors import ShapeError
from complete_mue.layout import FeedForward

T = TypeVar("T")

_GRACE = 120.0  # seconds to save in


def taken(places: Sequence[Path], trusted: bool) -> list[str]:
    """Options of `mue sweep` that take finished runs from these places."""
    return [*(part for place in places for part in ("--known", str(place))), *(["--trust-known"] if trusted else [])]


def mue(command: list[str], log: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a command, after printing it; what it says goes into the file, if one is given."""
    print("mue", shlex.join(command), flush=True)
    whole = [sys.executable, "-m", "complete_mue", *command]
    if log is None:
        return subprocess.Popen(whole)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        return subprocess.Popen(whole, stdout=out, stderr=subprocess.STDOUT)


def take_turns(
    waiting: Sequence[T], command: Callable[[T], list[str]], jobs: int, *, apart: bool = False,
    seconds: float = math.inf, stagger: float = 0.0, logs: Path | None = None,
) -> int:  # fmt: skip
    """Run commands in order, ``jobs`` at a time, and start none after so many seconds; the number that failed.

    A command is made when its turn comes, so that it can take what others have finished by then, and ends with
    `--out` and its folder; with ``apart``, no two run in one folder at a time. ``stagger`` seconds between starts let
    the next sweep see what this one is about to run. ``logs`` is a folder for what the commands say.
    """
    began, failed, number, left = time.monotonic(), 0, 0, list(waiting)
    running: dict[subprocess.Popen[bytes], str] = {}
    try:
        while running or (left and time.monotonic() - began < seconds):
            for process in [process for process in running if process.poll() is not None]:
                folder = running.pop(process)
                failed += process.returncode != 0
                print(f"{time.monotonic() - began:6.0f} s  exit {process.returncode}  {folder}", flush=True)
            ready = next((one for one in left if not apart or _folder(command(one)) not in running.values()), None)
            if ready is not None and len(running) < jobs and time.monotonic() - began < seconds:
                left.remove(ready)
                made, log = command(ready), logs / f"{number:03d}.log" if logs else None
                running[mue(made, log)] = _folder(made)
                number += 1
                time.sleep(stagger)
            else:
                time.sleep(0.5)
    finally:
        for process in running:
            process.terminate()
    return failed


def _folder(command: list[str]) -> str:
    return command[command.index("--out") + 1]


def of_equal_width(layouts: Sequence[str], expert_width: int) -> dict[str, str]:
    """MoEs by their layouts, and the dense model that is as wide as what is active of each of them."""
    widths = {layout: FeedForward.parse(layout, expert_width).active_width for layout in layouts}
    if len(set(widths.values())) != 1:
        found = ", ".join(f"{layout} has {width}" for layout, width in widths.items())
        raise ShapeError(f"--layout: active widths differ ({found}); give layouts that one dense model matches")
    return {"dense": f"dense@{widths[layouts[0]]}", **{layout: f"{layout}@{expert_width}" for layout in layouts}}


@dataclass(frozen=True)
class Step:
    """A command, and the file that says it is done; training finds that out by itself."""

    command: list[str]
    done: Path | None = None


def speedups(dense: Path, sparse: Sequence[Path], results: Path) -> Iterator[Step]:
    """How many steps the dense run takes for each step of the sparse ones, to the same loss."""
    for run in sparse:
        out = results / run.name
        yield Step(["speedup", str(dense), str(run), "--out", str(out)], out / "speedup.json")


def one_by_one(steps: Iterable[Step], seconds: float = math.inf) -> int:
    """Run what is not done yet, in order, up to the first that fails; its exit status. 130: the time was over."""
    until = time.monotonic() + seconds
    for step in steps:
        if step.done is not None and step.done.is_file():
            continue
        if time.monotonic() >= until:
            return 130
        if code := _finish(mue(step.command), until):
            return code
    return 0


def _finish(process: subprocess.Popen[bytes], until: float) -> int:
    """Wait for a command; when the time is over it is asked to save and leave. 130: it did."""
    try:
        return process.wait(timeout=None if math.isinf(until) else max(0.0, until - time.monotonic()))
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return 130
