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

from complete_mue.errors import ShapeError
from complete_mue.layout.notation import FeedForward
from complete_mue.layout.numbers import real
from complete_mue.layout.reference import Hyper, Reference
from complete_mue.layout.shape import Budget, ModelShape

_EQUAL = 1e-9


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
        steering = (self.sigma0, self.lambda_, self.horizon, self.expert_sigma0)
        return all(math.isclose(ratio, 1.0, rel_tol=_EQUAL) for ratio in steering)

    def __str__(self) -> str:
        if self.exact:
            return "exact: σ0, λ/η and the horizon are those of the reference, for every expert too"
        objects = {
            "σ0": self.sigma0,
            "λ/η": self.lambda_,
            "horizon": self.horizon,
            "σ0 of an expert": self.expert_sigma0,
        }
        moved = [
            f"{name} ×{ratio:.4g}" for name, ratio in objects.items() if not math.isclose(ratio, 1, rel_tol=_EQUAL)
        ]
        return "approximate: " + ", ".join(moved) + "; expect a small drift of the optimum"


@dataclass(frozen=True)
class LoadSde:
    """sigma0 of the experts under a measured load, as ratios to the reference (Eq. expert-imbalance-sigma0)."""

    sigma0: tuple[float, ...]
    minimum: float
    median: float
    maximum: float


def densities(block: FeedForward) -> tuple[float, ...]:
    """a_g / N_g of each group; (1,) for a dense block."""
    return tuple(group.density for group in block.groups) or (1.0,)


def sde_report(reference: Reference, shape: ModelShape, budget: Budget, hyper: Hyper) -> Sde:
    """Ratios of the SDE objects with the global lr and wd of reference and target, balanced routing."""
    lr = hyper.lr / reference.hyper.lr
    steps = budget.steps / reference.budget.steps
    batch = budget.batch_tokens / reference.budget.batch_tokens
    decay = hyper.weight_decay / reference.hyper.weight_decay if reference.hyper.weight_decay else lr
    shares = [share for kind in shape.kinds if kind.groups for share in _shares(reference, kind)]
    # The expert whose noise moves most speaks for all.
    share = max(shares or _shares(reference, shape.main), key=lambda share: abs(math.log(lr**2 / (batch * share))))
    return Sde(
        sigma0=lr / math.sqrt(batch),
        lambda_=decay / lr,
        horizon=steps * lr**2,
        expert_sigma0=lr / math.sqrt(batch * share),
        expert_batch=batch * share,
        expert_duration=batch * share * steps,
    )


def _shares(reference: Reference, block: FeedForward) -> list[float]:
    """Per group, the part of the batch that one of its experts sees, over the reference's."""
    ours, theirs = sorted(densities(block)), sorted(densities(reference.shape.main))
    if len(ours) != len(theirs):  # groups do not correspond: compare with the reference's mean
        theirs = [reference.shape.main.density] * len(ours)
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def sde_with_load(
    reference: Reference, shape: ModelShape, budget: Budget, hyper: Hyper, load: Sequence[float]
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
    lr = hyper.lr / reference.hyper.lr
    batch = budget.batch_tokens / reference.budget.batch_tokens
    theirs = reference.shape.main.density
    sigma0 = tuple(lr / math.sqrt(batch * share / theirs) if share else math.inf for share in loads)
    return LoadSde(sigma0, min(sigma0), statistics.median(sigma0), max(sigma0))
