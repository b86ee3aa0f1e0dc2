"""An MoE of one's own, looked at: experts in one tensor or one by one, in any precision, with what its family says."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import complete_mue as mue  # noqa: E402
from complete_mue.apply import probe  # noqa: E402
from complete_mue.errors import BindError  # noqa: E402

pytestmark = [pytest.mark.draws, pytest.mark.filterwarnings("ignore:mkldnn_matmul")]  # slow CPUs say so in bfloat16

WIDTH, EXPERTS, HIDDEN, VOCAB = 32, 8, 16, 48
FUSED, SINGLE = "fused", "single"


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)))


class MoE(nn.Module):
    def __init__(self, kind: str, active: int, normalized: bool, scale: float, shared: bool, early: bool) -> None:
        super().__init__()
        self.active, self.normalized, self.scale, self.early = active, normalized, scale, early
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        if kind == FUSED:
            self.w1 = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) / WIDTH**0.5)
            self.w2 = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) / HIDDEN**0.5)
        else:
            self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.shared = Expert() if shared else None

    def forward(self, x: Tensor) -> Tensor:
        weights, index = self.router(x).softmax(-1).topk(self.active, -1)
        if self.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        gates = torch.zeros(*x.shape[:-1], EXPERTS, dtype=x.dtype).scatter(-1, index, weights * self.scale)
        if hasattr(self, "w1"):
            hidden = F.silu(torch.einsum("btd,nde->btne", x, self.w1))
            if self.early:  # weights on the hidden units, and one product over all experts
                return torch.einsum("btf,fd->btd", (hidden * gates[..., None]).flatten(-2), self.w2.flatten(0, 1))
            out = torch.einsum("btne,ned->btnd", hidden, self.w2)
        else:
            out = x.new_zeros(*x.shape[:-1], EXPERTS, WIDTH)
            for number, expert in enumerate(self.experts):
                chosen = (index == number).any(-1)
                out[..., number, :][chosen] = expert(x[chosen])
        y = (gates[..., None] * out).sum(-2)
        return y if self.shared is None else y + self.shared(x)


class Block(nn.Module):
    def __init__(self, branch: float, **moe: Any) -> None:
        super().__init__()
        self.branch = branch
        self.n1, self.n2, self.attn, self.moe = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH), Attention(), MoE(**moe)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.branch * self.attn(self.n1(x))
        return x + self.moe(self.n2(x))


class Model(nn.Module):
    def __init__(
        self,
        kind: str = FUSED,
        *,
        active: int = 2,
        normalized: bool = True,
        scale: float = 1.0,
        shared: bool = True,
        early: bool = False,
        branch: float = 1.0,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        moe = {"kind": kind, "active": active, "normalized": normalized}
        moe |= {"scale": scale, "shared": shared, "early": early}
        self.emb, self.norm = nn.Embedding(VOCAB, WIDTH), nn.RMSNorm(WIDTH)
        self.blocks = nn.ModuleList(Block(branch, **moe) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.emb(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


TABLE = """
    emb.weight | embedding | vocab width
    blocks.*.{n1,n2}.weight | norm | width
    blocks.*.attn.qkv.weight | attention_in | heads <width>
    blocks.*.attn.o.weight | attention_out | width <heads>
    blocks.*.moe.router.weight | router | experts <width>
    ?blocks.*.moe.shared.w1.weight | shared_up | hidden <width>
    ?blocks.*.moe.shared.w2.weight | shared_down | width <hidden>
    ?blocks.*.moe.w1 | expert_up | experts <width> hidden
    ?blocks.*.moe.w2 | expert_down | experts <hidden> width
    ?blocks.*.moe.experts.*.w1.weight | expert_up | hidden <width>
    ?blocks.*.moe.experts.*.w2.weight | expert_down | width <hidden>
    norm.weight | final_norm | width
    head.weight | readout | vocab <width>
