"""Loss against one hyperparameter for one target under one rule set: optimum, drift and regret with their errors.

Drift is log2 of the target's optimum minus log2 of the reference's. Regret is the target's loss at the transferred
value minus the least it can have: the best measured loss, or the fitted minimum's where that is lower (means over
seeds); it is never below zero. A transferred value off the grid is read off the local quadratic, and counts as
measured.

Errors are one standard error, from the seeds: the means are drawn again with the seeds' noise 200 times, with a fixed
random state, and everything is computed anew, so that an optimum that hops between grid values shows. A lopsided curve
moves the parabola's minimum, seeds or not: that bias is added.
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from complete_mue.lab.report.fit import Optimum, loss_at, optimum_of
from complete_mue.lab.report.values import Noise, ValuePoint, close, curve_noise

_DRAWS = 200


@dataclass(frozen=True)
class Curve:
    """One line of the picture. Fields are None where the records do not say."""

    hyper: str
    rules: str
    target: str
    transferred: float
    points: tuple[ValuePoint, ...]
    optimum: Optimum | None = None
    noise: float | None = None  # standard deviation of one run around its seed's line, near the optimum
    tilt: float | None = None  # standard deviation over seeds of that line's slope, per octave
    optimum_error: float | None = None  # octaves
    transferred_loss: float | None = None
    spread: float | None = None  # standard deviation over seeds at the transferred value
    transferred_diverged: bool = False
    regret: float | None = None
    regret_error: float | None = None
    drift: float | None = None
    drift_error: float | None = None
    status: str = ""
    says: str = ""
    why: str = ""  # what it says, less the numbers above
    runs: str = ""  # names its runs: the same in another sweep that shares them

    @property
    def served(self) -> bool:
        """Whether the transferred value does: the loss is what it could be, even if a flat basin hides the optimum."""
        return self.status in ("held", "flat")

    @property
    def at_transferred(self) -> ValuePoint | None:
        """The runs at the transferred value, if it was scanned."""
        return next((point for point in self.points if close(point.value, self.transferred)), None)

    @property
    def gaps(self) -> tuple[float, ...]:
        """Values that lack a seed where it matters: the transferred one, the best, and those beside it. Means over
        other seeds cannot be compared with theirs."""
        values = [point.value for point in self.points]
        near = {values.index(point.value) for point in (self.at_transferred,) if point is not None}
        if self.optimum is not None:
            best = values.index(self.optimum.best_value)
            near |= {best - 1, best, best + 1}
        return tuple(p.value for i, p in enumerate(self.points) if i in near and p.missing and not p.diverged)


def fit_curve(
    hyper: str, rules: str, target: str, transferred: float, points: Sequence[ValuePoint], scan: Noise | None = None
) -> Curve:
    """The curve through the points. ``scan`` is the noise of the scan's curves: it steadies what this curve's own
    seeds say, and stands in where they say nothing."""
    known = [point for point in points if point.diverged or point.loss is not None]
    values = [point.value for point in known]
    losses = [None if point.diverged else point.loss for point in known]
    here = next((point for point in known if close(point.value, transferred)), None)
    at = here.value if here else transferred
    bare = Curve(
        hyper, rules, target, transferred, tuple(points),
        spread=here.std if here and not here.diverged else None,
        transferred_diverged=here.diverged if here else False,
    )  # fmt: skip
    if all(loss is None for loss in losses):
        return bare
    noise = curve_noise(points, scan)
    errors = None if noise is None else [noise.at(p.value) / math.sqrt(max(p.seeds, 1)) for p in known]
    optimum, transferred_loss = optimum_of(values, losses, errors), loss_at(at, values, losses)
    curve = dataclasses.replace(
        bare, optimum=optimum, transferred_loss=transferred_loss, regret=_regret(optimum, transferred_loss)
    )
    if noise is None or errors is None:
        return curve
    tilt = math.sqrt(max(noise.slope, 0.0))
    seeds = max(point.seeds for point in known)
    # A value that scatters more than the others is unstable: that raises losses, and never lowers them.
    floors = [min(y for _, y in p.losses) if p.losses and noise.wilder(p.value) else -math.inf for p in known]
    tilts = tilt / math.sqrt(max(seeds, 1))
    optimum_error, regret_error = _errors(curve, values, losses, errors, floors, tilts, at)
    return dataclasses.replace(
        curve, noise=math.sqrt(noise.run), tilt=tilt, optimum_error=optimum_error, regret_error=regret_error
    )


def _regret(optimum: Optimum, here: float | None) -> float | None:
    return None if here is None else max(0.0, here - min(optimum.best_loss, optimum.loss))


def _errors(
    curve: Curve,
    values: list[float],
    losses: list[float | None],
    errors: list[float],
    floors: list[float],
    tilt: float,
    at: float,
) -> tuple[float, float | None]:
    """Standard errors of log2 of the optimum and of the regret. A minimum that no parabola was put through (a wall of
    divergence, level points) is known to half a grid step at best, one beside a value that scatters to a quarter."""
    state = random.Random(f"{curve.hyper} {curve.rules} {curve.target}")
    middle, regret = curve.optimum, curve.regret
    assert middle is not None
    best = values.index(middle.best_value)
    beside = errors[max(best - 1, 0) : best + 2]
    blunt = 0.5 if middle.method == "grid" else 0.25 if max(beside) > 2 * min(beside) else 0.0
    places = [math.log2(value / middle.best_value) for value in values]
    doubled = [error * math.sqrt(2.0) for error in errors]  # a draw has the noise of the means and its own
    found: list[Optimum] = []
    changes: list[float] = []
    for _ in range(_DRAWS):
        slope = tilt * state.gauss(0.0, 1.0)
        drawn = [
            None if loss is None else max(floor, loss + slope * place + error * state.gauss(0.0, 1.0))
            for loss, place, error, floor in zip(losses, places, errors, floors, strict=True)
        ]
        found.append(optimum_of(values, drawn, doubled))
        again = _regret(found[-1], loss_at(at, values, drawn))
        if regret is not None and again is not None:
            changes.append(again - regret)
    moves = _rms([optimum.log2 - middle.log2 for optimum in found])
    off = max(blunt * middle.step, abs(middle.bias))
    return math.hypot(moves, off), math.hypot(_rms(changes), middle.loss_bias) if changes else None


def _rms(values: list[float]) -> float:
    return math.sqrt(statistics.fmean(value * value for value in values))
