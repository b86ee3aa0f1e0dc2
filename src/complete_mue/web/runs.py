"""The sweeps of a folder and their reports, live: read again when a record has come, and only then.

A name from a request is looked up among the sweeps that were found and never becomes a path. Links that lead out of the
folder are refused.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from complete_mue.errors import FileError, MueError
from complete_mue.lab.records.store import LEDGER, SWEEP_FILE
from complete_mue.lab.report.html_page import report_html
from complete_mue.lab.report.summary import Summary, summarize

LARGEST_REPORT = 64 * 2**20
MOST_SWEEPS = 500
DEEPEST = 3


@dataclass
class _Read:
    """A sweep as it was when its files looked like this: ``version`` changes with every record that is written."""

    version: str
    updated: float | None = None
    summary: Summary | None = None
    problem: str = ""
    page: bytes | None = None


class Runs:
    """One folder: a sweep itself, or a folder with sweeps below it, as `mue tune` and `mue quickstart` leave them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._read: dict[str, _Read] = {}
        self._lock = threading.Lock()

    def listing(self) -> dict[str, Any]:
        """All sweeps with their progress; ``version`` changes whenever a report would."""
        with self._lock:
            return {"folder": self.folder.name, "sweeps": [self._entry(*found) for found in self._sweeps().items()]}

    def report(self, name: str) -> bytes:
        """The report page of one sweep."""
        with self._lock:
            folder = self._sweeps().get(name)
            if folder is None:
                raise FileError(f"no sweep {name!r:.80} in {self.folder.name}; choose one from the list")
            read = self._current(name, folder)
            if read.summary is None:
                raise FileError(read.problem)
            if read.page is None:
                read.page = report_html([read.summary]).encode("utf-8")
            if len(read.page) > LARGEST_REPORT:
                raise FileError(
                    f"{name}: a report of {len(read.page)} bytes, more than {LARGEST_REPORT}; "
                    f"write it to a file with `mue report {name}`"
                )
            return read.page

    def _sweeps(self) -> dict[str, Path]:
        """Name -> folder, by name: the place below this folder. A folder that is not there yet has none."""
        if (self.folder / SWEEP_FILE).is_file():
            return {self.folder.name: self.folder}
        found = islice(_below(self.folder, DEEPEST), MOST_SWEEPS)
        return {path.relative_to(self.folder).as_posix(): path for path in found}

    def _entry(self, name: str, folder: Path) -> dict[str, Any]:
        read = self._current(name, folder)
        entry: dict[str, Any] = {"name": name, "version": read.version, "updated": read.updated}
        if read.summary is None:
            return {**entry, "error": read.problem}
        return {**entry, "title": read.summary.title, "progress": asdict(read.summary.progress)}

    def _current(self, name: str, folder: Path) -> _Read:
        """The summary for the files as they are now, from before where nothing has changed."""
        now = _Read("unread")
        try:
            now = self._state(folder)
            if name in self._read and self._read[name].version == now.version:
                return self._read[name]
            now.summary = summarize(folder)
        except (MueError, OSError) as problem:
            now.problem = self._says(problem)
        if now.updated is not None:
            self._read[name] = now
        return now

    def _says(self, problem: Exception) -> str:
        """The message, with paths from this folder on: where it lies is nobody's business."""
        return str(problem).replace(f"{self.folder.parent}/", "")

    def _state(self, folder: Path) -> _Read:
        sweep, ledger = folder / SWEEP_FILE, folder / LEDGER
        records = sorted(ledger.glob("*.json")) if ledger.is_dir() else []
        for path in (folder, sweep, ledger, *(record for record in records if record.is_symlink())):
            if not path.resolve().is_relative_to(self.folder):
                raise FileError(f"{path}: leads out of {self.folder.name}; copy the sweep into it")
        newest, digest = 0.0, hashlib.sha256()
        for path in (sweep, *records):
            stat = path.stat()
            newest = max(newest, stat.st_mtime)
            digest.update(f"{path.name} {stat.st_mtime_ns} {stat.st_size}\n".encode())
        return _Read(digest.hexdigest()[:16], newest)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """Folders with a sweep in them, by name. A link is listed, so that its error can be shown, but not walked into."""
    try:
        with os.scandir(folder) as entries:
            folders = sorted((e.name, e.is_symlink()) for e in entries if e.is_dir() and not e.name.startswith("."))
    except OSError:  # not there yet, or not ours to read
        return
    for name, link in folders:
        if (folder / name / SWEEP_FILE).is_file():
            yield folder / name
        elif depth > 1 and not link:
            yield from _below(folder / name, depth - 1)
