"""Every parameter of a model to exactly one row of a plan, by qualified name.

A model is known in one of three ways: it declares its tensors itself (a method ``tensors()`` that returns TensorSpecs,
as our own models do), it is of a family in ``families.FAMILIES`` (by ``config.model_type``), or the caller hands over a
``Family``. Nothing is stored on parameters or modules.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from complete_mue.apply.agree import (
    check_agreement,
    check_attention_scale,
    factor_of,
    head_size,
    is_normalizing,
    normalized,
    says_active,
    says_normalized,
)
from complete_mue.apply.families import FAMILIES
from complete_mue.apply.family import Family, plain_name
from complete_mue.apply.observe import Declared, any_number
from complete_mue.apply.probe import Seen, look
from complete_mue.errors import BindError, nearest
from complete_mue.layout import FeedForward, ModelShape, Role, RoutedGroup, TensorSpec
from complete_mue.layout.notation import Parameters
from complete_mue.layout.tensors import FEED_FORWARD_ROLES, VECTOR_ROLES
from complete_mue.plan.fold import fold
from complete_mue.plan.plan import Plan
from complete_mue.plan.row import Multiplier, Row


@dataclass(frozen=True)
class Bound(Declared):
    """One parameter with its settings: ``row`` holds what the optimizer and the initializer use."""

    row: Row
    folded: float  # how much of the plan's multiplier went into the row; 1 where the model's forward applies it all


@dataclass(frozen=True)
class Binding:
    """All trainable parameters of a model, bound."""

    bound: tuple[Bound, ...]
    frozen: tuple[str, ...]

    def __iter__(self) -> Iterator[Bound]:
        return iter(self.bound)

    @property
    def form(self) -> str:
        """``multiplier`` if the model applies all of the plan's multipliers itself, else ``folded``."""
        return "multiplier" if all(b.folded == 1 for b in self.bound) else "folded"


def bind(model: nn.Module, plan: Plan, family: Family | None = None, *, forward: bool = True) -> Binding:
    """Bind a model's trainable parameters to a plan's rows, folding what the model does not multiply itself.

    Wrappers (torch.compile, DistributedDataParallel) are seen through: names are those of the model inside. One
    ``forward`` shows whether the model does what its config says; without it, as before weights are set, its modules'
    own fields are read.
    """
    if not isinstance(model, nn.Module):
        raise BindError(f"a {type(model).__name__} where the model belongs: give an nn.Module first, then the plan")
    if not isinstance(plan, Plan):
        raise BindError(
            f"a {type(plan).__name__} where the plan belongs: give what mue.transfer(reference, shape) made"
        )
    model = unwrapped(model)
    parameters, known = _parameters(model), family_of(model, family)
    specs = _specs(model, known, parameters)
    seen = _seen(model, known, specs, forward=forward)
    _check_routing(model, known, seen)
    said = ""
    if known is not None and any(layer.active is None for layer in seen.routing.values()):
        said = f" (k as family {known.name!r} says, active = {known.active!r}; no forward has shown it)"
    _check_shape(plan.shape, _shape_of(model, specs, known, parameters, seen), said)
    check_attention_scale(model, plan)
    specs = tuple(spec for spec in specs if parameters[spec.name].requires_grad)
    rows = _rows(plan, specs, tuple(known.fan_in_ratios.items()) if known else ())
    bound = tuple(Bound(spec, parameters[spec.name], *row) for spec, row in zip(specs, rows, strict=True))
    frozen = tuple(name for name, parameter in parameters.items() if not parameter.requires_grad)
    return Binding(_untied(bound, known), frozen)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside torch.compile and data-parallel wrappers, whose names and config we read."""
    while True:
        if isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        elif isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        else:
            return model


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    found = dict(model.named_parameters(remove_duplicate=False))
    if not any(parameter.requires_grad for parameter in found.values()):
        raise BindError(f"{type(model).__name__} has no trainable parameters: nothing to bind")
    return found


def _untied(bound: tuple[Bound, ...], family: Family | None) -> tuple[Bound, ...]:
    """Each parameter once. One parameter under two names passes only where both names ask for the same settings."""
    together: dict[int, list[Bound]] = {}
    for one in bound:
        together.setdefault(id(one.parameter), []).append(one)
    tied = [same for same in together.values() if any(_differ(same[0], other) for other in same[1:])]
    if tied:
        field = str(family.native.get(Role.READOUT, "")) if family else ""
        need = [str(other.folded) for same in tied for other in same if other.spec.role is Role.READOUT]
        own = f", or set config.{field.removeprefix('1/')} so that the model scales its logits itself" if field else ""
        raise BindError(
            f"tied weights: {'; '.join(' = '.join(one.name for one in same) for same in tied)}; one tensor cannot "
            f"follow two rules (a readout is multiplied by {need[0] if need else 'its own factor'}, "
            f"an embedding is not): untie them (tie_word_embeddings=False){own}"
        )
    return tuple(same[0] for same in together.values())


def _differ(one: Bound, other: Bound) -> bool:
    def numbers(bound: Bound) -> tuple[float, ...]:
        return bound.folded, bound.row.init_std or 0.0, bound.row.lr, bound.row.weight_decay, bound.row.eps

    return not all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(numbers(one), numbers(other), strict=True))


def tensors_of(model: nn.Module, family: Family | None = None) -> list[Declared]:
    """The model's trainable tensors with their roles and axes, in the order of its parameters."""
    model = unwrapped(model)
    parameters = _parameters(model)
    specs = _specs(model, family_of(model, family), parameters)
    return [Declared(spec, parameters[spec.name]) for spec in specs if parameters[spec.name].requires_grad]


