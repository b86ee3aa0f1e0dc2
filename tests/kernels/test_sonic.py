"""SonicMoE behind the same function, in both layouts of its weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from complete_mue.lab.bench import sonic_tune
from complete_mue.lab.kernels import plain_loop, sonic
from complete_mue.lab.kernels.dispatch import unavailable
from few_tilings import few_tilings

_probe = torch.empty(1, 128, dtype=torch.bfloat16, device="cuda" if torch.cuda.is_available() else "cpu")
_reason = unavailable("sonic", _probe, _probe.new_empty(1, 16, 128))
ON_A_GPU = pytest.mark.skipif(_reason is not None, reason=str(_reason))


def test_native_interleaves_gate_and_value() -> None:
    up = torch.arange(12.0).view(1, 6, 2)
    assert sonic.native(up)[0, :, 0].tolist() == [0, 6, 2, 8, 4, 10]


def test_unavailable_names_what_is_missing() -> None:
    x = torch.empty(1, 128, dtype=torch.bfloat16)
    reason = unavailable("sonic", x, x.new_empty(1, 16, 128))
    assert reason is not None
    assert reason.startswith("needs")


@pytest.mark.gpu
@ON_A_GPU
@pytest.mark.filterwarnings("default")
def test_agrees_with_the_reference() -> None:
    few_tilings()
    tokens, width, expert_width, experts, active = 500, 256, 128, 8, 2
    x = torch.randn(tokens, width, device="cuda")
    up = torch.randn(experts, 2 * expert_width, width, device="cuda") * width**-0.5
    down = torch.randn(experts, width, expert_width, device="cuda") * expert_width**-0.5
    index = torch.rand(tokens, experts, device="cuda").topk(active).indices
    weight = torch.rand(tokens, active, device="cuda")
    grad = torch.randn(tokens, width, device="cuda").bfloat16()

    def leaves(dtype: torch.dtype) -> list[Tensor]:
        return [t.bfloat16().to(dtype).requires_grad_() for t in (x, up, down)] + [weight.to(dtype).requires_grad_()]

    exact = leaves(torch.float64)
    y = plain_loop.routed_experts(exact[0], exact[1], exact[2], index, exact[3])
    y.backward(grad.double())
    low = leaves(torch.bfloat16)
    low[3] = weight.clone().requires_grad_()
    got = sonic.routed_experts(low[0], low[1], low[2], index, low[3])
    got.backward(grad)
    pairs = [(got, y), *((a.grad, b.grad) for a, b in zip(low, exact, strict=True))]
    errors = [((a.double() - b).norm() / b.norm()).item() for a, b in pairs]
    assert max(errors) < 1e-2, errors


@pytest.mark.gpu
@ON_A_GPU
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("experts", "active"), [(8, 8), (16, 4), (128, 8)])
def test_the_whole_layer_agrees_with_the_reference(experts: int, active: int) -> None:
    few_tilings()
    tokens, width, expert_width = 500, 256, 128
    x = torch.randn(tokens, width, device="cuda").bfloat16()
    router = (torch.randn(experts, width, device="cuda") * width**-0.5).bfloat16()
    up = (torch.randn(experts, 2 * expert_width, width, device="cuda") * width**-0.5).bfloat16()
    down = (torch.randn(experts, width, expert_width, device="cuda") * expert_width**-0.5).bfloat16()
    logits = torch.nn.functional.linear(x, router).float()
    best = torch.cat([logits, logits.new_full((tokens, 1), -torch.inf)], 1).topk(active + 1)
    clear = best.values[:, active - 1] > best.values[:, active]  # elsewhere two experts tie for the last place
    grad = torch.randn(tokens, width, device="cuda").bfloat16() * clear[:, None]

    exact = [t.double().requires_grad_() for t in (x, router, up, down)]
    index = best.indices[:, :active]
    weight = (exact[0] @ exact[1].mT).gather(1, index).softmax(-1)
    y = plain_loop.routed_experts(exact[0], exact[2], exact[3], index, weight)
    y.backward(grad.double())
    low = [t.clone().requires_grad_() for t in (x, router, up, down)]
    got = sonic.layer(low[0], low[1], sonic.native(low[2]), low[3], active)
    got.backward(grad)
    pairs = [(got * clear[:, None], y * clear[:, None]), *((a.grad, b.grad) for a, b in zip(low, exact, strict=True))]
    errors = [((a.double() - b).norm() / b.norm()).item() for a, b in pairs]
    assert max(errors) < 5e-2, errors


@pytest.mark.gpu
@ON_A_GPU
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("concatenated", [False, True])
def test_six_products_are_found_with_their_tilings(concatenated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in sonic_tune.TARGET.items():
        monkeypatch.setenv(name, value)
    sonic_tune.all_tilings()
    found = sonic_tune.products(concatenated=concatenated)
    assert [len(product.configs()) for product in found] == [9, 22, 9, 9, 22, 9]
    assert all(sum(sonic.is_default(c.kwargs["config"]) for c in p.configs()) == 1 for p in found)
