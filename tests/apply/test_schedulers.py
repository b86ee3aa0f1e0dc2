"""Schedulers that keep the groups' ratios, and those that break them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.optim import AdamW, lr_scheduler  # noqa: E402

import complete_mue as mue  # noqa: E402
from clip_rank import FAMILY, Model  # noqa: E402
from complete_mue.errors import RunError  # noqa: E402


@pytest.fixture
def groups() -> list[dict[str, Any]]:
    model = Model()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    reference = mue.Reference(
        mue.ModelShape(16, 3, mue.FeedForward.dense(32)), mue.Budget(64, 70), mue.Hyper(1e-2, 0.1, 0.05)
    )
    plan = mue.transfer(reference, mue.describe(model, FAMILY), mue.Budget(64, 50))
    return mue.param_groups(model, plan, family=FAMILY)


def warmup_stable_decay(step: int) -> float:
    return min(1.0, (step + 1) / 10, max(0.0, (100 - step) / 20))


def sequence(optimizer: Any) -> Any:
    parts = [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5), lr_scheduler.CosineAnnealingLR(optimizer, 50)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[5])


def one_cycle(optimizer: Any, **options: Any) -> Any:
    rates = [group["lr"] for group in optimizer.param_groups]
    return lr_scheduler.OneCycleLR(optimizer, rates, total_steps=50, **options)


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
    "OneCycleLR": lambda o: one_cycle(o, cycle_momentum=False),
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


def test_betas_that_move_are_refused(groups: list[dict[str, Any]]) -> None:
    optimizer = AdamW(groups)
    scheduler = one_cycle(optimizer)
    before = [group["betas"] for group in optimizer.param_groups]
    with pytest.raises(RunError, match=r"OneCycleLR changes the plan's betas: .*cycle_momentum=False"):
        mue.check_scheduler(scheduler)
    assert [group["betas"] for group in optimizer.param_groups] == before


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


def test_a_late_break_is_seen(groups: list[dict[str, Any]]) -> None:
    optimizer = AdamW(groups)
    parts = [lr_scheduler.LinearLR(optimizer, 0.1, 1, 2000), lr_scheduler.CosineAnnealingLR(optimizer, 8000, 1e-4)]
    with pytest.raises(RunError, match=r"SequentialLR .* at step 2\d\d\d"):
        mue.check_scheduler(lr_scheduler.SequentialLR(optimizer, parts, milestones=[2000]))


def test_what_is_no_scheduler_is_said(groups: list[dict[str, Any]]) -> None:
    optimizer = torch.optim.AdamW(groups)
    with pytest.raises(mue.MueError, match="AdamW where the scheduler belongs"):
        mue.check_scheduler(optimizer)
    for steps in (0, "100"):
        with pytest.raises(mue.MueError, match="steps = "):
            mue.check_scheduler(torch.optim.lr_scheduler.ConstantLR(optimizer), steps=steps)  # type: ignore[arg-type]
