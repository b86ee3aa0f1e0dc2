"""Whether a sweep has nothing left to do. Reads files alone, so that this is known without loading torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from complete_mue.errors import MueError
from complete_mue.lab.data.digest import identity_now
from complete_mue.lab.records import Ledger, read_sweep
from complete_mue.lab.records.store import SWEEP_FILE


def settled(folder: str | Path, request: dict[str, Any], *, retry_failed: bool = False) -> list[str] | None:
    """The points of a sweep, if it is the one asked for, on the same data, and all are done; None if there is work to
    do."""
    folder = Path(folder)
    if not (folder / SWEEP_FILE).exists():
        return None
    plan = read_sweep(folder).plan
    if plan.request is None or any(_replaced(*known) for known in (plan.sources or {}).items()):
        return None
    same = {key: value for key, value in plan.request.items() if key != "sources"} == request
    ids = sorted({point.id for point in plan.points})
    return ids if same and not Ledger(folder).open_points(ids, retry_failed=retry_failed) else None


def _replaced(source: str, known: str) -> bool:
    """Whether data that is still there is not what it was."""
    try:
        return identity_now(source, known) != known
    except MueError:
        return False
