"""Other sweeps, whose finished points need not run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from complete_mue.lab.records import Ledger, find_sweeps, read_sweep
from complete_mue.lab.sweep.grid import SweepPoint


class Known:
    """Sweeps in folders, or packed: points that they have finished on the same data, or finish meanwhile.

    Older records name prepared data by its path; ``trusted``, those count too, on the caller's word that it held the
    same.
    """

    def __init__(self, places: Sequence[Path] = (), *, trusted: bool = False) -> None:
        self.sweeps = [read_sweep(place) for given in places for place in find_sweeps(given)]
        self.trusted, self._told = trusted, False

    def holds(self, point: SweepPoint) -> bool:
        """Whether one of them has finished it."""
        return next(self._records(point), None) is not None

    def take(
        self, ledger: Ledger, points: Sequence[SweepPoint], *, retry_failed: bool, warn: Callable[[str], None]
    ) -> None:
        """Copy what they have of these points, and say once what is left where it is."""
        if not self.sweeps:
            return
        missing = set(ledger.open_points([point.id for point in points], retry_failed=retry_failed))
        left, unknown = 0, sum(not point.config.task.data for point in points)
        for point in points:
            if point.id not in missing:
                continue
            if found := next(self._records(point), None):
                ledger.copy(point.id, *found)
            elif not self.trusted:
                left += any(sweep.record(id_) for id_ in _by_path(point) for sweep in self.sweeps)
        if self._told or not (left or unknown):
            return
        self._told = True
        if left:
            warn(
                f"{left} points are finished in older records, which name their data by path alone: they are trained "
                "again; --trust-known copies them, if you know that the data is the same"
            )
        if unknown:
            warn(f"{unknown} points are on data that is not on this machine: they are not copied from --known")

    def _records(self, point: SweepPoint) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """What they have of a point, failures aside, and the id it has there."""
        ids = [point.id] if point.config.task.data else []
        for id_ in (*ids, *(_by_path(point) if self.trusted else ())):
            for sweep in self.sweeps:
                outcome, record = sweep.outcome(id_), sweep.record(id_)
                if outcome is not None and record is not None and outcome.status != "failed":
                    yield id_, record


def _by_path(point: SweepPoint) -> list[str]:
    """Its id in older records, if that is another."""
    id_ = point.config.unpinned.fingerprint
    return [] if id_ == point.id else [id_]
