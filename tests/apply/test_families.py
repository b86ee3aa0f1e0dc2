"""Every stock family: its shape is read right, each tensor is bound once and drawn as planned, traps are refused."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="stock families need transformers")

import complete_mue as mue  # noqa: E402
from complete_mue.apply import FAMILIES, bind  # noqa: E402
from complete_mue.errors import BindError  # noqa: E402
from complete_mue.layout import Role  # noqa: E402
from stock_families import BASE, REFUSED, STOCK, tiny_config, tiny_model, tiny_plan, tiny_reference  # noqa: E402

# Where the vectors of linear attention start: 1, log of 0.01 to 16, log of 1 to 16, softplus^-1 of 0.001 to 0.1.
STARTS = {"ones": (1, 1), "log_uniform": (-4.61, 2.78), "log_uniform_1": (0, 2.78), "dt": (-6.91, -2.25)}
SWITCHED = [name for name, stock in STOCK.items() if stock.switch not in ("", "hook")]
HOOKED = [name for name, stock in STOCK.items() if stock.switch]


def test_all_served_families_are_tested() -> None:
    assert {name for name, family in FAMILIES.items() if not family.refused} == set(STOCK)
    assert len(STOCK) >= 35
    assert set(REFUSED) <= {name for name, family in FAMILIES.items() if family.refused}


@pytest.mark.parametrize("name", STOCK)
def test_shape_binding_and_initial_weights(name: str) -> None:
    stock, model = STOCK[name], tiny_model(name)
    shape = mue.describe(model)
    assert (shape.width, shape.depth) == (BASE["hidden_size"], BASE["num_hidden_layers"])
    assert tuple(block.with_widths for block in shape.blocks) == stock.blocks
    assert shape.dense_layers == stock.dense_layers

    plan = tiny_plan(model)
    binding = bind(model, plan)
    trainable = {key: value for key, value in model.named_parameters() if value.requires_grad}
    assert [bound.name for bound in binding] == list(trainable)
    assert all(bound.parameter is trainable[bound.name] for bound in binding)
    assert binding.form == "folded"

    before = {key: value.clone() for key, value in model.named_buffers()}
    mue.initialize(model, plan)
    for bound in binding:
        weight = bound.parameter.detach()
        row = plan.row(bound.spec.role) if bound.spec.layer is None else layer_row(plan, bound.spec)
        if bound.spec.start and bound.spec.start != "1+w":
            low, high = STARTS[bound.spec.start]
            assert low <= weight.min() <= weight.max() <= high, bound.name
            continue
        if row.init_std is None:
            gain = bound.spec.role in (Role.NORM, Role.FINAL_NORM) and not bound.name.endswith("bias")
            behind = 1 / plan.ratios.depth if bound.spec.multiplied_as == "residual" else 1.0
            value = behind - (bound.spec.start == "1+w") if gain else 0.0
            torch.testing.assert_close(weight, torch.full_like(weight, value))
            continue
        factor = row.multiplier / own_factor(name, bound.name, bound.spec.role)
        if bound.spec.multiplied_as == "inner":
            factor /= row.residual
        planned = row.init_std * factor
        if bound.spec.fan_in == "kernel":  # it does not grow with the width
            planned *= math.sqrt(plan.ratios.width)
        tolerance = max(0.05, 5 / math.sqrt(2 * weight.numel()))
        assert weight.std().item() == pytest.approx(planned, rel=tolerance), bound.name
        assert abs(weight.mean().item()) < 5 * planned / math.sqrt(weight.numel()), bound.name
    for key, value in model.named_buffers():
        torch.testing.assert_close(value, before[key], msg=key)


def layer_row(plan: mue.Plan, spec: Any) -> mue.Row:
    block = plan.shape.label(plan.shape.blocks[spec.layer])
    in_block = any(row.role is spec.role and row.block == block for row in plan.rows)
    return plan.row(spec.role, block if in_block else None)


def own_factor(family: str, name: str, role: Role) -> float:
    """What the stock forward multiplies itself, from the test's own table."""
    native = STOCK[family].native
    return native.get(role.value, native.get(name.split(".")[-2], 1.0))


@pytest.mark.parametrize("name", STOCK)
def test_a_config_describes_as_its_model_does(name: str) -> None:
    config = tiny_config(name)
    assert mue.describe(config) == mue.describe(tiny_model(name))


def test_ernie_routers_are_drawn_though_the_stock_init_leaves_them_at_zero() -> None:
    model = tiny_model("ernie4_5_moe")
    router = model.model.layers[1].mlp.gate.weight
    assert router.abs().max() == 0
    mue.initialize(model, tiny_plan(model))
    assert router.abs().min() > 0


