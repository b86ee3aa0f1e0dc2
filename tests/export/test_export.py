"""What can be said of every export without the tools themselves."""

from __future__ import annotations

import ast
import fnmatch
import itertools
import json
import math
import re
import subprocess
import sys
from typing import Any

import pytest

import complete_mue as mue
from complete_mue.errors import TransferError
from complete_mue.export import EXPORTS, export
from complete_mue.layout.tensors import Role

TORCHTITAN_NAMES = {
    "tok_embeddings.weight": "embedding",
    "layers.0.attention.qkv_linear.wqkv.weight": "attention_in",
    "layers.0.attention.qkv_linear.wq.weight": "attention_in",
    "layers.0.attention.qkv_linear.wk.weight": "attention_in",
    "layers.0.attention.qkv_linear.wv.weight": "attention_in",
    "layers.0.attention.wq.weight": "attention_in",
    "layers.0.attention.wq_a.weight": "attention_in",
    "layers.0.attention.wq_b.weight": "attention_in",
    "layers.0.attention.wkv_a.weight": "attention_in",
    "layers.0.attention.wkv_b.weight": "attention_in",
    "layers.0.attention.wo.weight": "attention_out",
    "layers.0.attention.q_norm.weight": "norm",
    "layers.0.attention.k_norm.weight": "norm",
    "layers.0.attention.kv_norm.weight": "norm",
    "layers.0.attention_norm.weight": "norm",
    "layers.0.ffn_norm.weight": "norm",
    "layers.0.feed_forward.w1.weight": "dense_up",
    "layers.0.feed_forward.w3.weight": "dense_up",
    "layers.0.feed_forward.w2.weight": "dense_down",
    "layers.2.moe.router.gate.weight": "router",
    "layers.2.moe.routed_experts.inner_experts.w1_EFD": "expert_up",
    "layers.2.moe.routed_experts.inner_experts.w3_EFD": "expert_up",
    "layers.2.moe.routed_experts.inner_experts.w2_EDF": "expert_down",
    "layers.12._checkpoint_wrapped_module.moe.shared_experts.w1.weight": "shared_up",
    "layers.2.moe.shared_experts.w3.weight": "shared_up",
    "layers.2.moe.shared_experts.w2.weight": "shared_down",
    "norm.weight": "final_norm",
    "lm_head.weight": "readout",
}
MEGATRON_NAMES = {
    "embedding.word_embeddings.weight": "embedding",
    "module.module.embedding.word_embeddings.weight": "embedding",
    "decoder.layers.0.input_layernorm.weight": "norm",
    "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight": "norm",
    "decoder.layers.0.self_attention.q_layernorm.weight": "norm",
    "decoder.layers.0.self_attention.k_layernorm.weight": "norm",
    "decoder.layers.0.pre_mlp_layernorm.weight": "norm",
    "decoder.layers.0.mlp.linear_fc1.layer_norm_weight": "norm",
    "decoder.layers.0.self_attention.linear_qkv.weight": "attention_in",
    "decoder.layers.0.self_attention.linear_kv_up_proj.weight": "attention_in",
    "decoder.layers.0.self_attention.linear_proj.weight": "attention_out",
    "decoder.layers.0.mlp.linear_fc1.weight": "dense_up",
    "decoder.layers.0.mlp.linear_fc2.weight": "dense_down",
    "decoder.layers.1.mlp.router.weight": "router",
    "decoder.layers.1.mlp.experts.linear_fc1.weight11": "expert_up",
    "decoder.layers.1.mlp.experts.linear_fc2.weight0": "expert_down",
    "decoder.layers.1.mlp.experts.local_experts.7.linear_fc1.weight": "expert_up",
    "decoder.layers.1.mlp.experts.local_experts.7.linear_fc2.weight": "expert_down",
    "decoder.layers.1.mlp.experts.weight1": "expert_up",
    "decoder.layers.1.mlp.experts.weight2": "expert_down",
    "decoder.layers.1.mlp.shared_experts.linear_fc1.weight": "shared_up",
    "decoder.layers.1.mlp.shared_experts.linear_fc2.weight": "shared_down",
    "decoder.layers.1.mlp.shared_experts.gate_weight": "router",
    "decoder.final_layernorm.weight": "final_norm",
    "output_layer.weight": "readout",
}
HF_NAMES = {
    "model.embed_tokens.weight": "embedding",
    "model.layers.0.input_layernorm.weight": "norm",
    "model.layers.0.post_attention_layernorm.weight": "norm",
    "model.layers.0.self_attn.q_norm.weight": "norm",
    "model.layers.0.self_attn.kv_a_layernorm.weight": "norm",
    "model.layers.0.self_attn.q_proj.weight": "attention_in",
    "model.layers.0.self_attn.kv_b_proj.weight": "attention_in",
    "model.layers.0.self_attn.v_proj.bias": "bias",
    "model.layers.0.self_attn.sinks": "bias",
    "model.layers.0.self_attn.o_proj.weight": "attention_out",
    "model.layers.0.self_attn.o_proj.bias": "bias of attention_out",
    "model.layers.0.mlp.gate_proj.weight": "dense_up",
    "model.layers.0.mlp.up_proj.weight": "dense_up",
    "model.layers.0.mlp.down_proj.weight": "dense_down",
    "model.layers.1.mlp.gate.weight": "router",
    "model.layers.1.mlp.gate.wg.weight": "router",
    "model.layers.1.mlp.router.weight": "router",
    "model.layers.1.mlp.router.bias": "bias",
    "model.layers.1.mlp.shared_expert_gate.weight": "router",
    "model.layers.1.block_sparse_moe.router.weight": "router",
    "model.layers.1.mlp.experts.gate_up_proj": "expert_up",
    "model.layers.1.mlp.experts.gate_up_proj_bias": "bias",
    "model.layers.1.mlp.experts.down_proj": "expert_down",
    "model.layers.1.mlp.experts.down_proj_bias": "bias of expert_down",
    "model.layers.1.mlp.experts.3.up_proj.weight": "expert_up",
    "model.layers.1.block_sparse_moe.experts.3.w2.weight": "expert_down",
    "module.model.layers.1.mlp.shared_expert.gate_proj.weight": "shared_up",
    "model.layers.1.mlp.shared_experts.up_proj.weight": "shared_up",
    "model.layers.1.mlp.shared_experts.down_proj.weight": "shared_down",
    "model.layers.1.mlp.shared_expert.down_proj.weight": "gated shared_down",
    "model.layers.1.shared_mlp.input_linear.weight": "shared_up",
    "model.layers.1.shared_mlp.output_linear.weight": "shared_down",
    "model.norm.weight": "final_norm",
    "lm_head.weight": "readout",
}


