"""A plan as files to take away: other trainers' configs, JSON, CSV, Python, and the two files of `mue plan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby

from complete_mue.errors import one_of
from complete_mue.export import export
from complete_mue.layout.notation import FeedForward
from complete_mue.layout.shape import Budget, ModelShape
from complete_mue.plan.plan import Plan
from complete_mue.plan.render import to_csv
from complete_mue.rules import DEFAULT_RULES
from complete_mue.web.fields import FieldError, File, Specs


def python_of(plan: Plan) -> str:
    """The transfer as a script of a few lines, which makes the same plan again and prints it."""
    h, options = plan.reference.hyper, ""
    if plan.rules.duration != "scaled":
        options += f', rules=mue.Rules("{plan.rules.name}", duration="{plan.rules.duration}")'
    elif plan.rules.name != DEFAULT_RULES:
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


TEXTS: Mapping[str, tuple[str, Callable[[Plan], str]]] = {
    "python": ("plan.py", python_of),
    "torchtitan": ("plan_torchtitan.py", lambda plan: export(plan, "torchtitan")),
    "megatron": ("plan_megatron.py", lambda plan: export(plan, "megatron")),
    "deepspeed": ("plan_deepspeed.json", lambda plan: export(plan, "deepspeed")),
    "hf": ("plan_hf.json", lambda plan: export(plan, "hf")),
    "json": ("plan.json", lambda plan: plan.to_json() + "\n"),
    "csv": ("plan.csv", to_csv),
}
NAMES = (*TEXTS, "reference", "target")


def text_of(name: str, specs: Specs, plan: Plan, *, folded: bool = False) -> File:
    """One of ``NAMES`` as a file; ``folded`` is for CSV, which holds one form of the table."""
    if name in TEXTS:
        file, render = TEXTS[name]
        return File(file, render(plan.fold() if folded and name == "csv" else plan))
    one_of("text", name, NAMES, FieldError)
    return specs.files[NAMES.index(name) - len(TEXTS)]
