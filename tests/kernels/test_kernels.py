"""Every kernel against the plain loop, and the plain loop against a formulation without loops or indices."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from complete_mue.errors import KernelError
from complete_mue.lab.kernels import (
    choose,
    dispatch,
    grouped,
    grouped_cpu,
    list_kernels,
    plain_loop,
    routed_experts,
)
from few_tilings import few_tilings

# Torch says this once on CPUs without bfloat16 products, and computes all the same.
pytestmark = [pytest.mark.draws, pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning")]
NAMES = ("y", "x", "up", "down", "weight")
# What Dynamo itself does when it meets an autograd.Function, and what inductor's workers do.
COMPILES = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def inputs(
    tokens: int = 37,
    width: int = 16,
    experts: int = 6,
    active: int = 2,
    expert_width: int = 8,
    dtype: torch.dtype = torch.float32,
    replicas: tuple[int, ...] = (),
    device: str = "cpu",
) -> list[Tensor]:
    """x, up, down, index, weight with gradients wanted."""
    g = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        values = torch.randn(*replicas, *shape, generator=g, dtype=torch.float64)
        return (values * shape[-1] ** -0.5 if len(shape) == 3 else values).to(device, dtype).requires_grad_()

    x, up, down = normal(tokens, width), normal(experts, 2 * expert_width, width), normal(experts, width, expert_width)
    index = torch.rand(*replicas, tokens, experts, generator=g).topk(active).indices.to(device)
    weight = torch.rand(*replicas, tokens, active, generator=g, dtype=torch.float64) + 0.1
    return [x, up, down, index, weight.to(device, torch.promote_types(dtype, torch.float32)).requires_grad_()]


def everything(function, arguments: list[Tensor]) -> dict[str, Tensor]:
    """Output and all gradients, by name, for one fixed direction."""
    leaves = [a.detach().requires_grad_(a.is_floating_point()) for a in arguments]
    y = function(*leaves)
    direction = torch.cos(torch.arange(y.numel(), device=y.device, dtype=torch.float64)).view_as(y).to(y.dtype)
    grads = torch.autograd.grad(y, [leaf for leaf in leaves if leaf.requires_grad], direction)
    return dict(zip(NAMES, (y.detach(), *grads), strict=True))


def dense_formula(x: Tensor, up: Tensor, down: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """All experts on all tokens, then a mask: nothing is sorted, gathered or looped over."""
    share = torch.einsum("tj,tje->te", weight, F.one_hot(index, len(up)).to(weight.dtype))
    gate, value = torch.einsum("td,efd->tef", x, up).chunk(2, dim=-1)
    return torch.einsum("te,tef,edf->td", share, F.silu(gate) * value, down)


def assert_same(got: dict[str, Tensor], want: dict[str, Tensor], tolerance: float) -> None:
    for name in NAMES:
        assert got[name].dtype == want[name].dtype, name
        assert torch.isfinite(got[name]).all(), name
        scale = want[name].double().norm().clamp_min(1e-30)
        error = (got[name].double() - want[name].double()).norm() / scale
        assert error <= tolerance, f"{name}: relative error {error:.2e} > {tolerance:.0e}"


LARGE = "many experts, most empty"
SHAPES = {
    "plain": {},
    "one token": {"tokens": 1, "experts": 12, "active": 8},  # with few, one weight's gradient may cancel to noise
    "one expert": {"experts": 1, "active": 1},
    "all active": {"experts": 5, "active": 5},
    LARGE: {"experts": 1023, "active": 4, "tokens": 11, "width": 8},
    "many rows per expert": {"tokens": 700, "experts": 4, "active": 3},
}
CASES = [pytest.param(shape, marks=pytest.mark.numeric) if shape == LARGE else shape for shape in SHAPES]  # once


@pytest.mark.parametrize("shape", CASES)
def test_reference_is_the_formula(shape: str) -> None:
    arguments = inputs(**SHAPES[shape], dtype=torch.float64)
    assert_same(everything(plain_loop.routed_experts, arguments), everything(dense_formula, arguments), 1e-12)


@pytest.mark.parametrize("kernel", ["grouped"])
@pytest.mark.parametrize("shape", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1.5e-2)])
def test_kernel_equals_reference(kernel: str, shape: str, dtype: torch.dtype, tolerance: float) -> None:
    arguments = inputs(**SHAPES[shape], dtype=dtype)
    # The reference sees the same rounded numbers and computes with them exactly.
    exact = everything(plain_loop.routed_experts, [a.double() if a.is_floating_point() else a for a in arguments])
    got = everything(dispatch.KERNELS[kernel].load().routed_experts, arguments)
    assert_same({n: v.double() for n, v in got.items()}, exact, tolerance)
    assert got["y"].dtype == got["up"].dtype == dtype


def test_all_tokens_on_one_expert_and_the_others_empty() -> None:
    arguments = inputs(active=1)
    arguments[3] = torch.full_like(arguments[3], 4)
    got = everything(grouped.routed_experts, arguments)
    assert_same(got, everything(plain_loop.routed_experts, arguments), 1e-5)
    others = [e for e in range(6) if e != 4]
    assert not got["up"][others].any()
    assert not got["down"][others].any()


def test_an_expert_chosen_twice_counts_twice() -> None:
    arguments = inputs(active=2)
    arguments[3] = torch.zeros_like(arguments[3])
    want = everything(dense_formula, arguments)
    assert_same(everything(grouped.routed_experts, arguments), want, 1e-5)
    assert_same(everything(plain_loop.routed_experts, arguments), want, 1e-5)


@pytest.mark.parametrize("kernel", ["grouped", "reference"])
def test_no_tokens(kernel: str) -> None:
    got = everything(lambda *a: routed_experts(*a, kernel=kernel), inputs(tokens=0))
    assert got["y"].shape == (0, 16)
    assert not got["up"].any()


def test_zero_weight_gives_the_router_its_gradient() -> None:
    arguments = inputs()
    arguments[4] = torch.zeros_like(arguments[4])
    got = everything(grouped.routed_experts, arguments)
    assert_same(got, everything(plain_loop.routed_experts, arguments) | {"y": got["y"]}, 1e-5)
    assert got["weight"].abs().max() > 0
    assert not got["y"].any()


@pytest.mark.parametrize("kernel", ["grouped", "reference"])
def test_a_kernel_that_cannot_add_to_totals_returns_gradients(kernel: str) -> None:
    totals = tuple(torch.zeros_like(weight) for weight in inputs()[1:3])
    got = everything(lambda *a: routed_experts(*a, kernel=kernel, totals=totals), inputs())
    assert_same(got, everything(lambda *a: routed_experts(*a, kernel=kernel), inputs()), 0.0)
    assert not any(total.any() for total in totals)


@pytest.mark.parametrize("wanted", ["x", "up", "down", "weight"])
def test_each_gradient_alone(wanted: str) -> None:
    arguments = dict(zip(("x", "up", "down", "index", "weight"), inputs(), strict=True))
    leaves = {n: a.detach().requires_grad_(n == wanted) for n, a in arguments.items()}
    (got,) = torch.autograd.grad(grouped.routed_experts(*leaves.values()).sum(), leaves[wanted])
    (want,) = torch.autograd.grad(plain_loop.routed_experts(*leaves.values()).sum(), leaves[wanted])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_second_derivative_is_refused_rather_than_wrong() -> None:
    arguments = inputs(dtype=torch.float32)
    (dx,) = torch.autograd.grad(grouped.routed_experts(*arguments).square().sum(), arguments[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


@pytest.mark.parametrize("kernel", ["grouped", "reference"])
def test_the_same_bits_each_time(kernel: str) -> None:
    arguments = inputs(tokens=500, experts=8, active=3)
    module = dispatch.KERNELS[kernel].load()
    first, second = (everything(module.routed_experts, arguments) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in NAMES)


def test_nothing_unwritten_is_read_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product writes no row of no expert, but some CPUs read a few of them: none may hold what is not a number."""
    product, want = grouped_cpu._grouped_mm, everything(grouped.routed_experts, inputs(37, active=1))

    def unwritten(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
        assert bool(a.isfinite().all() and b.isfinite().all())
        out = product(a, b, offs=offs)
        if a.ndim == 3:
            out[:, int(offs[-1]) :] = math.nan
        elif b.ndim == 3:
            out[int(offs[-1]) :] = math.nan
        return out

    monkeypatch.setattr(grouped_cpu, "_grouped_mm", unwritten)
    got = everything(grouped.routed_experts, inputs(37, active=1))
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_rows_are_sorted_by_expert_and_all_are_covered() -> None:
    index = torch.tensor([[2, 0], [2, 3], [0, 2]])
    order, inverse, ends = grouped.sort_by_expert(index, experts=5)
    assert index.flatten()[order].tolist() == [0, 0, 2, 2, 2, 3]
    assert order.tolist() == [1, 4, 0, 2, 5, 3]
    assert order[inverse].tolist() == list(range(6))
    assert ends.tolist() == [2, 2, 5, 6, 6]
    assert ends.dtype == torch.int32


# -- replicas -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["grouped", "reference"])
@pytest.mark.parametrize(("experts", "most"), [(6, 1023), (6, 12), (6, 5)])
def test_replicas_are_solo_runs(kernel: str, experts: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MOST_EXPERTS", most)
    arguments = inputs(experts=experts, replicas=(5,))
    together = everything(lambda *a: routed_experts(*a, kernel=kernel), arguments)
    for k in range(5):
        solo = routed_experts(*(a[k] for a in arguments), kernel=kernel)
        torch.testing.assert_close(together["y"][k], solo.detach(), rtol=1e-5, atol=1e-6)
    solo_grads = everything(
        lambda *a: torch.stack([routed_experts(*(t[k] for t in a), kernel=kernel) for k in range(5)]), arguments
    )
    assert_same(together, solo_grads, 1e-5)


@pytest.mark.parametrize(("most", "told"), [(1023, [5]), (12, [2, 2, 1])])
def test_a_kernel_that_asks_is_told_how_many_replicas(
    most: int, told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def run(*arguments: Tensor, replicas: int) -> Tensor:
        seen.append(replicas)
        return plain_loop.routed_experts(*arguments)

    module = SimpleNamespace(routed_experts=run, unavailable=lambda x, up: None)
    kernel = dispatch.Kernel("asking", lambda: module, "", takes=("replicas",))
    monkeypatch.setitem(dispatch.KERNELS, "asking", kernel)
    monkeypatch.setattr(dispatch, "MOST_EXPERTS", most)
    arguments = inputs(experts=6, replicas=(5,))
    assert torch.equal(routed_experts(*arguments, kernel="asking"), routed_experts(*arguments, kernel="reference"))
    assert seen == told


@pytest.mark.parametrize(("tokens", "expert_width"), [(7, 4), (64, 8), (111, 12)])
def test_bits_of_a_replica_are_its_own_on_cpu(tokens: int, expert_width: int) -> None:
    """Whatever the others choose, and whether or not the rows fill whole vectors."""
    arguments = inputs(tokens=tokens, expert_width=expert_width, replicas=(3,))
    together = everything(routed_experts, arguments)
    index = arguments[3].clone()
    index[0] = 0  # all tokens of one replica on one expert, as where it diverged
    apart = everything(routed_experts, [*arguments[:3], index, arguments[4]])
    assert all(torch.equal(together[name][1:], apart[name][1:]) for name in NAMES)
    assert not torch.equal(together["y"][0], apart["y"][0])


@pytest.mark.parametrize("parts", [1, 4, 12, 28])
def test_a_columns_sum_has_the_same_bits_wherever_it_stands(parts: int) -> None:
    columns, moved = torch.randn(parts, 111), torch.randperm(111)
    total = grouped_cpu._sum(columns)
    assert torch.equal(grouped_cpu._sum(columns[:, moved]), total[moved])
    torch.testing.assert_close(total, columns.sum(0))


@pytest.mark.parametrize("shape", CASES)
def test_errors_on_cpu_are_those_of_float32(shape: str) -> None:
    """Every number is a sum of n products with a few roundings more: at most n + 16 units of 2^-24, of one sign."""
    arguments = inputs(**SHAPES[shape])
    x, up, _, index, _ = arguments
    longest = max(x.shape[1], up.shape[1], index.shape[1], int(index.flatten().bincount().max()))
    exact = everything(plain_loop.routed_experts, [a.double() if a.is_floating_point() else a for a in arguments])
    got = everything(grouped.routed_experts, arguments)
    assert_same({n: v.double() for n, v in got.items()}, exact, (longest + 16) * 2.0**-24)


def test_more_than_1023_experts_in_all_replicas_run_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = inputs(tokens=3, width=8, experts=400, active=2, expert_width=4, replicas=(5,))
    calls = []
    run = grouped.routed_experts
    monkeypatch.setattr(grouped, "routed_experts", lambda *a: calls.append(len(a[1])) or run(*a))
    y = routed_experts(*arguments, kernel="grouped")
    assert calls == [800, 800, 400]
    torch.testing.assert_close(y[4], run(*(a[4] for a in arguments)), rtol=1e-5, atol=1e-6)


def test_shared_input_is_the_same_input_for_every_replica() -> None:
    x, up, down, index, weight = inputs(replicas=(3,))
    shared = x.detach()[0].requires_grad_()
    y = routed_experts(shared, up, down, index, weight)
    copies = shared.detach().expand(3, *shared.shape).clone().requires_grad_()
    separate = routed_experts(copies, up, down, index, weight)
    torch.testing.assert_close(y, separate, rtol=1e-5, atol=1e-5)
    (dx,) = torch.autograd.grad(y.sum(), shared)
    (separate_dx,) = torch.autograd.grad(separate.sum(), copies)
    torch.testing.assert_close(dx, separate_dx.sum(0), rtol=1e-5, atol=1e-4)


# -- the choice -----------------------------------------------------------------------------------------------


def test_choice_on_cpu() -> None:
    def chosen(**shape: object) -> str:
        return choose(*inputs(**shape)[:2])  # type: ignore[arg-type]

    assert chosen() == "grouped"
    assert chosen(dtype=torch.bfloat16) == "grouped"
    assert chosen(dtype=torch.float64) == "reference"
    assert chosen(expert_width=3) == "reference"
    assert chosen(experts=1024, width=8, tokens=2) == "reference"


@pytest.mark.parametrize(
    ("kernel", "shape", "reason"),
    [
        ("grouped", {"dtype": torch.float64}, "float64"),
        ("grouped", {"expert_width": 3}, "multiples of 4"),
        ("grouped", {"dtype": torch.bfloat16, "width": 12}, "multiples of 8"),
        ("grouped", {"experts": 1024, "tokens": 2}, "at most 1023"),
        ("triton", {}, "Hopper"),
        ("sonic", {}, "Hopper"),
    ],
)
def test_a_forced_kernel_that_cannot_run_says_why(kernel: str, shape: dict[str, int], reason: str) -> None:
    with pytest.raises(KernelError, match=reason) as caught:
        routed_experts(*inputs(**shape), kernel=kernel)  # type: ignore[arg-type]
    assert kernel in str(caught.value)
    assert "MUE_KERNEL" in str(caught.value)


def test_a_misspelt_kernel_names_the_nearest() -> None:
    with pytest.raises(KernelError, match="'grouped'"):
        routed_experts(*inputs(), kernel="gruped")


def test_the_environment_forces_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    x, up, *_ = inputs()
    monkeypatch.setenv("MUE_KERNEL", "reference")
    assert choose(x, up) == "reference"
    assert choose(x, up, kernel="grouped") == "grouped"
    monkeypatch.setenv("MUE_KERNEL", "sonic")
    with pytest.raises(KernelError, match="sonic"):
        routed_experts(*inputs())


def test_mixed_dtypes_have_a_clear_error() -> None:
    x, up, down, index, weight = inputs()
    with pytest.raises(KernelError, match="one floating dtype"):
        routed_experts(x.bfloat16(), up, down, index, weight)


def test_list_names_every_kernel_with_a_reason_where_it_cannot_run() -> None:
    infos = {info.name: info for info in list_kernels()}
    assert tuple(infos) == tuple(dispatch.KERNELS)
    assert infos["grouped"].runs_here
    assert infos["reference"].runs_here
    for info in infos.values():
        assert info.runs_here == (info.reason is None)
        assert info.summary


def test_autocast_computes_in_its_dtype_and_gives_gradients_in_the_parameters() -> None:
    arguments = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        y = routed_experts(*arguments)
        rounded = [a.bfloat16() if i < 3 else a for i, a in enumerate(arguments)]
        want = everything(grouped.routed_experts, rounded)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, want["y"])
    y.sum().backward()
    assert arguments[1].grad is not None
    assert arguments[1].grad.dtype == torch.float32


# -- torch.compile --------------------------------------------------------------------------------------------


@pytest.mark.slow
@COMPILES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiles_without_graph_breaks(dtype: torch.dtype) -> None:
    torch.compiler.reset()
    arguments = inputs(dtype=dtype)
    compiled = torch.compile(routed_experts, fullgraph=True)
    got = everything(compiled, arguments)
    assert_same(got, everything(routed_experts, arguments), 1e-5 if dtype == torch.float32 else 1e-2)


# -- on a GPU -------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["triton", "grouped", "sonic"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1.5e-2)])
def test_kernel_equals_reference_on_gpu(kernel: str, shape: str, dtype: torch.dtype, tolerance: float) -> None:
    arguments = inputs(**SHAPES[shape], dtype=dtype, device="cuda")
    try:
        choose(*arguments[:2], kernel=kernel)
    except KernelError as reason:
        pytest.skip(str(reason))
    if kernel == "sonic":
        few_tilings()
    exact = everything(plain_loop.routed_experts, [a.double() if a.is_floating_point() else a for a in arguments])
    got = everything(lambda *a: routed_experts(*a, kernel=kernel), arguments)
    assert_same({n: v.double() for n, v in got.items()}, exact, tolerance)
    again = everything(lambda *a: routed_experts(*a, kernel=kernel), arguments)
    assert kernel == "sonic" or all(torch.equal(got[name], again[name]) for name in NAMES)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["triton", "grouped"])
def test_no_host_sync_on_gpu(kernel: str) -> None:
    arguments = inputs(tokens=256, width=64, expert_width=32, dtype=torch.bfloat16, device="cuda")
    try:
        choose(*arguments[:2], kernel=kernel)
    except KernelError as reason:
        pytest.skip(str(reason))
    direction = torch.ones_like(arguments[0])
    leaves = [a for a in arguments if a.requires_grad]
    torch.autograd.grad(routed_experts(*arguments, kernel=kernel), leaves, direction)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode calls itself a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        torch.autograd.grad(routed_experts(*arguments, kernel=kernel), leaves, direction)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@COMPILES
@pytest.mark.parametrize("kernel", ["triton", "grouped"])
def test_compiles_without_graph_breaks_on_gpu(kernel: str) -> None:
    torch.compiler.reset()
    arguments = inputs(tokens=256, width=64, expert_width=32, dtype=torch.bfloat16, device="cuda")
    try:
        choose(*arguments[:2], kernel=kernel)
    except KernelError as reason:
        pytest.skip(str(reason))

    def function(*a: Tensor) -> Tensor:
        return routed_experts(*a, kernel=kernel)

    compiled = everything(torch.compile(function, fullgraph=True), arguments)
    assert_same(compiled, everything(function, arguments), 1e-2)


@pytest.mark.gpu
def test_choice_on_gpu() -> None:
    def chosen(dtype: torch.dtype) -> str:
        return choose(*inputs(dtype=dtype, device="cuda")[:2])

    hopper = torch.cuda.get_device_capability() == (9, 0)
    assert chosen(torch.bfloat16) == ("triton" if hopper and not dispatch.KERNELS["triton"].missing else "grouped")
    assert chosen(torch.float32) == chosen(torch.bfloat16)
    assert chosen(torch.float64) == "reference"
