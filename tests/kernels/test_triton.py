"""The Hopper kernels against the plain loop, on outputs and on every gradient by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from complete_mue.lab.kernels import plain_loop, triton_experts
from complete_mue.lab.kernels.dispatch import unavailable
from complete_mue.lab.recipes import recipe
from complete_mue.lab.sweep.fused import train_fused
from complete_mue.lab.train.config import override

_probe = torch.empty(1, 128, dtype=torch.bfloat16, device="cuda" if torch.cuda.is_available() else "cpu")
_reason = unavailable("triton", _probe, _probe.new_empty(1, 2, 128))
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(_reason is not None, reason=str(_reason)),
    pytest.mark.filterwarnings("default"),
]

NAMES = ("y", "dx", "dup", "ddown", "dweight")
Case = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def case(
    tokens: int, width: int, expert_width: int, experts: int, active: int, dtype: torch.dtype = torch.bfloat16,
    index: Tensor | None = None,
) -> Case:  # fmt: skip
    x = torch.randn(tokens, width, device="cuda")
    up = torch.randn(experts, 2 * expert_width, width, device="cuda") * width**-0.5
    down = torch.randn(experts, width, expert_width, device="cuda") * expert_width**-0.5
    if index is None:
        index = torch.rand(tokens, experts, device="cuda").topk(active).indices
    weight = torch.rand(tokens, active, device="cuda") + 0.1
    return x.to(dtype), up.to(dtype), down.to(dtype), index, weight


def outputs(kernel: Callable[..., Tensor], case: Case, grad: Tensor) -> dict[str, Any]:
    x, up, down, index, weight = case
    leaves = [t.detach().clone().requires_grad_() for t in (x, up, down, weight)]
    y = kernel(leaves[0], leaves[1], leaves[2], index, leaves[3])
    y.backward(grad.to(y.dtype))
    return dict(zip(NAMES, [y.detach(), *(leaf.grad for leaf in leaves)], strict=True))


def in_float64(case: Case) -> Case:
    x, up, down, index, weight = case
    return x.double(), up.double(), down.double(), index, weight.double()


def error(got: Tensor, want: Tensor) -> float:
    return ((got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-30)).item()


def assert_close(case: Case) -> dict[str, Any]:
    grad = torch.randn_like(case[0])
    want = outputs(plain_loop.routed_experts, in_float64(case), grad)
    got = outputs(triton_experts.routed_experts, case, grad)
    # A handful of roundings to the dtype stand between an input and a gradient; the plain loop in bfloat16 errs by 5e-3
    tolerance = 1e-5 if case[0].dtype == torch.float32 else 1.25 * torch.finfo(case[0].dtype).eps
    errors = {name: error(got[name], want[name]) for name in NAMES}
    assert all(value < tolerance for value in errors.values()), errors
    return got


@pytest.mark.parametrize(
    ("tokens", "width", "expert_width", "experts", "active"),
    [
        pytest.param(512, 256, 128, 8, 2, id="whole tiles"),
        pytest.param(333, 320, 200, 5, 3, id="odd tokens, widths past a tile"),
        pytest.param(77, 136, 72, 16, 4, id="widths of 8"),
        pytest.param(100, 100, 36, 6, 2, id="widths of 4"),
        pytest.param(1, 128, 64, 9, 3, id="one token"),
        pytest.param(600, 128, 64, 1023, 8, id="1023 experts, some empty"),
        pytest.param(2048, 1024, 512, 16, 4, id="larger"),
        pytest.param(900, 128, 16, 64, 8, id="narrow experts"),
        pytest.param(333, 136, 8, 12, 4, id="narrowest"),
        pytest.param(200, 512, 32, 40, 3, id="narrow, in a wide model"),
    ],
)
def test_bfloat16(tokens: int, width: int, expert_width: int, experts: int, active: int) -> None:
    assert_close(case(tokens, width, expert_width, experts, active))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    assert_close(case(300, 200, 104, 6, 2, dtype))


def test_all_tokens_on_one_expert_and_the_rest_exactly_zero() -> None:
    index = torch.full((1000, 1), 2, device="cuda")
    got = assert_close(case(1000, 192, 96, 7, 1, index=index))
    others = [0, 1, 3, 4, 5, 6]
    assert not got["dup"][others].any()
    assert not got["ddown"][others].any()


def test_int32_index_and_a_weight_of_low_precision() -> None:
    x, up, down, index, weight = case(200, 128, 64, 4, 2)
    assert_close((x, up, down, index.int(), weight.bfloat16()))


def test_inputs_at_odd_addresses() -> None:
    x, up, down, index, weight = case(200, 128, 64, 4, 2)

    def shifted(t: Tensor) -> Tensor:
        return torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape)

    odd = shifted(x), shifted(up), shifted(down), index, weight
    assert odd[0].data_ptr() % 16
    with torch.no_grad():
        assert torch.equal(
            triton_experts.routed_experts(*odd), triton_experts.routed_experts(x, up, down, index, weight)
        )


def test_no_tokens() -> None:
    got = outputs(triton_experts.routed_experts, case(0, 128, 64, 4, 2), torch.empty(0, 128, device="cuda"))
    assert got["y"].shape == (0, 128)
    assert not got["dup"].any()


def test_two_runs_are_equal_to_the_bit() -> None:
    small = case(777, 512, 256, 12, 4)
    grad = torch.randn_like(small[0])
    first = outputs(triton_experts.routed_experts, small, grad)
    second = outputs(triton_experts.routed_experts, small, grad)
    assert all(torch.equal(first[name], second[name]) for name in NAMES)


def test_memory_full_of_nan_leaves_no_trace() -> None:
    torch.cuda.empty_cache()
    poison = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(64)]
    del poison
    got = assert_close(case(333, 256, 128, 33, 3))
    assert all(value.isfinite().all() for value in got.values())


def test_without_gradients() -> None:
    small = case(200, 128, 64, 4, 2)
    with torch.no_grad():
        y = triton_experts.routed_experts(*small)
    assert error(y, plain_loop.routed_experts(*in_float64(small))) < 5e-3


def test_only_the_gradients_asked_for() -> None:
    x, up, down, index, weight = case(200, 128, 64, 4, 2)
    down.requires_grad_()
    triton_experts.routed_experts(x, up, down, index, weight).sum().backward()
    assert down.grad is not None
    assert (x.grad, up.grad, weight.grad) == (None, None, None)


def test_a_kept_graph_gives_the_same_gradients_again() -> None:
    x, up, down, index, weight = case(200, 128, 64, 4, 2)
    leaves = [t.requires_grad_() for t in (x, up, down, weight)]
    y = triton_experts.routed_experts(x, up, down, index, weight)
    first = torch.autograd.grad(y.sum(), leaves, retain_graph=True)
    second = torch.autograd.grad(y.sum(), leaves)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_autocast_takes_float32_masters() -> None:
    small = case(200, 128, 64, 4, 2, torch.float32)
    grad = torch.randn_like(small[0])
    with torch.autocast("cuda", dtype=torch.bfloat16):
        got = outputs(triton_experts.routed_experts, small, grad)
    want = outputs(plain_loop.routed_experts, in_float64(small), grad)
    assert got["y"].dtype == torch.bfloat16
    assert got["dup"].dtype == torch.float32
    errors = {name: error(got[name], want[name]) for name in NAMES}
    assert all(value < 1e-2 for value in errors.values()), errors


def test_compiles_as_one_graph() -> None:
    small = case(300, 128, 64, 4, 2)
    grad = torch.randn_like(small[0])
    compiled = torch.compile(triton_experts.routed_experts, fullgraph=True)
    eager = outputs(triton_experts.routed_experts, small, grad)
    traced = outputs(compiled, small, grad)
    assert all(torch.equal(eager[name], traced[name]) for name in NAMES)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("tokens", "width", "expert_width", "experts", "active"),
    [(512, 256, 128, 8, 2), (333, 320, 200, 5, 3), (77, 136, 72, 16, 4), (600, 128, 64, 300, 8), (3, 128, 64, 9, 3)],
)
def test_gradients_of_experts_are_added_to_totals(
    tokens: int, width: int, expert_width: int, experts: int, active: int, compiled: bool
) -> None:
    x, up, down, index, _ = one = case(tokens, width, expert_width, experts, active)
    grad = torch.randn_like(x)
    want = outputs(plain_loop.routed_experts, in_float64(one), grad)
    totals = torch.ones_like(up, dtype=torch.float32), torch.ones_like(down, dtype=torch.float32)
    kernel = torch.compile(triton_experts.routed_experts, fullgraph=True) if compiled else triton_experts.routed_experts
    for number in (1, 2):
        got = outputs(lambda *case: kernel(*case, totals=totals), one, grad)
        assert got["dup"] is got["ddown"] is None
        assert all(error(got[name], want[name]) < 1e-2 for name in ("y", "dx", "dweight"))
        for total, name in zip(totals, ("dup", "ddown"), strict=True):
            # Both operands of the product were rounded to bfloat16; the sum was not.
            assert error(total - 1, number * want[name]) < 1e-2
    unused = torch.ones(experts, dtype=torch.bool, device="cuda").index_fill_(0, index.flatten(), False)
    assert all(bool((total[unused] == 1).all()) for total in totals)


def test_totals_are_the_same_in_two_runs_and_hold_what_bfloat16_would_lose() -> None:
    x, up, down, *_ = one = case(700, 256, 128, 8, 2)
    grad = torch.randn_like(x)
    plain = outputs(triton_experts.routed_experts, one, grad)
    runs = []
    for _ in range(2):
        totals = torch.zeros_like(up, dtype=torch.float32), torch.zeros_like(down, dtype=torch.float32)
        outputs(lambda *case, totals=totals: triton_experts.routed_experts(*case, totals=totals), one, grad)
        runs.append(totals)
    for first, second, name in zip(*runs, ("dup", "ddown"), strict=True):
        assert torch.equal(first, second)
        assert torch.equal(first.to(torch.bfloat16), plain[name])


def side_by_side(tokens: int, experts: int, active: int, replicas: int) -> Tensor:
    """Choices of each replica's tokens among its own experts, the later ones more often, some never."""
    liking = torch.rand(replicas, tokens, experts, device="cuda") + torch.linspace(0, 1, experts, device="cuda")
    liking[..., 1] = -1
    first = torch.arange(replicas, device="cuda")[:, None, None] * experts
    return (liking.topk(active).indices + first).flatten(0, 1)