def constants(text: str) -> dict[str, Any]:
    """The constants of an exported module, without running its imports."""
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if isinstance(node, ast.Assign)]
    found: dict[str, Any] = {}
    exec(compile(tree, "export", "exec"), {"range": range}, found)
    return found


def test_registry_names_its_tools() -> None:
    assert list(EXPORTS) == ["torchtitan", "megatron", "deepspeed", "hf"]


def test_unknown_tool_names_the_nearest(tiny_plan: mue.Plan) -> None:
    with pytest.raises(TransferError, match=r"'torchtitn'.*'torchtitan'.*megatron"):
        export(tiny_plan, "torchtitn")


@pytest.mark.parametrize("tool", EXPORTS)
def test_text_is_deterministic_and_has_a_header(tool: str, lm_plan: mue.Plan) -> None:
    text = export(lm_plan, tool)
    assert text == export(lm_plan, tool) == export(mue.Plan.from_json(lm_plan.to_json()), tool)
    assert text.endswith("\n")
    assert "128e8a4g1s (d=1024, L=32)" in text
    assert "complete_mue_sparse, folded form" in text
    package = {"megatron": "megatron-core", "hf": "transformers"}.get(tool, tool)
    assert re.search(rf"Checked against: {package} \d+\.\d+", text)
    assert "Gradient clipping" in text


@pytest.mark.parametrize("tool", EXPORTS)
def test_text_of_a_folded_plan_is_the_same(tool: str, lm_plan: mue.Plan) -> None:
    """Folding first moves numbers by rounding alone."""
    once, twice = (re.split(r"[\s,(){}]+", export(plan, tool)) for plan in (lm_plan, lm_plan.fold()))
    assert len(once) == len(twice)
    for one, other in zip(once, twice, strict=True):
        assert one == other or math.isclose(float(one), float(other), rel_tol=1e-14)


@pytest.mark.parametrize("tool", ["torchtitan", "megatron"])
def test_modules_compile(tool: str, lm_plan: mue.Plan) -> None:
    text = export(lm_plan, tool)
    compile(text, tool, "exec")
    assert max(map(len, text.splitlines())) <= 120


