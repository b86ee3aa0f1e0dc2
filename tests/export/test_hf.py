"""The Hugging Face and DeepSpeed groups, read back against stock models and against what apply would do."""

from __future__ import annotations

import json
import re
import warnings
from typing import Any

import pytest
import torch

import complete_mue as mue
from complete_mue.export import export
from complete_mue.export.hf import FAMILIES
from complete_mue.layout.hf_config import PLAIN

transformers = pytest.importorskip("transformers", reason="install complete-mue[hf]")

TINY = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 24, "moe_intermediate_size": 8, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64,
    "num_local_experts": 8, "num_experts": 8, "n_routed_experts": 8, "moe_num_experts": 8,
    "num_experts_per_tok": 4, "moe_k": 4, "moe_topk": 4, "n_group": 2, "topk_group": 2, "n_shared_experts": 1,
    "shared_expert_intermediate_size": 8, "shared_intermediate_size": 8, "first_k_dense_replace": 1, "q_lora_rank": 8,
    "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "pad_token_id": 0,
    "moe_num_shared_experts": 1, "moe_layer_start_index": 1, "attention_multiplier": 16**-0.5,
}  # fmt: skip


def stock(family: str) -> Any:
    """A tiny model of the family on the meta device, with the config fields that the export requires."""
    config = transformers.AutoConfig.for_model(family)
    for key, value in {**TINY, **PLAIN}.items():
        if hasattr(config, key):
            setattr(config, key, value)
    if hasattr(config, "layer_types") and config.layer_types:
        config.layer_types = config.layer_types[:3]
    if hasattr(config, "mlp_layer_types") and config.mlp_layer_types:
        config.mlp_layer_types = config.mlp_layer_types[:3]
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        return transformers.AutoModelForCausalLM.from_config(config)


def groups_of(model: Any, exported: dict[str, Any]) -> list[dict[str, Any]]:
    """As the export's header says: every trainable parameter in the one group whose pattern matches its name."""
    groups = [{**group, "params": []} for group in exported["groups"]]
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        found = [group for group in groups if re.fullmatch(group["pattern"], name)]
        assert len(found) == 1, f"{name}: {[group['name'] for group in found]}"
        found[0]["params"].append(parameter)
    return [group for group in groups if group["params"]]


@pytest.mark.parametrize("family", FAMILIES)
def test_groups_are_those_of_apply(family: str, tiny_reference: mue.Reference) -> None:
    model = stock(family)
    plan = mue.transfer(tiny_reference, mue.describe(model), mue.Budget(batch_tokens=128, steps=200))
    names = {id(parameter): name for name, parameter in model.named_parameters() if parameter.requires_grad}
    keys = ("lr", "weight_decay", "eps", "betas")
    ours, theirs = (
        {names[id(p)]: tuple(group[key] for key in keys) for group in groups for p in group["params"]}
        for groups in (groups_of(model, json.loads(export(plan, "hf"))), mue.param_groups(model, plan))
    )
    assert ours.keys() == theirs.keys() == set(names.values())
    for name, values in ours.items():
        assert values[:3] == pytest.approx(theirs[name][:3], rel=1e-12), name
        assert tuple(values[3]) == tuple(theirs[name][3])


def test_adamw_takes_the_groups(tiny_reference: mue.Reference) -> None:
    model = stock("mixtral")
    exported = json.loads(export(mue.transfer(tiny_reference, mue.describe(model)), "hf"))
    defaults = {key: value for key, value in exported["optimizer"].items() if key != "class"}
    groups = groups_of(model, exported)
    optimizer = torch.optim.AdamW(groups, **defaults)
    assert [group["name"] for group in optimizer.param_groups] == [group["name"] for group in groups]
