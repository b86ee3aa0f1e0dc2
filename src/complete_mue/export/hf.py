"""Hugging Face models: parameter groups as JSON, by the names of the stock families of transformers 5."""

from __future__ import annotations

import json
import math
from typing import Any

from complete_mue.export.settings import Setting, as_part_of, behind, header, layer_pattern, settings
from complete_mue.layout.hf_config import PLAIN
from complete_mue.layout.reference import Hyper
from complete_mue.layout.tensors import Role
from complete_mue.plan.plan import Plan

NAME = "hf"
CHECKED = "transformers 5.22.0 on CPU (tiny models of each family named below, torch.optim.AdamW)"

FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v3", "glm4_moe",
    "dots1", "ernie4_5_moe", "gpt_oss", "granitemoe", "granitemoeshared", "minimax_m2", "hunyuan_v1_moe",
)  # fmt: skip

# Regular expressions for whole names behind any prefix; {layer} is `layers.N.`.
NAMES = {
    Role.EMBEDDING: r"embed_tokens\.weight",
    Role.ATTENTION_IN: r"{layer}self_attn\."
    r"(?:q_proj|k_proj|v_proj|q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj)\.weight",
    Role.ATTENTION_OUT: r"{layer}self_attn\.o_proj\.weight",
    Role.DENSE_UP: r"{layer}mlp\.(?:gate_proj|up_proj)\.weight",
    Role.DENSE_DOWN: r"{layer}mlp\.down_proj\.weight",
    Role.SHARED_UP: r"{layer}(?:mlp\.(?:shared_experts?|shared_mlp)\.(?:gate_proj|up_proj)|shared_mlp\.input_linear)"
    r"\.weight",
    Role.SHARED_DOWN: r"{layer}(?:mlp\.(?:shared_experts|shared_mlp)\.down_proj|shared_mlp\.output_linear)\.weight",
    Role.EXPERT_UP: r"{layer}(?:mlp|block_sparse_moe)\.experts\."
    r"(?:gate_up_proj|\d+\.(?:gate_proj|up_proj|w1|w3)\.weight)",
    Role.EXPERT_DOWN: r"{layer}(?:mlp|block_sparse_moe)\.experts\.(?:down_proj|\d+\.(?:down_proj|w2)\.weight)",
    Role.ROUTER: r"{layer}(?:mlp\.(?:gate|gate\.wg|router|shared_expert_gate)|block_sparse_moe\.(?:gate|router))"
    r"\.weight",
    Role.NORM: r"{layer}(?:input_layernorm|post_attention_layernorm"
    r"|self_attn\.(?:q_norm|k_norm|q_a_layernorm|kv_a_layernorm|query_layernorm|key_layernorm))\.weight",
    Role.BIAS: r"{layer}(?:self_attn\.(?:sinks|(?:q_proj|k_proj|v_proj|q_a_proj|kv_a_proj_with_mqa)\.bias)"
    r"|mlp\.router\.bias|mlp\.experts\.gate_up_proj_bias)",
    Role.FINAL_NORM: r"model\.norm\.weight",
    Role.READOUT: r"lm_head\.weight",
}
# Biases that are added to a multiplied product fold its multiplier.
PRODUCT_BIASES = {
    Role.ATTENTION_OUT: r"{layer}self_attn\.o_proj\.bias",
    Role.EXPERT_DOWN: r"{layer}mlp\.experts\.down_proj_bias",
}
# A shared expert behind a sigmoid gate (qwen2_moe), which starts at one half: its values hold twice the multiplier.
GATED = r"{layer}mlp\.shared_expert\.down_proj\.weight"
GATE_AT_START = 0.5

_FORM = "folded: no multiplier in the model, the route scale included."
_USE = f"""\
Use: a trainable parameter belongs to the group whose pattern matches its whole name (re.fullmatch); a group that
matches nothing is left out, a name that matches nothing is an error. Draw weights with init_std; where it is null,
gains start at 1 and biases at 0. Schedulers must multiply all groups alike (LambdaLR does).
The config fields under `requires` must have these values where a family has them; `feed_forward` gives the layout of
every layer (widths behind @). Groups (4g) have no equivalent: n_group limits a token to some groups, so leave it at 1.
Ranks of latent attention are taken to grow with the width; ranks held fixed have no equivalent here.
Switch the trainer's own clipping off (max_grad_norm=0): take the norm over each gradient times its group's multiplier.
Families: {", ".join(FAMILIES)}."""


def render(plan: Plan) -> str:
    """The JSON text."""
    optimizer = {"class": "torch.optim.AdamW", **adamw(plan.hyper)}
    return document(plan, NAME, CHECKED, _USE, {"optimizer": optimizer})


def adamw(hyper: Hyper) -> dict[str, Any]:
    """The global settings, by the names that torch's AdamW has for them."""
    return {"lr": hyper.lr, "betas": hyper.betas, "eps": hyper.eps, "weight_decay": hyper.weight_decay}


def document(plan: Plan, tool: str, checked: str, use: str, sections: dict[str, Any]) -> str:
    """The JSON that a tool on Hugging Face names gets: header, requirements, the tool's own sections, groups."""
    about = [line for line in header(plan, tool, _FORM, checked, use) if line]
    requires = {**PLAIN, **shape_fields(plan)}
    body = {"about": about, "form": "folded", "requires": requires, **sections, "groups": groups(plan)}
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def shape_fields(plan: Plan) -> dict[str, Any]:
    """What the plan fixes of the model's shape, by the names that stock configs have for it."""
    shape = plan.shape
    found: dict[str, Any] = {"hidden_size": shape.width, "num_hidden_layers": shape.depth}
    if shape.head_dim is not None:
        scale = plan.attention_scale or 1 / math.sqrt(shape.head_dim)
        found |= {"head_dim": shape.head_dim, "attention_scale": scale, "attention_multiplier": scale}
    if len([kind for kind in shape.kinds if kind.groups]) == 1:
        found |= dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), shape.main.experts)
        found |= dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk"), shape.main.active)
    found["feed_forward"] = [block.with_widths for block in shape.blocks]  # layer by layer, in the plan's notation
    return found


def groups(plan: Plan) -> list[dict[str, Any]]:
    """One group per role (and kind of block where kinds differ), each with a name of its own and a pattern."""
    found = settings(plan, NAMES, native_route_scale=False)
    bias = next(one for one in found if one.role is Role.BIAS)
    listed = [_group(plan, one.name, NAMES[one.role], one) for one in found]
    for one in found:
        if one.role is Role.SHARED_DOWN:
            listed.append(_group(plan, f"gated {one.name}", GATED, behind(one, GATE_AT_START)))
        if one.role in PRODUCT_BIASES:
            listed.append(_group(plan, f"bias of {one.name}", PRODUCT_BIASES[one.role], as_part_of(bias, one)))
    return listed


def _group(plan: Plan, name: str, names: str, one: Setting) -> dict[str, Any]:
    return {
        "name": name,
        "pattern": r"(?:.*\.)?" + names.replace("{layer}", rf"layers\.{layer_pattern(one.layers)}\."),
        "lr": one.row.lr,
        "weight_decay": one.row.weight_decay,
        "eps": one.row.eps,
        "betas": list(plan.hyper.betas),
        "init_std": one.row.init_std,
        "multiplier": one.folded,
    }