def test_import_is_free_of_torch() -> None:
    code = "import complete_mue.export, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def expected(plan: mue.Plan, role: str, *, native: bool) -> tuple[float, float, float, float | None]:
    """A row of plan.fold(), with the route scale taken out again where the tool applies it."""
    row = plan.fold().row(role)
    r = row.folded.route_scale if native else 1.0
    std = None if row.init_std is None else row.init_std / r
    return row.lr / r, row.weight_decay * r, row.eps * r, std


def close(one: tuple[float | None, ...], other: tuple[float | None, ...]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a == b if a is None or b is None else math.isclose(a, b, rel_tol=1e-12) for a, b in pairs)


def test_torchtitan_values_and_names(tiny_plan: mue.Plan) -> None:
    found = constants(export(tiny_plan, "torchtitan"))
    rows = found["ROWS"]
    for role, (_, values, std) in rows.items():
        assert close((values["lr"], values["weight_decay"], values["eps"], std), expected(tiny_plan, role, native=True))
    for name, role in TORCHTITAN_NAMES.items():
        assert [other for other, (pattern, *_) in rows.items() if re.search(pattern, name)] == [role], name
    assert set(rows) == set(TORCHTITAN_NAMES.values())
    assert found["BETAS"] == tiny_plan.hyper.betas
    dense, moe = found["KINDS"]
    assert (list(dense["layers"]), dense["hidden_dim"], dense["moe"]) == ([0], 40, None)
    assert list(moe["layers"]) == [1, 2]
    assert moe["moe"]["shared_hidden_dim"] == 8
    assert moe["moe"]["router"] == {
        "top_k": 4, "score_func": "sigmoid", "route_norm": True, "route_scale": 4.0,
        "num_expert_groups": 2, "num_limited_groups": 2,
    }  # fmt: skip


def test_megatron_values_and_names(tiny_plan: mue.Plan) -> None:
    found = constants(export(tiny_plan, "megatron"))
    rows, wd = found["ROWS"], tiny_plan.hyper.weight_decay
    for role, (_, lr, wd_mult, eps, std) in rows.items():
        planned = expected(tiny_plan, role, native=True)
        assert close((lr, eps, std), (planned[0], *planned[2:]))
        assert wd_mult * wd == pytest.approx(planned[1], rel=1e-12, abs=1e-290)
    for name, role in MEGATRON_NAMES.items():
        matches = [r for r, (globs, *_) in rows.items() if any(fnmatch.fnmatch(name, glob) for glob in globs)]
        assert matches == [role], name
    assert set(rows) == set(MEGATRON_NAMES.values())
    groups = {(lr, wd_mult, eps) for _, lr, wd_mult, eps, _ in rows.values()}
    assert len({wd_mult for _, wd_mult, _ in groups}) == len(groups), "groups must not differ by lr or eps alone"


def test_megatron_arguments(tiny_plan: mue.Plan) -> None:
    words = constants(export(tiny_plan, "megatron"))["ARGUMENTS"]
    values = dict(itertools.pairwise(words))
    assert values["--moe-router-topk-scaling-factor"] == "4.0"
    assert values["--moe-router-num-groups"] == values["--moe-router-group-topk"] == "2"
    assert values["--moe-router-score-function"] == "sigmoid"
    assert values["--moe-layer-freq"] == "[0,1,1]"
    assert (values["--num-experts"], values["--moe-router-topk"], values["--moe-ffn-hidden-size"]) == ("8", "4", "8")
    assert (values["--ffn-hidden-size"], values["--hidden-size"], values["--num-layers"]) == ("40", "32", "3")
    assert float(values["--lr"]) == tiny_plan.hyper.lr
    assert float(values["--weight-decay"]) == tiny_plan.hyper.weight_decay


