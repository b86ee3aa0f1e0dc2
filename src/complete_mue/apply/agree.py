"""What a family and a config say of a model, against what the model was seen to do: a difference is an error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import nn

from complete_mue.apply.family import Family
from complete_mue.apply.probe import Seen
from complete_mue.apply.seen_routing import count_experts, own_fields
from complete_mue.errors import BindError
from complete_mue.layout import TensorSpec
from complete_mue.plan.plan import Plan

_REBUILD = "modules keep what the config said when they were built: set it before, and build the model again"
_ACTIVE_FIELD = "num_experts_per_tok"


def factor_of(config: Any, given: str | float) -> float | None:
    """A native factor: a number, or ``field``, ``1/field``, ``field**0.5`` of a config; None where it has no such."""
    if not isinstance(given, str):
        return float(given)
    name = field_of(given)
    value = getattr(config, name, None)
    if value is None:
        return None
    if not float(value) > 0:
        raise BindError(f"config.{name} = {value}: give a number above 0")
    number = float(value) ** 0.5 if given.endswith("**0.5") else float(value)
    return 1 / number if given.startswith("1/") else number


def field_of(given: str) -> str:
    """The config field that a native factor is read from."""
    return given.removeprefix("1/").removesuffix("**0.5")


def says_active(model: nn.Module, family: Family, layer: int) -> int | None:
    """Activated experts of a layer as the family and config say; a list has one number per layer."""
    value: object = family.active
    if isinstance(value, str):
        value = getattr(getattr(model, "config", None), value, None)
    if isinstance(value, list | tuple):
        value = value[layer] if layer < len(value) else None
    return value if isinstance(value, int) and value > 0 else None


def says_normalized(model: nn.Module, family: Family) -> bool:
    """Whether, by family and config, routing weights sum to one."""
    if isinstance(family.normalized, bool):
        return family.normalized
    return bool(getattr(getattr(model, "config", None), family.normalized, False))


def normalized(module: nn.Module, inputs: Any, output: Any) -> Any:
    """A forward hook for routers that return (logits, weights, index): weights are divided by their sum."""
    logits, weights, index = output
    return logits, weights / weights.sum(-1, keepdim=True), index


def is_normalizing(model: nn.Module) -> bool:
    """Whether ``normalize_routing`` was called on this model."""
    return any(hook is normalized for module in model.modules() for hook in module._forward_hooks.values())


def check_agreement(model: nn.Module, family: Family, specs: Sequence[TensorSpec], seen: Seen) -> None:
    """Refuse a model that does not do what its family and config say, with both named."""
    _check_active(model, family, seen)
    _check_normalized(model, family, specs, seen)
    _check_kept(model, family)
    for spec in specs:
        _check_factor(family, spec, seen)
        if spec.name in seen.shifts:
            raise BindError(
                f"{spec.name!r}: the norm adds it, but family {family.name!r} gives it a gain's role "
                f"({spec.role.value}), which starts at 1: give it the role `bias`"
            )
        offset = seen.gain_offsets.get(spec.name, spec.gain_offset)
        if offset != spec.gain_offset:
            does, says = (f"{'1 + w' if one else 'w'}" for one in (offset, spec.gain_offset))
            raise BindError(
                f"{spec.name!r}: the norm multiplies by {does}, but family {family.name!r} says {says}: "
                + ("write `1+w` in the fifth column of its line" if offset else "leave `1+w` out of its line")
            )


def _check_active(model: nn.Module, family: Family, seen: Seen) -> None:
    own = isinstance(family.active, int)  # a family with a number of its own has a router that does not ask the config
    for layer, routing in seen.routing.items():
        said, does = says_active(model, family, layer), routing.active
        if None not in (said, does) and said != does and not (own and seen.how != "forward"):
            source = f"family {family.name!r}, active" if own else f"config.{family.active}"
            raise BindError(f"layer {layer}: {source} = {said}, but {_taken(does)}: {_REBUILD}")
        config = getattr(getattr(model, "config", None), _ACTIVE_FIELD, None)
        if own and said is not None and isinstance(config, int) and config != said:
            raise BindError(f"layer {layer}: config.{_ACTIVE_FIELD} = {config}, but {_taken(said)}: set it to that")


def _taken(active: int | None) -> str:
    return f"the model's router takes {active} experts for each token"


def _check_normalized(model: nn.Module, family: Family, specs: Sequence[TensorSpec], seen: Seen) -> None:
    says = says_normalized(model, family)
    field = family.normalized if isinstance(family.normalized, str) else ""
    source = f"config.{field} = {says}" if field else f"family {family.name!r} says normalized={says}"
    for layer, routing in seen.routing.items():
        if routing.normalized is None or routing.normalized == says or is_normalizing(model):
            continue
        if says:
            does = "differ from token to token"
            if routing.sums is not None:
                does = f"sum to {routing.sums[0]:.4g} for one token and to {routing.sums[1]:.4g} for another"
            raise BindError(f"layer {layer}: {source}, but the routing weights {does}: {_REBUILD}")
        said = isinstance(getattr(getattr(model, "config", None), field, None), bool) if field else False
        if said and routing.active != count_experts(model, specs, layer):  # all experts together sum to one anyway
            raise BindError(f"layer {layer}: {source}, but the routing weights sum to one: {_REBUILD}")


def _check_kept(model: nn.Module, family: Family) -> None:
    """A field of the config that modules have a copy of: both must say the same."""
    config = getattr(model, "config", None)
    names = [field_of(given) for given in family.native.values() if isinstance(given, str)]
    names += [field for field in (family.normalized, family.active) if isinstance(field, str)]
    for name in dict.fromkeys(names):
        said = getattr(config, name, None)
        if not isinstance(said, bool | int | float):
            continue
        for where, kept in own_fields(model, name):
            if not math.isclose(kept, said, rel_tol=1e-6):
                raise BindError(f"config.{name} = {said}, but {where} keeps {kept}: {_REBUILD}")


def _check_factor(family: Family, spec: TensorSpec, seen: Seen) -> None:
    does = seen.factors.get(spec.name)
    if does is None or math.isclose(does, spec.multiplier, rel_tol=max(0.01, 3 * seen.errors[spec.name])):
        return
    given = family.native_of(spec)
    source = f"config.{field_of(given)}" if isinstance(given, str) else f"family {family.name!r}"
    raise BindError(
        f"{spec.name!r}: the forward multiplies its product by {does:.6g}, but {source} says {spec.multiplier:.6g}: "
        f"say so in the family (native={{{spec.role.value!r}: …}}, a config field or a number), or build the model "
        "again where the config was changed"
    )


# -- attention -----------------------------------------------------------------------------------------------------
# transformers' attention modules say the size of heads (``head_dim``; latent attention: ``qk_head_dim``) and the factor
# on logits (``scaling``). Where heads grow with the width the rules ask for sqrt(head_dim*) / head_dim, which no
# optimizer group can stand in for; so the model itself must be told.


def head_size(model: nn.Module) -> int | None:
    """The one size of all attention heads, where the model's modules say it."""
    sizes = {_size(module) for module in _attentions(model)}
    return sizes.pop() if len(sizes) == 1 else None


