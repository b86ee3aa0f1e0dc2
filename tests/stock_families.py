"""Tiny models of every stock family that is served, and what their configs say of their shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import complete_mue as mue

BASE: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 60, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "vocab_size": 128, "max_position_embeddings": 128,
    "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LATENT = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 12,
    "head_dim": 8, "num_key_value_heads": 4,
}  # fmt: skip
FINE = {"num_experts_per_tok": 2, "moe_intermediate_size": 20}
SHARED = {"n_routed_experts": 8, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}


ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
GRANITE = {
    "embedding_multiplier": 3.0, "residual_multiplier": 0.6, "logits_scaling": 1.4, "attention_multiplier": 12**-0.5,
}  # fmt: skip
GRANITE_NATIVE = {"embedding": 3.0, "attention_out": 0.6, "readout": 1 / 1.4}
LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
INDEX = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 8}
KIMI = {"linear_num_heads": 4, "linear_head_dim": 12, "layer_types": ["linear_attention", "full_attention"]}


@dataclass(frozen=True)
class Stock:
    """A family's config fields beside BASE, the layouts of its two layers, and how its routing becomes normalized."""

    config: dict[str, Any]
    blocks: tuple[str, str]
    dense_layers: int = 0
    switch: str = ""  # config field that turns normalization on; "hook" where only normalize_routing does
    native: dict[str, float] = field(default_factory=dict)  # what its forward multiplies, by role
    ends_seen: int = 2  # how many of embedding and readout a probe can tell the factor of
    layers_seen: bool = True  # whether a probe can tell the factors of branches


