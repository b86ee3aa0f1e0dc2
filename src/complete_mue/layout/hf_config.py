"""The shape of a model from its Hugging Face config.json, without torch or transformers.

Only families whose fields say all of it are read, and a field that is missing is an error, never a default: the tests
compare every family with the model that transformers builds. Others need the model (``complete_mue.describe``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from complete_mue.errors import FileError, MueError
from complete_mue.layout.notation import FeedForward, Parameters, RoutedGroup
from complete_mue.layout.numbers import LARGEST_COUNT, count
from complete_mue.layout.shape import ATTENTION_MATRICES, DEEPEST, ModelShape
from complete_mue.storage import read_json

_WIDTH, _DEPTH, _HEADS = ("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer"), ("num_attention_heads", "n_head")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_ACTIVE = ("num_experts_per_tok", "moe_k")
_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size")
_FIRST_DENSE = ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")

# Families by what their routed layers are made of; "" has none.
_KINDS = {
    "": "llama mistral qwen2 qwen3 ministral ministral3 smollm3 ernie4_5 seed_oss hunyuan_v1_dense arcee phi3 olmo2 "
    "olmo3 exaone4 glm4 starcoder2 granite cohere cohere2 gemma gemma2 gemma3_text gpt2",
    "experts": "mixtral olmoe flex_olmo gpt_oss granitemoe minimax minimax_m2",
    "experts shared_width": "granitemoeshared",
    "experts own_width": "qwen3_moe",
    "experts own_width shared_width": "qwen2_moe qwen3_next",
    "experts own_width shared first_dense": "deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe glm4_moe_lite dots1 "
    "glm_moe_dsa ernie4_5_moe afmoe",
    "experts own_width first_dense": "lfm2_moe",
}
# Their attention has parts that heads do not tell: linear layers, convolutions, an indexer.
_MIXED_ATTENTION = ("minimax", "qwen3_next", "lfm2_moe", "deepseek_v32", "glm_moe_dsa")
_UNGATED = ("gpt2", "starcoder2", "arcee")  # two matrices in a block, not three
READABLE = {family: kind.split() for kind, families in _KINDS.items() for family in families.split()}

# What a plan takes a model to be: it multiplies nothing itself, its routing weights sum to one, its tables are two.
PLAIN = {
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "moe_routed_scaling_factor": 1.0,
    "route_scale": 1.0,
    "mlp_beta_factor": 1.0,
    "full_attn_beta_factor": 1.0,
    "linear_attn_beta_factor": 1.0,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
    "logit_scale": 1.0,
    "tie_word_embeddings": False,
}
# What transformers takes where a config of these families says nothing, if that is not plain.
UNSAID: dict[tuple[str, Any], str] = {
    ("tie_word_embeddings", True): "smollm3 ernie4_5 starcoder2 cohere cohere2 gemma gemma2 gemma3_text gpt2 "
    "ernie4_5_moe lfm2_moe",
    ("norm_topk_prob", False): "olmoe flex_olmo qwen3_moe qwen2_moe deepseek_v2 dots1",
    ("routed_scaling_factor", 2.5): "deepseek_v3 deepseek_v32 glm_moe_dsa",
    ("routed_scaling_factor", 1.8): "glm4_moe_lite",
    ("logit_scale", 0.0625): "cohere cohere2",
    ("attention_multiplier", 1.0): "granite granitemoe granitemoeshared",
    ("query_pre_attn_scalar", 256): "gemma2 gemma3_text",
}
# What models of these families do that no field says.
_DOES = {
    "multiplies its embedding by the root of the width": "gemma gemma2 gemma3_text",
    "has norms behind its branches": "gemma2 gemma3_text olmo2 olmo3 exaone4 glm4 flex_olmo afmoe",
    "puts a gate before its shared expert": "qwen2_moe qwen3_next",
    "has convolutions of a fixed length": "qwen3_next lfm2_moe",
    "never normalizes its routing weights": "deepseek_v2",
}


class _Config:
    """A config's fields, with messages that name file and field."""

    def __init__(self, path: Path, data: Mapping[str, Any]) -> None:
        self.path, self.data = path, data

    def number(self, *names: str, least: int = 1, most: int = LARGEST_COUNT) -> int:
        """The first field of these names that is there."""
        for name in names:
            if self.data.get(name) is not None:
                return count(name, self.data[name], least=least, most=most)
        raise FileError(f"{self.path}: no {' or '.join(names)}; add it", field=names[0], remedy="add it")

    def layers(self, name: str) -> list[Any]:
        """A list, such as of layers; empty where there is none."""
        found = self.data.get(name) or []
        if not isinstance(found, list):
            raise FileError(f"{self.path}: {name} = {found!r}: give a list", field=name, given=found)
        return found

    def has(self, name: str) -> bool:
        return self.data.get(name) is not None


def find_config(path: Path) -> Path | None:
    """The config.json that a path means: a file that ends so, or the one in a folder; None for other files."""
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise FileError(f"{path}: a folder without config.json; give a model's folder, or a TOML file")
        return path / "config.json"
    return path if path.suffix == ".json" else None


def read_config(path: Path) -> dict[str, Any]:
    """The fields of a config.json, with its ``model_type``."""
    data = read_json(path, "Hugging Face config.json", "give the config.json of a model")
    if not isinstance(data.get("model_type"), str):
        raise FileError(f"{path}: no model_type, so no Hugging Face config.json; give that of a model, or a TOML file")
    return data


