"""A config.json as a shape: what the fields say is what transformers builds."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import complete_mue as mue
from complete_mue.layout.hf_config import (
    _MIXED_ATTENTION,
    PLAIN,
    READABLE,
    UNSAID,
    departs,
    find_config,
    read_config,
    shape_of_config,
)
from in_process import mue as run

QWEN: dict[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "head_dim": 128,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "norm_topk_prob": True,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "n_shared_experts": 1, "first_k_dense_replace": 3, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "routed_scaling_factor": 1.0,
}  # fmt: skip


def written(folder: Path, fields: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return path


def test_models_as_they_are_published(tmp_path: Path) -> None:
    shape = shape_of_config(written(tmp_path, QWEN), QWEN)
    assert (shape.width, shape.depth, str(shape.main), shape.main.expert_width) == (2048, 48, "128e8a", 768)
    assert shape.head_dim == 128
    shape = shape_of_config(tmp_path, DEEPSEEK)
    assert (str(shape.main), shape.dense_layers, shape.head_dim) == ("256e8a1s", 3, 192)
    gpt2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None}
    assert shape_of_config(tmp_path, gpt2).active_width == 3072


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in READABLE),
    ("qwen3_moe", {"num_hidden_layers": 5, "decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    ("qwen3_moe", {"num_hidden_layers": 4, "mlp_only_layers": []}),
    ("deepseek_v3", {"num_hidden_layers": 4, "first_k_dense_replace": 3, "n_shared_experts": 2}),
    ("deepseek_v3", {"first_k_dense_replace": 0}),
    ("ernie4_5_moe", {"num_hidden_layers": 6, "moe_layer_interval": 2, "moe_layer_end_index": 3}),
    ("ernie4_5_moe", {"moe_num_shared_experts": 0}),
    ("lfm2_moe", {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 2}),
    ("granitemoeshared", {"shared_intermediate_size": 0}),
    ("llama", {"head_dim": None}),
]


@pytest.mark.parametrize(("name", "changes"), VARIANTS, ids=lambda value: value if isinstance(value, str) else "")
def test_fields_say_what_transformers_builds(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from stock_families import tiny_config

    config = tiny_config(name, **changes)
    config.save_pretrained(tmp_path)
    path = find_config(tmp_path)
    assert path is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read, built = shape_of_config(path, read_config(path)), mue.describe(config)
    assert read == built
    if name not in _MIXED_ATTENTION:  # a shared expert's gate has one row, and is not counted
        assert read.parameters.active == pytest.approx(built.parameters.active, abs=read.width * read.depth)
        assert read.parameters.total == pytest.approx(built.parameters.total, abs=read.width * read.depth)


def test_weights_are_those_of_grouped_queries_and_latent_attention(tmp_path: Path) -> None:
    """Mixtral-8x7B and DeepSeek-V3 as published, embeddings left out."""
    mixtral = {
        "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2,
    }  # fmt: skip
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024
    active, total = (32 * (attention + 3 * 4096 * 14336 * experts + 8 * 4096) for experts in (2, 8))
    shape = shape_of_config(tmp_path, mixtral)
    assert (shape.parameters.active, shape.parameters.total) == (active, total)
    assert (active + 2 * 32000 * 4096) / 1e9 == pytest.approx(12.9, abs=0.05)
    plan = mue.transfer(mue.read_reference("examples/lm_reference.toml"), shape)
    assert "active 12.6B of 46.4B weights" in " ".join(str(plan).split())
    assert mue.Plan.from_json(plan.to_json()).to_json() == plan.to_json()
    first = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    assert shape_of_config(tmp_path, {**first, "intermediate_size": 64}).parameters.total == (4 + 3) * 64**2
    unknown = {key: value for key, value in mixtral.items() if key != "num_key_value_heads"}
    assert shape_of_config(tmp_path, unknown).parameters.active == active + 32 * (5 * 4096 * 4096 - attention)
    latent = {**DEEPSEEK, "kv_lora_rank": 512, "q_lora_rank": 1536, "v_head_dim": 128}
    known = shape_of_config(tmp_path, latent).parameters
    assert (known.active + 2 * 129280 * 7168) / 1e9 == pytest.approx(37.5, abs=0.1)
    assert (known.total + 2 * 129280 * 7168) / 1e9 == pytest.approx(671, abs=0.5)


@pytest.mark.parametrize("missing", ["hidden_size", "num_experts", "moe_intermediate_size", "num_experts_per_tok"])
def test_a_missing_field_is_named_and_never_guessed(missing: str, tmp_path: Path) -> None:
    fields = {key: value for key, value in QWEN.items() if key != missing}
    with pytest.raises(mue.MueError, match=missing):
        shape_of_config(written(tmp_path, fields), fields)


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "config.json"), ("[]", "config.json"), ("{}", "model_type"), ('{"model_type": 3}', "model_type")],
)
def test_other_files_are_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    done = run("plan", Path("examples/lm_reference.toml").resolve(), tmp_path, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_experts": 4}, "active"),
        ({"hidden_size": "x"}, "hidden_size"),
        ({"num_hidden_layers": -1}, "layers"),
        ({"num_hidden_layers": 10**12}, r"config\.json: num_hidden_layers = 10+: give .* to 1e\+06"),  # at once
        ({"mlp_only_layers": 3}, r"config\.json: mlp_only_layers = 3: give a list"),
        ({"num_key_value_heads": "4"}, r"config\.json: num_key_value_heads = '4'"),
    ],
)
def test_impossible_numbers_are_our_errors(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    fields = {**QWEN, **change}
    with pytest.raises(mue.MueError, match=says):
        shape_of_config(written(tmp_path, fields), fields)


def test_the_last_layer_with_experts_is_a_number(tmp_path: Path) -> None:
    fields = {
        "model_type": "ernie4_5_moe", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "moe_num_experts": 8, "moe_k": 2, "moe_layer_interval": 1,
        "moe_num_shared_experts": 0, "moe_intermediate_size": 32, "moe_layer_start_index": 1, "vocab_size": 100,
    }  # fmt: skip

    def routed(end: object) -> int:
        changed = {**fields, "moe_layer_end_index": end}
        return sum(not block.is_dense for block in shape_of_config(written(tmp_path, changed), changed).blocks)

    assert (routed(2), routed(-1), routed(None)) == (2, 3, 3)
    for end in ("3", True, 1.5):
        with pytest.raises(mue.MueError, match="moe_layer_end_index"):
            routed(end)


def test_a_number_beyond_all_floats_departs_from_the_plan() -> None:
    assert "logits_scaling = 1000" in departs({**QWEN, "logits_scaling": 10**400})


def test_a_config_is_a_target(root: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "model", QWEN)
    for target in (path, path.parent):
        done = run("plan", "examples/lm_reference.toml", target, "--json", "--steps", "100000", cwd=root)
        plan = mue.Plan.from_json(done.stdout)
        assert plan.shape == shape_of_config(path, QWEN)
        assert (plan.budget.steps, plan.budget.batch_tokens) == (100_000, plan.reference.budget.batch_tokens)
    assert run("plan", "examples/lm_reference.toml", tmp_path, cwd=root).returncode == 2


@pytest.mark.parametrize(
    "change",
    [{"routed_scaling_factor": 2.5}, {"norm_topk_prob": False}, {"tie_word_embeddings": True}, {"logits_scaling": 8}],
)
def test_a_config_that_a_plan_does_not_fit_is_warned_of(change: dict[str, Any], root: Path, tmp_path: Path) -> None:
    """Such a model multiplies by itself, or its weights are not what the rules take them to be."""
    ((name, value),) = change.items()
    done = run("plan", "examples/lm_reference.toml", written(tmp_path, {**QWEN, **change}), cwd=root)
    assert done.returncode == 0
    assert f"{name} = {json.dumps(value)}: the plan is for a model with {name} = " in done.stderr
    plain = {**QWEN, "routed_scaling_factor": 1, "norm_topk_prob": True, "tie_word_embeddings": False}
    assert run("plan", "examples/lm_reference.toml", written(tmp_path, plain), cwd=root).stderr == ""


@pytest.mark.parametrize("name", READABLE)
def test_what_the_fields_do_not_say_is_warned_of(name: str) -> None:
    """A plan of the fields alone is silent only where `mue.param_groups` has the same numbers; what a config leaves out
    is what transformers takes for it."""
    transformers = pytest.importorskip("transformers")
    from complete_mue.apply import bind
    from stock_families import tiny_model, tiny_plan

    default = transformers.AutoConfig.for_model(name)
    for (field, value), families in UNSAID.items():
        if hasattr(default, field):
            assert (getattr(default, field) == value) == (name in families.split()), field
    model = tiny_model(name, **{field: value for field, value in PLAIN.items() if hasattr(default, field)})
    said = departs(model.config.to_dict())
    plan = tiny_plan(model)
    differ = set()
    for bound in bind(model, plan):
        role, layer = bound.spec.role, bound.spec.layer
        several = len([row for row in plan.rows if row.role is role]) > 1
        row = plan.fold().row(
            role, plan.shape.label(plan.shape.blocks[layer]) if several and layer is not None else None
        )
        if role is not mue.Role.BIAS and not math.isclose(row.lr, bound.row.lr, rel_tol=1e-9):
            differ.add(role.value)
    assert bool(differ) == bool(said) or "normalizes" in said, (differ, said)


def test_a_config_is_read_without_torch(root: Path, tmp_path: Path) -> None:
    path = written(tmp_path, DEEPSEEK)
    code = "import sys; from complete_mue.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", code, "plan", "examples/lm_reference.toml", str(path), "--betas", "hold"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "256e8a1s" in done.stdout


def test_other_families_are_read_from_the_model(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from stock_families import STOCK, tiny_config

    name = next(name for name in STOCK if name not in READABLE)
    tiny_config(name).save_pretrained(tmp_path)
    done = run("plan", "examples/lm_reference.toml", tmp_path, "--json", cwd=root)
    assert done.returncode == 0, done.stderr
    assert mue.Plan.from_json(done.stdout).shape.width == 48
    for family, says in (("nonsense", "nonsense"), ("jamba", "state-space")):
        done = run("plan", "examples/lm_reference.toml", written(tmp_path, {"model_type": family}), cwd=root)
        assert done.returncode == 2
        assert says in done.stderr
