"""Evaluation data as local files: ``NAME.jsonl`` or ``NAME.jsonl.xz``, one JSON object per line."""

from __future__ import annotations

import hashlib
import json
import lzma
from pathlib import Path
from typing import Any

from complete_mue.errors import FileError

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
    records = []
    try:
        with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    records.append(_record(line, keys, f"{path}, line {number}"))
    except OSError as problem:
        raise FileError(f"{path}: {problem.strerror or problem}; give readable evaluation files") from None
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as problem:
        raise FileError(f"{path}: cannot be unpacked ({problem}); copy the file again") from None
    if not records:
        raise FileError(f"{path}: holds no record; copy the file again")
    return records


def _record(line: str, keys: tuple[str, ...], where: str) -> Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise FileError(f"{where}: not JSON ({problem}); write one JSON object per line") from None
    if not isinstance(record, dict):
        raise FileError(f"{where}: a {type(record).__name__}; write one JSON object per line")
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
