"""Two plans of one sweep as one: other rule sets, hyperparameters or seeds, or a wider span, run at another time.

The points add up as long as both plans speak of the same reference, the same tuned values and the same targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from complete_mue.errors import RunError

_ALIKE = ("format", "name", "task", "scale", "axis")


def join_plans(old: Mapping[str, Any], new: Mapping[str, Any], where: str, advice: str) -> dict[str, Any]:
    """The plan (the contents of sweep.json) with the points of both; ``where`` holds the old one.

    Plans that do not belong together are refused, with ``advice`` on what to do.
    """
    for key in _ALIKE:
        if old.get(key) != new.get(key):
            raise RunError(
                f"{where} holds another sweep: its {key} is {old.get(key)!r:.120}, not {new.get(key)!r:.120}; {advice}"
            )
    reference = _join_references(old.get("reference"), new["reference"], where, advice)
    try:
        targets = {target["name"]: target for target in old["targets"]}
        points = {_place(point): point["id"] for point in old["points"]}
        earlier = str(old["command"])
        mine = {_place(point): point for point in new["points"]}
    except (KeyError, TypeError):
        raise RunError(f"{where} holds a sweep that cannot be read; {advice}") from None
    for target in new["targets"]:
        known = targets.setdefault(target["name"], target)
        odd = [key for key in target if known.get(key) != target[key]]
        if odd:
            raise RunError(
                f"{where} holds another sweep: {odd[0]} of target {target['name']!r} is {known.get(odd[0])!r}, "
                f"not {target[odd[0]]!r}; {advice}"
            )
    for place, point in mine.items():
        if points.get(place, point["id"]) != point["id"]:
            raise RunError(
                f"{where} holds another sweep: its run of {point['target']} at {point['hyper']} {point['value']:g}, "
                f"seed {point['seed']}, has another config; {advice}"
            )
    extra = set(mine) - set(points)
    command = str(new["command"])
    if not extra:
        command = earlier
    elif set(points) - set(mine):
        command = f"{earlier} && {command}"
    together = [*old["points"], *(point for point in new["points"] if _place(point) in extra)]
    return {**new, "command": command, "reference": reference, "targets": list(targets.values()), "points": together}


def _join_references(old: Any, new: Mapping[str, Any], where: str, advice: str) -> dict[str, Any]:
    """One reference with the tuned values of both, which must agree: a later scan may be of another role."""
    ours, theirs = (dict(one.get("hyper", {})) if isinstance(one, dict) else {} for one in (new, old))
    alike = isinstance(old, dict) and {**old, "hyper": None} == {**new, "hyper": None}
    if not alike or any(ours.get(name, value) != value for name, value in theirs.items()):
        raise RunError(f"{where} holds another sweep: its reference is {old!r:.120}, not {new!r:.120}; {advice}")
    return {**new, "hyper": {**theirs, **ours}}


def _place(point: Mapping[str, Any]) -> tuple[object, ...]:
    return point["hyper"], point["rules"], point["target"], point["value"], point["seed"]
