"""What a sweep left on disk, read into frozen records; a damaged file is an error that names it.

    sweep.json        the plan of the sweep: its targets, its points, the tuned values that were transferred
    ledger/ID.json    what point ID gave

A sweep may be unfinished: a point without a record is open work, not an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from complete_mue.errors import FileError, MueError, nearest
from complete_mue.storage import read_json

FORMAT = 1
SWEEP_FILE = "sweep.json"
LEDGER = "ledger"
OUTCOMES = ("finished", "diverged", "failed")
TASKS = ("lm", "dit")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")


@dataclass(frozen=True)
class Target:
    """One model of the sweep: its place along the figure's axis, its size and its schedule."""

    name: str
    x: float | None
    active: int
    total: int
    width: int
    depth: int
    batch_tokens: int
    steps: int
    stable: tuple[int, int]  # first and one past the last step at full lr


@dataclass(frozen=True)
class Point:
    """One run as the sweep planned it. ``value`` is in the reference's units, so perfect transfer moves no optimum."""

    id: str
    target: str
    rules: str
    hyper: str
    value: float
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What a run gave. ``curve_step`` holds the ends (exclusive) of the bins whose mean losses are in ``curve_loss``;
    losses after a divergence are NaN."""

    id: str
    status: str
    loss: float | None
    diverged: int | None
    error: str | None
    steps: int
    seconds: float
    curve_step: tuple[int, ...]
    curve_loss: tuple[float, ...]
    first: tuple[float, ...]
    load_variation: float | None


@dataclass(frozen=True)
class Sweep:
    """A sweep's plan with the outcomes found so far, by point id."""

    folder: Path
    name: str
    title: str
    task: str
    scale: str
    command: str
    axis: str
    reference: str
    tuned: Mapping[str, float]  # hyperparameter -> the value tuned on the reference, which every target receives
    targets: tuple[Target, ...]
    points: tuple[Point, ...]
    outcomes: Mapping[str, Outcome]

    def target(self, name: str) -> Target:
        """The target of that name."""
        return next(target for target in self.targets if target.name == name)


def read_sweep(folder: str | Path) -> Sweep:
    """The sweep in ``folder`` and every record of its points that is there."""
    folder = Path(folder)
    path = folder / SWEEP_FILE
    if not folder.is_dir():
        raise FileError(f"{folder}: no such folder; give the folder of a sweep")
    if not path.is_file():
        raise FileError(f"{folder}: no {SWEEP_FILE} there; give the folder that `mue sweep` wrote")
    sheet = _Sheet(path, _read(path, "sweep", "run the sweep again into a new folder"), "run the sweep again")
    sheet.format()
    reference = sheet.inner("reference")
    tuned = {name: reference.inner("hyper").number(name, least=0.0) for name in reference.inner("hyper").data}
    targets = tuple(_target(entry) for entry in sheet.sheets("targets"))
    names = [target.name for target in targets]
    for name in names:
        if names.count(name) > 1:
            raise sheet.wrong("targets", f"names {name!r} twice")
    if reference.text("target") not in names:
        raise sheet.wrong("reference", f"names target {reference.text('target')!r}, which is not among the targets")
    points = _points(sheet, names, tuned)
    return Sweep(
        folder=folder,
        name=sheet.text("name"),
        title=sheet.text("title"),
        task=sheet.choice("task", TASKS),
        scale=sheet.text("scale"),
        command=sheet.text("command"),
        axis=sheet.text("axis"),
        reference=reference.text("target"),
        tuned=tuned,
        targets=targets,
        points=points,
        outcomes=_outcomes(folder, points),
    )