"""
LAST = {FUSED: "blocks.0.moe.w2", SINGLE: "blocks.0.moe.experts.0.w2.weight"}


def family(table: str = TABLE, **said: Any) -> mue.Family:
    return mue.Family.define("mine", table, **{"active": 2, **said})


# -- 16 bits -------------------------------------------------------------------------------------------------------


class CentredNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        return (y * (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (1 + self.weight.float())).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_refused_does_not_depend_on_the_precision(dtype: torch.dtype) -> None:
    assert mue.describe(Model().to(dtype), family()).blocks[0].active == 2
    with pytest.raises(BindError, match="differ from token to token"):
        mue.describe(Model(normalized=False).to(dtype), family())
    centred = Model()
    for block in centred.blocks:
        block.n1 = CentredNorm()
    with pytest.raises(BindError, match=r"1 \+ w, but family 'mine' says w"):
        mue.describe(centred.to(dtype), family())


def test_the_look_leaves_a_model_of_16_bits_as_it_was() -> None:
    model = Model().bfloat16()
    model.head.weight = model.emb.weight
    model.register_buffer("table", torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters())
    called: list[torch.dtype] = []
    model.emb.weight.register_post_accumulate_grad_hook(lambda p: called.append(p.dtype))
    model(torch.arange(9).view(1, 9)).sum().backward()
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    before = [(name, id(x), x.data_ptr(), x.detach().clone()) for name, x in named]
    accumulator = model.emb.weight.view_as(model.emb.weight).grad_fn.next_functions[0][0]

    def check() -> None:
        now = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
        assert [(name, id(x), x.data_ptr()) for name, x in now] == [one[:3] for one in before]
        assert all(x.dtype == was.dtype and torch.equal(x, was) for (_, x), (*_, was) in zip(now, before, strict=True))
        assert accumulator is model.emb.weight.view_as(model.emb.weight).grad_fn.next_functions[0][0]
        assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {
            id(p) for p in model.parameters()
        }

    assert probe(model, family()).how == "forward"
    check()
    model.blocks[1].moe.forward = lambda x: 1 / 0
    seen = probe(model, family())
    assert (seen.how, "ZeroDivisionError" in seen.problem) == ("fields", True)
    check()
    assert called == [torch.bfloat16]


class OnlyIn16Bits(Attention):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.bfloat16())


@pytest.mark.parametrize("normalized", [True, False])
def test_a_model_that_runs_in_16_bits_alone_is_told_nothing_false(normalized: bool) -> None:
    model = Model(normalized=normalized)
    for block in model.blocks:
        block.attn = OnlyIn16Bits()
    model.bfloat16()
    seen = probe(model, family())
    assert (seen.how, seen.routing[0].active, seen.routing[0].normalized) == ("forward", 2, None)
    assert set(seen.gain_offsets.values()) == {0.0}
    assert all(abs(factor - 1) < 0.02 for factor in seen.factors.values())
    with pytest.raises(BindError, match=r"active = 3.* 2 experts"):
        mue.describe(model, family(active=3))


# -- experts in one tensor, or one by one --------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", [FUSED, SINGLE])
def test_what_a_family_says_of_its_experts_is_compared(kind: str, shared: bool) -> None:
    seen = probe(Model(kind, shared=shared), family())
    assert (seen.routing[0].active, seen.routing[1].normalized) == (2, True)
    assert seen.factors["blocks.0.attn.o.weight"] == pytest.approx(1.0, rel=1e-3)
    with pytest.raises(BindError, match=r"active = 2, but .* 4 experts"):
        mue.describe(Model(kind, active=4, shared=shared), family())
    with pytest.raises(BindError, match="differ from token to token"):
        mue.describe(Model(kind, normalized=False, shared=shared), family())
    with pytest.raises(BindError, match=r"'blocks\.0\.attn\.o\.weight': .* by 0\.25, but family 'mine' says 1"):
        mue.describe(Model(kind, branch=0.25, shared=shared), family())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", [FUSED, SINGLE])
def test_a_routed_factor_is_seen(kind: str, shared: bool, dtype: torch.dtype) -> None:
    model = Model(kind, scale=2.5, shared=shared).to(dtype)
    with pytest.raises(BindError, match=r"w2.*multiplies its product by 2\.5, but family 'mine' says 1: say so"):
        mue.describe(model, family())
    seen = probe(model, family(native={"expert_down": 2.5}))
    assert seen.routing[1].sums == pytest.approx((2.5, 2.5), rel=1e-3)
    assert seen.factors[LAST[kind]] == pytest.approx(2.5, rel=1e-3)
    assert probe(Model(kind, shared=shared), family()).factors[LAST[kind]] == pytest.approx(1.0, rel=1e-3)
    with pytest.raises(BindError, match=r"product by 1, but family 'mine' says 2\.5"):
        mue.describe(Model(kind, shared=shared).to(dtype), family(native={"expert_down": 2.5}))


@pytest.mark.parametrize("active", [1, 2])
def test_weights_inside_the_product_show_no_factor(active: int) -> None:
    model = Model(scale=2.5, early=True, shared=False, active=active)
    for factor in (1.0, 2.5):
        seen = probe(model, family(active=active, native={"expert_down": factor}))
        assert (seen.routing[0].normalized, LAST[FUSED] in seen.factors) == (True, False)


def test_one_activated_expert() -> None:
    with pytest.raises(BindError, match=r"product by 2\.5"):
        mue.describe(Model(SINGLE, scale=2.5, active=1), family(active=1))
    probe(Model(SINGLE, active=1), family(active=1))


# -- when it is looked at again ------------------------------------------------------------------------------------


class Counting(Model):
    def __init__(self, always: bool) -> None:
        super().__init__()
        self.calls, self.looks, self.always = 0, 0, always

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += self.always or self.training
        self.looks += not self.training
        return super().forward(tokens)


@pytest.mark.parametrize("always", [True, False])
def test_a_module_that_counts_its_calls_is_not_looked_at_every_step(always: bool) -> None:
    model, tokens = Counting(always), torch.arange(9).view(1, 9)
    reference = mue.Reference(
        mue.ModelShape(16, 2, mue.FeedForward.dense(32)), mue.Budget(64, 70), mue.Hyper(1e-2, 0.1, 0.05)
    )
    plan = mue.transfer(reference, mue.describe(model, family()), mue.Budget(64, 50))

    def step() -> None:
        model(tokens).square().mean().backward()
        mue.clip_grad_norm_(model, plan, 1.0, family=family())

    step()
    looks = model.looks
    for _ in range(3):
        step()
    assert model.looks == looks
    model.blocks[1].moe.scale = 2.5  # what counts is still seen
    with pytest.raises(BindError, match=r"'blocks\.1\.moe\.w2': .* by 2\.5"):
        step()


# -- what a norm adds ----------------------------------------------------------------------------------------------


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.g, self.b = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (WIDTH,), self.g, self.b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_shift_under_any_name_starts_at_zero(dtype: torch.dtype) -> None:
    model = Model()
    model.norm = Shifted()
    model.to(dtype)
    table = TABLE.replace("norm.weight | final_norm | width\n", "norm.g | final_norm | width\nnorm.b | {} | width\n")
    assert table != TABLE
    with pytest.raises(BindError, match=r"'norm\.b': the norm adds it, .* role `bias`"):
        mue.describe(model, family(table.replace("{}", "final_norm")))
    right = family(table.replace("{}", "bias"))
    reference = mue.Reference(
        mue.ModelShape(16, 2, mue.FeedForward.dense(32)), mue.Budget(64, 70), mue.Hyper(1e-2, 0.1, 0.05)
    )
    plan = mue.transfer(reference, mue.describe(model, right), mue.Budget(64, 50))
    mue.initialize(model, plan, family=right)
    mue.param_groups(model, plan, family=right)
    assert (model.norm.g == 1).all()
    assert (model.norm.b == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_that_share_their_weights_come_back_as_they_were(dtype: torch.dtype) -> None:
    """One block under two names is looked at with other weights in it, and has its own again afterwards."""
    model = Model().to(dtype)
    whole = mue.describe(model, family()).parameters
    model.blocks = nn.ModuleList([model.blocks[0]] * 2)
    before, kept = dict(model.named_parameters()), {name: x.clone() for name, x in model.state_dict().items()}
    shape = mue.describe(model, family())
    after = dict(model.named_parameters())
    assert before.keys() == after.keys()
    assert all(x is after[name] for name, x in before.items())
    assert all(torch.equal(x, kept[name]) for name, x in model.state_dict().items())
    assert (2 * shape.parameters.active, 2 * shape.parameters.total) == (whole.active, whole.total)
    plan = mue.transfer(mue.read_reference("examples/lm_reference.toml"), shape, betas="hold")
    assert len(mue.param_groups(model, plan, family=family())) > 1


class Rotated(Attention):
    """Keeps tables of the longest sequence so far, in the type that it first saw: an attribute and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None or len(self.table) < x.shape[1]:
            self.table = torch.ones(x.shape[1], 1, dtype=x.dtype)
            self.longest = self.table.clone()
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = q * self.table[: x.shape[1]], k * self.longest[: x.shape[1]]
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True))


def test_tables_that_a_forward_keeps_are_not_left_behind() -> None:
    """A look in float32 would leave float32 tables in a model of 16 bits, whose own forward then fails."""
    model = Model()
    for block in model.blocks:
        block.attn = Rotated()
    model.to(torch.bfloat16).train()
    mue.describe(model, family())
    assert all(block.attn.table is None and not hasattr(block.attn, "longest") for block in model.blocks)
    assert all(module.training for module in model.modules())
    assert model(torch.zeros(1, 4, dtype=torch.long)).dtype == torch.bfloat16
    held = [block.attn.longest for block in model.blocks]
    mue.describe(model, family())
    assert all(block.attn.longest is one for block, one in zip(model.blocks, held, strict=True))
