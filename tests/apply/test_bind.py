"""Every parameter to exactly one row: one's own model in ten lines, wrappers seen through, errors that help."""

from __future__ import annotations

import copy
import dataclasses
import io
import math
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import complete_mue as mue  # noqa: E402
from complete_mue.apply import bind  # noqa: E402
from complete_mue.errors import BindError, TransferError  # noqa: E402
from complete_mue.layout import Role, TensorSpec  # noqa: E402

TABLE = """
    wte.weight             | embedding     | vocab width
    blocks.*.norm.weight   | norm          | width
    blocks.*.qkv.weight    | attention_in  | heads <width>
    blocks.*.proj.weight   | attention_out | width <heads>
    blocks.*.router.weight | router        | experts <width>
    blocks.*.w1            | expert_up     | experts <width> hidden
    blocks.*.w2            | expert_down   | experts <hidden> width
    ln_f.weight            | final_norm    | width
    head.weight            | readout       | vocab <width>
"""
MINE = mue.Family.define("mine", TABLE, active=2)


class Block(torch.nn.Module):
    def __init__(self, width: int, experts: int, hidden: int) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.proj = torch.nn.Linear(width, width, bias=False)
        self.router = torch.nn.Linear(width, experts, bias=False)
        self.w1 = torch.nn.Parameter(torch.zeros(experts, width, hidden))
        self.w2 = torch.nn.Parameter(torch.zeros(experts, hidden, width))
        self.pace = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.proj(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)) / self.pace
        weight, index = self.router(x).sigmoid().topk(2)
        weight = weight / weight.sum(-1, keepdim=True)
        every = torch.einsum("btef,efd->bted", torch.einsum("btd,edf->btef", x, self.w1).relu(), self.w2)
        chosen = every.gather(2, index[..., None].expand(-1, -1, -1, x.shape[-1]))
        return x + (weight[..., None] * chosen).sum(2)


class Mine(torch.nn.Module):
    """Somebody's own MoE: no config, no base class of ours, names and layouts of its own."""

    def __init__(self, width: int = 24, depth: int = 2, experts: int = 4, hidden: int = 20) -> None:
        super().__init__()
        self.wte = torch.nn.Embedding(32, width)
        self.blocks = torch.nn.ModuleList(Block(width, experts, hidden) for _ in range(depth))
        self.ln_f = torch.nn.RMSNorm(width)
        self.head = torch.nn.Linear(width, 32, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x)) / getattr(getattr(self, "config", None), "logits_scaling", 1.0)


def plan_for(model: Any, family: mue.Family | None = MINE) -> mue.Plan:
    reference = mue.Reference(
        mue.ModelShape(16, 3, mue.FeedForward.dense(32)), mue.Budget(64, 70), mue.Hyper(1e-2, 0.1, 0.05)
    )
    return mue.transfer(reference, mue.describe(model, family), mue.Budget(64, 50))


def changed(old: str, new: str, **facts: Any) -> mue.Family:
    assert old in TABLE
    return mue.Family.define("mine", TABLE.replace(old, new), **{"active": 2, **facts})


def compiled(module: torch.nn.Module) -> Any:
    return torch.compile(module, backend="eager")


# -- one's own model -----------------------------------------------------------------------------------------------


