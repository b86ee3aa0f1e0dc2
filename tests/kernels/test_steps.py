"""The small Triton kernels around attention and routing, against plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from complete_mue.kernels.steps import split_rotated, top_experts
from complete_mue.nn.rope import rotary_table, rotate

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.filterwarnings("default"),
]


def test_elsewhere_the_caller_takes_the_plain_way() -> None:
    table = rotary_table(torch.arange(3), 8)
    assert top_experts(torch.randn(3, 4), 2) is None
    assert split_rotated(torch.randn(1, 3, 64), *table) is None


@pytest.mark.parametrize(("rows", "experts", "active"), [(37, 5, 2), (5000, 64, 8), (7, 256, 8), (9, 3, 3), (4, 1, 1)])
class TestTopExperts:
    pytestmark = on_gpu

    def test_as_torch_finds_them(self, rows: int, experts: int, active: int) -> None:
        score = torch.randn(2, rows, experts, device="cuda")
        got = top_experts(score, active)
        assert got is not None
        assert torch.equal(got, score.topk(active).indices)

    def test_ties_and_rows_without_a_number_give_distinct_experts(self, rows: int, experts: int, active: int) -> None:
        score = torch.zeros(rows, experts, device="cuda")
        score[1:] = float("nan")
        score[2:] = float("-inf")
        got = top_experts(score, active)
        assert got is not None
        assert (got == torch.arange(active, device="cuda")).all()


def plain(joined: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    head_dim = 2 * cos.shape[-1]
    query, key, value, gate = (part.unflatten(-1, (-1, head_dim)) for part in joined.chunk(4, dim=-1))
    return rotate(query, cos, sin), rotate(key, cos, sin), value, gate


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("lead", "tokens", "heads", "head_dim"), [((3, 2), 100, 2, 64), ((4,), 17, 3, 20)])
class TestSplitRotated:
    pytestmark = on_gpu

    def test_parts_and_gradient(
        self, lead: tuple[int, ...], tokens: int, heads: int, head_dim: int, compiled: bool
    ) -> None:
        cos, sin = (t.float().cuda() for t in rotary_table(torch.arange(tokens), head_dim))
        joined = torch.randn(*lead, tokens, 4 * heads * head_dim, device="cuda")
        split = torch.compile(split_rotated, fullgraph=True) if compiled else split_rotated
        results = []
        for way in (plain, split):
            leaf = joined.clone().requires_grad_()
            parts = way(leaf, cos, sin)
            torch.manual_seed(0)
            grads = [torch.randn_like(part).transpose(-2, -3).contiguous().transpose(-2, -3) for part in parts]
            torch.autograd.backward(parts, grads)
            results.append((*parts, leaf.grad))
        for want, got in zip(*results, strict=True):
            torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-6)
