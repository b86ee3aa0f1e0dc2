"""Tune the dense reference: one hyperparameter after the other, each scan as a sweep of its own.

A scan whose best value lies on the edge of its grid is widened until the optimum is bracketed; what was trained before
is not trained again. The last scan looks at the learning rate once more, with the others at their optimum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from complete_mue.errors import RunError
from complete_mue.layout import Reference
from complete_mue.layout.files import reference_toml
from complete_mue.report.fit import Optimum, optimum_of
from complete_mue.storage import whole
from complete_mue.sweep.figures import octaves
from complete_mue.sweep.grid import HYPERS, Scan, Sweep, Target, check_hyper
from complete_mue.sweep.ledger import Ledger
from complete_mue.train.config import RunConfig

_WIDENED = 2  # octaves at a time
_MOST_WIDENINGS = 4
_DIGITS = 3

RunSweep = Callable[[Sweep, Path], None]


@dataclass(frozen=True)
class Tuned:
    """What one scan found, and where its evidence is."""

    hyper: str
    optimum: Optimum
    folder: Path
    runs: int


def tune(
    base: RunConfig,
    folder: Path,
    run: RunSweep,
    *,
    scale: str = "custom",
    hypers: Sequence[str] = (*HYPERS, "lr"),
    span: int = 4,
    per_octave: int = 1,
    seeds: Sequence[int] = (0, 1),
) -> tuple[Reference, list[Tuned]]:
    """Scan ``hypers`` in turn around the base's values; ``run`` trains a sweep in a folder. Writes reference.toml."""
    for hyper in hypers:
        check_hyper(hyper)
    found: list[Tuned] = []
    for number, hyper in enumerate(hypers, start=1):
        again = hyper in hypers[: number - 1]
        place = folder / f"{number}-{hyper}"
        tuned = _scan(base, hyper, place, run, scale, 1 if again else span, 2 if again else per_octave, seeds)
        found.append(tuned)
        value = float(f"{tuned.optimum.value:.{_DIGITS}g}")
        given = base.reference
        reference = dataclasses.replace(given, hyper=dataclasses.replace(given.hyper, **{hyper: value}))
        base = dataclasses.replace(base, reference=reference)
    with whole(folder / "reference.toml") as file:
        file.write(reference_toml(base.reference, _evidence(found)).encode("utf-8"))
    return base.reference, found


def _scan(
    base: RunConfig, hyper: str, folder: Path, run: RunSweep, scale: str, span: int, per_octave: int,
    seeds: Sequence[int],
) -> Tuned:  # fmt: skip
    centre = getattr(base.reference.hyper, hyper)
    if not centre:
        raise RunError(f"{hyper} = {centre}: a scan in octaves needs a value above zero to start from")
    values = octaves(centre, span, per_octave)
    for _ in range(_MOST_WIDENINGS + 1):
        scan = Scan(hyper, values)
        name = f"tune-{folder.name}"
        title = f"Tuning {hyper} of the dense reference"
        sweep = Sweep(name, title, hyper, scale, (Target("dense", None, base),), (scan,), seeds=tuple(seeds))
        run(sweep, folder)
        optimum = _optimum(sweep, Ledger(folder))
        if optimum.open is None:
            break
        if optimum.open in ("low", "both"):
            values = (*(values[0] / 2**k for k in range(_WIDENED, 0, -1)), *values)
        if optimum.open in ("high", "both"):
            values = (*values, *(values[-1] * 2**k for k in range(1, _WIDENED + 1)))
    return Tuned(hyper, optimum, folder, len(sweep.points()))


def _optimum(sweep: Sweep, ledger: Ledger) -> Optimum:
    """The minimum of the mean loss over seeds; a value where a seed diverged has none."""
    losses: dict[float, list[float | None]] = {}
    for point in sweep.points():
        ((_, value),) = point.hypers
        losses.setdefault(value, []).append(ledger.read(point.id)["loss"])
    means = {
        value: None if None in runs else sum(loss for loss in runs if loss is not None) / len(runs)
        for value, runs in losses.items()
    }
    return optimum_of(list(means), list(means.values()))


def _evidence(found: Sequence[Tuned]) -> list[str]:
    lines = ["Tuned by `mue tune`; the records of every run are in the folders named below."]
    for tuned in found:
        optimum, basin = tuned.optimum, tuned.optimum.basin
        edge = "" if optimum.open is None else f"; OPEN: the best value is at the {optimum.open} edge of the grid"
        wall = "" if optimum.diverges is None else f"; diverges {optimum.diverges}"
        lines.append(
            f"{tuned.hyper}: optimum {optimum.value:.4g}, loss {optimum.loss:.4f}, within {basin.nats:g} nats from "
            f"{basin.low:.3g} to {basin.high:.3g}, {tuned.runs} runs in {tuned.folder.name}/{edge}{wall}"
        )
    return lines