STOCK = {
    **{
        name: Stock({}, ("dense@60",) * 2)
        for name in (
            "llama", "mistral", "qwen2", "qwen3", "ministral", "smollm3", "ernie4_5", "seed_oss", "hunyuan_v1_dense",
            "arcee", "phi3", "olmo2", "olmo3", "exaone4", "glm4", "starcoder2",
        )
    },
    "ministral3": Stock(
        {"rope_parameters": ROPE | {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 64}},
        ("dense@60",) * 2,
    ),
    "granite": Stock(GRANITE, ("dense@60",) * 2, native=GRANITE_NATIVE | {"dense_down": 0.6}),
    "cohere": Stock({"logit_scale": 0.25}, ("dense@60",) * 2, native={"readout": 0.25}),
    "cohere2": Stock({"logit_scale": 0.25}, ("dense@60",) * 2, native={"readout": 0.25}),
    "gemma": Stock({}, ("dense@60",) * 2, native={"embedding": 48**0.5}),
    "gemma2": Stock({"query_pre_attn_scalar": 12}, ("dense@60",) * 2, native={"embedding": 48**0.5}),
    "gemma3_text": Stock({"query_pre_attn_scalar": 12}, ("dense@60",) * 2, native={"embedding": 48**0.5}),
    "gpt2": Stock(
        {"n_inner": 60, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}, ("dense@60",) * 2, ends_seen=1
    ),
    "mixtral": Stock({"num_local_experts": 4, "num_experts_per_tok": 2}, ("4e2a@60",) * 2),
    "minimax": Stock(
        {
            "num_local_experts": 4, "num_experts_per_tok": 2, "block_size": 8, "mlp_beta_factor": 1.3,
            "full_attn_beta_factor": 0.7, "linear_attn_beta_factor": 0.9,
        },
        ("4e2a@60",) * 2,
        native={"expert_down": 1.3, "o_proj": 0.7, "out_proj": 0.9},
    ),
    "qwen2_moe": Stock(
        {"num_experts": 4, "shared_expert_intermediate_size": 28, "mlp_only_layers": [0], **FINE},
        ("dense@60", "dense@28+4e2a@20"),
        switch="norm_topk_prob",
        native={"shared_down": 0.5},  # its gate, at the start
    ),
    "qwen3_moe": Stock(
        {"num_experts": 4, "mlp_only_layers": [0], **FINE}, ("dense@60", "4e2a@20"), switch="norm_topk_prob"
    ),
    "olmoe": Stock({"num_experts": 4, "num_experts_per_tok": 2}, ("4e2a@60",) * 2, switch="norm_topk_prob"),
    "flex_olmo": Stock({"num_experts": 4, "num_experts_per_tok": 2}, ("4e2a@60",) * 2, switch="norm_topk_prob"),
    "deepseek_v3": Stock(
        {**SHARED, **FINE, **LATENT, "n_group": 2, "routed_scaling_factor": 2.5},
        ("dense@60", "dense@20+8e2a@20"),
        dense_layers=1,
        native={"expert_down": 2.5},
    ),
    "glm4_moe": Stock(
        {**SHARED, **FINE, "use_qk_norm": True, "attention_bias": True, "routed_scaling_factor": 1.7},
        ("dense@60", "dense@20+8e2a@20"),
        dense_layers=1,
        native={"expert_down": 1.7},
    ),
    "dots1": Stock(
        {**SHARED, **FINE, "routed_scaling_factor": 1.7},
        ("dense@60", "dense@20+8e2a@20"),
        dense_layers=1,
        switch="norm_topk_prob",
        native={"expert_down": 1.7},
    ),
    "deepseek_v2": Stock(
        {**SHARED, **FINE, **LATENT, "routed_scaling_factor": 3.0},
        ("dense@60", "dense@20+8e2a@20"),
        dense_layers=1,
        switch="hook",
    ),
    "ernie4_5_moe": Stock(
        {
            "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 20, "moe_num_shared_experts": 1,
            "moe_layer_start_index": 1,
        },
        ("dense@60", "dense@20+4e2a@20"),
        dense_layers=1,
    ),
    "gpt_oss": Stock(
        {
            "num_local_experts": 4, "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        ("4e2a@60",) * 2,
    ),
    "granitemoe": Stock(
        {"num_local_experts": 4, "num_experts_per_tok": 2, **GRANITE},
        ("4e2a@60",) * 2,
        native=GRANITE_NATIVE | {"expert_down": 0.6},
    ),
    "granitemoe_swa": Stock(
        {"num_local_experts": 4, "num_experts_per_tok": 2, **GRANITE},
        ("4e2a@60",) * 2,
        native=GRANITE_NATIVE | {"expert_down": 0.6},
    ),
    "granitemoeshared": Stock(
        {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 36, **GRANITE},
        ("dense@36+4e2a@60",) * 2,
        native=GRANITE_NATIVE | {"expert_down": 0.6, "shared_down": 0.6},
    ),
    "granitemoehybrid": Stock(
        {
            "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 36, **GRANITE,
            "layer_types": ["attention", "attention"], "mamba_n_heads": 4, "mamba_d_head": 24,
        },
        ("dense@36+4e2a@60",) * 2,
        native=GRANITE_NATIVE | {"expert_down": 0.6, "shared_down": 0.6},
    ),
    "mellum": Stock({"num_experts": 4, "mlp_only_layers": [0], **FINE}, ("4e2a@20",) * 2, switch="norm_topk_prob"),
    "solar_open": Stock(
        {**SHARED, **FINE, "routed_scaling_factor": 1.7}, ("dense@20+8e2a@20",) * 2,
        switch="norm_topk_prob", native={"expert_down": 1.7},
    ),
    "exaone_moe": Stock(
        {**SHARED, **FINE, "num_experts": 8, "num_shared_experts": 1, "routed_scaling_factor": 1.7},
        ("dense@60", "dense@20+8e2a@20"), dense_layers=1, switch="norm_topk_prob", native={"expert_down": 1.7},
    ),
    "glm4_moe_lite": Stock(
        {**SHARED, **FINE, **LATENT, "routed_scaling_factor": 1.7}, ("dense@60", "dense@20+8e2a@20"),
        dense_layers=1, switch="norm_topk_prob", native={"expert_down": 1.7},
    ),
    "deepseek_v32": Stock(
        {**SHARED, **FINE, **LATENT, **INDEX, "routed_scaling_factor": 1.7}, ("dense@60", "dense@20+8e2a@20"),
        dense_layers=1, switch="norm_topk_prob", native={"expert_down": 1.7},
    ),
    "glm_moe_dsa": Stock(
        {**SHARED, **FINE, **LATENT, **INDEX, "routed_scaling_factor": 1.7}, ("dense@60", "dense@20+8e2a@20"),
        dense_layers=1, switch="norm_topk_prob", native={"expert_down": 1.7},
    ),
    "axk1": Stock(
        {**SHARED, **FINE, **LATENT, "routed_scaling_factor": 1.7}, ("dense@60", "dense@20+8e2a@20"),
        dense_layers=1, switch="norm_topk_prob", native={"expert_down": 1.7},
    ),
    "bailing_hybrid": Stock(
        {**SHARED, **FINE, **LATENT, **KIMI, "num_local_experts": 8, "routed_scaling_factor": 1.7},
        ("dense@60", "dense@20+8e2a@20"), dense_layers=1, switch="norm_topk_prob", native={"expert_down": 1.7},
    ),
    "kimi_linear": Stock(
        {**SHARED, **FINE, **LATENT, **KIMI, "num_local_experts": 8, "routed_scaling_factor": 1.7},
        ("dense@60", "dense@20+8e2a@20"), dense_layers=1, switch="norm_topk_prob", native={"expert_down": 1.7},
    ),
    "hy_v3": Stock(
        {**SHARED, **FINE, "num_local_experts": 8, "num_shared_experts": 1, "router_scaling_factor": 1.7},
        ("dense@60", "dense@20+8e2a@20"), dense_layers=1, native={"expert_down": 1.7},
    ),
    "mimo_v2_flash": Stock(
        {**SHARED, **FINE, "v_head_dim": 12, "swa_v_head_dim": 12, "routed_scaling_factor": 1.7},
        ("dense@60", "8e2a@20"), switch="norm_topk_prob", native={"expert_down": 1.7},
    ),
    "laguna": Stock(
        {**FINE, "num_experts": 4, "shared_expert_intermediate_size": 28, "moe_routed_scaling_factor": 1.7},
        ("dense@60", "dense@28+4e2a@20"), native={"expert_down": 1.7},
    ),
    "flint": Stock(
        {**FINE, "num_experts": 4, "shared_expert_intermediate_size": 28, "mlp_only_layers": [0]},
        ("dense@60", "dense@28+4e2a@20"),
        switch="norm_topk_prob",
    ),
    "kolibri1": Stock(
        {**FINE, "num_experts": 4, "shared_expert_intermediate_size": 28}, ("dense@28+4e2a@20",) * 2,
        switch="norm_topk_prob",
    ),
    "afmoe": Stock(
        {**FINE, "num_experts": 4, "num_shared_experts": 1, "num_dense_layers": 1, "route_scale": 1.7},
        ("dense@60", "dense@20+4e2a@20"), dense_layers=1, native={"expert_down": 1.7},
    ),
    "minimax_m3_vl_text": Stock(
        {
            "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 28,
            "routed_scaling_factor": 1.7,
        },
        ("dense@28+4e2a@60",) * 2, native={"expert_down": 1.7},
    ),
    "cohere2_moe": Stock(
        {"num_experts": 4, "num_experts_per_tok": 2, "num_shared_experts": 1, "first_k_dense_replace": 1,
         "logit_scale": 0.25, "shared_expert_combination_strategy": "sum"},
        ("dense@60", "dense@60+4e2a@60"), native={"readout": 0.25},
    ),
    "qwen3_next": Stock(
        {"num_experts": 4, "shared_expert_intermediate_size": 28, "mlp_only_layers": [0], **FINE, **LINEAR},
        ("dense@60", "dense@28+4e2a@20"), switch="norm_topk_prob", native={"shared_down": 0.5},
    ),
    "qwen3_5_moe_text": Stock(
        {"num_experts": 4, "shared_expert_intermediate_size": 28, **FINE, **LINEAR}, ("dense@28+4e2a@20",) * 2,
        native={"shared_down": 0.5},
    ),
    "lfm2_moe": Stock(
        {"num_experts": 4, "num_dense_layers": 1, "layer_types": ["conv", "full_attention"], **FINE,
         "routed_scaling_factor": 1.7},
        ("dense@60", "4e2a@20"), switch="norm_topk_prob", native={"expert_down": 1.7},
    ),
    "aria_text": Stock(
        {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1}, ("dense@60+4e2a@60",) * 2
    ),
    "phimoe": Stock({"num_local_experts": 4, "num_experts_per_tok": 2}, ("4e2a@60",) * 2, switch="hook"),
    "minimax_m2": Stock({"num_local_experts": 4, "num_experts_per_tok": 2}, ("4e2a@60",) * 2),
    "hunyuan_v1_moe": Stock({"num_experts": 4, "moe_topk": 2}, ("dense@60+4e2a@60",) * 2),
}  # fmt: skip

# Refused families that a tiny model can be built of.
REFUSED = {
    "llama4_text": {"num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2},
    "jamba": {"num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 2, "attn_layer_offset": 1},
}


def tiny_config(name: str, *, normalized: bool = True, **changes: Any) -> Any:
    """The tiny config of a family, with the switch that normalizes its routing set where it has one."""
    from transformers import AutoConfig

    known = STOCK.get(name)
    fields = {**BASE, **(known.config if known else REFUSED[name])}
    if known and known.switch not in ("", "hook"):
        fields[known.switch] = normalized
    return AutoConfig.for_model(name, **{**fields, **changes})


def tiny_model(name: str, *, normalized: bool = True, **changes: Any) -> Any:
    """The tiny model of a family, its routing normalized (by switch or hook) unless told not to."""
    from transformers import AutoModelForCausalLM

    config = tiny_config(name, normalized=normalized, **changes)
    dense = all(block.startswith("dense") and "+" not in block for block in STOCK[name].blocks)
    model = AutoModelForCausalLM.from_config(config, **({} if dense else {"experts_implementation": "eager"}))
    if normalized and STOCK[name].switch == "hook":
        mue.normalize_routing(model)
    return model


def tiny_reference(**hyper: Any) -> mue.Reference:
    """A dense reference whose ratios to the tiny models are no powers of two: width 48/32, depth 2/3, steps 50/70."""
    values = {"lr": 1e-2, "weight_decay": 0.1, "init_std": 0.05, "betas": (0.9, 0.95), "eps": 1e-3, **hyper}
    shape = mue.ModelShape(width=32, depth=3, feed_forward=mue.FeedForward.dense(44))
    return mue.Reference(shape, mue.Budget(batch_tokens=64, steps=70), mue.Hyper(**values))


def tiny_plan(model: Any, **hyper: Any) -> mue.Plan:
    """The plan of a tiny model."""
    return mue.transfer(tiny_reference(**hyper), mue.describe(model), mue.Budget(batch_tokens=64, steps=50))
