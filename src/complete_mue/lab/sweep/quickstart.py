"""The quickstart's training: one dense learning rate, MoEs along two axes, and what the transferred value costs each.

The dense model's learning rate was tuned once; it is scanned again beside the others, so that one sees it was. Each
model has three seeds, paired: what a seed adds to all values alike is taken out, and the median over the seeds is what
counts, so that no single run decides.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from dataclasses import dataclass

from complete_mue.lab.recipes import recipe
from complete_mue.lab.records.schema import Place
from complete_mue.lab.report.curves import Curve, close
from complete_mue.lab.report.estimator import Optimum, optimum_of
from complete_mue.lab.report.summary import Summary
from complete_mue.lab.sweep.figures import from_reference, octaves
from complete_mue.lab.sweep.grid import Scan, Sweep, Target
from complete_mue.lab.train.config import RunConfig, override
from complete_mue.layout import FeedForward

OURS, RIVAL = "complete_mue_sparse", "sp"
DRIFT_LIMIT, COST_LIMIT = 1.0, 0.02  # octaves and nats: more of both is a miss
SEEDS = 3  # per call of `mue quickstart`
STEPS = 128
_SPAN = (-2.0, 1.0)  # octaves around it: standard parametrization wants less, the wider the model
_SETTINGS = (
    "shape.width=32", "shape.depth=2", "shape.feed_forward=dense@32", "shape.head_dim=16", "task.sequence=64",
    "budget.batch_tokens=512", "device=cpu", "reference.hyper.lr=0.008",  # tuned with these settings
)  # fmt: skip


def base(steps: int = STEPS) -> RunConfig:
    """The dense reference's own run."""
    return from_reference(override(recipe("lm_tiny"), *_SETTINGS, f"budget.steps={steps}"), None, ())


def sweep_of(seed: int, steps: int = STEPS) -> Sweep:
    """Activated experts, and width on an MoE, over the learning rate, by our rules and by standard parametrization."""
    dense = base(steps)
    width = dense.shape.width
    models = {
        "16e2a": (width, "16e2a", {"activated experts": 2}),
        "16e4a": (width, "16e4a", {"activated experts": 4, "width": width}),
        "16e8a": (width, "16e8a", {"activated experts": 8}),
        "16e4a, width x2": (2 * width, "16e4a", {"width": 2 * width}),
        "16e4a, width x4": (4 * width, "16e4a", {"width": 4 * width}),
    }
    targets = [Target("dense", None, dense)]
    for name, (wide, layout, axes) in models.items():
        shape = dataclasses.replace(dense.shape, width=wide, feed_forward=FeedForward.parse(layout, wide // 4))
        places = tuple(Place(axis, axis, float(x)) for axis, x in axes.items())
        targets.append(Target(name, None, dataclasses.replace(dense, shape=shape), places))
    return Sweep(
        "quickstart", "One dense learning rate, transferred", "layout", "quickstart", tuple(targets),
        (Scan("lr", octaves(dense.reference.hyper.lr, _SPAN)),), (OURS, RIVAL),
        tuple(range(SEEDS * seed, SEEDS * (seed + 1))),
    )  # fmt: skip


@dataclass(frozen=True)
class Found:
    """One model's scan by one rule set: losses of the middle seed by value, and their optimum, if any finished."""

    rules: str
    target: str
    transferred: float
    losses: dict[float, float]
    optimum: Optimum | None

    @property
    def loss(self) -> float:
        """At the transferred value; infinite where a run diverged."""
        return next((loss for value, loss in self.losses.items() if close(value, self.transferred)), math.inf)

    @property
    def cost(self) -> float:
        """Of the transferred value, against the best of the scan."""
        return self.loss - self.optimum.best_loss if self.optimum else math.inf

    @property
    def drift(self) -> float:
        """Octaves from the transferred value to the optimum; at the scan's edge a bound."""
        return math.log2(self.optimum.value / self.transferred) if self.optimum else math.inf

    @property
    def held(self) -> bool:
        """Missed is an optimum that is far off, if that costs something: in a flat basin its place means nothing. A run
        that diverges at the transferred value is a miss as well."""
        return self.cost <= COST_LIMIT or (abs(self.drift) <= DRIFT_LIMIT and math.isfinite(self.cost))


def found_by(summary: Summary) -> list[Found]:
    """Every curve of the learning rate, the reference's first."""
    return [_found(curve) for curve in summary.scans[0].curves]


def _found(curve: Curve) -> Found:
    """What is left of every seed's curve when its own level is taken out, the median of that, and the mean level put
    back. Values at which a seed diverged are left out."""
    values = [point.value for point in curve.points]
    known = {point.value: dict(point.losses) for point in curve.points if point.losses and not point.diverged}
    if not known:
        return Found(curve.rules, curve.target, curve.transferred, {}, None)
    seeds = set.intersection(*(set(losses) for losses in known.values()))
    level = {seed: statistics.fmean(losses[seed] for losses in known.values()) for seed in seeds}
    mean = statistics.fmean(level.values())
    losses = {value: mean + statistics.median(known[value][seed] - level[seed] for seed in seeds) for value in known}
    optimum = optimum_of(values, [losses.get(value) for value in values])
    return Found(curve.rules, curve.target, curve.transferred, losses, optimum)


def worst_along(summary: Summary) -> dict[str, dict[str, Found]]:
    """Axis -> rule set -> the model along that axis that speaks for it: one that missed, else the costliest."""
    every = found_by(summary)
    worst: dict[str, dict[str, Found]] = {}
    for axis in dict.fromkeys(place.title for target in summary.targets for place in target.places):
        on = {target.name for target in summary.targets if axis in [place.title for place in target.places]}
        for rules in (OURS, RIVAL):
            along = [found for found in every if found.rules == rules and found.target in on]
            worst.setdefault(axis, {})[rules] = max(along, key=lambda found: (not found.held, found.cost))
    return worst
