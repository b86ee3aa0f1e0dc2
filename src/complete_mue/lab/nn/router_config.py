"""How a router scores and balances, as data: no torch, so that a run's config is checked before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from complete_mue.errors import ShapeError, one_of
from complete_mue.layout.numbers import real

SHUFFLED = "shuffled"
SCORES = ("sigmoid", "softmax", SHUFFLED)


@dataclass(frozen=True)
class RouterConfig:
    """How tokens are scored and how the load is kept even; every balancing means is off unless asked for."""

    score: str = "sigmoid"
    selection_bias: bool = False
    balance_loss: float = 0.0
    z_loss: float = 0.0

    def __post_init__(self) -> None:
        one_of("score", self.score, SCORES, ShapeError)
        real("balance_loss", self.balance_loss, positive=False)
        real("z_loss", self.z_loss, positive=False)


DEFAULT_ROUTER = RouterConfig()