def test_own_model_in_ten_lines() -> None:
    assert len(TABLE.strip().splitlines()) < 10
    model = Mine()
    shape = mue.describe(model, MINE)
    assert shape == mue.ModelShape(24, 2, mue.FeedForward.moe(4, 2, 20))
    plan = plan_for(model)
    mue.initialize(model, plan, family=MINE)
    rows = {bound.name: bound for bound in bind(model, plan, MINE)}
    assert list(rows) == [name for name, _ in model.named_parameters()]
    down, folded = rows["blocks.1.w2"], plan.fold().row("expert_down")
    assert down.row.numbers == folded.numbers
    assert down.folded == plan.row("expert_down").multiplier
    assert rows["blocks.0.qkv.weight"].folded == 1
    optimizer = torch.optim.AdamW(mue.param_groups(model, plan, family=MINE))
    tokens = torch.randint(0, 8, (4, 12), generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        mue.clip_grad_norm_(model, plan, 1.0, family=MINE)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_experts_one_by_one() -> None:
    class Expert(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(8, 6, bias=False), torch.nn.Linear(6, 8, bias=False)

    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(torch.nn.ModuleList(Expert() for _ in range(5)) for _ in range(2))
    table = "layers.*.*.up.weight | expert_up | hidden <width>\nlayers.*.*.down.weight | expert_down | width <hidden>"
    assert mue.describe(model, mue.Family.define("list", table, active=2)).main == mue.FeedForward.moe(5, 2, 6)


def test_experts_in_groups() -> None:
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(torch.nn.Module() for _ in range(2))
    for layer in model.layers:
        layer.a, layer.b = (torch.nn.Parameter(torch.zeros(4, 8, 3)) for _ in range(2))
    table = "layers.*.{a,b} | expert_down | experts width <hidden>"
    assert str(mue.describe(model, mue.Family.define("groups", table, active=4)).main) == "8e4a2g"
    with pytest.raises(BindError, match=r"3 .* 2 groups"):
        mue.describe(model, mue.Family.define("groups", table, active=3))


def test_a_model_that_declares_itself() -> None:
    class Declared(Mine):
        shape = mue.ModelShape(24, 2, mue.FeedForward.moe(4, 2, 20))

        def tensors(self) -> tuple[TensorSpec, ...]:
            return MINE.bind_names(name for name, _ in self.named_parameters())

    model = Declared()
    assert mue.describe(model) is Declared.shape
    plan = plan_for(model, None)
    ours, tables = bind(model, plan), bind(model, plan, MINE)
    assert [b.row for b in ours] == [b.row for b in tables]
    assert [b.name for b in bind(compiled(model), plan)] == [b.name for b in ours]
    model.extra = torch.nn.Parameter(torch.zeros(1))
    model.tensors = lambda: [*MINE.bind_names(n for n, _ in model.named_parameters() if n != "extra")] * 2
    with pytest.raises(BindError, match=r"twice \['wte\.weight'.*\['extra'\]"):
        bind(model, plan)
    model.tensors = lambda: [TensorSpec("gone", Role.BIAS, ("width",), None)]
    with pytest.raises(BindError, match=r"absent \['gone'\]"):
        bind(model, plan)


def test_multipliers_of_the_model_stay_out_of_the_fold() -> None:
    model = Mine()
    plan = plan_for(model)
    specs = MINE.bind_names(name for name, _ in model.named_parameters())
    whole = {role: plan.row(role).multiplier for role in ("attention_out", "expert_down", "readout")}

    class Multiplying(Mine):
        shape = plan.shape

        def tensors(self) -> list[TensorSpec]:
            return [dataclasses.replace(spec, multiplier=whole.get(spec.role, 1.0)) for spec in specs]

    binding = bind(Multiplying(), plan)
    assert binding.form == "multiplier"
    assert all(b.row.lr == plan.row(b.spec.role).lr for b in binding)
    assert bind(model, plan, MINE).form == "folded"
    assert bind(model, plan.fold(), MINE).bound[-1].row.lr == bind(model, plan, MINE).bound[-1].row.lr


# -- nothing is stored on the model --------------------------------------------------------------------------------


def test_copies_pickles_and_compiled_models_bind_alike() -> None:
    model = Mine()
    plan = plan_for(model)
    before = [set(vars(module)) for module in model.modules()]
    mue.initialize(model, plan, family=MINE)
    mue.param_groups(model, plan, family=MINE)
    assert all(vars(parameter) == {} for parameter in model.parameters())
    assert [set(vars(module)) for module in model.modules()] == before

    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    others = {
        "deepcopy": copy.deepcopy(model),
        "pickle": torch.load(saved, weights_only=False),
        "compile": compiled(copy.deepcopy(model)),
        "parallel": torch.nn.DataParallel(copy.deepcopy(model)),
        "compiled layer": copy.deepcopy(model),
    }
    others["compiled layer"].blocks[1] = compiled(others["compiled layer"].blocks[1])
    values = [parameter.clone() for parameter in model.parameters()]
    settings = [bound.row for bound in bind(model, plan, MINE)]
    for how, other in others.items():
        assert [bound.row for bound in bind(other, plan, MINE)] == settings, how
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        mue.initialize(other, plan, family=MINE)
        assert all(map(torch.equal, other.parameters(), values)), how
    names = [bound.name for bound in bind(others["compile"], plan, MINE)]
    assert names == [name for name, _ in model.named_parameters()]
    assert "blocks.1._orig_mod.w1" in [bound.name for bound in bind(others["compiled layer"], plan, MINE)]


def test_a_submodule_called_module_is_no_wrapper() -> None:
    model = torch.nn.Module()
    model.module = torch.nn.ModuleList([torch.nn.Linear(4, 4, bias=False)])
    family = mue.Family.define("m", "module.*.weight | dense_down | width <hidden>")
    assert mue.describe(model, family) == mue.ModelShape(4, 1, mue.FeedForward.dense(4))


def test_frozen_parameters_are_listed_and_still_show_the_shape() -> None:
    model = Mine()
    shape, plan = mue.describe(model, MINE), plan_for(model)
    model.wte.weight.requires_grad_(False)
    for block in model.blocks:
        block.w2.requires_grad_(False)
    model.statistics = torch.nn.Parameter(torch.zeros(3), requires_grad=False)  # has no line, needs none
    assert mue.describe(model, MINE) == shape
    binding = bind(model, plan, MINE)
    assert set(binding.frozen) == {"wte.weight", "blocks.0.w2", "blocks.1.w2", "statistics"}
    assert {bound.name for bound in binding} == {n for n, p in model.named_parameters() if p.requires_grad}
    model.requires_grad_(False)
    with pytest.raises(BindError, match="no trainable parameters"):
        bind(model, plan, MINE)


# -- errors --------------------------------------------------------------------------------------------------------


def test_unbound_parameters_are_listed() -> None:
    family = changed("    blocks.*.norm.weight   | norm          | width\n", "")
    with pytest.raises(BindError, match=r"2 .*'blocks.0.norm.weight', 'blocks.1.norm.weight'"):
        mue.describe(Mine(), family)


def test_idle_lines_are_listed_with_the_nearest_name() -> None:
    family = mue.Family.define("mine", TABLE + "    ln_g.weight | norm | width\n", active=2)
    with pytest.raises(BindError, match=r"1 .*'ln_g.weight'.*'ln_f.weight'"):
        mue.describe(Mine(), family)
    optional = mue.Family.define("mine", TABLE + "  ? ln_g.weight | norm | width\n", active=2)
    assert mue.describe(Mine(), optional).width == 24


def test_two_lines_for_one_parameter() -> None:
    family = mue.Family.define("mine", TABLE + "blocks.*.{norm,extra}.weight | norm | width", active=2)
    with pytest.raises(BindError, match=r"'blocks.0.norm.weight' .*several"):
        mue.describe(Mine(), family)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "experts <hidden> width",
            "experts <hidden>",
            "'blocks.0.w2' has 3 dimensions but axes .*one name per dimension",
        ),
        ("experts <hidden> width", "experts <inner> width", "'blocks.0.w2' has axes .*name one of them `hidden`"),
        ("vocab width", "width dim", r"axes named `width` have sizes \[24, 32\]"),
        ("expert_down", "expert_up  ", "layer 0 has no tensor of role dense_down or expert_down"),
    ],
)
def test_wrong_axes(old: str, new: str, says: str) -> None:
    with pytest.raises(BindError, match=says):
        mue.describe(Mine(), changed(old, new))


