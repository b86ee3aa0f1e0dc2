"""Pictures from noise: the flow dx/dt = v(x, t) from t = 0 (noise) to t = 1 (data), by Heun steps.

Axes: batch, channels, (frames,) height, width.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from complete_mue.lab.models.dit import DiffusionTransformer
from complete_mue.layout.numbers import count

Velocity = Callable[[Tensor, Tensor], Tensor]


def heun(velocity: Velocity, x: Tensor, steps: int) -> Tensor:
    """x_1 from x_0 by ``steps`` Heun steps: second order, two evaluations each."""
    times = torch.linspace(0, 1, count("steps", steps) + 1, dtype=torch.float64)
    for t, after in itertools.pairwise(times):
        h = float(after - t)
        first = velocity(x, _time(t, x))
        second = velocity(x + h * first, _time(after, x))
        x = x + h / 2 * (first + second)
    return x


@torch.no_grad()
def sample(
    model: DiffusionTransformer,
    text: Tensor,
    size: tuple[int, ...],
    *,
    steps: int = 50,
    guidance: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Pictures of ``size`` for text [batch, length(, features)], with classifier-free guidance.

    ``guidance`` = 1 follows the text as trained; above 1, v = v_none + guidance (v_text - v_none).
    """
    weight = model.readout
    x = torch.randn(len(text), model.channels, *size, generator=generator).to(weight.device, weight.dtype)
    none = model.drop_text(text, torch.ones(len(text), dtype=torch.bool, device=text.device))

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        if guidance == 1:
            return model(x, t, text)
        with_text, without = model(torch.cat([x, x]), torch.cat([t, t]), torch.cat([text, none])).chunk(2)
        return without + guidance * (with_text - without)

    return heun(velocity, x, steps)


def _time(t: Tensor, x: Tensor) -> Tensor:
    return torch.full((len(x),), float(t), device=x.device, dtype=x.dtype)
