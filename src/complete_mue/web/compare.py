"""Rule sets side by side: the same transfer by each, and where their numbers differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from complete_mue.errors import TransferError, one_of
from complete_mue.plan.plan import Plan
from complete_mue.plan.row import Row
from complete_mue.plan.transfer import transfer
from complete_mue.rules import CATALOG
from complete_mue.web.fields import FieldError

COLUMNS = ("lr", "init_std", "multiplier", "weight_decay", "eps")


def chosen(parameters: Mapping[str, str], plan: Plan) -> tuple[str, ...]:
    """The rule sets to compare: the plan's own, then those named in ``compare``, with commas."""
    names = [name.strip() for name in parameters.get("compare", "").split(",") if name.strip()]
    for name in names:
        one_of("compare", name, CATALOG, FieldError)
    return tuple(dict.fromkeys([plan.rules.name, *names]))


def compared(plan: Plan, names: tuple[str, ...]) -> dict[str, Any]:
    """Role by role the numbers of every rule set that makes a plan; ``differs`` names the columns that differ."""
    plans, refused = {plan.rules.name: plan}, {}
    for name in names[1:]:
        try:
            plans[name] = transfer(
                plan.reference, plan.shape, plan.budget, rules=replace(plan.rules, name=name), betas=plan.betas
            )
        except TransferError as problem:
            refused[name] = str(problem)
    return {
        "rules": [*plans],
        "refused": refused,
        "betas": [list(made.hyper.betas) for made in plans.values()],
        "multiplier": [_row(rows) for rows in zip(*(made.rows for made in plans.values()), strict=True)],
        "folded": [_row(rows) for rows in zip(*(made.fold().rows for made in plans.values()), strict=True)],
    }


def _row(rows: tuple[Row, ...]) -> dict[str, Any]:
    values = {column: [getattr(row, column) for row in rows] for column in COLUMNS}
    differs = [column for column, numbers in values.items() if not all(_same(numbers[0], n) for n in numbers)]
    return {"role": rows[0].role.value, "block": rows[0].block, "values": values, "differs": differs}


def _same(one: float | None, other: float | None) -> bool:
    return one is other if one is None or other is None else math.isclose(one, other, rel_tol=1e-9)
