"""A progress bar on stderr: how much of the sources is read, tokens, tokens per second, time left."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class _Rate(ProgressColumn):
    """How many tokens (or items) are done, and how many in a second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        """Nothing before the first."""
        done, seconds = task.fields["done"], max(task.elapsed or 0.0, 1e-9)
        return Text(f"{done:,} {self._unit}, {done / seconds:,.0f}/s" if done else "")


class Meter(Progress):
    """Shows a position out of ``size``; does nothing when not wanted."""

    def __init__(self, wanted: bool, size: int, unit: str = "tokens") -> None:
        super().__init__(
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), _Rate(unit), TimeRemainingColumn(),
            console=Console(stderr=True), disable=not wanted,
        )  # fmt: skip
        self._size = size

    def __exit__(self, *error: Any) -> None:
        self.live.transient = error[0] is not None  # after an error, the error is what stays
        super().__exit__(*error)

    def note(self, text: str) -> None:
        """Say something, once."""
        if not self.disable:
            self.console.print(text, highlight=False, markup=False)

    def begin(self, what: str) -> None:
        """Begin a part of the work, with the position back at 0."""
        for part in self.task_ids:
            self.remove_task(part)
        self.add_task(what, total=max(1, self._size), done=0)

    def at(self, position: int | None, done: int = 0) -> None:
        """The position is now this (or as it was), and so many more tokens (or items) are done."""
        (part,) = self.tasks
        self.update(part.id, completed=position, done=part.fields["done"] + done)
