"""The ledger of a sweep: one record per finished point, each a file that appears whole or not at all.

    ledger/ID.json      what point ID gave; written once, never changed
    claims/ID           who works on it now: a file lock that ends with its process

Records do not depend on each other, so several processes may work on one ledger: each claims a point before it runs it,
and a point whose owner died is free again at once.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from complete_mue.errors import FileError, MueError
from complete_mue.lab.data.digest import identity_now
from complete_mue.lab.report.stored import Stored, load
from complete_mue.storage import inner_folder, open_lock, read_json, remove_parts, write_json

FORMAT = 1


class Ledger:
    """A folder of records, read and written point by point."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._records, self._claims = self.folder / "ledger", self.folder / "claims"
        for part in (self._records, self._claims):
            remove_parts(inner_folder(part))

    def done(self) -> set[str]:
        """Ids of all points with a record."""
        return {path.stem for path in self._records.glob("*.json") if not path.name.startswith(".")}

    def read(self, point: str) -> dict[str, Any]:
        """One record; a damaged one is an error that names the file."""
        record = read_json(self._records / f"{point}.json", "sweep record")
        if record.get("format") != FORMAT or record.get("id") != point:
            raise FileError(
                f"{self._records / point}.json: not the record of point {point}; delete it to run the point again"
            )
        return record

    def records(self) -> list[dict[str, Any]]:
        """All records, by id."""
        return [self.read(point) for point in sorted(self.done())]

    def failures(self, points: Iterable[str]) -> list[str]:
        """What went wrong with those of these points that failed."""
        found = [self.read(point) for point in sorted(set(points) & self.done())]
        return [str(record.get("error")) for record in found if record.get("status") == "failed"]

    def write(self, point: str, record: dict[str, Any]) -> None:
        """Enter a finished point."""
        write_json(self._records / f"{point}.json", {"format": FORMAT, "id": point, **record})

    def take_over(self, points: Mapping[str, str], other: Stored) -> None:
        """Copy what another sweep has finished of these points, failures aside; ``points`` gives the id that each has
        there. Under another id, the copy says so, and not what its data was.
        """
        for point in sorted(set(points) - self.done()):
            record = other.record(points[point])
            if record is not None and record.text("status") != "failed":
                record.format()
                renamed = {"id": point, "known_as": points[point], "data": None} if points[point] != point else {}
                write_json(self._records / f"{point}.json", {**record.data, **renamed})

    def open_points(self, points: Iterable[str], *, retry_failed: bool = False) -> list[str]:
        """Of these points, those still to run: without a record, or (``retry_failed``) with one that says failed."""
        done = self.done()
        return [p for p in points if p not in done or (retry_failed and self.read(p).get("status") == "failed")]

    @contextmanager
    def claim(self, points: Iterable[str], *, retry_failed: bool = False) -> Iterator[list[str]]:
        """Claim what nobody else works on and nobody has finished; the claims end with the block, or the process."""
        held: dict[str, int] = {}
        try:
            for point in points:
                handle = open_lock(self._claims / point)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(handle)
                    continue
                held[point] = handle
            # Read after claiming: who held a point before us may have entered it.
            yield self.open_points(held, retry_failed=retry_failed)
        finally:
            for handle in held.values():
                os.close(handle)


def replaced(source: str, known: str) -> bool:
    """Whether data that is still there is not what it was."""
    try:
        return identity_now(source, known) != known
    except MueError:
        return False


def settled(folder: str | Path, request: dict[str, Any], *, retry_failed: bool = False) -> list[str] | None:
    """The points of a sweep, if it is the one asked for, on the same data, and all are done; None if there is work to
    do.

    Reads files alone, so that a finished sweep is recognised without loading torch.
    """
    folder = Path(folder)
    if not (folder / "sweep.json").exists():
        return None
    sweep = load(folder).sheet
    ids = {point.text("id") for point in sweep.sheets("points")}
    asked = sweep.data.get("request")
    if not isinstance(asked, dict) or any(replaced(*known) for known in asked.get("sources", {}).items()):
        return None
    same = {key: value for key, value in asked.items() if key != "sources"} == request
    if not same or Ledger(folder).open_points(sorted(ids), retry_failed=retry_failed):
        return None
    return sorted(ids)
