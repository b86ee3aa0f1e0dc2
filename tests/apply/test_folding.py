"""An unmodified stock model with folded groups trains as the same model with the plan's multipliers in its forward.

The multiplier form is built here without the library's binding: forward hooks put the plan's factors where the rules
say they stand (behind projections, behind the routed sum, behind the head), and each parameter takes its own row.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="stock families need transformers")

import complete_mue as mue  # noqa: E402
from complete_mue.apply.bind import tensors_of  # noqa: E402
from stock_families import STOCK, tiny_model, tiny_plan  # noqa: E402

pytestmark = pytest.mark.numeric

STEPS, WARMUP, MAX_NORM = 6, 2, 0.1
FAST = ["mixtral", "qwen3_moe", "qwen2_moe", "olmoe", "deepseek_v3", "glm4_moe", "gpt_oss", "granitemoe"]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in STOCK if name not in FAST]
# Routers compute in float32 whatever the model's dtype: that is the resolution at which two forms can agree.
FLOAT32 = float(torch.finfo(torch.float32).eps)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small only wait for a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Times:
    """A forward hook that multiplies a module's output."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, module: Any, inputs: Any, output: Any) -> Any:
        return self.factor * output


def multiplied(folded: Any, plan: mue.Plan, family: str) -> tuple[Any, list[dict[str, Any]], dict[str, float]]:
    """The multiplier form of a folded model: the model, its optimizer's groups, and each parameter's factor."""
    model, native = copy.deepcopy(folded), STOCK[family].native
    factors: dict[str, float] = {}
    groups = []
    for spec in (one.spec for one in tensors_of(model)):
        module, _, leaf = spec.name.rpartition(".")
        role = spec.multiplied_as if spec.multiplied_as not in ("", "residual", "inner") else spec.role.value
        factor = row(plan, role, spec.layer).multiplier / native.get(role, native.get(module.split(".")[-1], 1.0))
        if spec.multiplied_as == "inner":
            factor /= row(plan, role, spec.layer).residual
        elif spec.multiplied_as == "residual":
            factor = 1 / plan.ratios.depth
        factors[spec.name] = factor
        # A bias is multiplied with its projection, whose weight has the hook.
        if factor != 1 and not leaf.endswith("bias"):
            model.get_submodule(module).register_forward_hook(Times(factor))
        parameter = model.get_parameter(spec.name)
        added = float(spec.start == "1+w")  # such a norm's gain is 1 + w: the gain is what is multiplied
        parameter.data.add_(added).div_(factor).sub_(added)
        own = row(plan, spec.role.value, spec.layer)
        grown = plan.ratios.width if spec.fan_in == "kernel" else 1.0  # a fan-in that does not grow with the width
        groups.append(
            {"params": [parameter], "lr": own.lr * grown, "weight_decay": own.weight_decay / grown, "eps": own.eps}
        )
    return model, groups, factors


def row(plan: mue.Plan, role: str, layer: int | None) -> mue.Row:
    rows = [r for r in plan.rows if r.role.value == role]
    if len(rows) == 1 or layer is None:
        return rows[0]
    return plan.row(role, plan.shape.label(plan.shape.blocks[layer]))


def train(model: Any, optimizer: Any, clip: Callable[[], torch.Tensor]) -> tuple[list[float], list[float]]:
    """Losses, and the norms of the gradients before clipping."""
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARMUP))
    generator = torch.Generator().manual_seed(0)
    losses, norms = [], []
    for step in range(STEPS):
        tokens = torch.randint(3, 20, (2, 12), generator=generator)  # a few of the words: something to learn, no end
        torch.manual_seed(step)  # phimoe draws random numbers in training
        logits = model(input_ids=tokens).logits
        # The stock loss is taken in float32; this one keeps float64.
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norms.append(clip().item())
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses, norms


def both(family: str, clip: str = "weighted") -> tuple[list[float], list[float], float]:
    """The folded and the multiplier form's losses, and the largest difference of weights relative to their size."""
    folded = tiny_model(family).double()
    plan = tiny_plan(folded)
    mue.initialize(folded, plan)
    model, groups, factors = multiplied(folded, plan, family)
    assert len({factor for factor in factors.values() if factor != 1}) >= 3
    with torch.no_grad():
        tokens = torch.arange(3, 67).view(4, 16)
        one, other = (net.eval()(input_ids=tokens).logits for net in (folded, model))
    # Norms that multiply by 1 + w do so in float32.
    rounded = any(one.spec.start == "1+w" for one in tensors_of(folded))
    torch.testing.assert_close(one, other, rtol=1e-6, atol=8 * FLOAT32 * one.abs().max().item() if rounded else 1e-9)

    folded.train()
    model.train()
    clips: dict[str, Callable[[], torch.Tensor]] = {
        "weighted": lambda: mue.clip_grad_norm_(folded, plan, MAX_NORM),
        "plain": lambda: torch.nn.utils.clip_grad_norm_(folded.parameters(), MAX_NORM),
    }
    theirs = train(
        model,
        torch.optim.AdamW(groups, betas=plan.hyper.betas),
        lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM),
    )
    ours = train(folded, torch.optim.AdamW(mue.param_groups(folded, plan)), clips[clip])
    assert min(theirs[1]) > MAX_NORM, "clipping was not active at every step"
    if clip == "weighted":
        assert ours[1] == pytest.approx(theirs[1], rel=1e-4)
    added = {one.name: float(one.spec.start == "1+w") for one in tensors_of(folded)}
    apart = max(
        (
            (value + added[name] - factors[name] * (model.get_parameter(name) + added[name])).abs().max()
            / (value.abs().max() + added[name] + 1e-12)
        ).item()
        for name, value in folded.named_parameters()
        if value.requires_grad
    )
    return ours[0], theirs[0], apart


@pytest.mark.parametrize("family", [*FAST, *SLOW])
def test_both_forms_are_one_trajectory(family: str) -> None:
    ours, theirs, apart = both(family)
    worst = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    print(f"{family}: worst loss difference {worst:.1e}, weights {apart:.1e}, loss {theirs[0]:.3f} -> {theirs[-1]:.3f}")
    assert worst <= FLOAT32 * theirs[0]
    assert apart < 1e-5
    assert theirs[-1] < theirs[0] - 0.1


def test_plain_clipping_would_part_them() -> None:
    ours, theirs, _ = both("mixtral", clip="plain")
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) > 100 * FLOAT32 * theirs[0]