def test_transposed_experts_keep_their_axes() -> None:
    specs = {}
    for name in ("gpt_oss", "mixtral"):
        model = tiny_model(name)
        bound = {one.name: one for one in bind(model, tiny_plan(model))}["model.layers.0.mlp.experts.down_proj"]
        specs[name] = bound.spec.axes, bound.spec.fan_in, tuple(bound.parameter.shape)
    assert specs["gpt_oss"] == (("experts", "hidden", "width"), "hidden", (4, 60, 48))
    assert specs["mixtral"] == (("experts", "width", "hidden"), "hidden", (4, 48, 60))


@pytest.mark.parametrize("name", ["dots1", "hunyuan_v1_moe"])
def test_a_config_with_gaps_is_our_error(name: str) -> None:
    with pytest.raises(BindError, match="every size"):
        mue.describe(transformers.AutoConfig.for_model(name))


@pytest.mark.parametrize(("name", "reason"), [("llama4_text", "experts' input"), ("jamba", "state-space layers")])
def test_refused_with_the_reason(name: str, reason: str) -> None:
    from transformers import AutoModelForCausalLM

    config = tiny_config(name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    for given in (config, model):
        with pytest.raises(BindError, match=f"{name!r} is not supported: .*{reason}"):
            mue.describe(given)


@pytest.mark.parametrize(("name", "text"), [("gemma3", "gemma3_text"), ("llava", "llama")])
def test_a_model_with_an_encoder_is_told_apart(name: str, text: str) -> None:
    config = transformers.AutoConfig.for_model(name)
    assert config.text_config.model_type == text
    with pytest.raises(BindError, match=rf"a language model \({text}\).*give its text_config"):
        mue.describe(config)


def test_biases_of_dense_blocks_are_known() -> None:
    model = tiny_model("llama", mlp_bias=True)
    found = {bound.name.split(".")[-2]: bound.spec for bound in bind(model, tiny_plan(model)) if "mlp" in bound.name}
    biases = {name: spec.role for name, spec in found.items() if spec.axes in (("hidden",), ("width",))}
    assert biases == dict.fromkeys(("gate_proj", "up_proj", "down_proj"), Role.BIAS)


@pytest.mark.parametrize("name", HOOKED)
def test_unnormalized_routing_is_refused_with_the_remedy_and_served_after_it(name: str) -> None:
    model = tiny_model(name, normalized=False)
    plan = tiny_plan(model)
    remedy = (
        r"norm_topk_prob = True .*or call mue\.normalize_routing" if name in SWITCHED else r"mue\.normalize_routing"
    )
    with pytest.raises(BindError, match=remedy):
        mue.param_groups(model, plan)
    torch.manual_seed(0)
    assert sums(model).std() > 1e-3
    handles = mue.normalize_routing(model)
    assert len(handles) == len([block for block in plan.shape.blocks if block.groups])
    assert mue.normalize_routing(model) == []
    torch.testing.assert_close(sums(model), torch.ones(()).expand_as(sums(model)))
    down = next(bound for bound in bind(model, plan) if bound.spec.role is Role.EXPERT_DOWN)
    row = plan.row("expert_down")
    assert down.folded == pytest.approx(row.multiplier / (row.residual if down.spec.multiplied_as == "inner" else 1))
    mue.initialize(model, plan)
    for handle in handles:
        handle.remove()
    with pytest.raises(BindError, match="do not sum to one"):
        mue.param_groups(model, plan)


def sums(model: Any) -> torch.Tensor:
    """What the experts' routing weights sum to, token by token, as the experts receive them."""
    seen: list[torch.Tensor] = []

    def look(module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        seen.append(next(t for t in inputs[1:] if t.is_floating_point()).sum(-1))

    handles = [m.register_forward_pre_hook(look) for n, m in model.named_modules() if n.endswith(".experts")]
    with torch.no_grad():
        model.eval()(input_ids=torch.arange(3, 67).view(2, 32))
    for handle in handles:
        handle.remove()
    return torch.cat(seen)


def test_normalize_routing_leaves_alone_what_normalizes_itself() -> None:
    assert mue.normalize_routing(tiny_model("hunyuan_v1_moe")) == []
    with pytest.raises(BindError, match="has no router"):
        mue.normalize_routing(tiny_model("llama"))


@pytest.mark.parametrize("name", [name for name in STOCK if name not in HOOKED and STOCK[name].blocks[1] != "dense@60"])
def test_families_said_to_normalize_do(name: str) -> None:
    model = tiny_model(name)
    mue.initialize(model, tiny_plan(model))
    weights = sums(model)
    torch.testing.assert_close(weights, weights.mean().expand_as(weights), rtol=1e-4, atol=0)
    assert weights.mean().item() in (pytest.approx(1.0), pytest.approx(STOCK[name].native.get("expert_down", 1.0)))


def test_rank_of_latent_attention_can_be_held() -> None:
    model = tiny_model("deepseek_v3")
    plan = tiny_plan(model)
    held = dataclasses.replace(FAMILIES["deepseek_v3"], fan_in_ratios={"rank": 1.0})
    free, fixed = ({b.name: b.row for b in bind(model, plan, family)} for family in (None, held))
    ratio = plan.ratios.width
    for name, row in fixed.items():
        if name.endswith(("q_b_proj.weight", "kv_b_proj.weight")):
            assert row.lr == pytest.approx(free[name].lr * ratio)
            assert row.weight_decay == pytest.approx(free[name].weight_decay / ratio)
            assert row.init_std == pytest.approx(free[name].init_std * math.sqrt(ratio))
            assert row.eps == free[name].eps
        else:
            assert row == free[name]
    with pytest.raises(BindError, match=r"'ranks'.* rank, width"):
        dataclasses.replace(FAMILIES["deepseek_v3"], fan_in_ratios={"ranks": 1.0})


@pytest.mark.parametrize("rules", [mue.Rules("sp"), mue.Rules(weight_decay="fixed"), mue.Rules("mup")])
def test_a_fan_in_that_does_not_grow_needs_no_factor(rules: mue.Rules) -> None:
    """A convolution over four tokens has a fan-in of four at any width: width alone changes nothing about it."""
    model = tiny_model("qwen3_next")
    shape = mue.describe(model)
    small = mue.ModelShape(shape.width // 2, shape.depth, mue.FeedForward.dense(24))
    reference = mue.Reference(small, mue.Budget(64, 50), mue.Hyper(1e-2, 0.1, 0.05))
    found = {b.name: b.row for b in bind(model, mue.transfer(reference, shape, rules=rules))}
    kernels = [row for name, row in found.items() if name.endswith("conv1d.weight")]
    assert kernels
    for row in kernels:
        assert [row.lr, row.weight_decay, row.init_std] == pytest.approx([1e-2, 0.1, 0.05])


def test_heads_that_grow_need_their_own_scale() -> None:
    model = tiny_model("qwen3_moe", head_dim=32)
    shape = mue.describe(model)
    assert shape.head_dim == 32
    mue.param_groups(model, tiny_plan(model))  # a reference that leaves its head size open asks for nothing
    reference = tiny_reference()
    grown = dataclasses.replace(reference, shape=dataclasses.replace(reference.shape, head_dim=8))
    plan = mue.transfer(grown, shape, reference.budget)
    with pytest.raises(BindError, match=r"0\.176777.* 0\.0883883 .*module\.scaling = 0\.0883"):
        mue.param_groups(model, plan)
    for module in model.modules():
        if hasattr(module, "scaling"):
            module.scaling = plan.attention_scale
    assert mue.param_groups(model, plan)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("qwen3_moe", {"mlp_only_layers": [0, 1]}),
        ("qwen2_moe", {"mlp_only_layers": [0, 1]}),
        ("deepseek_v3", {"first_k_dense_replace": 2}),
        ("glm4_moe", {"first_k_dense_replace": 2}),
        ("lfm2_moe", {"num_dense_layers": 2}),
    ],
)
def test_a_dense_stock_model_is_a_reference(name: str, changes: Any) -> None:
    dense = mue.describe(tiny_model(name, **changes))
    assert dense.feed_forward == mue.FeedForward.dense(60)
    assert dense == mue.describe(tiny_config(name, **changes))
    hyper = tiny_reference().hyper
    reference = mue.Reference(dense, mue.Budget(batch_tokens=64, steps=50), hyper)
    model = tiny_model(name)
    plan = mue.transfer(reference, mue.describe(model), reference.budget)
    mue.initialize(model, plan)
    groups = {name: group["lr"] for group in mue.param_groups(model, plan) for name in group["param_names"]}
    # Width, depth and steps are the reference's: attention trains as it did there.
    assert groups[_attention(name)] == hyper.lr
    same = mue.transfer(reference, dense, reference.budget)
    assert all(row.multiplier == 1 for row in same.rows)


def _attention(name: str) -> str:
    last = "kv_b_proj" if name == "deepseek_v3" else "k_proj"
    return f"model.layers.1.self_attn.{last}.weight"


def test_state_space_layers_are_refused_and_attention_is_not() -> None:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(tiny_config("granitemoehybrid", layer_types=["mamba", "attention"]))
    with pytest.raises(BindError, match=r"'model\.layers\.0\.mamba.*state-space"):
        mue.describe(model)
