"""The block is its formula: for every layout, with its gradients, alone and in replicas."""

from __future__ import annotations

import copy
import pickle
import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from complete_mue.errors import KernelError, ShapeError
from complete_mue.lab.nn.feed_forward import FeedForward
from complete_mue.lab.nn.router import Routing
from complete_mue.lab.nn.router_config import RouterConfig
from complete_mue.layout import FeedForward as Spec
from complete_mue.layout import Role, RoutedGroup

WIDTH = 16
LAYOUTS = {
    "dense": Spec.dense(24),
    "two dense branches": Spec(branches=(8, 16)),
    "dense MoE": Spec.moe(4, 4, 8),
    "sparse": Spec.moe(8, 2, 8),
    "shared": Spec.moe(8, 2, 8, shared=2),
    "grouped": Spec.moe(16, 4, 8, groups=2, shared=1),
    "hybrid": Spec.parse("dense@12+8e2a@8+4e1a@4+6e3a@8"),
}
# Torch says this once on CPUs without bfloat16 products, and computes all the same.
pytestmark = [pytest.mark.draws, pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning")]
COMPILES = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def block(layout: str | Spec, seed: int = 0, width: int = WIDTH, **arguments: object) -> FeedForward:
    spec = LAYOUTS[layout] if isinstance(layout, str) else layout
    made = FeedForward(spec, width, **arguments)  # type: ignore[arg-type]
    made.reset_parameters(torch.Generator().manual_seed(seed))
    return made


def tokens(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def swiglu(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    half = len(up) // 2
    return (F.silu(x @ up[:half].T) * (x @ up[half:].T)) @ down.T


def formula(layer: FeedForward, x: Tensor) -> Tensor:
    """Eq. hybrid-general written out: one token, one expert at a time."""
    p = dict(layer.named_parameters())
    widths = list(dict.fromkeys(group.expert_width for group in layer.spec.groups))
    rows = []
    for token in x:
        y = torch.zeros_like(token)
        for kind in ("dense", "shared"):
            if f"{kind}_up" in p:
                y = y + swiglu(token, p[f"{kind}_up"], p[f"{kind}_down"])
        scores = (p["router"] @ token).sigmoid() if "router" in p else None
        chosen, first, stacked = [], 0, dict.fromkeys(widths, 0)
        for group in layer.spec.groups:
            suffix = f"_{widths.index(group.expert_width)}" if len(widths) > 1 else ""
            best = scores[first : first + group.experts].topk(group.active).indices.tolist()
            start = stacked[group.expert_width]
            for e in best:
                up, down = p[f"expert_up{suffix}"][start + e], p[f"expert_down{suffix}"][start + e]
                chosen.append((scores[first + e], swiglu(token, up, down)))
            first += group.experts
            stacked[group.expert_width] += group.experts
        total = sum(score for score, _ in chosen)
        for score, output in chosen:
            y = y + layer.route_scale * score / total * output
        rows.append(layer.output * y)
    return torch.stack(rows)


def gradients(layer: FeedForward, y: Tensor, x: Tensor) -> dict[str, Tensor]:
    named = dict(layer.named_parameters()) | {"x": x}
    direction = torch.cos(torch.arange(y.numel(), dtype=torch.float64)).view_as(y).to(y.dtype)
    return dict(zip(named, torch.autograd.grad(y, list(named.values()), direction), strict=True))


def assert_same(got: dict[str, Tensor], want: dict[str, Tensor], tolerance: float) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        error = (got[name].double() - value.double()).norm() / value.double().norm().clamp_min(1e-30)
        assert error <= tolerance, f"{name}: relative error {error:.2e}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_block_is_the_formula_in_float64(layout: str) -> None:
    layer = block(layout, output=0.75, route_scale=1.3, dtype=torch.float64)
    x = tokens(9, WIDTH, dtype=torch.float64).requires_grad_()
    y, want = layer(x), formula(layer, x)
    assert_same({"y": y}, {"y": want}, 1e-12)
    assert_same(gradients(layer, y, x), gradients(layer, want, x), 1e-12)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if LAYOUTS[name].groups])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_kernels_agree_on_every_gradient_by_name(layout: str, dtype: torch.dtype, tolerance: float) -> None:
    spec = LAYOUTS[layout]
    if layout == "hybrid":  # bfloat16 rows of whole 16 bytes
        spec = Spec.parse("dense@12+8e2a@16+4e1a@8+6e3a@16")
    layer, exact = block(spec, dtype=dtype, kernel="grouped"), block(spec, dtype=torch.float64, kernel="reference")
    exact.load_state_dict(layer.state_dict())
    x = tokens(40, WIDTH, dtype=dtype).requires_grad_()
    exact_x = x.detach().double().requires_grad_()
    # A score that bfloat16 rounds differently may choose another expert; both get one choice.
    choice = layer.route(x).index
    results = []
    for one, at in ((layer, x), (exact, exact_x)):
        routing = one.route(at)
        chosen = F.logsigmoid(routing.logits.gather(-1, choice)).softmax(-1)
        y = one(at, Routing(choice, chosen, routing.logits, routing.groups, routing.config))
        results.append({"y": y} | gradients(one, y, at))
    assert_same(results[0], results[1], tolerance)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_replicas_equal_solo_layers(layout: str) -> None:
    many = block(layout, replicas=3, dtype=torch.float64)  # where the order of a sum tips no choice of experts
    x = tokens(3, 2, 5, WIDTH, dtype=torch.float64).requires_grad_()
    y = many(x)
    assert y.shape == x.shape
    together = gradients(many, y, x)
    direction = torch.cos(torch.arange(y.numel(), dtype=torch.float64)).view_as(y).to(y.dtype)
    for k in range(3):
        solo = block(layout, dtype=torch.float64)
        solo.load_state_dict({name: value[k] for name, value in many.state_dict().items()})
        xk = x.detach()[k].requires_grad_()
        yk = solo(xk)
        named = dict(solo.named_parameters()) | {"x": xk}
        grads = dict(zip(named, torch.autograd.grad(yk, list(named.values()), direction[k]), strict=True))
        assert_same({"y": y[k]} | {n: g[k] for n, g in together.items()}, {"y": yk} | grads, 1e-12)


@pytest.mark.parametrize("layout", ["dense", "grouped", "hybrid"])
def test_replicas_share_an_input(layout: str) -> None:
    many, x = block(layout, replicas=3, dtype=torch.float64), tokens(7, WIDTH, dtype=torch.float64)
    y = many(x)
    assert y.shape == (3, 7, WIDTH)
    torch.testing.assert_close(y, many(x.expand(3, 7, WIDTH)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shared", [0, 2])
def test_bridge_one_dense_moe_with_equal_routing_is_the_dense_ffn(shared: int) -> None:
    """N experts, all active, weights 1/N and route scale a = N: the dense FFN whose width they cut up (Bridge I)."""
    n, h = 4, 6
    moe = block(Spec.moe(n, n, h, shared=shared), output=0.5, dtype=torch.float64)
    dense = block(Spec.dense((n + shared) * h), output=0.5, dtype=torch.float64)
    gate, value = dense.dense_up.detach().chunk(2)
    with torch.no_grad():
        moe.router.zero_()
        cut = n * h
        moe.expert_up.copy_(torch.cat([gate[:cut].view(n, h, WIDTH), value[:cut].view(n, h, WIDTH)], dim=1))
        moe.expert_down.copy_(dense.dense_down[:, :cut].view(WIDTH, n, h).transpose(0, 1))
        if shared:
            moe.shared_up.copy_(torch.cat([gate[cut:], value[cut:]]))
            moe.shared_down.copy_(dense.dense_down[:, cut:])
    x = tokens(20, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(moe(x), dense(x), rtol=1e-13, atol=1e-13)


def test_shared_branches_of_any_width_are_one_swiglu() -> None:
    layer = block(Spec((4, 12), (RoutedGroup(4, 1, 8),)), dtype=torch.float64)
    x = tokens(5, WIDTH, dtype=torch.float64)
    up, down = layer.shared_up, layer.shared_down
    first = swiglu(x, torch.cat([up[:4], up[16:20]]), down[:, :4])
    second = swiglu(x, torch.cat([up[4:16], up[20:]]), down[:, 4:])
    layer.expert_down.data.zero_()
    torch.testing.assert_close(layer(x), first + second)


@pytest.mark.numeric  # once: in float64 no draw comes near a tie
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradcheck(layout: str) -> None:
    spec = LAYOUTS[layout]
    tiny = Spec(tuple(1 for _ in spec.branches), tuple(RoutedGroup(3, min(g.active, 3), 2) for g in spec.groups[:2]))
    layer = block(tiny, width=4, output=0.7, dtype=torch.float64)
    x = tokens(3, 4, dtype=torch.float64).requires_grad_()
    names = list(dict(layer.named_parameters()))

    def call(at: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), at)

    assert torch.autograd.gradcheck(call, (x, *layer.parameters()))


def some_layout(dice: random.Random) -> Spec:
    branches = tuple(dice.randint(1, 9) for _ in range(dice.randint(0, 2)))
    pairs = [sorted((dice.randint(1, 6), dice.randint(1, 6))) for _ in range(dice.randint(0, 3))]
    groups = tuple(RoutedGroup(most, least, dice.randint(1, 5)) for least, most in pairs)
    return Spec(branches, groups) if branches or groups else Spec.dense(4)


@pytest.mark.numeric  # once: these are draws already
@pytest.mark.parametrize("seed", range(60))
def test_any_layout_is_the_formula(seed: int) -> None:
    dice = random.Random(seed)
    spec, width = some_layout(dice), dice.randint(1, 9)
    layer = block(spec, seed, width, output=1.5, dtype=torch.float64)
    x = tokens(3, width, dtype=torch.float64, seed=seed)
    torch.testing.assert_close(layer(x), formula(layer, x), rtol=1e-10, atol=1e-12)


# -- what it declares ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("replicas", [None, 2])
def test_every_parameter_is_declared_with_its_axes(layout: str, replicas: int | None) -> None:
    layer = block(layout, replicas=replicas)
    specs = {spec.name: spec for spec in layer.tensors()}
    assert list(specs) == [name for name, _ in layer.named_parameters()]
    sizes = {"width": WIDTH, "replica": 2}
    for name, parameter in layer.named_parameters():
        axes = specs[name].axes
        assert len(axes) == parameter.ndim
        assert (axes[0] == "replica") == (replicas is not None)
        for axis, size in zip(axes, parameter.shape, strict=True):
            assert sizes.get(axis, size) == size
        assert specs[name].role == Role.parse(name.rstrip("_0123456789"))
        assert specs[name].fan_in == axes[-1]
    assert sum(p.numel() for p in layer.parameters()) == layer.spec.parameters(WIDTH).total * (replicas or 1)


def test_names_and_shapes() -> None:
    def shapes(layout: str, **arguments: object) -> dict[str, tuple[int, ...]]:
        return {name: tuple(p.shape) for name, p in block(layout, **arguments).named_parameters()}

    assert shapes("two dense branches") == {"dense_up": (48, 16), "dense_down": (16, 24)}
    assert shapes("grouped", replicas=3) == {
        "shared_up": (3, 16, 16), "shared_down": (3, 16, 8), "router": (3, 16, 16),
        "expert_up": (3, 16, 16, 16), "expert_down": (3, 16, 16, 8),
    }  # fmt: skip
    assert shapes("hybrid") == {
        "shared_up": (24, 16), "shared_down": (16, 12), "router": (18, 16),
        "expert_up_0": (14, 16, 16), "expert_down_0": (14, 16, 8),
        "expert_up_1": (4, 8, 16), "expert_down_1": (4, 16, 4),
    }  # fmt: skip


def test_route_scale_defaults_to_the_number_of_active_experts() -> None:
    assert block("grouped").route_scale == 4
    assert block("hybrid").route_scale == 6
    assert block("dense").route_scale == 1
    assert "16e4a2g1s" in repr(block("grouped"))


def test_default_initialization_is_seeded_and_has_fan_in_scale() -> None:
    layer = block(Spec.moe(32, 2, 64), width=128)
    assert layer.expert_up.std().item() == pytest.approx(128**-0.5, rel=0.02)
    assert layer.expert_down.std().item() == pytest.approx(64**-0.5, rel=0.02)
    again = block(Spec.moe(32, 2, 64), width=128)
    assert all(torch.equal(a, b) for a, b in zip(layer.parameters(), again.parameters(), strict=True))


def test_parameters_carry_nothing_hidden() -> None:
    layer = block("hybrid")
    assert all(not vars(p) for p in layer.parameters())
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        x = tokens(4, WIDTH)
        assert torch.equal(other(x), layer(x))


# -- how it is used --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_leading_axes(layout: str) -> None:
    layer, x = block(layout), tokens(2, 3, 5, WIDTH)
    torch.testing.assert_close(layer(x).view(-1, WIDTH), layer(x.view(-1, WIDTH)))


def test_a_given_routing_is_used() -> None:
    layer, x = block("grouped"), tokens(6, WIDTH)
    routing = layer.route(x)
    assert torch.equal(layer(x, routing), layer(x))
    assert block("dense").route(x) is None
    moved = Routing(routing.index.roll(1, 0), routing.weight, routing.logits, routing.groups, routing.config)
    assert not torch.allclose(layer(x, moved), layer(x))


def test_selection_bias_is_a_buffer_that_balances() -> None:
    layer = block("sparse", router=RouterConfig(selection_bias=True))
    assert "selection_bias" in layer.state_dict()
    assert "selection_bias" not in dict(layer.named_parameters())
    x = tokens(256, WIDTH) + 0.5
    before = layer.route(x).load_variation
    for _ in range(100):
        layer.update_bias(layer.route(x).load, rate=0.01)
    assert layer.route(x).load_variation < 0.3 * before
    with pytest.raises(ShapeError, match="selection_bias=True"):
        block("sparse").update_bias(torch.ones(8), 0.01)


def test_routing_losses_reach_the_router() -> None:
    layer, x = block("grouped", router=RouterConfig(balance_loss=0.1, z_loss=0.1)), tokens(6, WIDTH)
    routing = layer.route(x)
    (layer(x, routing).sum() * 0 + routing.auxiliary_loss()).backward()
    assert layer.router.grad.abs().max() > 0


def test_autocast_keeps_the_router_in_float32_and_experts_in_bfloat16() -> None:
    layer, x = block("grouped"), tokens(30, WIDTH)
    plain = layer.route(x)
    with torch.autocast("cpu", torch.bfloat16):
        y, routing = layer(x), layer.route(x)
    assert y.dtype == torch.bfloat16
    assert routing.logits.dtype == routing.weight.dtype == torch.float32
    assert torch.equal(routing.index, plain.index)
    torch.testing.assert_close(y.float(), layer(x), rtol=0.05, atol=0.05)
    y.float().sum().backward()
    assert {p.grad.dtype for p in layer.parameters()} == {torch.float32}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_meta_device(layout: str) -> None:
    layer = block(layout, device="meta", router=RouterConfig(selection_bias=True))
    assert all(p.is_meta for p in layer.parameters())
    assert layer(torch.empty(2, 3, WIDTH, device="meta")).shape == (2, 3, WIDTH)
    layer.to_empty(device="cpu").reset_parameters()
    assert torch.isfinite(layer.dense_up if layer.spec.is_dense else layer.router).all()


def test_one_token_and_none() -> None:
    layer = block("grouped")
    assert layer(tokens(1, WIDTH)).shape == (1, WIDTH)
    empty = layer(torch.zeros(0, WIDTH))
    assert empty.shape == (0, WIDTH)
    empty.sum().backward()


def test_deterministic() -> None:
    layer, x = block("hybrid"), tokens(100, WIDTH).requires_grad_()
    first, second = (gradients(layer, layer(x), x) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_wrong_inputs_say_what_is_allowed() -> None:
    with pytest.raises(ShapeError, match=r"\[\.\.\., tokens, 16\]"):
        block("sparse")(tokens(4, 8))
    with pytest.raises(ShapeError, match="3 replicas"):
        block("sparse", replicas=3)(tokens(2, 4, WIDTH))
    with pytest.raises(ShapeError, match="width"):
        FeedForward(Spec.dense(4), 0)
    with pytest.raises(ShapeError, match="replicas"):
        FeedForward(Spec.dense(4), 4, replicas=0)
    with pytest.raises(ShapeError, match="output"):
        FeedForward(Spec.dense(4), 4, output=float("nan"))
    with pytest.raises(KernelError, match="Hopper"):
        block("sparse", kernel="triton")(tokens(2, WIDTH))


@pytest.mark.slow
@COMPILES
@pytest.mark.parametrize(("layout", "replicas"), [("shared", None), ("hybrid", 2)])
def test_compiles_without_graph_breaks(layout: str, replicas: int | None) -> None:
    torch.compiler.reset()
    layer = block(layout, replicas=replicas, kernel="grouped", output=0.5, router=RouterConfig(selection_bias=True))
    x = tokens(*([replicas] if replicas else []), 3, 7, WIDTH).requires_grad_()

    @torch.compile(fullgraph=True, backend="inductor" if replicas is None else "aot_eager")
    def step(x: Tensor) -> tuple[Tensor, Routing]:
        routing = layer.route(x)
        return layer(x, routing), routing

    y, routing = step(x)
    want = layer(x)
    assert_same({"y": y} | gradients(layer, y, x), {"y": want} | gradients(layer, want, x), 1e-5)
    assert torch.equal(routing.load, layer.route(x).load)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("replicas", [None, 3])
def test_block_on_gpu_equals_the_block_on_cpu(layout: str, replicas: int | None) -> None:
    layer = block(layout, replicas=replicas)
    x = tokens(*([replicas] if replicas else []), 50, WIDTH).requires_grad_()
    y = layer(x)
    want = {"y": y} | gradients(layer, y, x)
    there = copy.deepcopy(layer).cuda()
    x_there = x.detach().cuda().requires_grad_()
    routing = layer.route(x)
    chosen = there.route(x_there)
    if chosen is not None:
        assert (chosen.index.cpu() == routing.index).float().mean() > 0.99
    y_there = there(x_there)
    got = {"y": y_there.cpu()}
    named = dict(there.named_parameters()) | {"x": x_there}
    direction = torch.cos(torch.arange(y.numel(), dtype=torch.float64)).view_as(y).to(y.dtype).cuda()
    grads = torch.autograd.grad(y_there, list(named.values()), direction)
    got |= {name: grad.cpu() for name, grad in zip(named, grads, strict=True)}
    assert_same(got, want, 1e-4)
