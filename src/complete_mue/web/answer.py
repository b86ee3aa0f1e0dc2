"""All that the page shows of one plan, as plain data. Every number is `mue plan --format json`'s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from complete_mue.layout.tensors import Role
from complete_mue.plan.explain import explain
from complete_mue.plan.plan import Plan
from complete_mue.plan.transfer import transfer
from complete_mue.rules import DEFAULT_RULES, Rules
from complete_mue.web.compare import chosen, compared
from complete_mue.web.fields import Specs, read
from complete_mue.web.picture import block_svg
from complete_mue.web.texts import python_of


def planned(parameters: Mapping[str, str]) -> tuple[Specs, Plan]:
    """The plan of a filled-in form, or a ``MueError`` with the command line's text."""
    specs = read(parameters)
    duration, betas = parameters.get("duration") or "scaled", parameters.get("betas") or "transfer"
    plan = transfer(
        specs.reference,
        specs.shape,
        specs.budget,
        rules=Rules(parameters.get("rules") or DEFAULT_RULES, duration=duration),  # type: ignore[arg-type]
        betas=betas,  # type: ignore[arg-type]  # like the duration, checked when used
    )
    return specs, plan


def plan_answer(parameters: Mapping[str, str]) -> dict[str, Any]:
    """The plan, its reasons, pictures and files, and other rule sets beside it."""
    specs, plan = planned(parameters)
    folded, shape = plan.fold(), plan.reference.shape
    return {
        "plan": plan.to_dict(),
        "explain": {
            "multiplier": [explain(plan, row) for row in plan.rows],
            "folded": [explain(folded, row) for row in folded.rows],
        },
        "schedule": plan.ratios.schedule,
        "reference": {
            "notation": str(shape.main),
            "active_width": shape.active_width,
            "parameters": asdict(shape.parameters),
        },
        "layers": [
            {"notation": plan.shape.label(kind), "layers": layers} for kind, layers in plan.shape.layers.items()
        ],
        "pictures": {"reference": _reference_picture(plan), "target": _target_picture(plan)},
        "compare": compared(plan, chosen(parameters, plan)),
        "fields": specs.fields,
        "departs": specs.departs,
        "copy": {"reference": specs.files[0].text, "target": specs.files[1].text, "python": python_of(plan)},
    }


def _reference_picture(plan: Plan) -> str:
    block = plan.reference.shape.main
    base = plan.reference.base(Role.DENSE_DOWN if block.is_dense else Role.EXPERT_DOWN)
    return block_svg(block, base.output, base.route_scale, "Reference")


def _target_picture(plan: Plan) -> str:
    block = plan.shape.main
    row = plan.row(Role.DENSE_DOWN if block.is_dense else Role.EXPERT_DOWN, plan.shape.label(block))
    return block_svg(block, row.output, row.route_scale, "Target")