@pytest.mark.parametrize(
    ("tokens", "experts", "active", "replicas"),
    [
        pytest.param(16384, 64, 2, 11, id="as in a sweep"),
        pytest.param(1024, 16, 1, 4, id="one block each"),
        pytest.param(384, 12, 8, 3, id="three blocks each"),
        pytest.param(140 * 512, 20, 2, 3, id="more blocks than are scanned at once"),
        pytest.param(333, 16, 2, 3, id="blocks of two replicas"),
    ],
)
def test_pairs_are_sorted_the_same_replica_by_replica(tokens: int, experts: int, active: int, replicas: int) -> None:
    from complete_mue.lab.kernels.triton_sort import TILE, sort_rows

    index = side_by_side(tokens, experts, active, replicas)
    weight = torch.rand(index.shape, device="cuda")
    apart, together = (sort_rows(index, weight, replicas * experts, parts) for parts in (replicas, 1))
    tiles = int(together.start[-1]) // TILE
    for name, one, other in zip(together._fields, apart, together, strict=True):
        used = slice(tiles if name == "expert" else None)  # nobody reads the expert of a tile that is not in use
        assert torch.equal(one[used], other[used]), name


def test_replicas_compile_as_one_graph() -> None:
    small = case(3 * 512, 128, 64, 3 * 16, 2, index=side_by_side(512, 16, 2, 3))
    grad = torch.randn_like(small[0])
    known = functools.partial(triton_experts.routed_experts, replicas=3)
    eager, traced = outputs(known, small, grad), outputs(torch.compile(known, fullgraph=True), small, grad)
    unknown = outputs(triton_experts.routed_experts, small, grad)
    assert all(torch.equal(eager[name], traced[name]) for name in NAMES)
    assert all(torch.equal(eager[name], unknown[name]) for name in NAMES)


