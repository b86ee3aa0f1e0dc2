"""Groups any AdamW takes, and clipping by the multiplier form's norm."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.optim import AdamW  # noqa: E402

import complete_mue as mue  # noqa: E402
from complete_mue.apply import bind  # noqa: E402
from complete_mue.apply.optim import _norm  # noqa: E402

pytestmark = pytest.mark.draws

FAMILY = mue.Family.define(
    "small",
    """
    embed.weight        | embedding     | vocab width
    layers.*.qkv.weight | attention_in  | heads <width>
    layers.*.out.weight | attention_out | width <heads>
    layers.*.out.bias   | bias          | width          | attention_out
    layers.*.router     | router        | experts <width>
    layers.*.up         | expert_up     | experts hidden <width>
    layers.*.down       | expert_down   | experts width <hidden>
    norm.weight         | final_norm    | width
    head.weight         | readout       | vocab <width>
    """,
    active=2,
)


class Small(torch.nn.Module):
    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(50, 24), torch.nn.Linear(24, 50, bias=False)
        self.layers = torch.nn.ModuleList(torch.nn.Module() for _ in range(depth))
        self.norm = torch.nn.RMSNorm(24)
        for layer in self.layers:
            layer.qkv, layer.out = torch.nn.Linear(24, 72, bias=False), torch.nn.Linear(72, 24)
            layer.router = torch.nn.Parameter(torch.zeros(4, 24))
            layer.up = torch.nn.Parameter(torch.zeros(4, 20, 24))
            layer.down = torch.nn.Parameter(torch.zeros(4, 24, 20))


@pytest.fixture
def model() -> Small:
    torch.manual_seed(0)
    model = Small()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


@pytest.fixture
def plan(model: Small) -> mue.Plan:
    reference = mue.Reference(
        mue.ModelShape(16, 3, mue.FeedForward.dense(32)), mue.Budget(64, 70), mue.Hyper(1e-2, 0.1, 0.05)
    )
    return mue.transfer(reference, mue.describe(model, FAMILY), mue.Budget(64, 50))


@pytest.fixture
def groups(model: Small, plan: mue.Plan) -> list[dict[str, Any]]:
    return mue.param_groups(model, plan, family=FAMILY)


# -- groups --------------------------------------------------------------------------------------------------------


def test_each_parameter_once_with_its_rows_values(model: Small, plan: mue.Plan, groups: list[dict[str, Any]]) -> None:
    names = [name for group in groups for name in group["param_names"]]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert len({group["name"] for group in groups}) == len(groups)
    assert len({(group["lr"], group["weight_decay"], group["eps"]) for group in groups}) == len(groups)
    by_name = {name: group for group in groups for name in group["param_names"]}
    for group in groups:
        assert group["betas"] == plan.hyper.betas
        assert group["planned_lr"] == group["lr"]
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            assert parameter is model.get_parameter(name)
    down, folded = by_name["layers.1.down"], plan.fold().row("expert_down")
    assert (down["lr"], down["weight_decay"], down["eps"]) == (folded.lr, folded.weight_decay, folded.eps)
    bias, m = by_name["layers.0.out.bias"], plan.row("attention_out").multiplier
    assert bias["lr"] == pytest.approx(plan.row("bias").lr * m)
    assert bias["eps"] == pytest.approx(plan.row("bias").eps / m)
    assert bias["weight_decay"] == 0


@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"fused": True}])
def test_any_adamw_takes_them_and_reloads_them(
    model: Small, plan: mue.Plan, groups: list[dict[str, Any]], how: dict[str, bool]
) -> None:
    optimizer = AdamW(groups, **how)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    again = AdamW(mue.param_groups(model, plan, family=FAMILY), **how)
    again.load_state_dict(saved)
    for ours, theirs in zip(optimizer.param_groups, again.param_groups, strict=True):
        assert {k: v for k, v in ours.items() if k != "params"} == {k: v for k, v in theirs.items() if k != "params"}
    assert all(torch.equal(optimizer.state[p]["exp_avg"], again.state[p]["exp_avg"]) for p in model.parameters())


def test_step_sizes_are_the_groups_learning_rates(model: Small, groups: list[dict[str, Any]]) -> None:
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    AdamW([{**group, "weight_decay": 0.0, "eps": 0.0} for group in groups]).step()
    for group in groups:
        for name in group["param_names"]:
            moved = (model.get_parameter(name) - before[name]).abs()
            torch.testing.assert_close(moved, torch.full_like(moved, group["lr"]), rtol=1e-3, atol=1e-6)


# -- clipping ------------------------------------------------------------------------------------------------------


def test_the_norm_is_that_of_the_multiplier_form(model: Small, plan: mue.Plan) -> None:
    bound = list(bind(model, plan, FAMILY))
    assert any(b.folded != 1 for b in bound)
    whole = math.sqrt(sum((b.folded * b.parameter.grad).double().square().sum().item() for b in bound))
    gradients = {b.name: b.parameter.grad.clone() for b in bound}
    assert mue.clip_grad_norm_(model, plan, 1e9, family=FAMILY).item() == pytest.approx(whole, rel=1e-5)
    assert all(torch.equal(b.parameter.grad, gradients[b.name]) for b in bound)
    assert mue.clip_grad_norm_(model, plan, math.inf, family=FAMILY).item() == pytest.approx(whole, rel=1e-5)
    assert all(torch.equal(b.parameter.grad, gradients[b.name]) for b in bound)
    assert mue.clip_grad_norm_(model, plan, 0.5, family=FAMILY).item() == pytest.approx(whole, rel=1e-5)
    for b in bound:
        torch.testing.assert_close(b.parameter.grad, gradients[b.name] * (0.5 / whole), rtol=1e-5, atol=1e-9)
    assert mue.clip_grad_norm_(model, plan, 0.5, family=FAMILY).item() == pytest.approx(0.5, rel=1e-5)


def test_without_multipliers_it_is_torchs_clipping(model: Small) -> None:
    shape = mue.describe(model, FAMILY)
    same = mue.Reference(shape, mue.Budget(64, 70), mue.Hyper(1e-2, 0.1, 0.05), route_scale=1.0)
    plan, twin = mue.transfer(same, shape), copy.deepcopy(model)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        theirs.grad = ours.grad.clone()
    ours = mue.clip_grad_norm_(model, plan, 0.5, family=FAMILY)
    torch.testing.assert_close(ours, torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5), rtol=1e-5, atol=0)
    torch.testing.assert_close(model.head.weight.grad, twin.head.weight.grad, rtol=1e-5, atol=1e-9)


def test_missing_gradients_and_precision(model: Small, plan: mue.Plan) -> None:
    model.head.weight.grad = None
    assert mue.clip_grad_norm_(model, plan, 1.0, family=FAMILY) > 0
    model.zero_grad()
    assert mue.clip_grad_norm_(model, plan, 1.0, family=FAMILY) == 0
    half = [torch.full((1000,), 0.01, dtype=torch.bfloat16), torch.ones(3, dtype=torch.float64)]
    norm = _norm([(half[0], 2.0), (half[1], 1.0)])
    assert norm.item() == pytest.approx(math.sqrt(4 * 1000 * half[0][0].item() ** 2 + 3), rel=1e-5)


def test_a_changed_model_is_bound_anew(model: Small, plan: mue.Plan) -> None:
    """What is remembered between calls depends on names and plan alone, never on the model's identity."""
    mue.clip_grad_norm_(model, plan, 1.0, family=FAMILY)
    model.head.weight.requires_grad_(False)
    assert "head.weight" not in [b.name for b in bind(model, plan, FAMILY)]
    model.extra = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(mue.MueError, match="'small': 'extra'"):
        mue.clip_grad_norm_(model, plan, 1.0, family=FAMILY)