def check_attention_scale(model: nn.Module, plan: Plan) -> None:
    """Refuse a stock model whose attention logits are not scaled as the plan says.

    Where the plan leaves it open, as with a reference that does not name its head size, heads are of fixed size: their
    logits are divided by the root of it.
    """
    for module in _attentions(model):
        size = _size(module)
        before = plan.reference.shape.head_dim if plan.reference.attention_scale else None
        wanted = plan.attention_scale or plan.attention_scale_of(size, before or size)
        if not math.isclose(float(module.scaling), wanted, rel_tol=1e-6):
            theirs = plan.reference.shape.head_dim or "the same size"
            raise BindError(
                f"the model multiplies attention logits by {module.scaling:.6g}, the plan by {wanted:.6g} (heads of "
                f"{size}, the reference's of {theirs}): set `module.scaling = {wanted!r}` on every attention module "
                "(Granite: config.attention_multiplier, Gemma: config.query_pre_attn_scalar, before the model is "
                "built), or keep the reference's head size"
            )


def _size(module: nn.Module) -> int:
    size = getattr(module, "qk_head_dim", None)
    return int(size if isinstance(size, int) else module.head_dim)


def _attentions(model: nn.Module) -> list[nn.Module]:
    return [
        module
        for module in model.modules()
        if isinstance(getattr(module, "scaling", None), float)
        and any(isinstance(getattr(module, name, None), int) for name in ("qk_head_dim", "head_dim"))
    ]
