"""Packed sweeps: one file each, small and the same byte for byte whenever the same records are packed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from complete_mue.errors import FileError
from complete_mue.lab.records.merge import join_plans
from complete_mue.lab.records.store import PACKED, StoredSweep, read_sweep
from complete_mue.storage import make_folder, whole

_PATH = re.compile(r"(^|=)~?/(?:[^/]*/)*?([^/]+)/*$")  # a whole word, or what stands behind its first =


def file_stem(task: str, name: str) -> str:
    """``lm-activated``: the names of a sweep's files, one per task and figure."""
    return f"{task}-{safe_name(name)}"


def safe_name(name: str) -> str:
    """A sweep's name as part of a file's."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "sweep"


def pack_sweeps(places: Sequence[Path], folder: Path) -> list[Path]:
    """Write every sweep as ``folder/TASK-NAME.jsonl``. Parts of one sweep that lie in several places become one."""
    parts: dict[Path, list[StoredSweep]] = {}
    for place in places:
        sweep = read_sweep(place)
        sweep.outcomes  # noqa: B018  nothing damaged gets packed
        parts.setdefault(folder / f"{file_stem(sweep.plan.task, sweep.plan.name)}{PACKED}", []).append(sweep)
    packed = {path: _packed(found) for path, found in parts.items()}
    for path, (_, records) in packed.items():
        _refuse_loss(path, records, [stored.place for stored in parts[path]])
    make_folder(folder)
    for path, (plan, records) in packed.items():
        with whole(path) as file:
            for line in ({"packed": 1, **plan}, *(records[id_] for id_ in sorted(records))):
                try:
                    text = json.dumps(line, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
                except ValueError as problem:
                    raise FileError(f"{path}: {line.get('id', 'plan')}: {problem}; run it again") from None
                file.write(text.encode("utf-8") + b"\n")
    return list(packed)


def _packed(parts: Sequence[StoredSweep]) -> tuple[dict[str, Any], dict[str, Mapping[str, Any]]]:
    """The plan and the records of all parts; of two records of one point, the first that did not fail."""
    plan = _plan(parts[0])
    for part in parts[1:]:
        plan = join_plans(plan, _plan(part), str(parts[0].place), f"{part.place} goes to another folder")
    records: dict[str, Mapping[str, Any]] = {}
    for id_ in {point["id"] for point in plan["points"]}:
        found = [record for part in parts if (record := part.record(id_)) is not None]
        if found:
            records[id_] = next((record for record in found if record["status"] != "failed"), found[0])
    return plan, records


def _plan(sweep: StoredSweep) -> dict[str, Any]:
    plan = {key: value for key, value in sweep.raw.items() if key not in ("packed", "request")}
    return {**plan, "command": portable(sweep.plan.command)}


def portable(command: str) -> str:
    """A command without the folders of the machine it ran on: an absolute path keeps its last name."""
    try:
        words = [_PATH.sub(r"\1\2", word) for word in shlex.split(command)]
    except ValueError as problem:  # nobody could type it either
        raise FileError(f"the command {command!r} of a sweep: {problem}; run the sweep again") from None
    return " ".join(word if word == "&&" else shlex.quote(word) for word in words)


def _refuse_loss(path: Path, records: Mapping[str, Mapping[str, Any]], places: Sequence[Path]) -> None:
    """A packed file is never replaced by one that holds fewer results; a failure is none."""
    if not path.exists() or path in places:
        return
    kept = {id_ for id_, record in records.items() if record["status"] != "failed"}
    lost = {id_ for id_, outcome in read_sweep(path).outcomes.items() if outcome.status != "failed"} - kept
    if lost:
        raise FileError(
            f"{path}: holds {len(lost)} finished points that {', '.join(map(str, places))} does not; name it beside "
            "them to join the two, or delete it"
        )
