"""The model is read, not its config: what silently went wrong by trusting a config is seen, and named."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="stock families need transformers")

import complete_mue as mue  # noqa: E402
from complete_mue.apply import FAMILIES, bind, probe  # noqa: E402
from complete_mue.errors import BindError  # noqa: E402
from stock_families import STOCK, tiny_config, tiny_model, tiny_plan, tiny_reference  # noqa: E402

FAMILY = mue.Family.define


def on_meta(name: str, **changes: Any) -> Any:
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(tiny_config(name, **changes))


# -- what is seen --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STOCK)
def test_the_probe_sees_what_the_tables_say(name: str) -> None:
    model = tiny_model(name)
    mue.initialize(model, tiny_plan(model))
    seen = probe(model)
    assert seen.how == "forward", seen.problem
    blocks = mue.describe(model).blocks
    assert {layer: one.active for layer, one in seen.routing.items()} == {
        layer: block.active for layer, block in enumerate(blocks) if block.groups
    }
    assert all(one.normalized is not False for one in seen.routing.values())
    told = {b.name: b.spec for b in bind(model, tiny_plan(model))}
    for key, factor in seen.factors.items():
        assert factor == pytest.approx(told[key].multiplier, rel=1e-3), key
    ends = [key for key in seen.factors if told[key].role.value in ("embedding", "readout")]
    assert len(ends) >= STOCK[name].ends_seen
    layers = {told[key].layer for key in seen.factors} - {None}
    assert layers == (set(range(len(blocks))) if STOCK[name].layers_seen else set())
    for key, gain in seen.gains.items():
        # A gain is 1, but for a norm behind a branch: it takes the residual factor, which is 3/2 here.
        expected = 3 / 2 if told[key].multiplied_as == "residual" else 1.0
        assert gain == pytest.approx(expected, rel=1e-5), key


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gemma2", "qwen3_next", "minimax", "minimax_m3_vl_text", "deepseek_v3", "gpt_oss"])
def test_16_bits_show_what_32_do(name: str, dtype: torch.dtype) -> None:
    model = tiny_model(name).float()
    plan = tiny_plan(model)
    mue.initialize(model, plan)
    whole, half = probe(model), probe(model.to(dtype))
    mue.param_groups(model, plan)
    assert (half.how, half.gain_offsets) == ("forward", whole.gain_offsets)
    assert half.factors == pytest.approx(whole.factors, rel=4e-3)  # factors kept as tensors are rounded
    assert {layer: (one.active, one.normalized) for layer, one in half.routing.items()} == {
        layer: (one.active, one.normalized) for layer, one in whole.routing.items()
    }


def test_one_forward_that_changes_nothing() -> None:
    model = tiny_model("mixtral").train()
    model.model.layers[0].mlp.eval()
    modes = [module.training for module in model.modules()]
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    random = torch.get_rng_state()
    plan = tiny_plan(model)
    mue.param_groups(model, plan)
    mue.clip_grad_norm_(model, plan, 1.0)
    assert len(calls) == 1
    handle.remove()
    assert torch.equal(random, torch.get_rng_state())
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_without_a_forward_the_modules_own_fields_count() -> None:
    model = on_meta("qwen3_moe", num_hidden_layers=4)
    seen = probe(model)
    assert (seen.how, seen.routing[1].active, seen.routing[1].normalized) == ("fields", 2, True)
    for layer in model.model.layers[1:]:
        layer.mlp.gate.top_k = 3
    with pytest.raises(BindError, match=r"config\.num_experts_per_tok = 2\b.* 3\b"):
        mue.describe(model)


# -- seven cases ---------------------------------------------------------------------------------------------------


def test_1_k_that_differs_from_layer_to_layer() -> None:
    config = {"num_experts": 8, "moe_topk": [1, 2, 2, 4], "num_hidden_layers": 4}
    for model in (tiny_model("hunyuan_v1_moe", **config), on_meta("hunyuan_v1_moe", **config)):
        with pytest.warns(UserWarning, match="top-1"):
            shape = mue.describe(model)
        assert [block.active for block in shape.blocks] == [1, 2, 2, 4]
    plan = mue.transfer(tiny_reference(), shape, mue.Budget(batch_tokens=64, steps=50))
    model = tiny_model("hunyuan_v1_moe", **config)
    down = {b.spec.layer: b for b in bind(model, plan) if b.spec.role.value == "expert_down"}
    for layer, block in enumerate(shape.blocks):
        assert down[layer].folded == pytest.approx(plan.row("expert_down", shape.label(block)).multiplier)
    assert down[0].folded != down[1].folded == down[2].folded != down[3].folded


def test_2_a_router_that_takes_two_whatever_the_config_says() -> None:
    for model in (tiny_model("phimoe", num_experts_per_tok=4), on_meta("phimoe", num_experts_per_tok=4)):
        with pytest.raises(BindError, match=r"config\.num_experts_per_tok = 4\b.* 2 experts"):
            mue.describe(model)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("qwen3_moe", "norm_topk_prob", False),
        ("dots1", "norm_topk_prob", False),
        ("deepseek_v3", "routed_scaling_factor", 1.0),
        ("glm4_moe", "routed_scaling_factor", 2.5),
        ("mixtral", "num_experts_per_tok", 1),
        ("gpt_oss", "num_experts_per_tok", 3),
        ("granitemoe", "residual_multiplier", 0.22),
        ("granitemoeshared", "embedding_multiplier", 12.0),
        ("minimax", "mlp_beta_factor", 1.0),
        ("minimax", "linear_attn_beta_factor", 1.0),
    ],
)
@pytest.mark.parametrize("meta", [False, True])
def test_3_a_config_changed_after_the_model_was_built(name: str, field: str, value: Any, meta: bool) -> None:
    model = on_meta(name) if meta else tiny_model(name)
    if meta and field == "linear_attn_beta_factor":
        pytest.skip("kept under another name: only a forward shows it")
    mue.describe(model)
    setattr(model.config, field, value)
    with pytest.raises(BindError, match=rf"config\.{field} (= {value}, but|says {value:g})"):
        mue.describe(model)


def test_4_top_1_teaches_a_router_nothing() -> None:
    model = tiny_model("mixtral", num_experts_per_tok=1)
    with pytest.warns(UserWarning, match=r"top-1 \(4e1a\).*router nothing"):
        shape = mue.describe(model)
    plan = mue.transfer(tiny_reference(), shape, mue.Budget(batch_tokens=64, steps=50))
    assert "top-1 (4e1a)" in str(plan)
    assert "top-1 (4e1a)" in plan.to_markdown()
    mue.initialize(model, plan)
    tokens = torch.arange(3, 67).view(2, 32)
    model(input_ids=tokens, labels=tokens).loss.backward()
    grads = {b.spec.role.value: b.parameter.grad.abs().max().item() for b in bind(model, plan)}
    assert grads["router"] < 1e-6 * grads["expert_up"]
    assert mue.describe(tiny_model("mixtral")).notes == ()


@pytest.mark.parametrize(
    ("name", "head", "changes"),
    [
        ("deepseek_v3", 20, {}),
        ("deepseek_v2", 20, {}),
        ("granitemoe", 12, {"attention_multiplier": 1.0}),
        ("granitemoeshared", 12, {"attention_multiplier": 0.015625}),
    ],
)
def test_5_attention_logits_are_scaled_by_the_root_of_the_head_size(name: str, head: int, changes: Any) -> None:
    model = tiny_model(name, **changes)
    assert mue.describe(model).head_dim == head
    plan = tiny_plan(model)  # the reference does not name its head size
    assert plan.reference.shape.head_dim is None
    if not changes:
        mue.param_groups(model, plan)
        model.model.layers[1].self_attn.scaling *= 2
    with pytest.raises(BindError, match=rf"attention logits by .*, the plan by {head**-0.5:.6g} \(heads of {head}"):
        mue.param_groups(model, plan)


def test_6_define_is_not_trusted() -> None:
    table = FAMILIES["qwen3_moe"]
    model = tiny_model("qwen3_moe")
    with pytest.raises(BindError, match=r"active = 4\b.* 2\b"):
        mue.describe(model, dataclasses.replace(table, active=4))
    loose = tiny_model("qwen3_moe", normalized=False)
    plan = tiny_plan(model)
    with pytest.raises(BindError, match=r"normalized=True, .* sum to"):
        mue.param_groups(loose, plan, family=dataclasses.replace(table, normalized=True))
    # what another family's table does not know: the model's own multipliers
    granite = transformers.AutoModelForCausalLM.from_config(
        transformers.GraniteConfig(**{**_dense(), "logits_scaling": 1.4, "residual_multiplier": 1.0,
                                      "embedding_multiplier": 1.0, "attention_multiplier": 12**-0.5})
    )  # fmt: skip
    with pytest.raises(BindError, match=r"'lm_head\.weight': .*0\.714286, .*'llama' .*1"):
        mue.describe(granite, FAMILIES["llama"])
    cohere = transformers.AutoModelForCausalLM.from_config(transformers.CohereConfig(**_dense(), logit_scale=0.25))
    no_norm = FAMILY("cohere", _llama_table(without="post_attention"), native={})
    with pytest.raises(BindError, match=r"'lm_head\.weight': .*0\.25, .*'cohere' .*1"):
        mue.describe(cohere, no_norm)


def test_6_norms_that_multiply_by_one_plus_w() -> None:
    gemma = transformers.AutoModelForCausalLM.from_config(transformers.GemmaConfig(**_dense()))
    native: dict[str, str | float] = {"embedding": "hidden_size**0.5"}
    with pytest.raises(BindError, match=r"norm .*1 \+ w, .*'mine' .*w"):
        mue.describe(gemma, FAMILY("mine", _llama_table(), native=native))
    centred = FAMILY("mine", _llama_table(norm="| | 1+w"), native=native)
    plan = mue.transfer(tiny_reference(), mue.describe(gemma, centred), mue.Budget(batch_tokens=64, steps=50))
    mue.initialize(gemma, plan, family=centred)
    assert gemma.model.norm.weight.abs().max() == 0
    assert set(probe(gemma, centred).gains.values()) == {1.0}
    llama = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**_dense()))
    with pytest.raises(BindError, match=r"norm .*w, .*'mine' .*1 \+ w"):
        mue.describe(llama, FAMILY("mine", _llama_table(norm="| | 1+w")))


def test_7_a_gate_on_the_shared_expert_is_counted() -> None:
    model = tiny_model("qwen2_moe")
    plan = tiny_plan(model)
    mue.initialize(model, plan)
    row = plan.row("shared_down")
    bound = next(b for b in bind(model, plan) if b.spec.role.value == "shared_down")
    assert bound.folded == pytest.approx(row.multiplier / 0.5)
    block, seen = model.model.layers[1].mlp, {}
    hook = block.shared_expert_gate.register_forward_hook(lambda m, i, o: seen.update(gate=o.sigmoid()))
    model(input_ids=torch.arange(3, 67).view(2, 32))
    hook.remove()
    assert seen["gate"].mean().item() == pytest.approx(0.5, abs=0.05)


def _dense() -> dict[str, Any]:
    from stock_families import BASE

    return dict(BASE)


def _llama_table(norm: str = "", without: str = "nothing") -> str:
    lines = """
        model.embed_tokens.weight | embedding | vocab width
        model.norm.weight | final_norm | width NORM
        lm_head.weight | readout | vocab <width>
        model.layers.*.input_layernorm.weight | norm | width NORM
        model.layers.*.post_attention_layernorm.weight | norm | width NORM
        model.layers.*.self_attn.{q,k,v}_proj.weight | attention_in | heads <width>
        model.layers.*.self_attn.o_proj.weight | attention_out | width <heads>
        model.layers.*.mlp.{gate,up}_proj.weight | dense_up | hidden <width>
        model.layers.*.mlp.down_proj.weight | dense_down | width <hidden>
    """.splitlines()
    return "\n".join(line.replace("NORM", norm) for line in lines if without not in line)