def test_lines_that_cannot_be_read() -> None:
    define = mue.Family.define
    with pytest.raises(BindError, match=r"write `name \| role \| axes`"):
        define("x", "a.weight | norm")
    with pytest.raises(BindError, match="<fan-in>, not 2"):
        define("x", "a.weight | dense_up | <hidden> <width>")
    with pytest.raises(TransferError, match=r"role = 'expert_dwn'.*'expert_down'"):
        define("x", "a.weight | expert_dwn | width <hidden>")
    with pytest.raises(BindError, match=r"'resid' .*'residual'"):
        define("x", "a.weight | norm | width | resid")
    with pytest.raises(mue.MueError, match=r"a\.weight: start = 'onse' .*'ones'"):
        define("x", "a.weight | norm | width | | onse")
    with pytest.raises(BindError, match=r"native .*'expert_dwn'.*'expert_down'"):
        define("x", "a.weight | norm | width", native={"expert_dwn": "c"})
    for ratio in (0, "2", math.inf):
        with pytest.raises(BindError, match=r"fan_in_ratios\['hidden'\] = "):
            define("x", "a.weight | dense_down | width <hidden>", fan_in_ratios={"hidden": ratio})  # type: ignore[dict-item]
    for axes in ("width <hidden", "width hidden>", "width < hidden >"):
        with pytest.raises(BindError, match="in one word"):
            define("x", f"a.weight | dense_down | {axes}")


