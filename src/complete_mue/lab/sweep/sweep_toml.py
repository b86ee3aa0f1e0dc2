"""A sweep of your own, as a TOML file: a recipe, targets as overrides of it, and what to scan; see docs/sweep.md."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from complete_mue.errors import FileError, MueError, nearest
from complete_mue.lab.recipes import recipe
from complete_mue.lab.sweep.figures import from_reference
from complete_mue.lab.sweep.grid import Scan, Sweep, Target
from complete_mue.lab.train.config import override
from complete_mue.layout import Reference
from complete_mue.rules import DEFAULT_RULES

_KEYS = {
    "name": str, "title": str, "axis": str, "recipe": str, "overrides": list, "rules": list, "seeds": int,
    "scan": dict, "targets": dict,
}  # fmt: skip


def read_sweep_file(
    path: Path,
    *,
    seeds: int | None = None,
    rules: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    reference: Reference | None = None,
) -> Sweep:
    """The sweep in a TOML file. What is given here goes before the file; a tuned ``reference`` brings its shape too."""
    data = _read(path)
    name = data.get("name", path.stem)
    try:
        config = override(recipe(data["recipe"]), *_texts(data.get("overrides", []), "overrides"), *overrides)
        dense = from_reference(config, reference, overrides)
        targets = [Target("reference", None, dense)]
        for number, (label, changes) in enumerate(data["targets"].items(), start=1):
            targets.append(Target(label, number, override(dense, *_texts(changes, f"targets.{label}"))))
        scans = tuple(Scan(hyper, tuple(map(float, values))) for hyper, values in data["scan"].items())
        return Sweep(
            name, data.get("title", name), data.get("axis", "target"), "custom", tuple(targets), scans,
            tuple(rules or _texts(data.get("rules", [DEFAULT_RULES]), "rules")),
            tuple(range(seeds or data.get("seeds", 1))),
        )  # fmt: skip
    except MueError as problem:
        raise FileError(f"{path}: {problem}") from None
    except (TypeError, ValueError) as problem:
        raise FileError(f"{path}: {problem}; [scan] takes lists of numbers, such as lr = [1e-3, 2e-3]") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise FileError(f"{path}: {problem.strerror}") from None
    except (ValueError, RecursionError) as problem:
        raise FileError(f"{path}: not valid TOML: {problem}") from None
    for key, value in data.items():
        if key not in _KEYS:
            raise FileError(f"{path}: unknown key {key!r}{nearest(key, _KEYS)}; keys are {', '.join(_KEYS)}")
        if not isinstance(value, _KEYS[key]) or isinstance(value, bool):
            raise FileError(f"{path}: {key} = {value!r}: give a {_KEYS[key].__name__}")
    for key in ("recipe", "scan", "targets"):
        if key not in data:
            raise FileError(f"{path}: no {key!r}; give recipe, [scan] and [targets]")
    return data


def _texts(values: Any, what: str) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise FileError(f"{what} = {values!r}: give a list of texts")
    return values