@pytest.mark.parametrize("tool", ["deepspeed", "hf"])
def test_json_values_and_names(tool: str, tiny_plan: mue.Plan) -> None:
    found = json.loads(export(tiny_plan, tool))
    groups = {group["name"]: group for group in found["groups"]}
    assert len(groups) == len(found["groups"])
    for name, group in groups.items():
        values = (group["lr"], group["weight_decay"], group["eps"], group["init_std"])
        if name.startswith("bias of "):
            m = tiny_plan.row(name.removeprefix("bias of ")).multiplier
            bias = tiny_plan.row("bias")
            assert close(values, (bias.lr * m, 0.0, bias.eps / m, None))
            assert group["multiplier"] == pytest.approx(m)
        elif name.startswith("gated "):  # the model's own gate starts at one half
            lr, wd, eps, std = expected(tiny_plan, name.removeprefix("gated "), native=False)
            assert close(values, (2 * lr, wd / 2, eps / 2, None if std is None else 2 * std))
            assert group["multiplier"] == pytest.approx(2 * tiny_plan.row(name.removeprefix("gated ")).multiplier)
        else:
            assert close(values, expected(tiny_plan, name, native=False))
            assert group["multiplier"] == pytest.approx(tiny_plan.row(name).multiplier)
        assert tuple(group["betas"]) == tiny_plan.hyper.betas
    for name, role in HF_NAMES.items():
        assert [other for other, group in groups.items() if re.fullmatch(group["pattern"], name)] == [role], name
    assert set(groups) == set(HF_NAMES.values())


def test_dense_target_has_no_routed_rows(tiny_reference: mue.Reference) -> None:
    plan = mue.transfer(tiny_reference, mue.ModelShape(width=32, depth=3, feed_forward=mue.FeedForward.dense(64)))
    for tool in EXPORTS:
        text = export(plan, tool)
        assert "dense_down" in text
        assert "expert_down" not in text


def per_layer(*notations: str) -> mue.ModelShape:
    blocks = tuple(mue.FeedForward.parse(notation, expert_width=8) for notation in notations)
    return mue.ModelShape(width=32, depth=len(blocks), feed_forward=blocks)


def test_layers_of_different_kinds_have_their_own_patterns(tiny_reference: mue.Reference) -> None:
    plan = mue.transfer(tiny_reference, per_layer("8e4a", "8e2a", "8e4a"))
    groups = {group["name"]: group for group in json.loads(export(plan, "hf"))["groups"]}
    for block, layers in (("8e4a", "02"), ("8e2a", "1")):
        group = groups[f"expert_down ({block})"]
        assert group["lr"] == pytest.approx(plan.fold().row(Role.EXPERT_DOWN, block).lr)
        for layer in "012":
            name = f"model.layers.{layer}.mlp.experts.down_proj"
            assert bool(re.fullmatch(group["pattern"], name)) == (layer in layers)
    assert groups["expert_up (8e4a)"]["lr"] == pytest.approx(groups["expert_up (8e2a)"]["lr"] * 2 ** (1 / 3))
    kinds = constants(export(plan, "torchtitan"))["KINDS"]
    assert [(kind["layers"], kind["moe"]["router"]["route_scale"]) for kind in kinds] == [
        ([0, 2], 4.0),
        (range(1, 2), 2.0),
    ]


