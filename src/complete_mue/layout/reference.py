"""The tuned model that a transfer starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from complete_mue.errors import ShapeError, TransferError, nearest
from complete_mue.layout.numbers import real
from complete_mue.layout.shape import Budget, ModelShape
from complete_mue.layout.tensors import VECTOR_ROLES, Role, block_roles

# The same projection in a dense block, a shared branch and a routed expert.
_PROJECTIONS = (
    (Role.DENSE_UP, Role.SHARED_UP, Role.EXPERT_UP),
    (Role.DENSE_DOWN, Role.SHARED_DOWN, Role.EXPERT_DOWN),
)


@dataclass(frozen=True)
class Hyper:
    """Global AdamW hyperparameters and the init standard deviation.

    ``weight_decay`` follows torch.optim.AdamW: one step shrinks a weight by ``lr * weight_decay``.
    """

    lr: float
    weight_decay: float
    init_std: float
    betas: tuple[float, float] = (0.95, 0.95)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", real("lr", self.lr))
        object.__setattr__(self, "weight_decay", real("weight_decay", self.weight_decay, positive=False))
        object.__setattr__(self, "init_std", real("init_std", self.init_std))
        object.__setattr__(self, "eps", real("eps", self.eps, positive=False))
        if not isinstance(self.betas, list | tuple) or len(self.betas) != 2:
            raise ShapeError(
                f"betas = {self.betas!r}: give two numbers, such as [0.95, 0.95]", field="betas", given=self.betas
            )
        betas = real("beta1", self.betas[0], field="betas"), real("beta2", self.betas[1], field="betas")
        for name, beta in zip(("beta1", "beta2"), betas, strict=True):
            if not 0 < 1 - beta < 1:
                raise ShapeError(
                    f"{name} = {beta}: 1 - {name} must lie between 0 and 1; give a value such as 0.95",
                    field="betas",
                    given=beta,
                )
        object.__setattr__(self, "betas", betas)


@dataclass(frozen=True)
class Tuned:
    """What one role had in the reference, where it differs from the global ``Hyper``; None means no difference."""

    output: float | None = None
    route_scale: float | None = None
    residual: float | None = None
    init_std: float | None = None
    lr: float | None = None
    weight_decay: float | None = None
    eps: float | None = None

    def __post_init__(self) -> None:
        for name in TUNABLE:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, real(name, value, positive=name not in ("weight_decay", "eps")))


TUNABLE = tuple(entry.name for entry in fields(Tuned))


@dataclass(frozen=True)
class Reference:
    """The tuned model: shape, budget, hyperparameters.

    ``route_scale`` is the factor its forward put on the normalized routed sum, if that was not the number of activated
    experts. ``tuned`` holds what single roles had of their own: a multiplier, a learning rate. A feed-forward
    projection that the reference does not have, such as a dense model's experts, takes what the one it has was given.
    ``attention_scale`` is what its attention logits were multiplied by, if that was not 1 / sqrt(head_dim).
    """

    shape: ModelShape
    budget: Budget
    hyper: Hyper
    route_scale: float | None = None
    tuned: Mapping[Role, Tuned] = field(default_factory=dict)
    attention_scale: float | None = None

    def __post_init__(self) -> None:
        for name, kind in (("shape", ModelShape), ("budget", Budget), ("hyper", Hyper)):
            given = getattr(self, name)
            if not isinstance(given, kind):
                raise ShapeError(f"{name} = {given!r}: give a {kind.__name__}", field=name, given=given)
        if self.route_scale is not None:
            object.__setattr__(self, "route_scale", real("route_scale", self.route_scale))
            if self.shape.main.is_dense:
                raise ShapeError(
                    f"route_scale = {self.route_scale} with a dense reference: nothing is routed there; leave it out",
                    field="route_scale",
                    given=self.route_scale,
                    remedy="leave it out",
                )
        if self.attention_scale is not None:
            object.__setattr__(self, "attention_scale", real("attention_scale", self.attention_scale))
            if self.shape.head_dim is None:
                text = f"attention_scale = {self.attention_scale} for heads of unknown size: give the shape's head_dim"
                raise ShapeError(text, field="attention_scale", given=self.attention_scale)
        if not isinstance(self.tuned, Mapping) or not all(isinstance(one, Tuned) for one in self.tuned.values()):
            raise ShapeError(
                f'tuned = {self.tuned!r}: give a Tuned per role, such as {{"embedding": Tuned(lr=2e-3)}}',
                field="tuned",
                given=self.tuned,
            )
        object.__setattr__(self, "tuned", {Role.parse(role): tuned for role, tuned in self.tuned.items()})
        for role, tuned in self.tuned.items():
            for name in TUNABLE:
                _check_meaning(role, name, getattr(tuned, name))
        widths = {block.active_width for block in self.shape.kinds}
        if len(widths) > 1:
            raise TransferError(
                f"the reference's layers have active widths {sorted(widths)}: "
                "a reference needs one active width for all layers"
            )
        if len({block.active for block in self.shape.kinds if block.groups}) > 1:
            raise TransferError(
                "the reference's layers activate different numbers of experts: use one layout for all routed layers"
            )

    def __hash__(self) -> int:
        tuned = tuple(sorted(self.tuned.items()))
        return hash((self.shape, self.budget, self.hyper, self.route_scale, tuned, self.attention_scale))

    def base(self, role: Role) -> Base:
        """What this role had in the reference: the numbers that a rule's factors multiply."""
        tuned, vector = self.tuned_of(role), role in VECTOR_ROLES
        routed = role is Role.EXPERT_DOWN
        return Base(
            output=_first(tuned.output, 1.0),
            route_scale=_first(tuned.route_scale, self.route_scale, self.shape.main.route_scale) if routed else 1.0,
            residual=_first(tuned.residual, 1.0),
            init_std=None if vector else _first(tuned.init_std, self.hyper.init_std),
            lr=_first(tuned.lr, self.hyper.lr),
            weight_decay=_first(tuned.weight_decay, 0.0 if vector else self.hyper.weight_decay),
            eps=_first(tuned.eps, self.hyper.eps),
        )

    def tuned_of(self, role: Role) -> Tuned:
        """The role's own settings; of a projection that the reference does not have, those of the one it has."""
        has_it = any(role in block_roles(kind) for kind in self.shape.kinds)
        same = () if has_it else next((roles for roles in _PROJECTIONS if role in roles), ())
        return next((self.tuned[each] for each in (role, *same) if each in self.tuned), Tuned())


