"""What a sweep left on disk, read into frozen records; a damaged file is an error that names it.

A sweep may be unfinished: a point without a record is open work, not an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from complete_mue.lab.report.sheet import Sheet
from complete_mue.lab.report.stored import load

OUTCOMES = ("finished", "diverged", "failed")
TASKS = ("lm", "dit")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")


@dataclass(frozen=True)
class Place:
    """Where a target stands along one of the axes of a figure that has several."""

    title: str
    label: str
    x: float


@dataclass(frozen=True)
class Target:
    """One model of the sweep: its place along the figure's axis, or axes, its size and its schedule."""

    name: str
    x: float | None
    active: int
    total: int
    width: int
    depth: int
    batch_tokens: int
    steps: int
    stable: tuple[int, int]  # first and one past the last step at full lr
    places: tuple[Place, ...] = ()


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
    seconds: float
    curve_step: tuple[int, ...]
    curve_loss: tuple[float, ...]
    first: tuple[float, ...]
    load_variation: float | None


@dataclass(frozen=True)
class Sweep:
    """A sweep's plan with the outcomes found so far, by point id."""

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


def read_sweep(place: str | Path) -> Sweep:
    """The sweep at ``place``, a folder or a packed file, and every record of its points that is there."""
    stored = load(place)
    sheet = stored.sheet
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
        outcomes={p.id: outcome_of(found, p.id) for p in points if (found := stored.record(p.id)) is not None},
    )


def outcome_of(sheet: Sheet, id_: str) -> Outcome:
    """One record of a ledger."""
    sheet.format()
    if sheet.text("id") != id_:
        raise sheet.wrong("id", f"is {sheet.text('id')!r}, but the file is named {sheet.path.name}")
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
        id=id_,
        status=status,
        loss=loss if status == "finished" else None,
        diverged=None if diverged is None else int(diverged),
        error=None if sheet.data.get("error") is None else str(sheet.data["error"]),
        seconds=sheet.optional("seconds", least=0.0) or 0.0,
        curve_step=ends,
        curve_loss=losses,
        first=sheet.numbers("first", gaps=True) if sheet.data.get("first") is not None else (),
        load_variation=sheet.optional("load_variation", least=0.0),
    )


def _points(sheet: Sheet, targets: list[str], tuned: Mapping[str, float]) -> tuple[Point, ...]:
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


def _target(entry: Sheet) -> Target:
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
        places=tuple(
            Place(place.text("title"), place.text("label"), place.number("x"))
            for place in (entry.sheets("places") if "places" in entry.data else ())
        ),
    )
