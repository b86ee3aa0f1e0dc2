"""How a sweep is getting on: a live view on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from complete_mue.cli.app import console

if TYPE_CHECKING:
    from complete_mue.lab.sweep.run import Status


@contextmanager
def shown(title: str) -> Iterator[Callable[[Status], None]]:
    """The title, a line per running group and one for the whole; without a terminal, the last every ten seconds."""
    from rich.live import Live
    from rich.text import Text

    notes = console(stderr=True)
    if notes.is_terminal:
        with Live(console=notes, refresh_per_second=4, transient=True) as view:
            yield lambda status: view.update(
                Text("\n".join((title, *_lines(status))), no_wrap=True, overflow="ellipsis")
            )
        return
    last = [time.monotonic(), 0]

    def show(status: Status) -> None:
        if time.monotonic() - last[0] > 10 or (status.done == status.total and status.done != last[1]):
            last[:] = [time.monotonic(), status.done]
            print(f"{title}: {_lines(status)[-1]}", file=sys.stderr)

    yield show


def _lines(status: Status) -> list[str]:
    lines = []
    for group in status.running:
        left = "" if group.seconds_left is None else f"  {clock(group.seconds_left)} left"
        best = "" if group.best is None else f"  best {group.best:.3f}"
        done = bar(group.step / group.steps)
        lines.append(f"{done} {group.label}  step {group.step}/{group.steps}{left}{best}")
    under_way = sum(len(group.points) * group.step / group.steps for group in status.running)
    facts = [f"{bar((status.done + under_way) / status.total)} {status.done}/{status.total} runs"]
    facts += [f"{clock(status.seconds_left)} left"] if status.seconds_left is not None else []
    facts += [f"{status.failed} failed"] if status.failed else []
    facts += [f"best {status.best[0]:.4f} ({status.best[1]})"] if status.best else []
    return [*lines, "  ".join(facts)]


def bar(share: float) -> str:
    """What is done, in ten blocks."""
    return f"{'█' * round(share * 10):░<10}"


def clock(seconds: float) -> str:
    """``4:07``, or ``31:04:07`` from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
