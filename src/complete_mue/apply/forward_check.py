"""What one forward of the initialized model shows of it, tensor by tensor, against what its plan takes for granted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from torch import nn

from complete_mue.apply.bind import Binding, tensors_of
from complete_mue.apply.family import Family
from complete_mue.apply.observe import SHOW_PRODUCTS, Observation, any_number, rms, unseen
from complete_mue.apply.optimizer_check import Finding
from complete_mue.layout import Role
from complete_mue.layout.tensors import VECTOR_ROLES
from complete_mue.plan.plan import Plan

_NORMS = (Role.NORM, Role.FINAL_NORM)


def judge_forward(binding: Binding, plan: Plan, seen: Observation) -> Iterator[Finding]:
    """Products that were not seen, norms, the scale of the embedding and of the logits, routing."""
    yield from _not_checked(binding, seen)
    yield from _norms(binding, seen)
    yield from _embedding(binding, seen)
    yield from _readout(binding, seen)
    yield from _routing(binding, plan, seen)


def _not_checked(binding: Binding, seen: Observation) -> Iterator[Finding]:
    """Nothing is known of a matrix that was never seen, so nothing may be called right."""
    advice = (
        f"was never seen in a product, so its activations and updates are not checked: {SHOW_PRODUCTS}, "
        "or freeze what the loss does not use"
    )
    for b in unseen(binding, seen):
        yield Finding("product", any_number(b.name), f"{b.spec.role.value} {advice}")


def _norms(binding: Binding, seen: Observation) -> Iterator[Finding]:
    """A norm puts out its gain: entries of size 1, or what was folded into it. A tenth is left for the norm's eps."""
    for b in binding:
        size = seen.norms.get(b.name)
        if b.spec.role in _NORMS and size is not None and not 0.9 * b.folded <= size <= 1.1 * b.folded:
            yield Finding(
                "norm",
                b.name,
                f"what it puts out has size {size:.4g}, the plan takes it for {b.folded:.4g}: start its effective gain "
                "there (a norm that multiplies by 1 + w starts at w = 0)",
            )


def _embedding(binding: Binding, seen: Observation) -> Iterator[Finding]:
    """Between the table and the first layer stands the declared factor, and nothing else."""
    tables = [b for b in binding if b.spec.role is Role.EMBEDDING]
    normed = any(b.spec.role is Role.NORM and b.spec.layer is None for b in binding)
    if len(tables) != 1 or normed or seen.first is None or not seen.saw(tables[0]):
        return
    (table,) = tables
    size = seen.products[table.name].size
    factor = seen.first / size if size else math.nan
    if not math.isclose(factor, table.spec.multiplier, rel_tol=0.02):
        yield Finding(
            "embedding",
            table.name,
            f"the first layer is given {factor:.4g} times the rows that are looked up, the plan takes it for "
            f"{table.spec.multiplier:.4g} times: take the factor out of the forward, or declare it",
        )


def _readout(binding: Binding, seen: Observation) -> Iterator[Finding]:
    """Between the readout's product and the logits, too."""
    heads = [b for b in binding if b.spec.role is Role.READOUT]
    if len(heads) != 1 or seen.logits is None or seen.logits.shape[-1] != heads[0].parameter.shape[0]:
        return
    (head,) = heads
    size = seen.products[head.name].size if seen.saw(head) else 0.0
    if size and not math.isclose(factor := rms(seen.logits) / size, head.spec.multiplier, rel_tol=0.05):
        yield Finding(
            "readout",
            head.name,
            f"logits are {factor:.4g} times its product, the plan takes them for {head.spec.multiplier:.4g} times: "
            "multiply them so, or declare what the forward does",
        )


def _routing(binding: Binding, plan: Plan, seen: Observation) -> Iterator[Finding]:
    """Every token takes as many experts as planned, with weights that sum to one (or to the model's own factor)."""
    down = {b.spec.layer: b.spec.multiplier for b in binding if b.spec.role is Role.EXPERT_DOWN}
    layers = {b.name: b.spec.layer for b in binding}
    for name, (weights, index) in seen.routing.items():
        layer = layers.get(name)
        if layer is None:
            continue
        planned, taken = plan.shape.blocks[layer].active, index.sort(-1).values
        distinct = 1 + (taken[..., 1:] != taken[..., :-1]).sum(-1)
        few, many = int(distinct.min()), int(distinct.max())
        if not few == many == planned:
            found = f"{few}" if few == many else f"{few} to {many}"
            yield Finding("routing", name, f"a token takes {found} experts, the plan says {planned}")
        elif planned == 1 and float((weights - weights.mean()).abs().max()) < 1e-6:
            yield Finding(
                "routing",
                name,
                "a token takes one expert with the same weight whatever the logits, so the loss gives the router no "
                "gradient: activate two experts or more",
            )
        sums = weights.double().sum(-1)
        low, high, own = float(sums.min()), float(sums.max()), down.get(layer, 1.0)
        if not any(math.isclose(s, low, rel_tol=0.01) and math.isclose(s, high, rel_tol=0.01) for s in (1.0, own)):
            yield Finding(
                "routing",
                name,
                f"weights over a token's experts sum to {low:.4g} to {high:.4g}, the plan takes them for 1: set the "
                "model's switch before it is built, or call mue.normalize_routing(model)",
            )


def ties(model: nn.Module, family: Family | None) -> Iterable[tuple[str, ...]]:
    """Names that share one parameter though their roles differ."""
    together: dict[int, dict[str, Role]] = {}
    for one in tensors_of(model, family):
        if one.spec.role not in VECTOR_ROLES:
            together.setdefault(id(one.parameter), {})[one.name] = one.spec.role
    return [tuple(names) for names in together.values() if len(set(names.values())) > 1]


def tied(names: tuple[str, ...]) -> Finding:
    """A tie that passes at the reference's own width alone."""
    return Finding(
        "tied",
        " = ".join(names),
        "one tensor under two roles passes at the reference's own width alone; at any other they need different "
        "settings: untie them (tie_word_embeddings=False)",
    )