def test_active_experts_are_seen_or_must_be_known() -> None:
    for family in (mue.Family.define("mine", TABLE), mue.Family.define("mine", TABLE, active="top_k")):
        assert mue.describe(Mine(), family).main.active == 2
        with pytest.raises(BindError, match="activated experts"):
            mue.describe(Mine().to("meta"), family)
    model = Mine()
    model.config = SimpleNamespace(top_k=[3, 3])
    family = mue.Family.define("mine", TABLE, active="top_k")
    with pytest.raises(BindError, match=r"config\.top_k = 3\b.* 2 experts"):
        mue.describe(model, family)
    assert mue.describe(model.to("meta"), family).main.active == 3


class Unnormalized(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, index = self.router(self.norm(x)).sigmoid().topk(2)
        every = torch.einsum("btef,efd->bted", torch.einsum("btd,edf->btef", x, self.w1).relu(), self.w2)
        chosen = every.gather(2, index[..., None].expand(-1, -1, -1, x.shape[-1]))
        return x + (weight[..., None] * chosen).sum(2)


def test_routing_weights_of_ones_own_model_are_seen() -> None:
    good, bad = Mine(), Mine()
    bad.blocks[1] = Unnormalized(24, 4, 20)
    plan = plan_for(good)
    mue.param_groups(good, plan, family=MINE)
    with pytest.raises(BindError, match=r"'mine' .*normalized=True"):
        mue.param_groups(bad, plan, family=MINE)


def test_native_factors_come_from_the_config() -> None:
    plain_model, model = Mine(), Mine()
    plan = plan_for(model)
    family = changed("|", "|", native={"expert_down": "scale", "blocks.*.proj.weight": "1/slow", "readout": "absent"})
    model.config = SimpleNamespace(scale=2.5, slow=4.0)
    with pytest.raises(BindError, match=r" 1, .*config\.slow .*0\.25"):
        bind(model, plan, family)
    for block in model.blocks:
        block.pace = 4.0
    plain, native = ({b.name: b for b in bind(m, plan, f)} for m, f in ((plain_model, MINE), (model, family)))
    assert native["blocks.0.w2"].folded == pytest.approx(plain["blocks.0.w2"].folded / 2.5)
    assert native["blocks.0.proj.weight"].folded == pytest.approx(plain["blocks.0.proj.weight"].folded * 4)
    assert native["head.weight"].folded == plain["head.weight"].folded
    model.config.scale = 0
    with pytest.raises(BindError, match=r"config.scale = 0"):
        bind(model, plan, family)


def test_layers_are_numbered_from_zero() -> None:
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleDict({"1": torch.nn.Linear(4, 4, bias=False)})
    with pytest.raises(BindError, match=r"layers .*\[1\]"):
        mue.describe(model, mue.Family.define("m", "layers.*.weight | dense_down | width <hidden>"))


def test_layers_of_two_numbers_are_no_layers() -> None:
    """Two stages of two blocks are four layers; by the first number they would be two."""
    model = Mine(depth=4)
    model.blocks = torch.nn.ModuleList(torch.nn.Sequential(*model.blocks[i : i + 2]) for i in (0, 2))
    with pytest.raises(BindError, match=r"layer 0 has several blocks \('blocks\.0\.1\."):
        mue.describe(model, mue.Family.define("mine", TABLE.replace("blocks.*", "blocks.*.*"), active=2))


def test_blocks_beside_the_layers_are_not_merged_into_them() -> None:
    """A block that predicts a further token, or a decoder beside an encoder: by its number it would be layer 0."""
    model = Mine()
    model.mtp = torch.nn.ModuleList([Block(24, 4, 20)])
    more = "".join(line.replace("blocks.*", "mtp.*") + "\n" for line in TABLE.splitlines() if "blocks" in line)
    family = mue.Family.define("mine", TABLE + more, active=2)
    with pytest.raises(BindError, match=r"layer 0 has several blocks \('mtp\.0\.proj.*as \.shape"):
        mue.describe(model, family)
    model.shape = mue.ModelShape(24, 2, mue.FeedForward.parse("4e2a", 20))
    assert "mtp.0.w2" in {bound.name for bound in bind(model, plan_for(model, family), family)}


def test_what_stands_beside_experts_is_shared() -> None:
    model = Mine()
    for block in model.blocks:
        block.up, block.down = torch.nn.Linear(24, 20, bias=False), torch.nn.Linear(20, 24, bias=False)
    table = TABLE + "blocks.*.up.weight | dense_up | hidden <width>\nblocks.*.down.weight | dense_down | width <hidden>"
    with pytest.raises(BindError, match=r"'blocks.0.down.weight' of role dense_down and experts.*shared_up"):
        mue.describe(model, mue.Family.define("mine", table, active=2))
    shared = mue.Family.define("mine", table.replace("dense_", "shared_"), active=2)
    assert str(mue.describe(model, shared).main) == "4e2a1s"


def test_tied_weights() -> None:
    model = Mine()
    plan = plan_for(model)
    model.head.weight = model.wte.weight
    assert mue.describe(model, MINE) == plan.shape
    with pytest.raises(BindError, match=r"wte.weight = head.weight.*tie_word_embeddings=False\)$"):
        bind(model, plan, MINE)
    family = changed("|", "|", native={"readout": "1/logits_scaling"})
    model.config = SimpleNamespace(logits_scaling=1.0)
    with pytest.raises(BindError, match=r"config.logits_scaling"):
        bind(model, plan, family)
    model.config.logits_scaling = plan.ratios.width  # now one tensor can serve as both
    binding = bind(model, plan, family)
    assert [bound.name for bound in binding] == [name for name, _ in model.named_parameters()]
    assert sum(len(group["params"]) for group in mue.param_groups(model, plan, family=family)) == len(binding.bound)


def test_plan_for_another_shape() -> None:
    model, other = Mine(), Mine(width=32)
    with pytest.raises(BindError, match=r"width 32, depth 2, blocks 4e2a@20 x2.* width 24"):
        mue.param_groups(model, plan_for(other), family=MINE)
    with pytest.raises(BindError, match=r"8e2a@20 x2.*mue.describe\(model\)"):
        mue.initialize(model, plan_for(Mine(experts=8)), family=MINE)


def test_a_k_that_was_not_seen_is_said_to_be_the_familys() -> None:
    """Initial weights are drawn without a forward: until then a family's own number counts."""
    three = mue.Family.define("mine", TABLE, active=3)
    with pytest.raises(BindError, match=r"4e2a@20 x2, but .* 4e3a@20 x2 \(k as family 'mine' says, active = 3"):
        mue.initialize(Mine(), plan_for(Mine()), family=three)


def test_plan_for_experts_of_another_width() -> None:
    """Equal active width in all, but other shares of it: rules that read an expert's fan-in tell them apart."""
    model = Mine()
    other = mue.ModelShape(24, 2, mue.FeedForward.parse("dense@20+4e2a@10"))
    plan = mue.transfer(plan_for(model).reference, other, mue.Budget(64, 50), rules="mup")
    assert other.active_width == mue.describe(model, MINE).active_width
    with pytest.raises(BindError, match="make the plan for this model"):
        mue.param_groups(model, plan, family=MINE)


def test_shared_experts_in_one_tensor() -> None:
    """Two of width 20 side by side are as much active width as two tensors."""
    model = Mine()
    for block in model.blocks:
        block.s2 = torch.nn.Parameter(torch.zeros(2, 20, 24))
    more = TABLE + "blocks.*.s2 | shared_down | experts <hidden> width"
    shape = mue.describe(model, mue.Family.define("mine", more, active=2))
    assert shape.active_width == 2 * 20 + 2 * 20


def test_unknown_models() -> None:
    with pytest.raises(BindError, match=r"family = 'mixtral': give a mue\.Family"):
        mue.describe(Mine(), "mixtral")  # type: ignore[arg-type]
    with pytest.raises(BindError, match="a ModelShape where the plan belongs"):
        mue.initialize(Mine(), mue.describe(Mine(), MINE), family=MINE)  # type: ignore[arg-type]
    with pytest.raises(BindError, match=r"Mine .*config.model_type.*64 known families.*Family.define"):
        mue.describe(Mine())
    with pytest.raises(BindError, match=r"model_type 'mixtrall'.*'mixtral'"):
        mue.describe(SimpleNamespace(model_type="mixtrall"))
    with pytest.raises(BindError, match=r"dict: .*nn\.Module"):
        mue.describe({})


def test_unnormalized_own_routing() -> None:
    model = Mine()
    plan = plan_for(model)
    for said in (False, "norm_topk"):  # what is seen counts
        assert bind(model, plan, changed("|", "|", normalized=said))
    model.blocks = torch.nn.ModuleList(Unnormalized(24, 4, 20) for _ in range(2))
    with pytest.raises(BindError, match=r"route scale .*mue\.norm"):
        bind(model, plan, changed("|", "|", normalized=False))
    with pytest.raises(BindError, match=r"config.norm_topk = True"):
        bind(model, plan, changed("|", "|", normalized="norm_topk"))
