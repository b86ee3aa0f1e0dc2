"""How a router scores and balances, as data: no torch, so that a run's config is checked before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from complete_mue.errors import ShapeError, one_of
from complete_mue.layout.numbers import real

SHUFFLED = "shuffled"
SCORES = ("sigmoid", "softmax", SHUFFLED)


@dataclass(frozen=True)
class RouterConfig:
    """How tokens are scored and how the load is kept even; every balancing means is off unless asked for.

    ``logit_bias`` adds a trained number per expert to the logits. ``selection_bias`` is not trained: it moves which
    experts are taken, and not their weights.
    """

    score: str = "sigmoid"
    selection_bias: bool = False
    balance_loss: float = 0.0
    z_loss: float = 0.0
    logit_bias: bool = False

    def __post_init__(self) -> None:
        one_of("score", self.score, SCORES, ShapeError)
        for name in ("selection_bias", "logit_bias"):
            if not isinstance(getattr(self, name), bool):
                raise ShapeError(f"{name} = {getattr(self, name)!r}: give true or false")
        real("balance_loss", self.balance_loss, positive=False)
        real("z_loss", self.z_loss, positive=False)


DEFAULT_ROUTER = RouterConfig()
