"""The router's product in bfloat16 parts: as precise as float32, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from complete_mue.lab.kernels import router_product
from complete_mue.lab.nn.router import router_logits

F32, BF16 = 2.0**-24, 2.0**-8  # half a unit in the last place, relative
TOKENS, WIDTH, EXPERTS = 256, 512, 64


def draw(replicas: tuple[int, ...], dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = (TOKENS, WIDTH), (EXPERTS, WIDTH), (TOKENS, EXPERTS)
    x, router, grad = (torch.randn(*replicas, *shape, generator=generator).to(device) for shape in shapes)
    return x.bfloat16().requires_grad_(), (router * WIDTH**-0.5).to(dtype).requires_grad_(), grad


def assert_near(found: Tensor, exact: Tensor, sizes: Tensor, terms: int) -> None:
    """Within what summing ``terms`` float32 products may lose, and one rounding of the result to its own type.

    ``sizes`` is the sum of the products' absolute values.
    """
    rounding = BF16 if found.dtype == torch.bfloat16 else F32
    allowed = (terms + 8) * F32 * sizes + rounding * exact.abs()
    assert ((found.detach().double() - exact).abs() <= allowed).all()


def check(x: Tensor, router: Tensor, grad: Tensor, found: Tensor) -> None:
    """The logits and both gradients against float64."""
    dx, dw = torch.autograd.grad(found, (x, router), grad)
    assert (found.dtype, dx.dtype, dw.dtype) == (torch.float32, x.dtype, router.dtype)
    x64, w64, g64 = x.detach().double(), router.detach().double(), grad.double()
    assert_near(found, x64 @ w64.mT, x64.abs() @ w64.abs().mT, 3 * WIDTH)
    # the gradient's two parts keep 16 bits, which a bfloat16 result rounds away
    lost = 2.0**-16 / F32
    assert_near(dx, g64 @ w64, g64.abs() @ w64.abs(), 3 * EXPERTS + round(2 * lost))
    exact = router.dtype == torch.float32
    assert_near(dw, g64.mT @ x64, g64.abs().mT @ x64.abs(), 3 * TOKENS + (0 if exact else round(lost)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("replicas", [(), (3,)])
def test_parts_are_as_precise_as_float32(replicas: tuple[int, ...], dtype: torch.dtype) -> None:
    x, router, grad = draw(replicas, dtype, "cpu")
    check(x, router, grad, router_product._Logits.apply(x, router))


def test_three_parts_hold_a_float32() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    parts = router_product._parts(values, 3)
    assert torch.equal(sum((part.double() for part in parts[1:]), start=parts[0].double()), values.double())


def test_a_bfloat16_product_alone_is_not_enough() -> None:
    """The bound above tells a float32 product from one of a rounded weight."""
    x, router, _ = draw((), torch.float32, "cpu")
    rounded = x.double() @ router.bfloat16().double().mT
    with pytest.raises(AssertionError):
        assert_near(rounded.float(), x.double() @ router.double().mT, x.double().abs() @ router.double().abs().mT, 3)


def test_elsewhere_the_plain_product_is_taken() -> None:
    x, router, _ = draw((), torch.float32, "cpu")
    assert router_product.logits(x, router) is None  # not on a GPU
    assert torch.equal(router_logits(x, router), x.float() @ router.mT)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("replicas", [(), (3,)])
def test_on_a_gpu(replicas: tuple[int, ...], dtype: torch.dtype, compiled: bool) -> None:
    x, router, grad = draw(replicas, dtype, "cuda")
    assert router_product.logits(x, router) is not None
    function = torch.compile(router_logits, fullgraph=True) if compiled else router_logits
    with torch.autocast("cuda", torch.bfloat16):
        found = function(x, router)
    check(x, router, grad, found)
