"""A plan as the configuration of another trainer: one self-contained text per tool.

``export(plan, "torchtitan")`` and the like. Everything is in folded form, except a multiplier that the tool has of its
own: there the native field is used, and the text says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from complete_mue.errors import TransferError, one_of
from complete_mue.export import deepspeed, hf, megatron, torchtitan
from complete_mue.plan.plan import Plan

__all__ = ["EXPORTS", "export"]

# How a plan is written for each tool.
EXPORTS: Mapping[str, Callable[[Plan], str]] = {
    module.NAME: module.render for module in (torchtitan, megatron, deepspeed, hf)
}


def export(plan: Plan, tool: str) -> str:
    """The plan as one self-contained text for a tool: a Python module or JSON, the same text for the same plan."""
    one_of("export", tool, EXPORTS, TransferError)
    return EXPORTS[tool](plan)
