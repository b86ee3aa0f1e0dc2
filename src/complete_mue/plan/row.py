"""One row of a plan: the settings of a role."""

from __future__ import annotations

import math
from dataclasses import dataclass

from complete_mue.errors import TransferError
from complete_mue.layout.tensors import Role

# What a row shows in files, in this order.
ROW_COLUMNS = (
    "role", "block", "multiplier", "output", "route_scale", "residual", "init_std", "lr", "weight_decay", "eps",
    "because",
)  # fmt: skip


@dataclass(frozen=True)
class Multiplier:
    """What stands before a tensor's contribution: output multiplier A, route scale r, residual multiplier."""

    output: float = 1.0
    route_scale: float = 1.0
    residual: float = 1.0

    @property
    def total(self) -> float:
        """The whole factor."""
        return self.output * self.route_scale * self.residual


@dataclass(frozen=True)
class Factors:
    """Target value over reference value, column by column; all 1 where target = reference."""

    output: float
    route_scale: float
    residual: float
    init_std: float
    lr: float
    weight_decay: float
    eps: float


@dataclass(frozen=True)
class Row:
    """The settings of one role (in one kind of block, for feed-forward roles)."""

    role: Role
    block: str
    forward: Multiplier  # applied by the model's forward pass
    folded: Multiplier  # already inside init_std, lr, weight_decay and eps
    init_std: float | None
    lr: float
    weight_decay: float
    eps: float
    factors: Factors
    because: str

    def __post_init__(self) -> None:
        for name in ("multiplier", "init_std", "lr", "weight_decay", "eps"):
            value = getattr(self, name)
            if value is not None and not (0 <= value < math.inf and (value or name in ("weight_decay", "eps"))):
                raise TransferError(
                    f"{name} of {self.role.value} comes out as {value}: the numbers of reference and target are too "
                    "far apart to compute with; bring them closer together"
                )

    @property
    def multiplier(self) -> float:
        """The whole forward factor: output multiplier x route scale x residual."""
        return self.forward.total

    @property
    def output(self) -> float:
        """A, the output multiplier that the forward applies."""
        return self.forward.output

    @property
    def route_scale(self) -> float:
        """r, on the normalized routed sum."""
        return self.forward.route_scale

    @property
    def residual(self) -> float:
        """1 / rho_L, on the residual branch."""
        return self.forward.residual

    @property
    def numbers(self) -> tuple[float, ...]:
        """All values of the row, for comparison."""
        forward = (self.output, self.route_scale, self.residual)
        return (*forward, self.init_std or 0.0, self.lr, self.weight_decay, self.eps)