def departs(data: Mapping[str, Any]) -> str:
    """In words, what of a config, said or not, is not what a plan takes it to be, and what to do; mostly empty."""
    family, plain = data.get("model_type"), PLAIN | _plain_attention(data)
    unsaid = {name: value for (name, value), families in UNSAID.items() if family in families.split()}
    said = unsaid | {name: data[name] for name in plain if data.get(name) is not None}
    found = {name: said[name] for name in plain if not _same(said.get(name, plain[name]), plain[name])}
    does = " and ".join(what for what, families in _DOES.items() if family in families.split())
    if not found and not does:
        return ""
    given, wanted = (
        ", ".join(f"{name} = {json.dumps(values[name]):.40}" for name in found) for values in (said, plain)
    )
    fields = f"{given}: the plan is for a model with {wanted}" if found else ""
    if not does:
        return f"{fields}. Train it so, or take the numbers that mue.param_groups gives"
    return f"{fields}{'; ' * bool(fields)}{family} {does}, which the plan leaves out: take mue.param_groups' numbers"


def _same(value: object, plain: object) -> bool:
    if isinstance(value, int | float) and isinstance(plain, int | float):
        return value == plain or (abs(value) < LARGEST_COUNT and math.isclose(value, plain, rel_tol=1e-3))
    return value == plain


def _plain_attention(data: Mapping[str, Any]) -> dict[str, float]:
    """The fields that scale attention's logits, at 1/sqrt(head_dim); none where the head size is not said."""
    width, heads = (next((data[name] for name in names if data.get(name)), None) for names in (_WIDTH, _HEADS))
    size = data.get("head_dim") or (width / heads if isinstance(width, int) and isinstance(heads, int) else None)
    if not isinstance(size, int | float) or not 0 < size <= LARGEST_COUNT:
        return {}
    return {"attention_multiplier": float(f"{size**-0.5:.4g}"), "query_pre_attn_scalar": size}


def shape_of_config(path: Path, data: Mapping[str, Any]) -> ModelShape:
    """The ModelShape that the fields of a family in ``READABLE`` give."""
    config, family = _Config(path, data), data["model_type"]
    has = READABLE[family]
    try:
        width, depth = config.number(*_WIDTH), config.number(*_DEPTH, most=DEEPEST)
        routed = _routed(config, has) if has else None
        shape = ModelShape.of_blocks(
            width,
            [routed if routed and _routes(config, layer) else _dense(config, width) for layer in range(depth)],
            _head_dim(config, width),
        )
        attention = _attention(config, shape)
    except MueError as problem:
        if isinstance(problem, FileError):
            raise
        raise FileError(f"{path}: {problem}", field=problem.field, given=problem.given) from None
    if attention is None:
        return shape
    other = attention - ATTENTION_MATRICES * width**2 - (width * shape.active_width if family in _UNGATED else 0)
    return shape.counted(shape.parameters + Parameters(depth * other, depth * other))


def _dense(config: _Config, width: int) -> FeedForward:
    if config.data["model_type"] == "gpt2" and not config.has("n_inner"):
        return FeedForward.dense(4 * width)  # its own default, written as null
    return FeedForward.dense(config.number("intermediate_size", "n_inner"))


def _routed(config: _Config, has: list[str]) -> FeedForward:
    hidden = config.number("moe_intermediate_size") if "own_width" in has else config.number("intermediate_size")
    group = RoutedGroup(config.number(*_EXPERTS), config.number(*_ACTIVE), hidden)
    if "shared_width" in has:
        shared = config.number(*_SHARED_WIDTH, least=0)
    else:
        shared = hidden * config.number(*_SHARED, least=0) if "shared" in has else 0
    return FeedForward((shared,) if shared else (), (group,))


def _routes(config: _Config, layer: int) -> bool:
    """Whether a layer of a model with experts has them."""
    kinds = config.data.get("mlp_layer_types")
    if isinstance(kinds, list):
        return layer < len(kinds) and kinds[layer] == "sparse"

    def every(name: str) -> bool:
        return not config.has(name) or (layer + 1) % config.number(name) == 0

    if "first_dense" in READABLE[config.data["model_type"]]:
        end = config.number("moe_layer_end_index", least=-1) if config.has("moe_layer_end_index") else -1
        begun = layer >= config.number(*_FIRST_DENSE, least=0)
        return begun and (end == -1 or layer <= end) and every("moe_layer_interval")
    return layer not in config.layers("mlp_only_layers") and every("decoder_sparse_step")


def _head_dim(config: _Config, width: int) -> int | None:
    if config.has("qk_nope_head_dim") and config.has("qk_rope_head_dim"):
        return config.number("qk_nope_head_dim") + config.number("qk_rope_head_dim")
    if config.has("head_dim"):
        return config.number("head_dim")
    heads = config.number(*_HEADS)
    return width // heads if width % heads == 0 else None


def _attention(config: _Config, shape: ModelShape) -> int | None:
    """Matrix entries of one layer's attention; None where the fields do not say."""
    family, width, size = config.data["model_type"], shape.width, shape.head_dim
    if family in _MIXED_ATTENTION or size is None:
        return None
    heads = config.number(*_HEADS)
    if config.has("kv_lora_rank") and config.has("v_head_dim"):  # latent: queries, keys and values by way of low ranks
        rank, value = config.number("kv_lora_rank"), config.number("v_head_dim")
        inner = config.number("q_lora_rank") if config.has("q_lora_rank") else None
        queries = heads * size * width if inner is None else inner * (width + heads * size)
        rope = config.number("qk_rope_head_dim")
        return queries + width * (rank + rope) + rank * heads * (size - rope + value) + heads * value * width
    grouped = "num_key_value_heads"  # in llama's first configs not there, elsewhere a default
    if grouped not in config.data and family not in ("llama", "gpt2"):
        return None
    pairs = config.number(grouped) if config.has(grouped) and family != "gpt2" else heads
    return ((3 if family == "afmoe" else 2) * heads + 2 * pairs) * size * width  # afmoe gates its output