def test_past_two_to_the_31_elements() -> None:
    tokens, width, active = 9000, 4096, 64
    assert tokens * active * width > 2**31
    big = case(tokens, width, 64, 128, active)
    grad = torch.randn_like(big[0])
    got = outputs(triton_experts.routed_experts, big, grad)
    x, up, down, index, weight = big
    want = outputs(plain_loop.routed_experts, (x.float(), up.float(), down.float(), index, weight), grad.float())
    errors = {name: error(got[name], want[name]) for name in NAMES}
    assert all(value < 1e-2 for value in errors.values()), errors


def test_small_case_for_the_sanitizer() -> None:
    """PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer python -m pytest tests/kernels/test_triton.py -k sanitizer"""
    for widths in ((136, 72), (100, 36)):
        got = outputs(
            triton_experts.routed_experts, case(150, *widths, 3, 2), torch.randn(150, widths[0], device="cuda")
        )
        assert all(value.isfinite().all() for value in got.values())
    x, up, down, *_ = one = case(150, 136, 72, 3, 2)
    totals = torch.zeros_like(up, dtype=torch.float32), torch.zeros_like(down, dtype=torch.float32)
    outputs(lambda *case: triton_experts.routed_experts(*case, totals=totals), one, torch.randn_like(x))
    assert all(bool(total.isfinite().all()) for total in totals)


@pytest.mark.parametrize("name", ["lm_tiny:16e4a1s", "dit_tiny:16e4a2g"])
def test_small_models_for_the_sanitizer(name: str) -> None:
    """Two runs in one program: the kernels of the choice of experts, the sort, narrow experts, rotary positions (long
    rows) and attention (short ones)."""
    long = ["task.sequence=256"] if name.startswith("lm") else []
    changes = ["budget.steps=2", "precision=bfloat16", "compile=false", "device=cuda", "betas=hold", *long]
    config = override(recipe(name), *changes)
    results, _ = train_fused([config, override(config, "seed=1")], graph=False)
    assert all(result.loss is not None for result in results)
