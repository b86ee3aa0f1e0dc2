"""(reference, target) -> ratios: everything the rules depend on."""

from __future__ import annotations

from dataclasses import dataclass

from complete_mue.layout.notation import FeedForward
from complete_mue.layout.reference import Reference
from complete_mue.layout.shape import Budget, ModelShape
from complete_mue.layout.tensors import Role
from complete_mue.rules.batch_duration import schedule_factor

_DOWN = (Role.DENSE_DOWN, Role.SHARED_DOWN, Role.EXPERT_DOWN)


@dataclass(frozen=True)
class Ratios:
    """Target over reference: rho_d, rho_L, rho_B, rho_D, and of the main block rho_H = (H/d) / (H*/d*) and
    rho_S = (N/a) / (N*/a*)."""

    width: float
    depth: float
    batch: float
    tokens: float
    active_width: float
    steps: float
    sparsity: float = 1.0

    @classmethod
    def between(cls, reference: Reference, shape: ModelShape, budget: Budget) -> Ratios:
        """The ratios of a transfer."""
        return cls(
            width=shape.width / reference.shape.width,
            depth=shape.depth / reference.shape.depth,
            batch=budget.batch_tokens / reference.budget.batch_tokens,
            tokens=budget.tokens / reference.budget.tokens,
            active_width=expansion_ratio(reference, shape, shape.main),
            steps=budget.steps / reference.budget.steps,
            sparsity=sparsity_ratio(reference, shape.main),
        )

    @property
    def schedule(self) -> float:
        """s = sqrt(rho_B / rho_D) = sqrt(T* / T)."""
        return schedule_factor(self.steps)


def expansion_ratio(reference: Reference, shape: ModelShape, block: FeedForward) -> float:
    """rho_H of one block: its expansion over the reference's, 1 where both expand alike."""
    # Whole numbers first, so that equal expansions give exactly 1.
    return (block.active_width * reference.shape.width) / (reference.shape.active_width * shape.width)


def sparsity_ratio(reference: Reference, block: FeedForward) -> float:
    """rho_S of one block: its experts per active one over the reference's; a dense block counts as 1."""
    theirs = reference.shape.main
    # Whole numbers first, so that equal sparsities give exactly 1.
    return ((block.experts or 1) * theirs.route_scale) / ((theirs.experts or 1) * block.route_scale)


def fan_in(block: FeedForward, role: Role, width: int) -> float:
    """What one output of this tensor sums over. A branch the block does not have counts as the whole active width."""
    if role is Role.EXPERT_DOWN and block.groups:
        return block.routed_width / block.active
    if role is Role.SHARED_DOWN and block.groups and block.branches:
        return sum(block.branches)
    return block.active_width if role in _DOWN else width


def symbols(
    reference: Reference, shape: ModelShape, ratios: Ratios, block: FeedForward, role: Role
) -> dict[str, float]:
    """The value of every symbol of the rule tables, for one role in one block."""
    own = fan_in(block, role, shape.width)
    theirs = fan_in(reference.shape.main, role, reference.shape.width)
    return {
        "d": ratios.width,
        "L": ratios.depth,
        "H": expansion_ratio(reference, shape, block),
        "f": own / theirs,
        "a": block.route_scale / reference.shape.main.route_scale,
        "S": sparsity_ratio(reference, block),
        "s": ratios.schedule,
        "B": ratios.batch,
    }
