"""What `import complete_mue as mue` offers is pinned: a change here is a change for users."""

from __future__ import annotations

import complete_mue as mue

NAMES = {
    "Budget", "FeedForward", "Hyper", "ModelShape", "MueError", "Plan", "Reference", "Role", "RoutedGroup", "Row",
    "Rules", "Tuned", "__version__", "read_reference", "read_target", "register_rules",
    "transfer",
    # these load torch on first use
    "Family", "Point", "Setup", "check", "check_scheduler", "clip_grad_norm_", "describe", "initialize",
    "normalize_routing", "param_groups",
}  # fmt: skip


def test_names() -> None:
    assert set(mue.__all__) == NAMES
    assert all(hasattr(mue, name) for name in NAMES)


def test_completion_shows_all_of_it_and_nothing_else() -> None:
    assert set(dir(mue)) == NAMES
