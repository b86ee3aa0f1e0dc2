"""Correct setups of stock models pass along every axis they can make, on random tokens and on text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

import complete_mue as mue

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="stock families need transformers")

from complete_mue.apply.check_report import tables, verdict  # noqa: E402
from complete_mue.apply.checks import CheckResult  # noqa: E402
from complete_mue.layout import FeedForward  # noqa: E402
from complete_mue.layout.axes import AXES, Point, axis_points  # noqa: E402
from stock_setups import random_tokens, real_tokens, stock_setup  # noqa: E402

PLAIN = ("mixtral", "olmoe", "qwen3_moe")  # without shared experts
ALWAYS_SHARED = ("deepseek_v3", "glm4_moe")  # never without
TOKENS: dict[str, Callable[[int, int], torch.Tensor]] = {"random": random_tokens, "real": real_tokens}


def line_of(axis: str, family: str) -> list[Point]:
    """The axis's own points; with one shared expert more for families that cannot do without."""
    points = axis_points(axis, "8e2a" if family in PLAIN and axis in ("width", "depth", "batch_steps") else None)
    if family not in ALWAYS_SHARED or axis in ("width", "depth", "batch_steps"):
        return points
    if axis == "shared":
        return [point for point in points if point.shape.main.branches]
    return [replace(point, shape=_with_one_shared(point.shape)) for point in points]


def _with_one_shared(shape: mue.ModelShape) -> mue.ModelShape:
    groups = shape.main.groups
    return mue.ModelShape(
        shape.width, shape.depth, FeedForward((groups[0].expert_width,), groups), head_dim=shape.head_dim
    )


def complaints(result: CheckResult) -> list[str]:
    roles = [f"{line.axis}: {role.role}: {role.why}" for line in result.axes for role in line.roles if not role.ok]
    return roles + [str(finding) for finding in result.findings]


def assert_not_flagged(family: str, tokens: str, axes: Iterable[str]) -> None:
    build = stock_setup(family, TOKENS[tokens])
    for axis in axes:
        line = line_of(axis, family)
        ends = line[:2] if axis == "depth" else [line[0], line[-1]]  # they carry most of a slope
        result = mue.check(build, axis, points=ends, steps=2, seeds=2)
        assert result.ok, (axis, complaints(result))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mixtral", "granitemoeshared", "deepseek_v3"])
def test_a_correct_setup_is_not_flagged_along_any_axis(family: str) -> None:
    without = {"ffn_width"} | ({"shared"} if family in PLAIN else set())
    assert_not_flagged(family, "random", sorted(set(AXES) - without))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "tokens"),
    [
        ("olmoe", "random"),
        ("qwen3_moe", "random"),
        ("glm4_moe", "random"),
        ("mixtral", "real"),
        ("deepseek_v3", "real"),
    ],
)
def test_nor_are_others_or_on_text_along_the_main_axes(family: str, tokens: str) -> None:
    """Their groups do what those of the families above do: ``test_folding`` shows it for each."""
    assert_not_flagged(family, tokens, ["width", "depth", "activated"])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("tokens", TOKENS)
def test_a_dense_stock_model_is_not_flagged_along_its_width_inside(tokens: str, family: str) -> None:
    result = mue.check(stock_setup(family, TOKENS[tokens]), "ffn_width", seeds=2)
    assert result.ok, complaints(result)
    assert abs(slopes_of(result, "dense_down").size_slope) < 0.15


def slopes_of(result: CheckResult, role: str) -> Any:
    return next(one for one in result.axes[0].roles if one.role == role)


@pytest.mark.slow
def test_noise_is_not_blamed_on_the_setup_and_text_can_be_judged() -> None:
    line = axis_points("width", "8e2a")
    noise = mue.check(stock_setup("mixtral", random_tokens), "width", points=line, seeds=1)
    assert noise.ok, complaints(noise)
    unsure = noise.axes[0].unsure
    assert unsure
    assert all(role.change_slope == pytest.approx(role.formula_slope, abs=0.1) for role in unsure)
    assert "cannot tell along width" in verdict(noise)
    assert any(str(part).startswith("cannot tell: ") for part in tables(noise))
    text = mue.check(stock_setup("mixtral", None), "width", points=line, seeds=1)
    assert text.ok, complaints(text)
    assert not text.axes[0].unsure, [role.why for role in text.axes[0].unsure]


def test_a_mistake_is_seen_on_noise_too() -> None:
    right = stock_setup("mixtral", random_tokens)

    def wrong(plan: mue.Plan) -> mue.Setup:
        setup = right(plan)
        groups = [{**group, "lr": plan.hyper.lr} for group in setup.optimizer.param_groups]
        return replace(setup, optimizer=torch.optim.AdamW(groups))

    line = [replace(point, budget=mue.Budget(256, 100)) for point in axis_points("width", "8e2a")[:2]]
    result = mue.check(wrong, "width", points=line, steps=2, seeds=1)
    assert {"attention_in", "expert_up"} <= {role.role for role in result.axes[0].roles if not role.ok}


def test_shared_experts_that_stand_apart_belong_to_the_branch() -> None:
    """Granite adds its shared expert beside the routed ones: each alone shrinks along the axis, their sum does not."""
    result = mue.check(stock_setup("granitemoeshared", None), "shared", steps=1, seeds=1)
    assert abs(slopes_of(result, "expert_down").size_slope) < 0.15
    assert result.ok, complaints(result)


def test_a_shared_expert_among_more_and_more_routed_ones_may_shrink() -> None:
    result = mue.check(
        stock_setup("glm4_moe", None), "activated", points=line_of("activated", "glm4_moe")[::3], steps=1, seeds=1
    )
    assert abs(slopes_of(result, "shared_down").size_slope) < 0.15
    assert result.ok, complaints(result)
