"""Complete-muE: tune one small dense model once, transfer its hyperparameters to any Mixture-of-Experts layout.

    import complete_mue as mue

    reference = mue.Reference(shape=…, budget=…, hyper=…)         # the dense model that was tuned
    plan = mue.transfer(reference, target_shape, target_budget)     # exact rules, one row per role
    print(plan)

Importing this module loads no torch; what needs torch is loaded on first use.
"""

from complete_mue.errors import MueError
from complete_mue.layout import (
    Budget,
    FeedForward,
    Hyper,
    ModelShape,
    Reference,
    Role,
    RoutedGroup,
    Tuned,
    read_reference,
    read_target,
)
from complete_mue.plan import Plan, Row, transfer
from complete_mue.rules import Rules

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "FeedForward",
    "Hyper",
    "ModelShape",
    "MueError",
    "Plan",
    "Reference",
    "Role",
    "RoutedGroup",
    "Row",
    "Rules",
    "Tuned",
    "__version__",
    "read_reference",
    "read_target",
    "transfer",
]
