"""What a sweep has on disk, as frozen classes that both its writer and its readers use.

    Plan       sweep.json, or the first line of a packed file: targets, points, the tuned values that were transferred
    Outcome    ledger/ID.json, or a later line of a packed file: what point ID gave

Fields stand in the order of the files. A sweep may be unfinished: a point without an outcome is open work.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from complete_mue.errors import nearest
from complete_mue.lab.records.decode import Count, RecordError, Step, Whole

FORMAT = 1
TASKS = {"lm": "language model", "dit": "diffusion transformer"}
HYPERS = ("lr", "weight_decay", "init_std")
OUTCOMES = ("finished", "diverged", "failed")

_LEAST = 1e-100
_USABLE = "a finite number: zero, or of a size from 1e-100 to 1e+100"

Positive = Annotated[float, Meta(ge=_LEAST, le=1 / _LEAST)]
Amount = Annotated[float, Meta(ge=0)]
PointId = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,199}\Z")]  # names a file


class _Checked:
    """Texts are one printable line, numbers such that their squares and ratios are finite."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, str) and not (value and value.isprintable()):
                raise RecordError(f"{name} is {value!r:.80}, not a line of text")
            if isinstance(value, float) and not usable(value):
                raise RecordError(f"{name} is {value!r:.80}, not {_USABLE}")


@dataclass(frozen=True)
class Place(_Checked):
    """Where a target stands along one of the axes of a figure that has several."""

    title: str
    label: str
    x: Positive


@dataclass(frozen=True)
class PlannedTarget(_Checked):
    """One model of the sweep: its place along the figure's axis, or axes, its size and its schedule."""

    name: str
    x: float | None
    places: tuple[Place, ...] = field(default=(), kw_only=True)
    active: Count
    total: Count
    width: Count
    depth: Count
    batch_tokens: Count
    steps: Count
    stable: tuple[Step, Step]  # first and one past the last step at full lr

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stable[0] > self.stable[1]:
            raise RecordError(f"stable is {self.stable}, not two rising steps")


@dataclass(frozen=True)
class PlannedPoint(_Checked):
    """One run as the sweep planned it. ``value`` is in the reference's units, so perfect transfer moves no optimum."""

    id: PointId
    target: str
    rules: str
    hyper: str
    value: Positive
    seed: Whole

    @property
    def place(self) -> tuple[object, ...]:
        """What the run is of; a sweep has one run at each place."""
        return self.hyper, self.rules, self.target, self.value, self.seed


@dataclass(frozen=True)
class TunedReference(_Checked):
    """The target that was tuned, and its values, which every target receives."""

    target: str
    hyper: dict[str, Amount]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self.hyper.items():
            if not name.isprintable() or not usable(value):
                raise RecordError(f"hyper {name!r:.80} is {value!r:.80}, not {_USABLE}")


@dataclass(frozen=True)
class Plan(_Checked):
    """A sweep as it was asked for. ``request`` are the words of the command; a packed sweep has none."""

    name: str
    title: str
    axis: str
    task: str
    scale: str
    command: str
    request: dict[str, Any] | None = field(default=None, kw_only=True)
    reference: TunedReference
    targets: Annotated[tuple[PlannedTarget, ...], Meta(min_length=1)]
    points: Annotated[tuple[PlannedPoint, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of("task", self.task, TASKS)
        names: dict[str, None] = {}
        for number, target in enumerate(self.targets):
            if target.name in names:
                raise RecordError(f"targets[{number}].name is {target.name!r}, as that of an earlier one")
            names[target.name] = None
        _one_of("reference.target", self.reference.target, names)
        known: dict[tuple[object, ...], str] = {}
        for number, point in enumerate(self.points):
            _one_of(f"points[{number}].target", point.target, names)
            _one_of(f"points[{number}].hyper", point.hyper, self.reference.hyper)
            if (first := known.setdefault(point.place, point.id)) != point.id:
                raise RecordError(f"points[{number}].id is {point.id!r}, but {first!r} is already at the same place")
        object.__setattr__(self, "points", tuple(dict.fromkeys(self.points)))

    @property
    def sources(self) -> dict[str, str] | None:
        """What the data held, by where it lay; None in older plans, which do not say."""
        sources = (self.request or {}).get("sources")
        known = isinstance(sources, dict) and all(isinstance(held, str) for held in sources.values())
        return sources if known else None

    def target(self, name: str) -> PlannedTarget:
        """The target of that name."""
        return next(target for target in self.targets if target.name == name)

    def to_dict(self) -> dict[str, Any]:
        """What ``sweep.json`` holds. A figure with one axis has no places."""
        data = {"format": FORMAT, **json.loads(json.dumps(dataclasses.asdict(self)))}  # lists, as it reads back
        for target in data["targets"]:
            if not target["places"]:
                del target["places"]
        return data


@dataclass(frozen=True)
class LossCurve:
    """Mean losses over bins of steps; ``step`` holds the bins' ends (exclusive). NaN after a divergence."""

    step: tuple[Count, ...] = ()
    loss: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.step) != len(self.loss):
            raise RecordError(f"{len(self.step)} steps but {len(self.loss)} losses")
        if any(b <= a for a, b in zip((0, *self.step), self.step, strict=False)):
            raise RecordError("step does not rise")


@dataclass(frozen=True)
class Outcome:
    """What a run gave. ``first`` are its first losses one by one; ``data`` is what its data held."""

    status: str
    loss: float | None = None
    diverged: Step | None = None
    error: str | None = None
    steps: Count | None = None
    last_window: tuple[Step, Step] | None = None
    seconds: Amount = 0.0
    fused: Count | None = None  # runs in one program
    load_variation: Amount | None = None
    curve: LossCurve = LossCurve()
    first: tuple[float, ...] = ()
    data: str | None = None
    known_as: str | None = None  # the id that the point had where the record was taken from

    def __post_init__(self) -> None:
        _one_of("status", self.status, OUTCOMES)
        if self.status == "finished" and self.loss is None:
            raise RecordError("loss is empty although the run finished")
        for name in ("loss", "seconds", "load_variation"):
            if not usable(getattr(self, name) or 0.0):
                raise RecordError(f"{name} is {getattr(self, name)!r:.80}, not {_USABLE}")

    def to_dict(self) -> dict[str, Any]:
        """As it stands in the ledger, after format and id. A failure has its reason alone."""
        data = dataclasses.asdict(self)
        if self.status == "failed":
            return {name: data[name] for name in ("status", "loss", "error")}
        return {name: value for name, value in data.items() if name != "known_as" or value is not None}


def without_gaps(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as ``Outcome`` takes it: what is null is not there, losses that are no numbers are NaN."""
    data = {name: value for name, value in record.items() if value is not None}
    if data.get("status") != "finished":
        data.pop("loss", None)
    if isinstance(data.get("first"), list):
        data["first"] = _filled(data["first"])
    curve = data.get("curve")
    if isinstance(curve, dict) and isinstance(curve.get("loss"), list):
        data["curve"] = {**curve, "loss": _filled(curve["loss"])}
    return data


def usable(value: float) -> bool:
    """Finite, and not so large or small that squares and ratios of such numbers are not."""
    return value == 0 or _LEAST <= abs(value) <= 1 / _LEAST


def _filled(losses: list[Any]) -> list[Any]:
    return [math.nan if loss is None or (type(loss) in (int, float) and not usable(loss)) else loss for loss in losses]


def _one_of(name: str, given: str, known: Collection[str]) -> None:
    if given not in known:
        raise RecordError(f"{name} is {given!r:.80}, not one of {', '.join(known)}{nearest(given, known)}")
