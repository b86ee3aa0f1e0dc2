"""A sweep of your own, as a TOML file: a recipe, targets as overrides of it, and what to scan; see docs/sweep.md."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from complete_mue.errors import FileError, MueError, one_of
from complete_mue.lab.recipes import recipe
from complete_mue.lab.records import decode
from complete_mue.lab.sweep.figures import from_reference
from complete_mue.lab.sweep.grid import Scan, Sweep, Target
from complete_mue.lab.train.config import override
from complete_mue.layout import Reference
from complete_mue.rules import DEFAULT_RULES
from complete_mue.storage import read_bytes

_ADVICE = (
    "give a recipe, [scan] with lists of numbers, such as lr = [1e-3, 2e-3], and [targets] with lists of texts; see "
    "docs/sweep.md"
)


@dataclass(frozen=True)
class _SweepFile:
    """What such a file says."""

    recipe: str
    scan: dict[str, tuple[float, ...]]
    targets: dict[str, tuple[str, ...]]
    name: str | None = None
    title: str | None = None
    axis: str = "target"
    overrides: tuple[str, ...] = ()
    rules: tuple[str, ...] = (DEFAULT_RULES,)
    seeds: int = 1


def read_sweep_file(
    path: Path,
    *,
    seeds: int | None = None,
    rules: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    reference: Reference | None = None,
) -> Sweep:
    """The sweep in a TOML file. What is given here goes before the file; a tuned ``reference`` brings its shape too."""
    file = _read(path)
    name = file.name or path.stem
    try:
        dense = from_reference(override(recipe(file.recipe), *file.overrides, *overrides), reference, overrides)
        targets = [Target("reference", None, dense)]
        for number, (label, changes) in enumerate(file.targets.items(), start=1):
            targets.append(Target(label, number, override(dense, *changes)))
        scans = tuple(Scan(hyper, values) for hyper, values in file.scan.items())
        sweep = Sweep(
            name, file.title or name, file.axis, "custom", tuple(targets), scans, tuple(rules or file.rules),
            tuple(range(seeds or file.seeds)),
        )  # fmt: skip
        sweep.to_plan("mue sweep", {})  # what cannot be written down is refused here, where the file has a name
        return sweep
    except MueError as problem:
        raise FileError(f"{path}: {problem}") from None


def _read(path: Path) -> _SweepFile:
    content = read_bytes(path, _ADVICE)
    try:
        data = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as problem:
        raise FileError(f"{path}: not valid TOML: {problem}") from None
    for key in data:
        one_of(f"{path}: key", key, _SweepFile.__dataclass_fields__, FileError)
    return decode(_SweepFile, data, path, _ADVICE)
