"""The ledger of a sweep: one record per finished point, each a file that appears whole or not at all.

    ledger/ID.json      what point ID gave; written once, never changed
    claims/ID           which process works on it now: a file lock that ends with that process

Records do not depend on each other, so several processes may work on one ledger: each claims a point before it runs it,
and a point whose owner died is free again at once.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from complete_mue.lab.records.schema import FORMAT, Outcome
from complete_mue.lab.records.store import LEDGER, outcome_of, read_record
from complete_mue.storage import inner_folder, open_lock, remove_parts, write_json


class Ledger:
    """A folder of records, read and written point by point."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._records, self._claims = self.folder / LEDGER, self.folder / "claims"
        for part in (self._records, self._claims):
            remove_parts(inner_folder(part))

    def done(self) -> set[str]:
        """Ids of all points with a record."""
        return {path.stem for path in self._records.glob("*.json") if not path.name.startswith(".")}

    def read(self, point: str) -> Outcome:
        """What a point gave; a damaged record is an error that names the file."""
        path = self._path(point)
        return outcome_of(read_record(path), point, path)

    def failures(self, points: Iterable[str]) -> list[str]:
        """What went wrong with those of these points that failed."""
        found = [self.read(point) for point in sorted(set(points) & self.done())]
        return [str(outcome.error) for outcome in found if outcome.status == "failed"]

    def write(self, point: str, outcome: Outcome) -> None:
        """Enter a finished point."""
        write_json(self._path(point), {"format": FORMAT, "id": point, **outcome.to_dict()})

    def copy(self, point: str, there: str, record: Mapping[str, Any]) -> None:
        """Enter what another sweep has of a point. Under another id, the copy says so, and not what its data was."""
        renamed = {"id": point, "known_as": there, "data": None} if there != point else {}
        write_json(self._path(point), {**record, **renamed})

    def open_points(self, points: Iterable[str], *, retry_failed: bool = False) -> list[str]:
        """Of these points, those still to run: without a record, or (``retry_failed``) with one that says failed."""
        done = self.done()
        return [p for p in points if p not in done or (retry_failed and self.read(p).status == "failed")]

    @contextmanager
    def claim(self, points: Iterable[str], *, retry_failed: bool = False) -> Iterator[list[str]]:
        """Claim what nobody else works on and nobody has finished; the claims end with the block, or the process."""
        held: list[str] = []
        with ExitStack() as handles:
            for point in points:
                handle = open_lock(self._claims / point)
                handles.callback(os.close, handle)
                with suppress(BlockingIOError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    held.append(point)
            # Read after claiming: another process that held a point may have entered it.
            yield self.open_points(held, retry_failed=retry_failed)

    def _path(self, point: str) -> Path:
        return self._records / f"{point}.json"
