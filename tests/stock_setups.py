"""Stock models built by a plan, as one would train them: correct setups, on random tokens and on real text."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import complete_mue as mue

VOCAB, SEQUENCE = 256, 64


def _routed(shape: mue.ModelShape) -> tuple[int, int, int]:
    """Experts, activated ones, and their width, of a layout whose groups are alike."""
    block = shape.main
    return block.experts, block.active, block.groups[0].expert_width


def _mixtral(shape: mue.ModelShape) -> dict[str, Any]:
    experts, active, width = _routed(shape)
    return {"num_local_experts": experts, "num_experts_per_tok": active, "intermediate_size": width}


def _olmoe(shape: mue.ModelShape) -> dict[str, Any]:
    experts, active, width = _routed(shape)
    return {
        "num_experts": experts, "num_experts_per_tok": active, "intermediate_size": width, "norm_topk_prob": True,
    }  # fmt: skip


def _qwen3_moe(shape: mue.ModelShape) -> dict[str, Any]:
    if shape.main.is_dense:
        return {"intermediate_size": shape.main.active_width, "mlp_only_layers": list(range(shape.depth))}
    experts, active, width = _routed(shape)
    return {
        "num_experts": experts, "num_experts_per_tok": active, "moe_intermediate_size": width, "norm_topk_prob": True,
        "intermediate_size": shape.main.active_width,
    }  # fmt: skip


def _granitemoe(shape: mue.ModelShape) -> dict[str, Any]:
    return {**_mixtral(shape), "embedding_multiplier": 1.0, "residual_multiplier": 1.0}


def _granitemoeshared(shape: mue.ModelShape) -> dict[str, Any]:
    return {
        **_mixtral(shape), "shared_intermediate_size": sum(shape.main.branches), "attention_multiplier": 16**-0.5,
        "embedding_multiplier": 3.0, "residual_multiplier": 0.6, "logits_scaling": 1.4,
    }  # fmt: skip


def _deepseek_v3(shape: mue.ModelShape) -> dict[str, Any]:
    experts, active, width = _routed(shape)
    return {
        "n_routed_experts": experts, "num_experts_per_tok": active, "moe_intermediate_size": width,
        "n_shared_experts": sum(shape.main.branches) // width, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 0, "intermediate_size": shape.main.active_width, "routed_scaling_factor": 2.5,
        "norm_topk_prob": True, "q_lora_rank": shape.width // 2, "kv_lora_rank": shape.width // 4,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "head_dim": 8,
    }  # fmt: skip


def _glm4_moe(shape: mue.ModelShape) -> dict[str, Any]:
    experts, active, width = _routed(shape)
    return {
        "n_routed_experts": experts, "num_experts_per_tok": active, "moe_intermediate_size": width,
        "n_shared_experts": sum(shape.main.branches) // width, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 0, "intermediate_size": shape.main.active_width, "norm_topk_prob": True,
        "use_qk_norm": True,
    }  # fmt: skip


def _llama(shape: mue.ModelShape) -> dict[str, Any]:
    return {"intermediate_size": shape.main.active_width}


FAMILIES: dict[str, Callable[[mue.ModelShape], dict[str, Any]]] = {
    "llama": _llama,
    "mixtral": _mixtral,
    "olmoe": _olmoe,
    "qwen3_moe": _qwen3_moe,
    "granitemoe": _granitemoe,
    "granitemoeshared": _granitemoeshared,
    "deepseek_v3": _deepseek_v3,
    "glm4_moe": _glm4_moe,
}


def random_tokens(rows: int, step: int) -> torch.Tensor:
    return torch.randint(0, VOCAB, (rows, SEQUENCE), generator=torch.Generator().manual_seed(step))


def real_tokens(rows: int, step: int) -> torch.Tensor:
    """Bytes of Python source."""
    text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
    starts = torch.randint(0, len(text) - SEQUENCE, (rows,), generator=torch.Generator().manual_seed(step))
    return text[starts[:, None] + torch.arange(SEQUENCE)]


def stock_model(name: str, plan: mue.Plan, **changes: Any) -> Any:
    """A stock model of the plan's shape, initialized by it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = plan.shape
    heads = shape.width // 16
    fields = {
        "hidden_size": shape.width, "num_hidden_layers": shape.depth, "num_attention_heads": heads,
        "num_key_value_heads": heads, "head_dim": 16, "vocab_size": VOCAB, "max_position_embeddings": 128,
        "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    config = AutoConfig.for_model(name, **{**fields, **FAMILIES[name](shape), **changes})
    model = AutoModelForCausalLM.from_config(config)
    if not shape.main.is_dense:
        model.set_experts_implementation("grouped_mm")
    return mue.initialize(model, plan)


def stock_setup(
    name: str, tokens: Callable[[int, int], torch.Tensor] | None, **changes: Any
) -> Callable[[mue.Plan], mue.Setup]:
    """A build function of a family; ``tokens(rows, step)`` in batches of the plan's size, None: the check's own."""

    def build(plan: mue.Plan) -> mue.Setup:
        model = stock_model(name, plan, **changes)
        optimizer = torch.optim.AdamW(mue.param_groups(model, plan))
        if tokens is None:
            return mue.Setup(model, optimizer)

        def loss(model: Any, step: int) -> torch.Tensor:
            batch = tokens(plan.budget.batch_tokens // SEQUENCE, step)
            return model(input_ids=batch, labels=batch).loss

        return mue.Setup(model, optimizer, loss)

    return build
