"""The small Triton kernels around attention and routing, against plain torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from complete_mue.lab.kernels.steps import gated_attention, split_rotated, top_experts
from complete_mue.lab.nn.rope import rotary_table, rotate

on_gpu = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


def test_elsewhere_the_caller_takes_the_plain_way() -> None:
    table = rotary_table(torch.arange(3), 8)
    assert top_experts(torch.randn(3, 4), 2) is None
    assert split_rotated(torch.randn(1, 3, 64), *table) is None
    assert gated_attention(torch.randn(1, 3, 64).bfloat16(), *table, 0.5, True) is None


@pytest.mark.parametrize(("rows", "experts", "active"), [(37, 5, 2), (5000, 64, 8), (7, 256, 8), (9, 3, 3), (4, 1, 1)])
class TestTopExperts:
    pytestmark = on_gpu

    def test_as_torch_finds_them(self, rows: int, experts: int, active: int) -> None:
        score = torch.randn(2, rows, experts, device="cuda")
        got = top_experts(score, active)
        assert got is not None
        assert torch.equal(score.gather(-1, got), score.topk(active).values)  # equal scores may come in any order

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


def plain_attention(joined: Tensor, cos: Tensor, sin: Tensor, scale: float, causal: bool) -> Tensor:
    query, key, value, gate = plain(joined, cos.to(joined.dtype), sin.to(joined.dtype))
    query, key, value = (part.transpose(-2, -3) for part in (query, key, value))
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale).transpose(-2, -3)
    return (mixed * gate.sigmoid()).flatten(-2)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("lead", "tokens", "heads", "head_dim"),
    [((3, 20), 64, 4, 32), ((5,), 128, 2, 64), ((4,), 17, 3, 20), ((2,), 100, 1, 32), ((3,), 1, 2, 8)],
)
class TestGatedAttention:
    pytestmark = on_gpu

    def test_as_exact_as_the_plain_way(
        self, lead: tuple[int, ...], tokens: int, heads: int, head_dim: int, causal: bool
    ) -> None:
        torch.manual_seed(0)
        cos, sin = (t.bfloat16().cuda() for t in rotary_table(torch.arange(tokens), head_dim))
        joined = torch.randn(*lead, tokens, 4 * heads * head_dim, device="cuda").bfloat16()
        grad = torch.randn(*lead, tokens, heads * head_dim, device="cuda").bfloat16()
        results = []
        for way, dtype in (
            (plain_attention, torch.float64),
            (plain_attention, torch.bfloat16),
            (gated_attention, torch.bfloat16),
        ):
            leaf = joined.to(dtype, copy=True).requires_grad_()
            out = way(leaf, cos, sin, 0.2, causal)
            assert out is not None
            out.backward(grad.to(dtype))
            assert leaf.grad is not None
            results.append((out.detach().double(), leaf.grad.double()))
        for exact, plain_way, got in zip(*results, strict=True):
            assert (got - exact).norm() <= 1.1 * (plain_way - exact).norm()

    def test_a_row_without_a_number_stays_alone(
        self, lead: tuple[int, ...], tokens: int, heads: int, head_dim: int, causal: bool
    ) -> None:
        torch.manual_seed(0)
        cos, sin = (t.bfloat16().cuda() for t in rotary_table(torch.arange(tokens), head_dim))
        whole = torch.randn(*lead, tokens, 4 * heads * head_dim, device="cuda").bfloat16()
        broken = whole.clone()
        broken[-1] = float("nan")
        outs = []
        for joined in (whole, broken):
            leaf = joined.requires_grad_()
            out = torch.compile(gated_attention, fullgraph=True)(leaf, cos, sin, 0.2, causal)
            out.sum().backward()
            outs.append((out, leaf.grad))
        for good, bad in zip(*outs, strict=True):
            assert torch.equal(good[:-1], bad[:-1])
            assert bad[-1].isnan().any()
