"""transfer(reference, shape, budget) -> Plan: the rule table times the ratios, role by role."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import get_args

from complete_mue.errors import TransferError, one_of
from complete_mue.layout.notation import FeedForward
from complete_mue.layout.reference import Hyper, Reference
from complete_mue.layout.shape import Budget, ModelShape
from complete_mue.layout.tensors import FEED_FORWARD_ROLES, Role, block_roles
from complete_mue.plan.fold import because
from complete_mue.plan.plan import Betas, Plan
from complete_mue.plan.row import Factors, Multiplier, Row
from complete_mue.rules.batch_duration import BATCH_LR, transfer_beta
from complete_mue.rules.catalog import DEFAULT_RULES, Rules
from complete_mue.rules.layer_table import COLUMNS
from complete_mue.rules.ratios import Ratios, fan_in, symbols
from complete_mue.rules.sde import sde_report


def transfer(
    reference: Reference,
    shape: ModelShape,
    budget: Budget | None = None,
    *,
    rules: Rules | str = DEFAULT_RULES,
    betas: Betas = "transfer",
) -> Plan:
    """The target's hyperparameters from the reference's.

    ``budget`` defaults to the reference's. ``betas="hold"`` keeps the reference's betas where the rule would push
    1 - beta to 1 or beyond.
    """
    if not isinstance(reference, Reference) or not isinstance(shape, ModelShape):
        given = type(shape if isinstance(reference, Reference) else reference).__name__
        raise TransferError(
            f"a {given} where a Reference and then a ModelShape belong; read_target gives a shape and a budget: "
            "transfer(reference, *read_target(path))"
        )
    rules, budget = Rules.named(rules), reference.budget if budget is None else budget
    if not isinstance(budget, Budget):
        raise TransferError(f"budget = {budget!r}: give a Budget", field="budget", given=budget)
    one_of("betas", betas, get_args(Betas), TransferError)
    _check_one_layout(reference.shape, rules)
    ratios = Ratios.between(reference, shape, budget)
    hyper = _global(reference.hyper, ratios, rules, betas)
    kinds = {shape.label(kind): kind for kind in shape.kinds}
    row = partial(_row, reference, shape, ratios, rules)
    rows = [row(role, "", shape.main) for role in Role if role not in FEED_FORWARD_ROLES]
    rows += [row(role, label, kind) for label, kind in kinds.items() for role in block_roles(kind)]
    missing = sorted(FEED_FORWARD_ROLES - {one.role for one in rows})
    order = list(Role)
    return Plan(
        reference=reference,
        shape=shape,
        budget=budget,
        rules=rules,
        betas=betas,
        ratios=ratios,
        hyper=hyper,
        rows=tuple(sorted(rows, key=lambda one: order.index(one.role))),
        absent=tuple(row(role, shape.label(shape.main), shape.main) for role in missing),
        sde=sde_report(reference, shape, ratios, hyper),
    )


def _check_one_layout(shape: ModelShape, rules: Rules) -> None:
    """A reference has one setting per role, so what the rules count from must be one number for all layers."""
    counted: dict[str, set[float]] = {}
    for role, rule in rules.table.items():
        counts = {symbol for column in COLUMNS for symbol, _ in getattr(rule, column).powers}
        if "S" in counts:
            counted["experts per active one"] = {kind.experts / kind.active for kind in shape.kinds if kind.groups}
        if "f" in counts:
            kinds = [shape.main, *(kind for kind in shape.kinds if role in block_roles(kind))]
            counted[f"inputs to a {role.value}"] = {fan_in(kind, role, shape.width) for kind in kinds}
    for what, numbers in counted.items():
        if len(numbers) > 1:
            found = " and ".join(f"{number:g}" for number in sorted(numbers))
            raise TransferError(
                f"the reference's layers have {found} {what}, and the rules {rules.name} count from one number: "
                "use one layout for all routed layers"
            )


def _global(hyper: Hyper, ratios: Ratios, rules: Rules, betas: Betas) -> Hyper:
    if not rules.scales_schedule:
        return hyper
    s = ratios.schedule
    lr = hyper.lr * (ratios.batch ** float(BATCH_LR) if rules.duration == "fixed" else s)
    scaled = replace(hyper, lr=lr, weight_decay=hyper.weight_decay * s, eps=hyper.eps / s)
    if betas == "hold":
        return scaled
    beta1, beta2 = (
        transfer_beta(name, beta, ratios.steps) for name, beta in zip(("beta1", "beta2"), hyper.betas, strict=True)
    )
    return replace(scaled, betas=(beta1, beta2))


def _row(
    reference: Reference,
    shape: ModelShape,
    ratios: Ratios,
    rules: Rules,
    role: Role,
    block: str,
    kind: FeedForward,
) -> Row:
    rule, base = rules.table[role], reference.base(role)
    values = {**symbols(reference, shape, ratios, kind, role), "F": rules.forward_factor}
    factors = Factors(**{column: getattr(rule, column).evaluate(values) for column in COLUMNS})
    return Row(
        role=role,
        block=block,
        forward=Multiplier(
            output=base.output * factors.output,
            route_scale=base.route_scale * factors.route_scale,
            residual=base.residual * factors.residual,
        ),
        folded=Multiplier(),
        init_std=None if base.init_std is None else base.init_std * factors.init_std,
        lr=base.lr * factors.lr,
        weight_decay=base.weight_decay * factors.weight_decay,
        eps=base.eps * factors.eps,
        factors=factors,
        because=because(rule),
    )
