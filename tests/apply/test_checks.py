"""The check passes what is right along every axis, and catches each planted mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import complete_mue as mue

torch = pytest.importorskip("torch")

from complete_mue.apply.axes import AXES, axis_points, small_reference  # noqa: E402
from complete_mue.apply.bind import bind  # noqa: E402
from complete_mue.apply.check_report import tables, verdict, write  # noqa: E402
from complete_mue.apply.checks import CheckResult, slope  # noqa: E402
from complete_mue.models import LanguageModel  # noqa: E402
from complete_mue.models.setup import BYTES, language_model_setup  # noqa: E402


@pytest.mark.parametrize("axis", sorted(AXES))
def test_the_language_model_passes_along_every_axis(axis: str) -> None:
    result = mue.check(language_model_setup, axis)
    assert result.ok, verdict(result)
    (line,) = result.axes
    assert {"embedding", "attention_in", "attention_out", "readout"} <= {role.role for role in line.roles}
    if axis != "ffn_width":
        assert {"expert_up", "expert_down", "router"} <= {role.role for role in line.roles}
        assert all(1 <= point.forward_factor < 1.2 for point in line.routing)


def planted(change: Callable[[mue.Plan, mue.Setup], mue.Setup]) -> Callable[[mue.Plan], mue.Setup]:
    return lambda plan: change(plan, language_model_setup(plan))


def by_hand(plan: mue.Plan, setup: mue.Setup, **settings: Callable[[str, float], float]) -> mue.Setup:
    """An optimizer whose groups were written by hand, one parameter each, with some settings changed by role."""
    groups = []
    for b in bind(setup.model, plan):
        values = {"lr": b.row.lr, "weight_decay": b.row.weight_decay, "eps": b.row.eps}
        for name, wrong in settings.items():
            values[name] = wrong(b.spec.role.value, values[name])
        groups.append({"params": [b.parameter], "betas": plan.hyper.betas, **values})
    return replace(setup, optimizer=torch.optim.AdamW(groups))


def without_route_scale(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    for layer in setup.model.layers:
        layer.feed_forward.forward = _with(layer.feed_forward, route_scale=1.0)
    return setup


def without_output_multiplier(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    for layer in setup.model.layers:
        layer.feed_forward.forward = _with(layer.feed_forward, output=1.0)
    return setup


def _with(block: torch.nn.Module, **attributes: float) -> Callable[..., torch.Tensor]:
    """The block's forward with other multipliers than those it declares."""
    forward = type(block).forward

    def wrong(*arguments: object, **options: object) -> torch.Tensor:
        kept = {name: getattr(block, name) for name in attributes}
        for name, value in attributes.items():
            setattr(block, name, value)
        try:
            return forward(block, *arguments, **options)
        finally:
            for name, value in kept.items():
                setattr(block, name, value)

    return wrong


def wrong_fan_in(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    """Experts' up projections drawn for the wrong axis: their hidden width instead of the residual width."""
    with torch.no_grad():
        for b in bind(setup.model, plan):
            if b.spec.role.value == "expert_up":
                b.parameter.mul_((b.parameter.shape[-1] / b.parameter.shape[-2]) ** 0.5)
    return setup


def expert_lr_not_scaled(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    return by_hand(plan, setup, lr=lambda role, lr: plan.hyper.lr if role.startswith("expert") else lr)


def decay_not_scaled(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    return by_hand(plan, setup, weight_decay=lambda role, wd: plan.hyper.weight_decay if wd else 0.0)


def eps_not_scaled(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    return by_hand(plan, setup, eps=lambda role, eps: plan.hyper.eps)


def overwriting_scheduler(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        setup.optimizer, max_lr=plan.hyper.lr, total_steps=100, cycle_momentum=False
    )
    return replace(setup, scheduler=scheduler)


def wrong_betas(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    return replace(
        setup, optimizer=torch.optim.AdamW([{**g, "betas": (0.5, 0.999)} for g in setup.optimizer.param_groups])
    )


# mistake, axis on which it must show, roles whose activations must move (none: seen on the optimizer), findings
MISTAKES = [
    (without_route_scale, "active", {"expert_down"}, set()),
    (without_output_multiplier, "active", {"expert_down"}, set()),
    (without_output_multiplier, "ffn_width", {"dense_down"}, set()),
    (wrong_fan_in, "granularity", {"expert_up"}, {"init_std"}),
    (expert_lr_not_scaled, "width", {"expert_up"}, {"lr"}),
    (decay_not_scaled, "width", set(), {"weight_decay"}),
    (eps_not_scaled, "width", set(), {"eps"}),
    (overwriting_scheduler, "width", set(), {"scheduler"}),
    (wrong_betas, "width", set(), {"betas"}),
]


@pytest.mark.parametrize(
    ("mistake", "axis", "roles", "findings"), MISTAKES, ids=lambda value: getattr(value, "__name__", "")
)
def test_planted_mistakes_are_caught(
    mistake: Callable[[mue.Plan, mue.Setup], mue.Setup], axis: str, roles: set[str], findings: set[str]
) -> None:
    result = mue.check(planted(mistake), axis, steps=2)
    assert not result.ok
    moved = {role.role for line in result.axes for role in line.roles if not role.ok}
    assert roles <= moved, verdict(result)
    assert findings <= {finding.what for finding in result.findings}, [str(f) for f in result.findings]


@pytest.mark.parametrize(("rules", "axis"), [("sp", "width"), ("mup_moe", "active")])
def test_other_rules_move_where_the_theory_says(rules: str, axis: str) -> None:
    assert not mue.check(language_model_setup, axis, rules=rules, steps=2).ok


def test_a_model_without_multipliers_passes_too() -> None:
    def folded(plan: mue.Plan) -> mue.Setup:
        model = LanguageModel(plan.shape, BYTES, kernel="reference")
        mue.initialize(model, plan)
        setup = language_model_setup(plan)
        return replace(setup, model=model, optimizer=torch.optim.AdamW(mue.param_groups(model, plan)))

    one, other = mue.check(language_model_setup, "shared", steps=2), mue.check(folded, "shared", steps=2)
    assert other.ok, verdict(other)
    assert one.axes[0].roles[-1].change_slope == pytest.approx(other.axes[0].roles[-1].change_slope, abs=1e-3)


@pytest.fixture(scope="module")
def groups_check() -> CheckResult:
    return mue.check(language_model_setup, "groups", steps=2)


def test_report_files(groups_check: CheckResult, tmp_path: Path) -> None:
    data, picture = write(groups_check, tmp_path)
    read = json.loads(data.read_text())
    assert read["ok"] is True
    assert [axis["axis"] for axis in read["axes"]] == ["groups"]
    assert all(len(p["changes"]) == groups_check.steps for role in read["axes"][0]["roles"] for p in role["points"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["check.json", "check.png"]
    assert any("ok: every role" in part for part in tables(groups_check) if isinstance(part, str))


def test_points_of_ones_own() -> None:
    result = mue.check(language_model_setup, "mine", points=axis_points("groups"), reference=small_reference(), steps=1)
    assert result.axes[0].axis == "mine"
    with pytest.raises(mue.MueError, match="did you mean 'width'"):
        mue.check(language_model_setup, "widht")


def test_slope() -> None:
    assert slope([1, 2, 4], [3, 6, 12]) == pytest.approx(1)
    assert slope([1, 2, 4], [1, 0, 1]) == float("inf")
