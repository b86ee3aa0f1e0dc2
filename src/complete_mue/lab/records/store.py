"""Where a sweep lies: in the folder that `mue sweep` wrote, or packed in one file that is small enough to keep in git.

    FOLDER/sweep.json        the plan of the sweep
    FOLDER/ledger/ID.json    what point ID gave

    TASK-NAME.jsonl          the same in one file: the plan in the first line, then one line per record

Both give the same report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from complete_mue.errors import FileError
from complete_mue.lab.records.decode import RecordError, decode, refuse_other_format
from complete_mue.lab.records.schema import FORMAT, Outcome, Plan, without_gaps
from complete_mue.storage import json_object, read_bytes, read_json

SWEEP_FILE = "sweep.json"
LEDGER = "ledger"
PACKED = ".jsonl"
PACKED_HEAD = '{"packed":1,'  # how a packed file begins; other JSON lines lie about, too
_AGAIN = "run the sweep again into a new folder"
_RERUN = "delete it to run the point again"
_REPACK = "pack the sweep again with `mue report FOLDER --pack`"


@dataclass(frozen=True)
class StoredSweep:
    """A sweep's plan, also as it stands in the file, and its records: ``lines`` of a packed file, else the ledger's."""

    place: Path
    plan: Plan
    raw: Mapping[str, Any]
    lines: Mapping[str, tuple[int, Mapping[str, Any]]] | None = None

    @property
    def reference(self) -> str:
        """The target that was tuned."""
        return self.plan.reference.target

    @property
    def tuned(self) -> Mapping[str, float]:
        """Its values, which every target receives."""
        return self.plan.reference.hyper

    @cached_property
    def outcomes(self) -> Mapping[str, Outcome]:
        """What is known of the plan's points, by id."""
        ids = dict.fromkeys(point.id for point in self.plan.points)
        return {id_: found for id_ in ids if (found := self.outcome(id_)) is not None}

    def outcome(self, id_: str) -> Outcome | None:
        """What a point gave, if it has a record."""
        record = self.record(id_)
        if record is not None and self.lines is not None:
            return outcome_of(record, id_, f"{self.place}: line {self.lines[id_][0]}", _REPACK)
        return None if record is None else outcome_of(record, id_, self._file(id_))

    def record(self, id_: str) -> Mapping[str, Any] | None:
        """A point's record as it stands in the file, if there is one."""
        if self.lines is not None:
            return self.lines[id_][1] if id_ in self.lines else None
        path = self._file(id_)
        return read_record(path) if path.is_file() else None

    def _file(self, id_: str) -> Path:
        return self.place / LEDGER / f"{id_}.json"


def read_sweep(place: str | Path) -> StoredSweep:
    """The sweep in a folder or a packed file. Records are read when they are asked for."""
    path = Path(place)
    if path.is_file():
        return _unpacked(path)
    if not path.is_dir():
        raise FileError(f"{path}: no such folder; give the folder of a sweep")
    if not (path / SWEEP_FILE).is_file():
        raise FileError(f"{path}: no {SWEEP_FILE} there; give the folder that `mue sweep` wrote")
    raw = read_json(path / SWEEP_FILE, "sweep", _AGAIN)
    return StoredSweep(path, _plan_of(raw, path / SWEEP_FILE, _AGAIN), raw)


def read_record(path: Path) -> dict[str, Any]:
    """A record of the ledger as it stands in its file."""
    return read_json(path, "sweep record", _RERUN)


def outcome_of(record: Mapping[str, Any], id_: str, file: str | Path, remedy: str = _RERUN) -> Outcome:
    """The outcome in a record, which must be that of point ``id_``."""
    refuse_other_format(record, {"format": FORMAT}, file, remedy)
    if record.get("id") != id_:
        raise RecordError(f"{file}: id is {record.get('id')!r:.80}, not {id_!r}; {remedy}", field="id")
    return decode(Outcome, without_gaps(record), file, remedy)


def _plan_of(raw: Mapping[str, Any], path: Path, remedy: str) -> Plan:
    refuse_other_format(raw, {"format": FORMAT}, path, remedy)
    return decode(Plan, raw, path, remedy)


def find_sweeps(place: str | Path) -> tuple[Path, ...]:
    """``place`` itself if it is a sweep, packed or not, else the sweeps right inside it, by name."""
    path = Path(place)
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise FileError(f"{path}: no such folder; give the folder of a sweep, or one with several sweeps in it")
    if (path / SWEEP_FILE).is_file():
        return (path,)
    packed = [file for file in path.glob(f"*{PACKED}") if _begins_packed(file)]
    found = tuple(sorted([*packed, *(sheet.parent for sheet in path.glob(f"*/{SWEEP_FILE}"))]))
    if not found:
        raise FileError(
            f"{path}: no {SWEEP_FILE} in it or right below, and no packed sweep; give the folder that `mue sweep` "
            "wrote, or one with several such folders in it"
        )
    return found


def _begins_packed(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(PACKED_HEAD)) == PACKED_HEAD.encode()
    except OSError:
        return False


def _unpacked(path: Path) -> StoredSweep:
    if not _begins_packed(path):
        what = "an empty file" if path.is_file() and not path.stat().st_size else "not a packed sweep"
        raise FileError(
            f"{path}: {what}; give the folder that `mue sweep` wrote, or a file that `mue report FOLDER --pack` wrote"
        )
    try:
        texts = read_bytes(path, "give a packed sweep").decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as problem:
        raise RecordError(f"{path}: not a packed sweep ({problem}); {_REPACK}") from None
    raw, *records = (
        json_object(text, f"{path}: line {number}", "line of a packed sweep", _REPACK)
        for number, text in enumerate(texts, start=1)
    )
    lines: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for number, record in enumerate(records, start=2):
        id_ = record.get("id")
        if not isinstance(id_, str) or id_ in lines:
            wrong = "which an earlier line holds" if isinstance(id_, str) else "not a text"
            raise RecordError(f"{path}: line {number}: id is {id_!r:.80}, {wrong}; {_REPACK}", field="id")
        lines[id_] = number, record
    return StoredSweep(path, _plan_of(raw, path, _REPACK), raw, lines)
