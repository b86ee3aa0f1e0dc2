"""Where a sweep lies: in the folder that `mue sweep` wrote, or packed in one file that is small enough to keep in git.

    FOLDER/sweep.json        the plan of the sweep: its targets, its points, the tuned values that were transferred
    FOLDER/ledger/ID.json    what point ID gave

    TASK-NAME.jsonl          the same in one file: the plan in the first line, then one line per record

Both give the same report.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from complete_mue.errors import FileError, MueError
from complete_mue.lab.report.sheet import Sheet
from complete_mue.storage import LARGEST_JSON, read_json

SWEEP_FILE = "sweep.json"
LEDGER = "ledger"
PACKED = ".jsonl"
PACKED_HEAD = '{"packed":1,'  # how a packed file begins; other JSON lines lie about, too
_RERUN = "delete it to run the point again"
_REPACK = "pack the sweep again with `mue report FOLDER --pack`"


@dataclass(frozen=True)
class Stored:
    """A sweep's plan as it was read, and its records: ``lines`` of a packed file, else files of the ledger."""

    place: Path
    sheet: Sheet
    lines: Mapping[str, Sheet] | None = None

    def record(self, id_: str) -> Sheet | None:
        """The record of a point, if there is one."""
        if self.lines is not None:
            return self.lines.get(id_)
        path = self.place / LEDGER / f"{id_}.json"
        return _read(path, "sweep record", _RERUN) if path.is_file() else None


def load(place: str | Path) -> Stored:
    """The sweep in a folder or a packed file."""
    path = Path(place)
    if path.is_file():
        return _unpacked(path)
    if not path.is_dir():
        raise FileError(f"{path}: no such folder; give the folder of a sweep")
    if not (path / SWEEP_FILE).is_file():
        raise FileError(f"{path}: no {SWEEP_FILE} there; give the folder that `mue sweep` wrote")
    return Stored(path, _read(path / SWEEP_FILE, "sweep", "run the sweep again into a new folder"))


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


def _unpacked(path: Path) -> Stored:
    if not _begins_packed(path):
        raise FileError(
            f"{path}: not a packed sweep; give the folder that `mue sweep` wrote, or a file that "
            "`mue report FOLDER --pack` wrote"
        )
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise FileError(f"{path}: larger than {LARGEST_JSON} bytes, so no packed sweep")
        texts = path.read_text(encoding="utf-8").splitlines()
    except OSError as problem:
        raise FileError(f"{path}: {problem.strerror or problem}; give a packed sweep") from None
    except UnicodeDecodeError as problem:
        raise FileError(f"{path}: not a packed sweep ({problem}); {_REPACK}") from None
    sheet, *records = (_line(path, number, text) for number, text in enumerate(texts, start=1))
    lines: dict[str, Sheet] = {}
    for record in records:
        if lines.setdefault(record.text("id"), record) is not record:
            raise record.wrong("id", f"is {record.text('id')!r}, which an earlier line holds")
    return Stored(path, sheet, lines)


def _line(path: Path, number: int, text: str) -> Sheet:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise FileError(f"{path}: line {number}: {str(problem) or 'nested too deeply'}; {_REPACK}") from None
    if not isinstance(data, dict):
        raise FileError(f"{path}: line {number}: a {type(data).__name__}, not an object; {_REPACK}")
    return Sheet(path, data, _REPACK, f"line {number}: " if number > 1 else "")


def _read(path: Path, what: str, advice: str) -> Sheet:
    try:
        return Sheet(path, read_json(path, what), advice if what != "sweep" else "run the sweep again")
    except MueError as problem:
        raise FileError(f"{str(problem).removesuffix('; make it again')}; {advice}") from None
