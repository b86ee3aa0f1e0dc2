"""``mue bench attention``: over short rows, one kernel each way against rotary split, torch's attention and gate.

Forward + backward, the two ways in turns, medians. Both start from the product of query, key, value and gate, and give
the same numbers up to rounding (tests/kernels/test_steps.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from complete_mue.errors import RunError
from complete_mue.lab.kernels.steps import gated_attention
from complete_mue.lab.nn.attention import Attention
from complete_mue.lab.nn.rope import rotary_table

TOKENS, WIDTH, REPEATS, STEPS = 245_760, 128, 7, 10  # tokens in all: 15 fused runs of 16k tokens
SHAPES = ((32, 32), (64, 32), (64, 64), (128, 32), (128, 64))  # tokens of a row, head_dim

Way = Callable[[Tensor], Tensor | None]


@dataclass(frozen=True)
class AttentionRow:
    """Median milliseconds of one shape, both ways."""

    tokens: int
    head_dim: int
    plain_ms: float
    kernel_ms: float


def run() -> Iterator[AttentionRow]:
    """Time shape after shape, the plain way compiled."""
    if not torch.cuda.is_available():
        raise RunError("mue bench attention needs an NVIDIA GPU: this torch sees none")
    return (AttentionRow(tokens, head_dim, *_compare(tokens, head_dim)) for tokens, head_dim in SHAPES)


def _compare(tokens: int, head_dim: int) -> tuple[float, float]:
    """Median milliseconds of the plain way, compiled, and of the kernel."""
    cos, sin = (part.bfloat16().cuda() for part in rotary_table(torch.arange(tokens), head_dim))
    joined = torch.randn(TOKENS // tokens, tokens, 4 * WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn(TOKENS // tokens, tokens, WIDTH, device="cuda", dtype=torch.bfloat16)
    module = Attention(WIDTH, head_dim)
    mix = torch.compile(module.mix, dynamic=False)
    ways: tuple[Way, Way] = (
        lambda joined: mix(joined, (cos, sin), None),
        lambda joined: gated_attention(joined, cos, sin, module.scale, causal=True),
    )
    for way in ways:
        _milliseconds(way, joined, grad)
    times = [[_milliseconds(way, joined, grad) for way in ways] for _ in range(REPEATS)]
    plain, kernel = (statistics.median(column) for column in zip(*times, strict=True))
    return plain, kernel


def _milliseconds(way: Way, joined: Tensor, grad: Tensor) -> float:
    """Forward + backward."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(STEPS):
        out = way(joined)
        assert out is not None
        torch.autograd.grad(out, joined, grad)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / STEPS
