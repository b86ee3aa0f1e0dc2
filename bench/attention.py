"""Attention over short rows: one kernel each way against rotary split, torch's attention and gate.

    python bench/attention.py            # on an NVIDIA GPU; forward + backward, the two ways in turns, medians

Both ways start from the product of query, key, value and gate, and give the same numbers up to rounding
(tests/kernels/test_steps.py).
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from complete_mue.lab.kernels.steps import gated_attention
from complete_mue.lab.nn.attention import Attention
from complete_mue.lab.nn.rope import rotary_table

TOKENS, WIDTH, REPEATS, STEPS = 245_760, 128, 7, 10  # tokens in all: 15 fused runs of 16k tokens
SHAPES = ((32, 32), (64, 32), (64, 64), (128, 32), (128, 64))  # tokens of a row, head_dim

Way = Callable[[Tensor], Tensor | None]


def milliseconds(way: Way, joined: Tensor, grad: Tensor) -> float:
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


def compare(tokens: int, head_dim: int) -> tuple[float, float]:
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
        milliseconds(way, joined, grad)
    times = [[milliseconds(way, joined, grad) for way in ways] for _ in range(REPEATS)]
    plain, kernel = (statistics.median(column) for column in zip(*times, strict=True))
    return plain, kernel


def main() -> int:
    if not torch.cuda.is_available():
        print("needs an NVIDIA GPU: this torch sees none", file=sys.stderr)
        return 1
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {TOKENS:,} tokens, width {WIDTH}, bfloat16")
    print("tokens  head_dim  plain ms  one kernel ms  ratio")
    for tokens, head_dim in SHAPES:
        plain, kernel = compare(tokens, head_dim)
        print(f"{tokens:6d}  {head_dim:8d}  {plain:8.3f}  {kernel:13.3f}  {plain / kernel:5.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
