"""The SDE report: what a transfer keeps of the stochastic process, and what it moves (Eq. global-sde-objects).

    sigma0 = lr * sigma_noise, sigma_noise ~ B^-1/2        lambda~ = wd / lr        horizon = T lr^2

and, seen from one routed expert, B_exp = B a/N, D_exp = T B a/N, sigma0_exp ~ lr sqrt(N / (B a))
(Eq. expert-sde-objects). Everything is stated as a ratio to the reference; a dense block has a/N = 1.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from complete_mue.errors import ShapeError
from complete_mue.layout.notation import FeedForward
from complete_mue.layout.numbers import real
from complete_mue.layout.reference import Hyper, Reference
from complete_mue.layout.shape import ModelShape
from complete_mue.rules.measured import (
    DRIFT,
    EXPERT_SIGMA0,
    FIXED_DRIFT_FEWER,
    FIXED_DRIFT_MORE,
    FIXED_HORIZON,
    FIXED_LAMBDA,
    KEPT,
    SIGMA0,
    Range,
)
from complete_mue.rules.ratios import Ratios

Grade = Literal["exact", "near", "beyond", "far"]
_EQUAL = 1e-9
_FAR = 4.0  # outside the measured range by this factor, the learning rate is a guess


@dataclass(frozen=True)
class Sde:
    """Ratios target / reference. ``exact`` means that all of them that steer the process are 1."""

    sigma0: float
    lambda_: float
    horizon: float
    expert_sigma0: float
    expert_batch: float
    expert_duration: float

    @property
    def exact(self) -> bool:
        """All three SDE objects are kept, globally and per expert."""
        return not self.moved

    @property
    def moved(self) -> dict[str, tuple[float, Range]]:
        """The objects that are not kept: name -> ratio, and the range in which a change of it was measured."""
        # Weight decay goes with T^-1/2 whatever lr is: so lr was scanned, and so is a fixed duration planned.
        as_scanned = math.isclose(self.horizon * self.lambda_ * self.lambda_, 1, rel_tol=_EQUAL)
        objects = {
            "σ0": (self.sigma0, SIGMA0),
            "λ/η": (self.lambda_, FIXED_LAMBDA if as_scanned else KEPT),
            "horizon": (self.horizon, FIXED_HORIZON if as_scanned else KEPT),
            "σ0 of an expert": (self.expert_sigma0, EXPERT_SIGMA0),
        }
        return {name: found for name, found in objects.items() if not math.isclose(found[0], 1, rel_tol=_EQUAL)}

    @property
    def grade(self) -> Grade:
        """How much to trust the transferred learning rate as far as batch, duration and sparsity go.

        ``exact``: nothing moved. ``near``: moved, within what was measured. ``beyond``: outside of it by a factor of up
        to four. ``far``: by more.
        """
        if not self.moved:
            return "exact"
        outside = max(reach.outside(ratio) for ratio, reach in self.moved.values())
        return "near" if outside <= 1 + _EQUAL else "beyond" if outside <= _FAR else "far"

    def __str__(self) -> str:
        if not self.moved:
            return "exact: σ0, λ/η and the horizon are those of the reference, for every expert too"
        # Where the verdict is near, only a fixed duration moves λ/η: down for more steps, up for fewer.
        fixed = FIXED_DRIFT_MORE if self.lambda_ < 1 else FIXED_DRIFT_FEWER
        drift = DRIFT if math.isclose(self.lambda_, 1, rel_tol=_EQUAL) else fixed
        ratios = ", ".join(f"{name} ×{ratio:.4g}" for name, (ratio, _) in self.moved.items())
        beyond = ", ".join(
            f"{name} ×{reach.low:.4g} to ×{reach.high:.4g}" if reach != KEPT else f"{name} kept"
            for name, (ratio, reach) in self.moved.items()
            if reach.outside(ratio) > 1 + _EQUAL
        )
        return (
            f"{self.grade}: {ratios}; "
            + {
                "near": f"optima measured so far out moved by up to {drift} octaves",
                "beyond": f"measured only with {beyond}: scan lr an octave to either side",
                "far": f"measured only with {beyond}: tune a reference nearer in batch and duration",
            }[self.grade]
        )


@dataclass(frozen=True)
class LoadSde:
    """sigma0 of the experts under a measured load, as ratios to the reference (Eq. expert-imbalance-sigma0)."""

    sigma0: tuple[float, ...]
    minimum: float
    median: float
    maximum: float

    def __str__(self) -> str:
        return f"σ0 of an expert ×{self.minimum:.4g} to ×{self.maximum:.4g}, median ×{self.median:.4g}"


def sde_report(reference: Reference, shape: ModelShape, ratios: Ratios, hyper: Hyper) -> Sde:
    """Ratios of the SDE objects with the global lr and wd of reference and target, balanced routing."""
    lr, batch = hyper.lr / reference.hyper.lr, ratios.batch
    decay = hyper.weight_decay / reference.hyper.weight_decay if reference.hyper.weight_decay else lr
    shares = [share for kind in shape.kinds if kind.groups for share in _shares(reference, kind)]
    # The expert whose noise moves most speaks for all.
    share = max(shares or _shares(reference, shape.main), key=lambda share: abs(math.log(lr**2 / (batch * share))))
    return Sde(
        sigma0=lr / math.sqrt(batch),
        lambda_=decay / lr,
        horizon=ratios.steps * lr**2,
        expert_sigma0=lr / math.sqrt(batch * share),
        expert_batch=batch * share,
        expert_duration=batch * share * ratios.steps,
    )


def _shares(reference: Reference, block: FeedForward) -> list[float]:
    """Per group, the part of the batch that one of its experts sees, over the reference's."""
    # a_g / N_g of each group; 1 for a dense block.
    ours, theirs = (sorted(one.density for one in kind.groups) or [1.0] for kind in (block, reference.shape.main))
    if len(ours) != len(theirs):  # groups do not correspond: compare with the reference's mean
        theirs = [reference.shape.main.density] * len(ours)
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def sde_with_load(
    reference: Reference, shape: ModelShape, ratios: Ratios, hyper: Hyper, load: Sequence[float]
) -> LoadSde:
    """sigma0 of each expert from its measured load (tokens of the step that it received, over the batch; sum = a)."""
    block = shape.main
    if len(load) != block.experts:
        raise ShapeError(f"load has {len(load)} entries for {block.experts} routed experts: give one per expert")
    loads = [real(f"load[{index}]", value, positive=False) for index, value in enumerate(load)]
    if not math.isclose(sum(loads), block.active, rel_tol=1e-3):
        raise ShapeError(
            f"load sums to {sum(loads):.6g}: "
            f"give each expert's share of the step's tokens, which sums to active = {block.active}"
        )
    lr, theirs = hyper.lr / reference.hyper.lr, reference.shape.main.density
    sigma0 = tuple(lr / math.sqrt(ratios.batch * share / theirs) if share else math.inf for share in loads)
    return LoadSde(sigma0, min(sigma0), statistics.median(sigma0), max(sigma0))
