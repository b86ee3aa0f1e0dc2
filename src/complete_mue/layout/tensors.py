"""What a tensor does in the model, and its axes by name.

The rules speak of roles; a model declares, for each parameter, its role and which axis is summed over (the fan-in).
Nothing is ever guessed from a tensor's number of dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from complete_mue.errors import ShapeError, TransferError, one_of
from complete_mue.layout.notation import FeedForward


class Role(StrEnum):
    """Every role a parameter can have, spelled as in plans, files and parameter groups."""

    EMBEDDING = "embedding"
    ATTENTION_IN = "attention_in"
    ATTENTION_OUT = "attention_out"
    DENSE_UP = "dense_up"
    DENSE_DOWN = "dense_down"
    SHARED_UP = "shared_up"
    SHARED_DOWN = "shared_down"
    EXPERT_UP = "expert_up"
    EXPERT_DOWN = "expert_down"
    ROUTER = "router"
    MODULATION = "modulation"
    NORM = "norm"
    BIAS = "bias"
    FINAL_NORM = "final_norm"
    READOUT = "readout"

    @classmethod
    def parse(cls, name: str) -> Role:
        """The role of that name, or an error that lists the roles."""
        one_of("role", name, [role.value for role in cls], TransferError)
        return cls(name)


FEED_FORWARD_ROLES = frozenset(
    {
        Role.DENSE_UP, Role.DENSE_DOWN, Role.SHARED_UP, Role.SHARED_DOWN, Role.EXPERT_UP, Role.EXPERT_DOWN, Role.ROUTER,
    }
)  # fmt: skip
# Initial values other than a role's own: a norm that multiplies by 1 + w; the vectors of linear attention's decay.
STARTS = {
    "1+w": "0, since the forward multiplies by 1 + w",
    "ones": "1",
    "log_uniform": "log of a number drawn evenly from 0.01 to 16",
    "log_uniform_1": "log of a number drawn evenly from 1 to 16",
    "dt": "inverse softplus of a time step drawn evenly in its log, from 0.001 to 0.1",
}
VECTOR_ROLES = frozenset({Role.NORM, Role.BIAS, Role.FINAL_NORM})


def block_roles(block: FeedForward) -> tuple[Role, ...]:
    """The feed-forward roles that a block has."""
    if block.is_dense:
        return Role.DENSE_UP, Role.DENSE_DOWN
    shared = (Role.SHARED_UP, Role.SHARED_DOWN) if block.branches else ()
    return (*shared, Role.EXPERT_UP, Role.EXPERT_DOWN, Role.ROUTER)


@dataclass(frozen=True)
class TensorSpec:
    """One parameter: its qualified name, its role, its axes by name, and the axis that is summed over.

    ``layer`` is the residual layer it belongs to. ``multiplier`` is what the model's own forward already puts on this
    tensor's contribution. ``multiplied_as`` says which of a plan's multipliers belongs to it: its role's own (empty),
    a role's name for a bias that is scaled with that role's product, ``residual`` for a norm behind a residual branch,
    and ``inner`` for a projection before such a norm (all but the residual multiplier). ``start`` names initial values
    that are not the role's own, one of ``STARTS``.
    """

    name: str
    role: Role
    axes: tuple[str, ...]
    fan_in: str | None
    layer: int | None = None
    multiplier: float = 1.0
    multiplied_as: str = ""
    start: str = ""

    def __post_init__(self) -> None:
        if self.start:
            one_of(f"{self.name}: start", self.start, STARTS, ShapeError)
        if self.fan_in is not None and self.fan_in not in self.axes:
            raise ShapeError(
                f"{self.name}: fan-in axis {self.fan_in!r} is not among its axes {self.axes}; name one of them"
            )
        if len(set(self.axes)) != len(self.axes):
            raise ShapeError(f"{self.name}: axes {self.axes} repeat a name; give each axis its own")

    @property
    def gain_offset(self) -> float:
        """What the forward adds to a norm's weight: 1 where it multiplies by 1 + w, so that w starts at 0."""
        return 1.0 if self.start == "1+w" else 0.0