def find_sweeps(folder: str | Path) -> tuple[Path, ...]:
    """``folder`` itself if it is a sweep, else the sweeps right inside it, by name."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileError(f"{folder}: no such folder; give the folder of a sweep, or one with several sweeps in it")
    if (folder / SWEEP_FILE).is_file():
        return (folder,)
    found = tuple(sorted(path.parent for path in folder.glob(f"*/{SWEEP_FILE}")))
    if not found:
        raise FileError(
            f"{folder}: no {SWEEP_FILE} in it or right below; give the folder that `mue sweep` wrote, "
            "or one with several such folders in it"
        )
    return found


def read_outcome(path: Path) -> Outcome:
    """One record of a ledger."""
    again = "delete it to run the point again"
    sheet = _Sheet(path, _read(path, "sweep record", again), again)
    sheet.format()
    if sheet.text("id") != path.stem:
        raise sheet.wrong("id", f"is {sheet.text('id')!r}, but the file is named {path.name}")
    status = sheet.choice("status", OUTCOMES)
    loss = sheet.optional("loss", least=None)
    if status == "finished" and loss is None:
        raise sheet.wrong("loss", "is empty although the run finished")
    curve = sheet.inner("curve") if sheet.data.get("curve") is not None else None
    ends = tuple(int(step) for step in curve.numbers("step")) if curve else ()
    losses = curve.numbers("loss", gaps=True) if curve else ()
    if len(ends) != len(losses):
        raise sheet.wrong("curve", f"has {len(ends)} steps but {len(losses)} losses")
    if any(b <= a for a, b in zip((0, *ends), ends, strict=False)):
        raise sheet.wrong("curve", "has steps that do not rise")
    diverged = sheet.optional("diverged", least=0.0)
    return Outcome(
        id=path.stem,
        status=status,
        loss=loss if status == "finished" else None,
        diverged=None if diverged is None else int(diverged),
        error=None if sheet.data.get("error") is None else str(sheet.data["error"]),
        steps=int(sheet.number("steps", least=0.0)),
        seconds=sheet.optional("seconds", least=0.0) or 0.0,
        curve_step=ends,
        curve_loss=losses,
        first=sheet.numbers("first", gaps=True) if sheet.data.get("first") is not None else (),
        load_variation=sheet.optional("load_variation", least=0.0),
    )


def _points(sheet: _Sheet, targets: list[str], tuned: Mapping[str, float]) -> tuple[Point, ...]:
    points: dict[tuple[object, ...], Point] = {}
    for entry in sheet.sheets("points"):
        id_ = entry.text("id")
        if not _ID.fullmatch(id_):
            raise entry.wrong("id", f"is {id_!r}, which cannot name a file")
        point = Point(
            id=id_,
            target=entry.choice("target", targets),
            rules=entry.text("rules"),
            hyper=entry.choice("hyper", tuple(tuned)),
            value=entry.number("value"),
            seed=int(entry.number("seed", least=None)),
        )
        place = (point.hyper, point.rules, point.target, point.value, point.seed)
        if points.setdefault(place, point).id != point.id:
            raise entry.wrong("id", f"is {point.id!r}, but {points[place].id!r} is already at the same place")
    return tuple(points.values())


def _outcomes(folder: Path, points: tuple[Point, ...]) -> dict[str, Outcome]:
    ledger = folder / LEDGER
    paths = {point.id: ledger / f"{point.id}.json" for point in points}
    return {id_: read_outcome(path) for id_, path in paths.items() if path.is_file()}


def _target(entry: _Sheet) -> Target:
    first, last = (*entry.numbers("stable"), -1.0, -1.0)[:2]
    if not 0 <= first <= last:
        raise entry.wrong("stable", "must be two rising steps")
    return Target(
        name=entry.text("name"),
        x=entry.optional("x", least=None),
        stable=(int(first), int(last)),
        active=int(entry.number("active")),
        total=int(entry.number("total")),
        width=int(entry.number("width")),
        depth=int(entry.number("depth")),
        batch_tokens=int(entry.number("batch_tokens")),
        steps=int(entry.number("steps")),
    )


def _read(path: Path, what: str, advice: str) -> dict[str, Any]:
    try:
        return read_json(path, what)
    except MueError as problem:
        raise FileError(f"{str(problem).removesuffix('; prepare the data again')}; {advice}") from None


@dataclass(frozen=True)
class _Sheet:
    """A JSON object with typed access; what is wrong is said with the file, the key, and what to do."""

    path: Path
    data: Mapping[str, Any]
    advice: str
    place: str = ""

    def wrong(self, key: str, problem: str) -> FileError:
        return FileError(f"{self.path}: {self.place}{key} {problem}; {self.advice}")

    def format(self) -> None:
        if self.data.get("format") != FORMAT:
            raise self.wrong("format", f"is {self.data.get('format')!r}, this version reads {FORMAT}")

    def value(self, key: str) -> Any:
        if key not in self.data:
            raise self.wrong(key, f"is missing{nearest(key, [str(k) for k in self.data])}")
        return self.data[key]

    def text(self, key: str) -> str:
        value = self.value(key)
        if not isinstance(value, str) or not value or not value.isprintable():
            raise self.wrong(key, f"is {value!r:.80}, not a line of text")
        return value

    def choice(self, key: str, known: list[str] | tuple[str, ...]) -> str:
        value = self.text(key)
        if value not in known:
            raise self.wrong(key, f"is {value!r:.80}, not one of {', '.join(known)}{nearest(value, known)}")
        return value

    def number(self, key: str, least: float | None = math.ulp(0.0)) -> float:
        """A finite number, at least ``least`` (by default: above zero)."""
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            raise self.wrong(key, f"is {value!r:.80}, not a finite number")
        if least is not None and value < least:
            raise self.wrong(key, f"is {value!r:.80}, {'below zero' if value < 0 else 'not above zero'}")
        return float(value)

    def optional(self, key: str, least: float | None) -> float | None:
        return None if self.data.get(key) is None else self.number(key, least)

    def numbers(self, key: str, gaps: bool = False) -> tuple[float, ...]:
        """A list of finite numbers; with ``gaps``, null and non-finite entries are NaN."""
        value = self.value(key)
        if not isinstance(value, list):
            raise self.wrong(key, f"is a {type(value).__name__}, not a list")
        for item in value:
            if (isinstance(item, bool) or not isinstance(item, int | float)) and not (gaps and item is None):
                raise self.wrong(key, f"holds {item!r:.80}, not a number")
            if item is not None and not gaps and not _finite(item):
                raise self.wrong(key, f"holds {item!r:.80}, not a finite number")
        return tuple(float(item) if item is not None and _finite(item) else math.nan for item in value)

    def inner(self, key: str) -> _Sheet:
        value = self.value(key)
        if not isinstance(value, dict):
            raise self.wrong(key, f"is a {type(value).__name__}, not an object")
        return _Sheet(self.path, value, self.advice, f"{self.place}{key}.")

    def sheets(self, key: str) -> list[_Sheet]:
        value = self.value(key)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(key, "is not a list of objects")
        if not value:
            raise self.wrong(key, "is empty")
        return [_Sheet(self.path, item, self.advice, f"{self.place}{key}[{i}].") for i, item in enumerate(value)]


def _finite(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:  # JSON integers have no largest value
        return False
