"""A sweep as data: targets x rule sets x values of hyperparameters x seeds, as points with stable ids.

The id of a point is the fingerprint of its config: the same point has the same id in every sweep, on every machine, and
whatever else the sweep holds; other data, also at the same path, is another point. Values are those of the dense
reference, before the transfer, so that a perfect transfer has one optimum for all targets.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from complete_mue.errors import MueError, RunError
from complete_mue.lab.records.schema import HYPERS, Place, Plan, PlannedPoint, PlannedTarget, TunedReference
from complete_mue.lab.sweep.hypers import Hyper
from complete_mue.lab.train.config import RunConfig, TextTask, identity, pinned
from complete_mue.layout import Role
from complete_mue.layout.tensors import FEED_FORWARD_ROLES, block_roles
from complete_mue.rules import DEFAULT_RULES

REFERENCE_RULES = "complete_mue"  # in the records of the reference, which is the same under every rule set


@dataclass(frozen=True)
class Target:
    """What the reference is transferred to: a complete config, and its place along the figure's axis, or axes.

    One that is not ``scanned`` is named for comparison and not run.
    """

    name: str
    x: float | None
    config: RunConfig
    places: tuple[Place, ...] = ()
    scanned: bool = True

    def has(self, roles: Sequence[Role]) -> bool:
        """Whether its model has all of these roles, as far as the layout tells."""
        own = {role for kind in self.config.shape.kinds for role in block_roles(kind)}
        return all(role in own or role not in FEED_FORWARD_ROLES for role in roles)

    @property
    def planned(self) -> PlannedTarget:
        """As it stands in the plan."""
        shape, budget, stable = self.config.shape, self.config.budget, self.config.schedule.stable
        return PlannedTarget(
            self.name, self.x, shape.parameters.active, shape.parameters.total, shape.width, shape.depth,
            budget.batch_tokens, budget.steps, (stable.start, stable.stop), places=self.places,
        )  # fmt: skip


@dataclass(frozen=True)
class Scan:
    """Values of one hyperparameter of the reference, named as in ``sweep.hypers``."""

    hyper: str
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        Hyper.parse(self.hyper)
        if any(not value > 0 for value in self.values):
            raise RunError(f"values of {self.hyper}: {list(self.values)}: give values above zero, around one that is")
        if not self.values or len(set(self.values)) != len(self.values):
            raise RunError(f"values of {self.hyper}: {list(self.values)}: give at least one, each once")


@dataclass(frozen=True)
class SweepPoint:
    """One run: its id, what makes it differ, and its whole config. ``hypers`` are the scans it belongs to."""

    id: str
    target: str
    rules: str
    seed: int
    hypers: tuple[tuple[str, float], ...]
    config: RunConfig

    @property
    def label(self) -> str:
        """``16e4a, lr 0.008, sp``."""
        name, value = self.hypers[0]
        return f"{self.target}, {name} {value:g}" + ("" if self.rules == REFERENCE_RULES else f", {self.rules}")

    @property
    def planned(self) -> Iterator[PlannedPoint]:
        """As it stands in the plan, once for each scan."""
        return (PlannedPoint(self.id, self.target, self.rules, name, value, self.seed) for name, value in self.hypers)


@dataclass(frozen=True)
class Sweep:
    """A figure: its first target is the reference itself, which is the same under every rule set."""

    name: str
    title: str
    axis: str
    scale: str
    targets: tuple[Target, ...]
    scans: tuple[Scan, ...]
    rules: tuple[str, ...] = (DEFAULT_RULES,)
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        names = [target.name for target in self.targets]
        if not names or len(set(names)) != len(names):
            raise RunError(f"targets of {self.name!r}: {names}: give at least one, each name once")
        if not self.rules or not self.seeds or not self.scans:
            raise RunError(f"sweep {self.name!r}: give at least one rule set, one seed and one scan")

    @property
    def reference(self) -> Target:
        """The tuned model."""
        return self.targets[0]

    @property
    def sources(self) -> dict[str, str]:
        """What the data holds, by where it lies, as far as it is known here."""
        tasks = [target.config.task for target in self.targets]
        return {task.source: task.data for task in tasks if task.data}

    @cached_property
    def points(self) -> tuple[SweepPoint, ...]:
        """Every run once, also where several scans share it."""
        found: dict[str, SweepPoint] = {}
        for scan in self.scans:
            hyper = Hyper.parse(scan.hyper)
            for target in [target for target in self.targets if target.scanned and target.has(hyper.roles)]:
                rule_sets = (REFERENCE_RULES,) if target is self.reference else self.rules
                for rules, value, seed in itertools.product(rule_sets, scan.values, self.seeds):
                    reference = hyper.put(target.config.reference, value)
                    config = dataclasses.replace(target.config, reference=reference, rules=rules, seed=seed)
                    id_ = config.fingerprint
                    at = found.get(id_)
                    if at is not None and (at.target, at.rules) != (target.name, rules):
                        raise RunError(f"targets {at.target!r} and {target.name!r} are the same run: give each once")
                    hypers = (*(at.hypers if at else ()), (scan.hyper, value))
                    found[id_] = SweepPoint(id_, target.name, rules, seed, hypers, config)
        return tuple(found.values())

    def to_plan(self, command: str, request: dict[str, Any]) -> Plan:
        """The plan for ``sweep.json``; ``request`` is what was asked for, so that a finished sweep knows it is."""
        tuned, names = self.reference.config.reference, dict.fromkeys((*HYPERS, *(scan.hyper for scan in self.scans)))
        return Plan(
            name=self.name,
            title=self.title,
            axis=self.axis,
            task="lm" if isinstance(self.reference.config.task, TextTask) else "dit",
            scale=self.scale,
            command=command,
            request=request,
            reference=TunedReference(self.reference.name, {name: Hyper.parse(name).of(tuned) for name in names}),
            targets=tuple(target.planned for target in self.targets),
            points=tuple(planned for point in self.points for planned in point.planned),
        )


def pinned_sweep(sweep: Sweep) -> Sweep:
    """The sweep on what its data holds now. Data that is not here (a cluster may have it) stays named by its path."""
    targets = tuple(_pinned_target(target) for target in sweep.targets)
    return sweep if targets == sweep.targets else dataclasses.replace(sweep, targets=targets)


def _pinned_target(target: Target) -> Target:
    try:
        identity(target.config.task)
    except MueError:  # whoever trains it will say what is wrong
        return target
    return dataclasses.replace(target, config=pinned(target.config))


MAY_DIFFER = ("name", "reference", "seed", "rules", "betas", "duration")


def alike(config: RunConfig) -> dict[str, str]:
    """What runs that train in one program have in common, by name."""
    names = [field.name for field in dataclasses.fields(config) if field.name not in MAY_DIFFER]
    common = {name: repr(getattr(config, name)) for name in names}
    shape = config.reference.shape
    return {**common, "reference's heads": repr((shape.width, shape.head_dim, config.reference.attention_scale))}


def fusible(points: Sequence[SweepPoint]) -> Iterator[tuple[SweepPoint, ...]]:
    """Points in groups that can train in one program: one shape, task and budget each."""
    groups: dict[tuple[str, ...], list[SweepPoint]] = {}
    for point in points:
        groups.setdefault(tuple(alike(point.config).values()), []).append(point)
    return (tuple(group) for group in groups.values())
