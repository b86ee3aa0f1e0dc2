"""A progress bar on stderr: how much of the sources is read, tokens, tokens per second, time left."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

_EVERY = 0.1


class Meter:
    """Shows a position out of ``size``; does nothing when not wanted."""

    def __init__(self, wanted: bool, size: int, unit: str = "tokens") -> None:
        self._size, self._unit = size, unit
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(), console=Console(stderr=True), disable=not wanted,
        )  # fmt: skip
        self._task: TaskID | None = None
        self._tokens, self._position, self._began, self._shown = 0, 0, 0.0, 0.0

    def __enter__(self) -> Meter:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._bar.live.transient = kind is not None  # after an error, the error is what stays
        self._bar.stop()

    def note(self, text: str) -> None:
        """Say something, once."""
        if not self._bar.disable:
            self._bar.console.print(text, highlight=False, markup=False)

    def start(self, what: str) -> None:
        """Begin a part of the work, with the position back at 0."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(what, total=max(1, self._size), rate="")
        self._tokens, self._position, self._began, self._shown = 0, 0, time.monotonic(), 0.0

    def at(self, position: int) -> None:
        """The position is now this."""
        self._position = position
        self._show()

    def tokens(self, number: int) -> None:
        """So many more tokens (or items) are done."""
        self._tokens += number
        self._show(done=self._position >= self._size)

    def _show(self, *, done: bool = False) -> None:
        now = time.monotonic()
        if self._task is None or (now - self._shown < _EVERY and not done):
            return
        self._shown = now
        rate = f"{self._tokens:,} {self._unit}, {self._tokens / max(now - self._began, 1e-9):,.0f}/s"
        self._bar.update(self._task, completed=self._position, rate=rate if self._tokens else "")
