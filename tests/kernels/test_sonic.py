"""SonicMoE behind the same function, in both layouts of its weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from complete_mue.lab.kernels import plain_loop, sonic
from complete_mue.lab.kernels.dispatch import unavailable

_probe = torch.empty(1, 128, dtype=torch.bfloat16, device="cuda" if torch.cuda.is_available() else "cpu")
_reason = unavailable("sonic", _probe, _probe.new_empty(1, 16, 128))


def test_native_interleaves_gate_and_value() -> None:
    up = torch.arange(12.0).view(1, 6, 2)
    assert sonic.native(up)[0, :, 0].tolist() == [0, 6, 2, 8, 4, 10]


def test_unavailable_names_what_is_missing() -> None:
    x = torch.empty(1, 128, dtype=torch.bfloat16)
    reason = unavailable("sonic", x, x.new_empty(1, 16, 128))
    assert reason is not None
    assert reason.startswith("needs")


@pytest.mark.gpu
@pytest.mark.skipif(_reason is not None, reason=str(_reason))
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("interleaved", [False, True])
def test_agrees_with_the_reference(interleaved: bool) -> None:
    sonic.few_configs()
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
    if interleaved:
        got = sonic.routed_experts_native(low[0], sonic.native(low[1]), low[2], index, low[3])
    else:
        got = sonic.routed_experts(low[0], low[1], low[2], index, low[3])
    got.backward(grad)
    pairs = [(got, y), *((a.grad, b.grad) for a, b in zip(low, exact, strict=True))]
    errors = [((a.double() - b).norm() / b.norm()).item() for a, b in pairs]
    assert max(errors) < 1e-2, errors
