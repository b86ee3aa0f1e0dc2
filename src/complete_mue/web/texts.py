"""A plan as files to take away: other trainers' configs, JSON, CSV, Python, and the two files of `mue plan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from complete_mue.errors import nearest
from complete_mue.export import export
from complete_mue.plan.plan import Plan
from complete_mue.plan.render import to_csv
from complete_mue.web.fields import FieldError, File, Specs
from complete_mue.web.snippet import python_of

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
    if name not in NAMES:
        raise FieldError(f"no text {name!r:.80}{nearest(name, NAMES)}; there are {', '.join(NAMES)}")
    return specs.files[NAMES.index(name) - len(TEXTS)]