def _specs(model: nn.Module, known: Family | None, parameters: Mapping[str, nn.Parameter]) -> tuple[TensorSpec, ...]:
    """All trainable tensors, and the frozen ones that are known, in the order of the parameters."""
    if known is None:
        specs = _declared(model, parameters)
    else:
        names = tuple(name for name, parameter in parameters.items() if parameter.requires_grad)
        frozen = tuple(name for name, parameter in parameters.items() if not parameter.requires_grad)
        specs = _matched(known, names, frozen, tuple(_native(model, known).items()))
    for spec in specs:
        dims = parameters[spec.name].dim()
        if dims != len(spec.axes):
            raise BindError(
                f"{spec.name!r} has {dims} dimensions but axes {spec.axes} are declared: declare one name per dimension"
            )
    return specs


# Names and plans do not change while a model trains: what follows from them alone is worked out once, not every step.
@lru_cache(maxsize=16)
def _matched(
    family: Family, names: tuple[str, ...], frozen: tuple[str, ...], native: tuple[tuple[str, float], ...]
) -> tuple[TensorSpec, ...]:
    return family.bind_names(names, dict(native), frozen)


def family_of(model: Any, family: Family | None = None) -> Family | None:
    """The family of a model or config; None for a model that declares its tensors itself."""
    if not isinstance(family, Family | None):
        raise BindError(
            f"family = {family!r}: give a mue.Family, such as mue.Family.define(name, table); a known one is found by "
            "config.model_type, and stands in complete_mue.apply.FAMILIES"
        )
    if family is None and callable(getattr(model, "tensors", None)):
        return None
    config = getattr(model, "config", model)
    kind = getattr(config, "model_type", None)
    family = family or FAMILIES.get(str(kind))
    if family is None:
        supported = [name for name, known in FAMILIES.items() if not known.refused]
        within = getattr(getattr(config, "text_config", None), "model_type", None)
        if within is not None:
            alone = "give its text_config, or the model that is made from that alone"
            near = nearest(str(within), supported)
            raise BindError(
                f"model_type {kind!r} is a language model ({within}) with other parts, such as an encoder of images, "
                f"for which there is no transfer rule: {alone if within in supported else f'train one alone{near}'}"
            )
        what = (
            f"model_type {kind!r}{nearest(str(kind), supported)}"
            if kind
            else f"{type(model).__name__} (no config.model_type)"
        )
        raise BindError(
            f"{what} is none of the {len(supported)} known families, which docs/apply.md names. Describe it: "
            "family=mue.Family.define(name, table), see there"
        )
    if family.refused:
        raise BindError(f"family {family.name!r} is not supported: {family.refused}")
    return family


