"""Evaluation data as local files: ``NAME.jsonl`` or ``NAME.jsonl.xz``, one JSON object per line."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from complete_mue.errors import FileError
from complete_mue.lab.data.text_files import json_lines, unpacked

Record = dict[str, Any]
ENDINGS = (".jsonl", ".jsonl.xz")


def find(folder: Path, name: str) -> Path:
    """The file that holds ``name``, packed or not."""
    for ending in ENDINGS:
        path = folder / f"{name}{ending}"
        if path.is_file():
            return path
    raise FileError(
        f"{folder}: has no {name}{ENDINGS[0]} and no {name}{ENDINGS[1]}; give the folder of the evaluation sets as "
        "--data, or leave that task out with --tasks"
    )


def read_records(path: Path, keys: tuple[str, ...]) -> list[Record]:
    """All records of a file, each of which must have ``keys``."""
    with unpacked(path) as (_, file):
        records = [_checked(record, keys, where) for where, record in json_lines(file, path)]
    if not records:
        raise FileError(f"{path}: holds no record; copy the file again")
    return records


def _checked(record: Record, keys: tuple[str, ...], where: str) -> Record:
    missing = [key for key in keys if key not in record]
    if missing:
        raise FileError(f"{where}: has no {', '.join(missing)}; this task needs the keys {', '.join(keys)}")
    if "gold" in keys and not _valid_gold(record):
        raise FileError(f"{where}: gold = {record['gold']!r} must be an index, from 0, into its choices")
    return record


def _valid_gold(record: Record) -> bool:
    gold, choices = record["gold"], record.get("choices", record.get("context_options"))
    return isinstance(gold, int) and isinstance(choices, list) and 0 <= gold < len(choices)


def checksum(paths: list[Path]) -> str:
    """One sum of several files' contents."""
    total = hashlib.sha256()
    for path in paths:
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]
