"""Tune the dense reference: one hyperparameter after the other, each scan as a sweep of its own.

A scan whose best value lies on the edge of its grid is widened until the optimum is bracketed; what was trained before
is not trained again. The last scan looks at the learning rate once more, with the others at their optimum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from complete_mue.errors import RunError
from complete_mue.lab.records import StoredSweep, read_sweep
from complete_mue.lab.records.schema import HYPERS
from complete_mue.lab.report.curves import Curve, fit_curve, value_points
from complete_mue.lab.report.estimator import Optimum
from complete_mue.lab.report.verdict import doubts
from complete_mue.lab.sweep.figures import octaves
from complete_mue.lab.sweep.grid import Scan, Sweep, Target, pinned_sweep
from complete_mue.lab.sweep.hypers import Hyper
from complete_mue.lab.train.config import RunConfig
from complete_mue.layout import Reference
from complete_mue.layout.toml_files import reference_toml
from complete_mue.storage import write_text

_WIDENED = 2  # octaves at a time
_MOST_WIDENINGS = 4
_DIGITS = 3

RunSweep = Callable[[Sweep, Path], None]


@dataclass(frozen=True)
class Tuned:
    """What one scan found, and where its evidence is. The curve is the one that `mue report` shows."""

    hyper: str
    curve: Curve
    optimum: Optimum
    folder: Path
    runs: int

    @property
    def says(self) -> str:
        """``lr: optimum 0.0041 ± 0.12 octaves, loss 1.7954, within 0.01 of it from … 0.002 to 0.0081, 14 runs``."""
        best, error = self.optimum, self.curve.optimum_error
        return (
            f"{self.hyper}: optimum {best.value:.4g}{'' if error is None else f' ± {error:.2f} octaves'}, loss "
            f"{best.loss:.4f}, within {best.basin.nats:g} of it from {best.basin}, {self.runs} runs"
            + ("" if best.diverges is None else f"; diverges {best.diverges}")
        )

    @property
    def doubts(self) -> list[str]:
        """Why the optimum cannot be relied on; empty where it can."""
        edge = self.optimum.open
        return [f"OPEN: the best value is at the {edge} edge of the grid"] if edge else doubts(self.curve)


def tune(
    base: RunConfig, folder: Path, run: RunSweep, hypers: Sequence[str] = (*HYPERS, "lr"), **grid: Any
) -> tuple[Reference, list[Tuned]]:
    """Scan ``hypers`` in turn around the base's values; ``run`` trains a sweep in a folder. Writes reference.toml.

    ``grid`` is what ``first_scans`` takes.
    """
    found: list[Tuned] = []
    for number, hyper in enumerate(hypers, start=1):
        sweep = first_scans(base, hypers, **grid)[number - 1]
        tuned = _scan(sweep, hyper, folder / f"{number}-{hyper}", run)
        found.append(tuned)
        value = float(f"{tuned.optimum.value:.{_DIGITS}g}")
        base = dataclasses.replace(base, reference=Hyper.parse(hyper).put(base.reference, value))
    notes = ["Tuned by `mue tune`; the records of every run are in the folders named below."]
    notes += ["; ".join([f"{tuned.says} in {tuned.folder.name}/", *tuned.doubts]) for tuned in found]
    write_text(folder / "reference.toml", reference_toml(base.reference, notes))
    return base.reference, found


def first_scans(
    base: RunConfig, hypers: Sequence[str], *, scale: str = "custom", span: int = 4, per_octave: int = 1,
    seeds: Sequence[int] = (0, 1),
) -> list[Sweep]:  # fmt: skip
    """What ``tune`` scans if every scan finds the value it starts from; a second look at a hyperparameter is a narrower
    one."""
    found = []
    for number, hyper in enumerate(hypers, start=1):
        reach = min(span, 2) if hyper in hypers[: number - 1] else span
        scan = Scan(hyper, octaves(Hyper.parse(hyper).of(base.reference), reach, per_octave))
        title, targets = f"Tuning {hyper} of the dense reference", (Target("dense", None, base),)
        found.append(Sweep(f"tune-{number}-{hyper}", title, hyper, scale, targets, (scan,), seeds=tuple(seeds)))
    return found


def _scan(sweep: Sweep, hyper: str, folder: Path, run: RunSweep) -> Tuned:
    for _ in range(_MOST_WIDENINGS + 1):
        run(sweep, folder)
        curve = _curve(read_sweep(folder), hyper, {point.id for point in pinned_sweep(sweep).points})
        optimum = curve.optimum
        if optimum is None:
            raise RunError(_nothing(curve, folder))
        if optimum.open is None:
            break
        values = sweep.scans[0].values
        if optimum.open in ("low", "both"):
            values = (*(values[0] / 2**k for k in range(_WIDENED, 0, -1)), *values)
        if optimum.open in ("high", "both"):
            values = (*values, *(values[-1] * 2**k for k in range(1, _WIDENED + 1)))
        sweep = dataclasses.replace(sweep, scans=(Scan(hyper, values),))
    assert optimum is not None
    return Tuned(hyper, curve, optimum, folder, len(sweep.points))


def _curve(sweep: StoredSweep, hyper: str, asked: set[str]) -> Curve:
    """The reference's, as the report has it, of the points that were asked for: in a folder that was left in the middle
    of a widened scan, or has more seeds, the same scan goes the same way again."""
    points = value_points((point, sweep.outcomes.get(point.id)) for point in sweep.plan.points if point.id in asked)
    first = sweep.plan.points[0]
    return fit_curve(hyper, first.rules, first.target, sweep.tuned[hyper], points)


def _nothing(curve: Curve, folder: Path) -> str:
    if any(point.diverged for point in curve.points):
        return f"{curve.hyper}: every value from {curve.points[0].value:.3g} up diverged; start from a smaller one"
    return f"{curve.hyper}: no run finished; their records in {folder / 'ledger'} say why"