def probe(model: nn.Module, family: Family | None = None) -> Seen:
    """What one forward of the model shows: experts per token, sums of routing weights, its own multipliers, gains.

    ``describe`` and ``param_groups`` use the same look and refuse a model that does not do what its config says.
    """
    model = unwrapped(model)
    known = family_of(model, family)
    forget(model)
    return _seen(model, known, _specs(model, known, _parameters(model)))


def _declared(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> tuple[TensorSpec, ...]:
    declared: tuple[TensorSpec, ...] = tuple(model.tensors())
    twice = [name for name, times in Counter(spec.name for spec in declared).items() if times > 1]
    by_name = {spec.name: spec for spec in declared}
    plain = {plain_name(name): name for name in parameters}
    unbound = [name for short, name in plain.items() if parameters[name].requires_grad and short not in by_name]
    idle = [name for name in by_name if name not in plain]
    if twice or unbound or idle:
        raise BindError(
            f"{type(model).__name__}.tensors() and its parameters differ: declared twice {twice}, "
            f"undeclared {unbound}, declared but absent {idle}; declare every parameter exactly once"
        )
    return tuple(
        by_name[short] if short == name else replace(by_name[short], name=name)
        for short, name in plain.items()
        if short in by_name
    )


def _native(model: nn.Module, family: Family) -> dict[str, float]:
    """What the model's forward already multiplies each role's (or line's) product with, read from its config."""
    config = getattr(model, "config", None)
    factors = {key: value for key, given in family.native.items() if (value := factor_of(config, given)) is not None}
    if family.native.get(Role.EXPERT_DOWN) == "routed_scaling_factor" and is_normalizing(model):
        factors.pop(Role.EXPERT_DOWN, None)  # the router applies that factor, and the hook behind it divides it out
    return factors


# -- what the model does -------------------------------------------------------------------------------------------


def _seen(model: nn.Module, family: Family | None, specs: tuple[TensorSpec, ...], *, forward: bool = True) -> Seen:
    """What the model does, compared with what its family and config say; one forward, kept while nothing changes."""
    if family is None:
        return Seen("declared")
    fields, rest = _state_of(model, specs)
    kept = _KEPT.get(model)
    if kept is not None and kept.rest == rest:
        changed = {key for key, value in fields.items() if key not in kept.idle and kept.fields.get(key) != value}
    else:
        kept, changed = None, set(fields)
    if kept is None or changed:
        seen = look(model, specs, forward=forward)
        if forward:
            # Fields that change while the model does what it did, such as counts of calls, are not asked again.
            idle = kept.idle | changed if kept is not None and _alike(kept.seen, seen) else frozenset()
            _KEPT[model] = _Kept(fields, rest, seen, frozenset(idle))
    else:
        seen = kept.seen
    check_agreement(model, family, specs, seen)
    return seen


@dataclass(frozen=True)
class _Kept:
    """A look, and the state of the model that it was taken in."""

    fields: dict[tuple[int, str], Any]
    rest: Any
    seen: Seen
    idle: frozenset[tuple[int, str]]  # fields that have no say


def _alike(one: Seen, other: Seen) -> bool:
    """Whether two looks show the same multipliers and routing; weights may have moved."""

    def plain(seen: Seen) -> Any:
        routing = {layer: (r.active, r.normalized) for layer, r in seen.routing.items()}
        return seen.how, routing, seen.gain_offsets, set(seen.factors)

    return plain(one) == plain(other) and all(
        math.isclose(factor, other.factors[name], rel_tol=1e-2) for name, factor in one.factors.items()
    )


_KEPT: WeakKeyDictionary[nn.Module, _Kept] = WeakKeyDictionary()


def forget(model: nn.Module) -> None:
    """Look anew next time: its weights are not what they were."""
    _KEPT.pop(model, None)


def _state_of(model: nn.Module, specs: tuple[TensorSpec, ...]) -> tuple[dict[tuple[int, str], Any], Any]:
    """What decides how a forward multiplies and routes: plain fields of modules and config; hooks and the tensors."""
    config = getattr(model, "config", None)
    holders = [*model.modules(), *([] if config is None else [config])]
    fields = {
        (id(holder), name): value
        for holder in holders
        for name, value in vars(holder).items()
        if isinstance(value, int | float | str) and name != "training"
    }
    names = frozenset(fields)
    hooks = tuple((id(module), *module._forward_hooks) for module in model.modules())
    first = next(model.parameters())
    return fields, (names, hooks, specs, first.device, first.dtype)


def _check_routing(model: nn.Module, family: Family | None, seen: Seen) -> None:
    if family is None or all(
        one.normalized if one.normalized is not None else says_normalized(model, family) or is_normalizing(model)
        for one in seen.routing.values()
    ):
        return
    switch = (
        f"set config.{family.normalized} = True before the model is built, or "
        if isinstance(family.normalized, str)
        else ""
    )
    raise BindError(
        f"family {family.name!r}: routing weights do not sum to one over the selected experts, "
        f"so the route scale has no fixed meaning; {switch}call mue.normalize_routing(model)"
    )


def normalize_routing(model: nn.Module, family: Family | None = None) -> list[Any]:
    """Hook every router so that its weights sum to one over the selected experts; returns the hooks' handles.

    For models that do not normalize themselves; a model that does is left as it is. Servers do not see hooks: prefer a
    config switch where there is one.
    """
    model = unwrapped(model)
    known = family_of(model, family)
    specs = [spec for spec in _specs(model, known, _parameters(model)) if spec.role is Role.ROUTER]
    routers = [spec.name.rpartition(".")[0] for spec in specs if spec.axes[0] == "experts"]
    if not routers:
        raise BindError(f"{type(model).__name__} has no router: nothing to normalize")
    if known is None or says_normalized(model, known) or is_normalizing(model):
        return []
    return [model.get_submodule(name).register_forward_hook(normalized) for name in dict.fromkeys(routers)]


# -- shape ---------------------------------------------------------------------------------------------------------


def describe(model: Any, family: Family | None = None) -> ModelShape:
    """The ModelShape of a model, or of a Hugging Face config (built on the meta device, so nothing is allocated).

    A model is looked at in one forward pass (``probe``): k, routing sums and its own multipliers are what it does, and
    a config that says otherwise is an error. Layers that differ are described one by one.
    """
    if not isinstance(model, nn.Module):
        if not hasattr(model, "model_type"):
            raise BindError(f"{type(model).__name__}: give an nn.Module or a Hugging Face config")
        family_of(model, family)
        model = _on_meta(model)
    model = unwrapped(model)
    known, parameters = family_of(model, family), _parameters(model)
    specs = _specs(model, known, parameters)
    shape = _shape_of(model, specs, known, parameters, _seen(model, known, specs))
    for note in shape.notes:
        warnings.warn(note, stacklevel=2)
    return shape


def _on_meta(config: Any) -> nn.Module:
    try:
        from transformers import AutoModelForCausalLM
    except ModuleNotFoundError:
        raise BindError(
            "reading a config needs transformers: install it with `pip install 'complete-mue[hf]'`, or give the model"
        ) from None
    try:
        with torch.device("meta"):
            built: nn.Module = AutoModelForCausalLM.from_config(config)
    except Exception as problem:  # whatever transformers' own code raises on a config with gaps
        raise BindError(
            f"transformers cannot build a model of this {type(config).__name__} ({type(problem).__name__}: {problem}): "
            "give every size that the model needs, such as the number of experts and head_dim"
        ) from problem
    return built


def _shape_of(
    model: nn.Module,
    specs: tuple[TensorSpec, ...],
    known: Family | None,
    parameters: Mapping[str, nn.Parameter],
    seen: Seen,
) -> ModelShape:
    """Width, depth and every layer's block: what the model declares, or what its axes show."""
    declared = getattr(model, "shape", None)
    if isinstance(declared, ModelShape):
        return declared

    def axis(spec: TensorSpec, name: str) -> int:
        if name not in spec.axes:
            raise BindError(f"{spec.name!r} has axes {spec.axes}: name one of them `{name}`, to read the shape from it")
        return parameters[spec.name].shape[spec.axes.index(name)]

    widths = {axis(spec, "width") for spec in specs if "width" in spec.axes}
    if len(widths) != 1:
        raise BindError(f"axes named `width` have sizes {sorted(widths)}: name the residual width so, and only that")
    layers: dict[int, dict[Role, list[TensorSpec]]] = {}
    for spec in specs:
        if spec.layer is not None:
            layers.setdefault(spec.layer, {}).setdefault(spec.role, []).append(spec)
    if sorted(layers) != list(range(len(layers))) or not layers:
        raise BindError(
            f"layers are numbered {sorted(layers)}: the first * of a line must be the layer's number, 0 for the first"
        )
    blocks = []
    for layer in sorted(layers):
        roles = layers[layer]
        experts = roles.get(Role.EXPERT_DOWN, [])
        parts = [roles.get(role, []) for role in (Role.ATTENTION_OUT, Role.ROUTER if experts else Role.DENSE_DOWN)]
        if all(map(_several, parts)):
            raise BindError(
                f"layer {layer} has several blocks ({parts[0][1].name!r} is in one): the first * of a line must be the "
                "layer's number; where layers have two, or one more stands beside them, give the model a ModelShape as "
                ".shape"
            )
        if experts and Role.DENSE_DOWN in roles:
            raise BindError(
                f"layer {layer} has {roles[Role.DENSE_DOWN][0].name!r} of role dense_down and experts: declare what "
                "every token takes beside experts as shared_up and shared_down"
            )
        routers = any(pattern.role is Role.ROUTER for pattern in known.patterns) if known else False
        if experts and routers and Role.ROUTER not in roles:
            raise BindError(f"layer {layer} has experts, but none of its tensors is a router: declare it")
        always = roles.get(Role.SHARED_DOWN if experts else Role.DENSE_DOWN, [])
        if not always and not experts:
            raise BindError(
                f"layer {layer} has no tensor of role dense_down or expert_down: declare its feed-forward block"
            )
        # Experts lie in one tensor per group, or one by one: then those of one width are a group.
        sizes = [(axis(spec, "experts"), axis(spec, "hidden")) for spec in experts if "experts" in spec.axes]
        singles = Counter(axis(spec, "hidden") for spec in experts if "experts" not in spec.axes)
        sizes += [(number, hidden) for hidden, number in singles.items()]
        active = _active(model, known, layer, len(sizes), seen) if sizes else 0
        groups = tuple(RoutedGroup(number, active, hidden) for number, hidden in sizes)
        # Blocks for every token are one tensor each, or lie side by side; a config may leave them out as width zero.
        stacked = [axis(spec, "experts") if "experts" in spec.axes else 1 for spec in always]
        branches = [axis(spec, "hidden") for spec, number in zip(always, stacked, strict=True) for _ in range(number)]
        blocks.append(FeedForward(tuple(filter(None, branches)), groups))
    shape = ModelShape.of_blocks(widths.pop(), blocks, head_size(model))
    return shape.counted(_weights(specs, parameters, blocks))


def _weights(
    specs: tuple[TensorSpec, ...], parameters: Mapping[str, nn.Parameter], blocks: list[FeedForward]
) -> Parameters:
    """Entries of the matrices in layers; of experts, a token's share is active."""
    active, total = Fraction(0), 0
    once = {id(parameters[spec.name]): spec for spec in specs}  # layers may share theirs
    for spec in once.values():
        if spec.layer is not None and spec.role not in VECTOR_ROLES:
            entries = parameters[spec.name].numel()
            routed = spec.role in (Role.EXPERT_UP, Role.EXPERT_DOWN)
            block = blocks[spec.layer]
            active += Fraction(entries * block.active, block.experts) if routed else entries
            total += entries
    return Parameters(int(active), total)


def _several(specs: list[TensorSpec]) -> bool:
    """Whether two of the names differ in their numbers alone, or before the first of them."""
    plain = [any_number(spec.name) for spec in specs]
    return len(set(plain)) < len(plain) or len({name.partition("*")[0] for name in plain}) > 1


def _active(model: nn.Module, family: Family | None, layer: int, groups: int, seen: Seen) -> int:
    """Activated experts of each of ``groups`` equal groups in a layer."""
    if family is None:
        raise BindError(f"{type(model).__name__} declares its tensors but no shape: give it a ModelShape as .shape")
    value = seen.routing[layer].active if layer in seen.routing else None
    value = value or says_active(model, family, layer)
    if value is None:
        raise BindError(
            f"family {family.name!r}: active = {family.active!r} gives no number of experts; "
            "give the number of activated experts, or the config field that holds it"
        )
    if value % groups:
        raise BindError(f"{value} activated experts in {groups} groups of expert tensors: each must take as many")
    return value // groups


def _check_shape(planned: ModelShape, built: ModelShape, said: str) -> None:
    # Groups and shared branches may be merged in a model; what the rules see must agree.
    def facts(shape: ModelShape) -> tuple[int, list[tuple[float, ...]]]:
        return shape.width, [(b.active_width, b.routed_width, b.experts, b.active) for b in shape.blocks]

    if facts(planned) == facts(built):
        return
    raise BindError(
        f"the plan is for {_words(planned)}, but the model is {_words(built)}{said}: "
        "make the plan for this model (shape = mue.describe(model)), or build the model that was planned"
    )


def _words(shape: ModelShape) -> str:
    kinds = ", ".join(f"{kind.with_widths} x{layers}" for kind, layers in shape.layers.items())
    return f"width {shape.width}, depth {shape.depth}, blocks {kinds}"


# -- rows ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _rows(
    plan: Plan, specs: tuple[TensorSpec, ...], fan_in_ratios: tuple[tuple[str, float], ...]
) -> tuple[tuple[Row, float], ...]:
    """For each tensor its row, folded, and how much was folded in."""
    plan = plan.unfold()
    return tuple(_settings(plan, spec, dict(fan_in_ratios)) for spec in specs)


