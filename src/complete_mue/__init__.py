"""Complete-muE: tune one small dense model once, transfer its hyperparameters to any Mixture-of-Experts layout.

    import complete_mue as mue

    reference = mue.Reference(shape=…, budget=…, hyper=…)         # the dense model that was tuned
    plan = mue.transfer(reference, target_shape, target_budget)     # exact rules, one row per role
    print(plan)

Importing this module loads no torch; what needs torch is loaded on first use.
"""

from typing import TYPE_CHECKING

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
from complete_mue.layout.axes import Point
from complete_mue.plan import Plan, Row, transfer
from complete_mue.rules import Rules, register_rules

__version__ = "0.1.0"

# What needs torch, and where it lives; loaded on first use.
_LAZY = {
    "Family": "complete_mue.apply.family",
    "Setup": "complete_mue.apply.setup",
    "check": "complete_mue.apply.checks",
    "check_scheduler": "complete_mue.apply.optim",
    "clip_grad_norm_": "complete_mue.apply.optim",
    "describe": "complete_mue.apply.bind",
    "initialize": "complete_mue.apply.initialize",
    "normalize_routing": "complete_mue.apply.bind",
    "param_groups": "complete_mue.apply.optim",
}
if TYPE_CHECKING:
    from complete_mue.apply.bind import describe, normalize_routing
    from complete_mue.apply.checks import check
    from complete_mue.apply.family import Family
    from complete_mue.apply.initialize import initialize
    from complete_mue.apply.optim import check_scheduler, clip_grad_norm_, param_groups
    from complete_mue.apply.setup import Setup


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'complete_mue' has no attribute {name!r}")
    import importlib

    try:
        module = importlib.import_module(_LAZY[name])
    except ModuleNotFoundError as problem:
        if problem.name != "torch":
            raise
        raise MueError(f"mue.{name} needs torch: install it with `pip install 'complete-mue[torch]'`") from None
    return getattr(module, name)


__all__ = [
    "Budget",
    "Family",
    "FeedForward",
    "Hyper",
    "ModelShape",
    "MueError",
    "Plan",
    "Point",
    "Reference",
    "Role",
    "RoutedGroup",
    "Row",
    "Rules",
    "Setup",
    "Tuned",
    "__version__",
    "check",
    "check_scheduler",
    "clip_grad_norm_",
    "describe",
    "initialize",
    "normalize_routing",
    "param_groups",
    "read_reference",
    "read_target",
    "register_rules",
    "transfer",
]


def __dir__() -> list[str]:
    return __all__
