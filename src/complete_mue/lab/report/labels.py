"""Names and counts as people read them."""

from __future__ import annotations

import re

from complete_mue.lab.records.schema import TASKS as TASKS
from complete_mue.tabular import escaped

LABELS = {
    "lr": "learning rate", "weight_decay": "weight decay", "init_std": "init std",
    "lr_same_decay": "learning rate at the same decay",
}  # fmt: skip
UNITS = {"lm": "nats", "dit": "in loss"}  # of a loss: cross-entropy, or the flow-matching error


def label(hyper: str) -> str:
    """A hyperparameter in words, after the roles that it is of."""
    roles, _, name = hyper.rpartition(".")
    return f"{roles} {LABELS.get(name, name)}".strip()


def with_unit(what: str, unit: str) -> str:
    """``final loss (nats)``; a loss without a unit of its own goes without."""
    return f"{what} ({unit})" if unit == "nats" else what


def code(text: str) -> str:
    """A command in Markdown; one that could end its own quotes is written as HTML."""
    return f"<code>{escaped(text)}</code>" if re.search(r"[`<\s]", text.replace(" ", "")) else f"`{text}`"