def _settings(plan: Plan, spec: TensorSpec, fan_in_ratios: Mapping[str, float]) -> tuple[Row, float]:
    row = _row(plan, spec.role, spec.layer)
    if spec.fan_in is not None and spec.fan_in in fan_in_ratios:
        row = _with_fan_in(plan, row, fan_in_ratios[spec.fan_in] / plan.ratios.width)
    forward = row.forward
    if spec.multiplied_as == "residual":
        forward = Multiplier(residual=_row(plan, Role.ATTENTION_OUT, spec.layer).residual)
    elif spec.multiplied_as == "inner":
        forward = replace(forward, residual=1.0)
    elif spec.multiplied_as:
        forward = _row(plan, Role.parse(spec.multiplied_as), spec.layer).forward
    # What the model multiplies itself stays out of the fold; what it does not, goes into the group.
    rest = forward.total / spec.multiplier
    rest = 1.0 if math.isclose(rest, 1.0, rel_tol=1e-12) else rest  # the same factors, multiplied in another order
    row = replace(row, forward=Multiplier(output=rest))
    return (fold(row) if rest != 1 else row), rest


def _with_fan_in(plan: Plan, row: Row, ratio: float) -> Row:
    """The row of a tensor whose fan-in grew ``ratio`` times as much as the width did: by the powers of the width, which
    is its fan-in, in the rule's cells (width muP by fan-in)."""
    rule = plan.rules.table[row.role]
    std, lr, weight_decay = (
        ratio ** float(sum(power for symbol, power in cell.powers if symbol in ("d", "f")))
        for cell in (rule.init_std, rule.lr, rule.weight_decay)
    )
    found = None if row.init_std is None else row.init_std * std
    return replace(row, init_std=found, lr=row.lr * lr, weight_decay=row.weight_decay * weight_decay)


def _row(plan: Plan, role: Role, layer: int | None) -> Row:
    if role not in FEED_FORWARD_ROLES or layer is None:
        return plan.row(role)
    return plan.row(role, plan.shape.label(plan.shape.blocks[layer]))