@pytest.mark.parametrize(
    ("tool", "layers", "reason"),
    [
        ("torchtitan", ("8e2a@8+8e2a@16",), "torchtitan cannot express the layout '8e2a@8.8e2a@16'"),
        ("megatron", ("8e2a@8+8e2a@16",), "megatron cannot express"),
        ("megatron", ("8e4a", "8e2a"), "megatron has one routed block for all layers"),
        ("megatron", ("8e1a",), "does not normalize the routing weight of a single activated expert"),
    ],
)
def test_shapes_that_a_tool_cannot_express(
    tiny_reference: mue.Reference, tool: str, layers: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(TransferError, match=reason):
        export(mue.transfer(tiny_reference, per_layer(*layers)), tool)


@pytest.mark.parametrize("tool", ["torchtitan", "megatron"])
def test_growing_heads_are_refused(tool: str) -> None:
    hyper = mue.Hyper(lr=1e-3, weight_decay=0.1, init_std=0.02)
    shapes = [
        mue.ModelShape(width=w, depth=2, feed_forward=mue.FeedForward.dense(w), head_dim=w // 4) for w in (64, 128)
    ]
    plan = mue.transfer(mue.Reference(shapes[0], mue.Budget(64, 10), hyper), shapes[1])
    with pytest.raises(TransferError, match="head size"):
        export(plan, tool)
    assert json.loads(export(plan, "hf"))["requires"]["attention_scale"] == plan.attention_scale


def test_heads_fill_the_width_and_rows_the_batch(tiny_reference: mue.Reference) -> None:
    wide = mue.transfer(tiny_reference, mue.ModelShape(320, 2, mue.FeedForward.dense(320)), mue.Budget(1000, 100))
    found = constants(export(wide, "torchtitan"))
    assert (found["HEAD_DIM"], found["SEQ_LEN"], found["BATCH_TOKENS"]) == (64, 8, 1000)
    apart = mue.transfer(tiny_reference, mue.ModelShape(320, 2, mue.FeedForward.dense(320), head_dim=128))
    arguments = constants(export(apart, "megatron"))["ARGUMENTS"]
    assert "--kv-channels" in arguments
    assert "--num-attention-heads" not in arguments  # two heads of 128 are 256


def test_no_weight_decay_at_all() -> None:
    hyper = mue.Hyper(lr=1e-3, weight_decay=0.0, init_std=0.02)
    shapes = [mue.ModelShape(width=w, depth=2, feed_forward=mue.FeedForward.dense(w)) for w in (64, 128)]
    plan = mue.transfer(mue.Reference(shapes[0], mue.Budget(64, 10), hyper), shapes[1])
    found = constants(export(plan, "megatron"))
    words = found["ARGUMENTS"]
    assert words[words.index("--weight-decay") + 1] == "0.0"
    groups = {(lr, wd_mult, eps) for _, lr, wd_mult, eps, _ in found["ROWS"].values()}
    assert len({wd_mult for _, wd_mult, _ in groups}) == len(groups)


def test_trainers_own_clipping_is_off(tiny_plan: mue.Plan) -> None:
    assert 'max_norm=float("inf")' in export(tiny_plan, "torchtitan")
    arguments = re.search(r"'--clip-grad', '([^']+)'", export(tiny_plan, "megatron"))
    assert arguments is not None
    assert float(arguments[1]) == 0
    assert json.loads(export(tiny_plan, "deepspeed"))["config"]["gradient_clipping"] == 0
    assert "max_grad_norm=0" in " ".join(json.loads(export(tiny_plan, "hf"))["about"])


def test_torchtitan_clips_by_the_weighted_norm(tiny_plan: mue.Plan) -> None:
    torch = pytest.importorskip("torch")
    wanted = ("clip", "ROWS", "MULTIPLIERS")
    tree = ast.parse(export(tiny_plan, "torchtitan"))
    parts = [node for node in tree.body if {getattr(node, "name", ""), ast.unparse(node).split(" ")[0]} & {*wanted}]
    module: dict[str, object] = {"torch": torch, "re": re}
    exec(compile(ast.Module(parts, []), "torchtitan", "exec"), module)
    names = {"tok_embeddings": "embedding", "lm_head": "readout", "layers.0.attention.wo": "attention_out"}
    model = torch.nn.Module()
    for name in names:
        *above, last = name.split(".")
        holder = model
        for step in above:
            holder.add_module(step, getattr(holder, step, torch.nn.Module()))
            holder = getattr(holder, step)
        holder.add_module(last, torch.nn.Linear(3, 3, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    module["clip"](optimizer, [model], 0.5)  # type: ignore[operator]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    multipliers = [tiny_plan.row(role).multiplier for role in names.values()]
    assert len(set(multipliers)) == 3
    norm = math.sqrt(sum(9 * m * m for m in multipliers))
    for parameter in model.parameters():
        torch.testing.assert_close(parameter.grad, torch.full_like(parameter, 0.5 / norm), rtol=1e-5, atol=0)


def test_requires_holds_the_shape(tiny_plan: mue.Plan) -> None:
    requires = json.loads(export(tiny_plan, "hf"))["requires"]
    assert (requires["hidden_size"], requires["num_hidden_layers"]) == (32, 3)
    assert (requires["num_experts"], requires["num_experts_per_tok"], requires["moe_k"]) == (8, 4, 4)
    assert requires["feed_forward"] == [block.with_widths for block in tiny_plan.shape.blocks]


@pytest.mark.parametrize("tool", ["torchtitan", "megatron", "deepspeed", "hf"])
def test_what_has_no_equivalent_is_said(tool: str, tiny_plan: mue.Plan) -> None:
    text = " ".join(export(tiny_plan, tool).split())
    assert "no equivalent" in text
    assert "ranks" in text
    assert "roups" in text


@pytest.mark.parametrize("tool", ["torchtitan", "megatron"])
def test_heads_that_no_plan_knows_are_said_to_be_the_users(tool: str, lm_plan: mue.Plan) -> None:
    """A plan knows no number of heads: what an export fills in for it must not pass for the model's own."""
    assert "none share keys" in export(lm_plan, tool)
