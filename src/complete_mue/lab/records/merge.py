"""Two plans of one sweep as one: other rule sets, hyperparameters or seeds, or a wider span, run at another time.

The points add up as long as both plans speak of the same reference, the same tuned values and the same targets. Plans
are taken as they stand in their files, read and checked before, so that what is written again keeps every digit.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from complete_mue.errors import RunError

_PLACE = itemgetter("hyper", "rules", "target", "value", "seed")
_ALIKE = ("format", "name", "task", "scale", "axis")


def join_plans(old: Mapping[str, Any], new: Mapping[str, Any], where: str, advice: str) -> dict[str, Any]:
    """The plan (the contents of sweep.json) with the points of both; ``where`` holds the old one.

    Plans that do not belong together are refused, with ``advice`` on what to do.
    """

    def same(what: str, ours: object, theirs: object) -> None:
        if ours != theirs:
            raise RunError(f"{where} holds another sweep: {what} is {theirs!r:.120}, not {ours!r:.120}; {advice}")

    for key in _ALIKE:
        same(f"its {key}", new[key], old[key])
    targets = {target["name"]: target for target in old["targets"]}
    for target in new["targets"]:
        known = targets.setdefault(target["name"], target)
        for key, value in target.items():
            same(f"{key} of target {target['name']!r}", value, known.get(key))
    (ours, mine), (theirs, held) = ((one["reference"], one["reference"]["hyper"]) for one in (new, old))
    same("its reference", {**ours, "hyper": {**held, **mine}}, {**theirs, "hyper": {**mine, **held}})
    points = {_PLACE(point): point for point in old["points"]}
    added = {_PLACE(point): point for point in new["points"]}
    for place, point in added.items():
        run = f"{point['target']} at {point['hyper']} {point['value']:g}, seed {point['seed']}"
        same(f"the config of its run of {run}", point["id"], points.get(place, point)["id"])
    command = str(old["command"])
    if set(added) - set(points):
        command = f"{command} && {new['command']}" if set(points) - set(added) else str(new["command"])
    return {
        **new, "command": command, "reference": {**ours, "hyper": {**held, **mine}},
        "targets": list(targets.values()),
        "points": [*old["points"], *(point for place, point in added.items() if place not in points)],
    }  # fmt: skip
