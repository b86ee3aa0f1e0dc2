"""How far the rules have been tried: the ranges over which sweeps looked for each target's own optimum.

The numbers are data, with the page that holds their runs. Ratios are target over reference; experts and N/a are the
target's own. Inside a range optima were scanned; where a scan was open or flat, the page says so. Outside, a transfer
is extrapolated, or was seen to fail: at a quarter of the steps the transferred lr is half an octave to two too high.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from complete_mue.layout.shape import ModelShape
from complete_mue.rules.batch_duration import BATCH_LR
from complete_mue.rules.catalog import Rules
from complete_mue.rules.ratios import Ratios


class Range(NamedTuple):
    """From the smallest to the largest value that was measured."""

    low: float
    high: float

    def outside(self, value: float) -> float:
        """By which factor a value lies outside; 1 within."""
        return max(1.0, self.low / value, value / self.high) if value > 0 else math.inf


@dataclass(frozen=True)
class Measured:
    """Where one rule set was swept, and where the runs are."""

    width: Range
    depth: Range
    active_width: Range
    batch: Range
    steps: Range
    experts: Range
    sparsity: Range
    source: str


_ONE = Range(1, 1)
_PAPER = Measured(
    width=Range(1, 4), depth=Range(1, 8), active_width=Range(0.25, 4), batch=Range(0.25, 4), steps=Range(0.5, 4),
    experts=Range(0, 256), sparsity=Range(1, 32), source="docs/results/transfer.md",
)  # fmt: skip
# Dense models are the same by both. Wider and deeper MoEs were run at the transferred value alone, those of another
# batch or duration by the paper's rules alone.
MEASURED = {
    "complete_mue": _PAPER,
    "complete_mue_sparse": replace(_PAPER, depth=Range(1, 4), source="docs/results/roles.md"),
}

# Octaves: the largest that a scan located, at the reference's steps or more. Fewer steps have advice of their own.
DRIFT = 1.4

# σ0 = ρ_D^-1/2 moved with batch and steps; of an expert, also with N/a. The transfer itself kept the rest.
SIGMA0 = Range(0.5, 2)
EXPERT_SIGMA0 = Range(0.5, math.sqrt(32))
KEPT = _ONE

# Scans moved lr and kept the planned weight decay, so λ/η and the horizon moved together: an lr by the batch alone at a
# quarter to four times the batch and the steps, as ``duration="fixed"`` plans it, is within the values. With more steps
# optima lay further from it than with fewer.
FIXED_STEPS, FIXED_LAMBDA, FIXED_HORIZON = Range(0.25, 4), Range(0.5, 2**1.5), Range(0.125, 4)
FIXED_DRIFT_FEWER, FIXED_DRIFT_MORE = 0.4, 1.1

_RATIOS = {"width": "width", "depth": "depth", "active_width": "active width", "batch": "batch", "steps": "steps"}
_OWN = {"experts": "experts", "sparsity": "experts per active one"}


@dataclass(frozen=True)
class Trust:
    """A target against what was measured: one line on how far that reached, what lies outside of it, and what to do
    where the rule itself was seen to fail."""

    line: str
    outside: tuple[str, ...]
    advice: str = ""


def trust(rules: Rules, shape: ModelShape, ratios: Ratios) -> Trust:
    """How far the transfer to ``shape`` reaches beyond what was measured with these rules."""
    known = MEASURED.get(rules.name)
    if known is None:
        return Trust(f"no range is recorded for rules {rules.name}", ())
    if rules.duration == "fixed":
        known = replace(known, steps=FIXED_STEPS)
    experts = max(kind.experts for kind in shape.kinds)
    own = {"experts": float(experts), "sparsity": max((kind.experts or 1) / kind.route_scale for kind in shape.kinds)}
    values = {name: getattr(ratios, name) for name in _RATIOS}
    values["active_width"] *= max(
        (kind.active_width / shape.active_width for kind in shape.kinds),
        key=lambda share: known.active_width.outside(ratios.active_width * share),
    )
    outside = [
        f"{words} ×{values[name]:.4g} ({_reach(reach)})"
        for name, words in _RATIOS.items()
        if (reach := getattr(known, name)).outside(values[name]) > 1 + 1e-9
    ] + [
        f"{value:.4g} {_OWN[name]} (to {reach.high:.4g})"
        for name, value in own.items()
        if value > (reach := getattr(known, name)).high
    ]
    sizes = [f"{value:.4g}x {name}" for name in ("width", "depth") if (value := getattr(ratios, name)) != 1]
    sizes += [f"{experts} experts"] if experts else []
    line = (
        f"measured to {known.width.high:.4g}x width, {known.depth.high:.4g}x depth and {known.experts.high:.4g} "
        f"experts; yours is {', '.join(sizes) or 'of the same size'}"
    )
    return Trust(line, tuple(outside), _fewer_steps(ratios) if rules.duration == "scaled" else "")


def _fewer_steps(ratios: Ratios) -> str:
    """The rule raises lr for fewer steps. By the batch alone it did better at a half and a quarter of them."""
    factor = ratios.batch ** float(BATCH_LR) / ratios.schedule
    if ratios.schedule < 1.01 or abs(factor - 1) < 0.01:
        return ""
    return (
        "fewer steps than the reference: in our sweeps an lr that goes with the batch alone did better (all lr "
        f"×{factor:.4g}, the rest as planned: --duration fixed, in runs "
        "duration=fixed); try both"
    )


def _reach(reach: Range) -> str:
    return f"×{reach.low:.4g} to ×{reach.high:.4g}" if reach.low < reach.high else "×1 only"
