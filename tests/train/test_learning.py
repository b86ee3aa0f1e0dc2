"""The tiny recipes learn: far below what a model that ignores its input could reach."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from quick import quick

torch = pytest.importorskip("torch")

from complete_mue.lab.recipes import recipe  # noqa: E402
from complete_mue.lab.train.config import RunConfig, override  # noqa: E402
from complete_mue.lab.train.loop import train  # noqa: E402
from complete_mue.lab.train.task import build  # noqa: E402


def unigram_entropy(config: RunConfig) -> float:
    """Loss of the best predictor that knows no context, in nats: bytes by their frequency."""
    batch = build(config).batch
    counts = torch.stack([batch(step)[0][:, 1:].flatten().bincount(minlength=257) for step in range(20)]).sum(0)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * shares.log()).sum())


def trivial_velocity_losses(config: RunConfig) -> tuple[float, float]:
    """Loss of the best constant velocity, and of the best one that is linear in x_t and knows t but no neighbour.

    With pixels of variance s^2 about their mean and noise of variance 1 these are 1 + s^2 and, integrated over t,
    the variance of x_1 - x_0 given x_t: s pi / 2.
    """
    batch = build(config).batch
    velocities = torch.cat([batch(step)[3] for step in range(20)])
    constant = float((velocities - velocities.mean(0)).square().mean())
    return constant, math.sqrt(constant - 1) * math.pi / 2


def test_the_trivial_losses_are_what_the_formulas_say() -> None:
    config = recipe("dit_tiny")
    constant, linear = trivial_velocity_losses(config)
    x, t, _, velocity = (torch.cat(parts) for parts in zip(*map(build(config).batch, range(20)), strict=True))
    assert float((velocity - velocity.mean(0)).square().mean()) == pytest.approx(constant)
    errors = []
    for low in torch.linspace(0, 0.95, 20).tolist():  # by regression, within a twentieth of the time
        here = (t >= low) & (t < low + 0.05)
        one, other = x[here] - x[here].mean(0), velocity[here] - velocity[here].mean(0)
        slope = (one * other).mean() / one.square().mean()
        errors.append(float((other - slope * one).square().mean()))
    assert sum(errors) / 20 == pytest.approx(linear, rel=0.1)
    assert 0.5 < linear < constant


@pytest.mark.parametrize("name", quick(["lm_tiny", "dit_tiny"], "lm_tiny"))
def test_a_short_run_beats_the_trivial_predictor(name: str, tmp_path: Path) -> None:
    config = override(recipe(name), "budget.steps=120", "shape.depth=2", "budget.batch_tokens=512", "betas=hold")
    result = train(config, tmp_path)
    assert result.loss is not None
    bound = unigram_entropy(config) if name == "lm_tiny" else trivial_velocity_losses(config)[1]
    assert result.loss < bound


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps", "share"), [("lm_tiny:16e4a", 60, 0.9), ("dit_tiny", 100, 0.55)])
def test_the_tiny_recipes_learn(name: str, steps: int, share: float, tmp_path: Path) -> None:
    config = override(recipe(name), f"budget.steps={steps}", "betas=hold")
    result = train(config, tmp_path)
    assert result.loss is not None
    bound = unigram_entropy(config) if name.startswith("lm") else trivial_velocity_losses(config)[1]
    assert result.loss < share * bound
