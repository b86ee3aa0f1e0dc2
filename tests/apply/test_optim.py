"""Groups any AdamW takes, clipping by the multiplier form's norm, and schedulers that keep or break the ratios."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.optim import AdamW, lr_scheduler  # noqa: E402

import complete_mue as mue  # noqa: E402
from complete_mue.apply import bind  # noqa: E402
from complete_mue.apply.optim import _norm  # noqa: E402
from complete_mue.errors import RunError  # noqa: E402

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
    assert _norm(half, [2.0, 1.0]).item() == pytest.approx(math.sqrt(4 * 1000 * half[0][0].item() ** 2 + 3), rel=1e-5)


def test_a_changed_model_is_bound_anew(model: Small, plan: mue.Plan) -> None:
    """What is remembered between calls depends on names and plan alone, never on the model's identity."""
    mue.clip_grad_norm_(model, plan, 1.0, family=FAMILY)
    model.head.weight.requires_grad_(False)
    assert "head.weight" not in [b.name for b in bind(model, plan, FAMILY)]
    model.extra = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(mue.MueError, match="'small': 'extra'"):
        mue.clip_grad_norm_(model, plan, 1.0, family=FAMILY)


# -- schedulers ----------------------------------------------------------------------------------------------------


def warmup_stable_decay(step: int) -> float:
    return min(1.0, (step + 1) / 10, max(0.0, (100 - step) / 20))


def sequence(optimizer: Any) -> Any:
    parts = [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5), lr_scheduler.CosineAnnealingLR(optimizer, 50)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[5])


MULTIPLY: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, warmup_stable_decay),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=20),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, total_iters=20),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 10),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [10, 30]),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.99),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 50),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 50),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 20),
    "SequentialLR": sequence,
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=3),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, [g["lr"] for g in o.param_groups], total_steps=50),
}
BREAK: dict[str, Callable[[Any], Any]] = {
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 50, eta_min=1e-4),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 20, eta_min=1e-4),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=50),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 1e-4, 1e-2, cycle_momentum=False),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=3, min_lr=3e-3),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(
        o, [(lambda step, i=i: 1 / (1 + i * step)) for i in range(len(o.param_groups))]
    ),
}


@pytest.mark.numeric  # once: they draw nothing
@pytest.mark.parametrize(("maker", "breaks"), [(m, False) for m in MULTIPLY] + [(m, True) for m in BREAK])
@pytest.mark.parametrize("steps_taken", [0, 7])
def test_schedulers(groups: list[dict[str, Any]], maker: str, breaks: bool, steps_taken: int) -> None:
    optimizer = AdamW(groups)
    scheduler = (BREAK if breaks else MULTIPLY)[maker](optimizer)
    for _ in range(steps_taken):
        optimizer.step()
        scheduler.step(1.0) if maker == "ReduceLROnPlateau" else scheduler.step()
    before = [dict(group) for group in optimizer.param_groups], copy.deepcopy(scheduler.state_dict())
    weights = [parameter.detach().clone() for group in groups for parameter in group["params"]]
    if breaks:
        with pytest.raises(RunError, match=rf"{maker} .*'0:"):
            mue.check_scheduler(scheduler)
    else:
        mue.check_scheduler(scheduler)
    assert ([dict(group) for group in optimizer.param_groups], plain(scheduler.state_dict())) == (
        before[0],
        plain(before[1]),
    )
    assert all(map(torch.equal, weights, (p for group in groups for p in group["params"])))
    with warnings.catch_warnings():  # and it goes on from where it was
        warnings.simplefilter("ignore")
        twin = copy.deepcopy(scheduler)
        scheduler.step(1.0) if maker == "ReduceLROnPlateau" else scheduler.step()
        twin.step(1.0) if maker == "ReduceLROnPlateau" else twin.step()
    assert [g["lr"] for g in optimizer.param_groups] == [g["lr"] for g in twin.optimizer.param_groups]


def plain(state: Any) -> Any:
    """A scheduler's state without the functions in it, which compare by identity."""
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items() if not callable(value)}
    if isinstance(state, list | tuple):
        return [plain(value) for value in state if not callable(value)]
    return state


def test_tensor_learning_rates_come_back(groups: list[dict[str, Any]]) -> None:
    for group in groups:
        group["lr"] = torch.tensor(group["lr"])
    optimizer = AdamW(groups, lr=torch.tensor(1e-3), fused=True)
    scheduler = lr_scheduler.LambdaLR(optimizer, warmup_stable_decay)
    rates = [group["lr"] for group in optimizer.param_groups]
    before = [rate.item() for rate in rates]
    mue.check_scheduler(scheduler)
    assert all(group["lr"] is rate for group, rate in zip(optimizer.param_groups, rates, strict=True))
    assert [rate.item() for rate in rates] == before


def test_only_as_far_as_asked(groups: list[dict[str, Any]]) -> None:
    optimizer = AdamW(groups)
    late = lr_scheduler.LambdaLR(
        optimizer, [(lambda step, i=i: 1.0 if step < 30 else 1.0 / (i + 1)) for i in range(len(groups))]
    )
    mue.check_scheduler(late, steps=29)
    with pytest.raises(RunError, match="at step 30"):
        mue.check_scheduler(late, steps=30)