@dataclass(frozen=True)
class Base:
    """One role's tuned values, complete. Norms and biases have no init std and are not decayed."""

    output: float
    route_scale: float
    residual: float
    init_std: float | None
    lr: float
    weight_decay: float
    eps: float


def _first(*values: float | None) -> float:
    return next(float(value) for value in values if value is not None)


def reference_from(data: Mapping[str, Any], shape: ModelShape) -> Reference:
    """A ``Reference`` from plain data; files write a shape in their own ways, so it is read before."""
    tuned = {role: tuned_from(role, table) for role, table in data["tuned"].items()}
    budget, hyper = Budget(**data["budget"]), Hyper(**data["hyper"])
    return Reference(shape, budget, hyper, data["route_scale"], tuned, data.get("attention_scale"))


def tuned_from(role: str, table: Mapping[str, object]) -> Tuned:
    """A ``Tuned`` from plain data, or an error that names the nearest known key."""
    for key in table:
        if key not in TUNABLE:
            raise ShapeError(
                f"{role}: unknown key {key!r}{nearest(key, TUNABLE)}; keys are {', '.join(TUNABLE)}",
                field=key,
                allowed=TUNABLE,
            )
        _check_meaning(role, key, table[key])
    return Tuned(**table)  # type: ignore[arg-type]  # each value is checked when made


def _check_meaning(role: str, name: str, value: object) -> None:
    """Only experts have a route scale; norms and biases have no init std and are not decayed."""
    idle = {"route_scale": role != Role.EXPERT_DOWN, "init_std": role in VECTOR_ROLES}.get(name, False)
    if (idle and value is not None) or (name == "weight_decay" and role in VECTOR_ROLES and value):
        raise ShapeError(
            f"{name} = {value!r} has no meaning for {role}: leave it out",
            field=name,
            given=value,
            remedy="leave it out",
        )
