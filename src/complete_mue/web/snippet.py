"""A transfer as Python that makes the same plan again."""

from __future__ import annotations

from itertools import groupby

from complete_mue.layout.notation import FeedForward
from complete_mue.layout.shape import Budget, ModelShape
from complete_mue.plan.plan import Plan
from complete_mue.rules import DEFAULT_RULES


def python_of(plan: Plan) -> str:
    """A script of a few lines; it prints the table."""
    h, options = plan.reference.hyper, ""
    if plan.rules.name != DEFAULT_RULES:
        options += f', rules="{plan.rules.name}"'
    if plan.betas != "transfer":
        options += f', betas="{plan.betas}"'
    route_scale = plan.reference.route_scale
    scale = "" if route_scale is None else f"    route_scale={route_scale!r},\n"
    return (
        "import complete_mue as mue\n\n"
        "reference = mue.Reference(\n"
        f"    shape={_shape(plan.reference.shape, '    ')},\n"
        f"    budget={_budget(plan.reference.budget)},\n"
        f"    hyper=mue.Hyper(lr={h.lr!r}, weight_decay={h.weight_decay!r}, init_std={h.init_std!r}, "
        f"betas={h.betas!r}, eps={h.eps!r}),\n{scale}"
        ")\n"
        f"target = {_shape(plan.shape)}\n"
        f"plan = mue.transfer(reference, target, {_budget(plan.budget)}{options})\n"
        "print(plan)\n"
    )


def _shape(shape: ModelShape, indent: str = "") -> str:
    given = [f"width={shape.width}", f"depth={shape.depth}", f"feed_forward={_blocks(shape.feed_forward)}"]
    given += [f"dense_layers={shape.dense_layers}"] if shape.dense_layers else []
    given += [f"head_dim={shape.head_dim}"] if shape.head_dim is not None else []
    one_line = f"mue.ModelShape({', '.join(given)})"
    if len(one_line) <= 80:
        return one_line
    inner = ",\n".join(f"{indent}    {argument}" for argument in given)
    return f"mue.ModelShape(\n{inner},\n{indent})"


def _blocks(blocks: FeedForward | tuple[FeedForward, ...]) -> str:
    """One block for all layers, or the runs of equal ones."""
    if isinstance(blocks, FeedForward):
        return _block(blocks)
    return " + ".join(f"{len([*run])} * ({_block(block)},)" for block, run in groupby(blocks))


def _block(block: FeedForward) -> str:
    if block.is_dense and len(block.branches) == 1:
        return f"mue.FeedForward.dense({block.branches[0]})"
    short = str(block)
    width = "" if "@" in short else f", expert_width={block.expert_width}"
    return f'mue.FeedForward.parse("{short}"{width})'


def _budget(budget: Budget) -> str:
    return f"mue.Budget(batch_tokens={budget.batch_tokens}, steps={budget.steps})"
