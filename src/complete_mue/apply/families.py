"""The known families, as data. Names and axes are those of transformers 5.x (checked by the tests, model by model).

``~`` abbreviates ``model.layers.*.``.
"""

from __future__ import annotations

from collections.abc import Mapping

from complete_mue.apply.family import Family

_ENDS = """
    model.embed_tokens.weight            | embedding     | vocab width
    model.norm.weight                    | final_norm    | width
    lm_head.weight                       | readout       | vocab <width>
"""
_NORMS = """
    ~{input,post_attention}_layernorm.weight | norm      | width
"""
_ATTENTION = """
    ~self_attn.{q,k,v}_proj.weight       | attention_in  | heads <width>
    ?~self_attn.{q,k,v}_proj.bias        | bias          | heads
    ~self_attn.o_proj.weight             | attention_out | width <heads>
    ?~self_attn.o_proj.bias              | bias          | width         | attention_out
    ?~self_attn.{q,k}_norm.weight        | norm          | head
"""
# Multi-head latent attention: the second projections sum over a low rank, not over the width.
_LATENT_ATTENTION = """
    ?~self_attn.q_proj.weight            | attention_in  | heads <width>
    ?~self_attn.q_a_proj.weight          | attention_in  | rank <width>
    ?~self_attn.q_a_layernorm.weight     | norm          | rank
    ?~self_attn.q_b_proj.weight          | attention_in  | heads <rank>
    ~self_attn.kv_a_proj_with_mqa.weight | attention_in  | rank <width>
    ~self_attn.kv_a_layernorm.weight     | norm          | rank
    ~self_attn.kv_b_proj.weight          | attention_in  | heads <rank>
    ?~self_attn.{q_a_proj,kv_a_proj_with_mqa}.bias | bias | rank
    ~self_attn.o_proj.weight             | attention_out | width <heads>
    ?~self_attn.o_proj.bias              | bias          | width         | attention_out
"""
_DENSE = """
    ~mlp.{gate,up}_proj.weight           | dense_up      | hidden <width>
    ~mlp.down_proj.weight                | dense_down    | width <hidden>
"""
_EXPERTS = """
    ~mlp.experts.gate_up_proj            | expert_up     | experts gate_up <width>
    ~mlp.experts.down_proj               | expert_down   | experts width <hidden>
"""
_GATE = """
    ~mlp.gate.weight                     | router        | experts <width>
"""
_SHARED = """
    ?~mlp.shared_experts.{gate,up}_proj.weight | shared_up   | hidden <width>
    ?~mlp.shared_experts.down_proj.weight      | shared_down | width <hidden>
"""


def _optional(table: str) -> str:
    return "\n".join(f"?{line.strip().removeprefix('?')}" for line in table.splitlines() if line.strip())


def _long(name: str) -> str:
    return name.replace("~", "model.layers.*.")


def _family(
    name: str,
    *tables: str,
    active: str | int = 0,
    normalized: bool | str = True,
    native: Mapping[str, str | float] | None = None,
    state: tuple[str, ...] = (),
) -> Family:
    return Family.define(
        name,
        _long("\n".join(tables)),
        active=active,
        normalized=normalized,
        native={_long(line): given for line, given in (native or {}).items()},
        state=map(_long, state),
    )


_LLAMA = (_ENDS, _NORMS, _ATTENTION)
_ROUTED_SCALE = {"expert_down": "routed_scaling_factor"}
# A sigmoid behind a gate of random weights starts at one half, on average.
_GATED_SHARED = {"shared_down": 0.5}
_GRANITE = {
    "embedding": "embedding_multiplier",
    "attention_out": "residual_multiplier",
    "shared_down": "residual_multiplier",
    "expert_down": "residual_multiplier",
    "readout": "1/logits_scaling",
}

_SERVED = (
    *(_family(name, *_LLAMA, _DENSE) for name in ("llama", "mistral", "qwen2", "qwen3")),
    _family("mixtral", *_LLAMA, _GATE, _EXPERTS, active="num_experts_per_tok"),
    _family(
        "minimax", _ENDS, _NORMS, _optional(_ATTENTION), _GATE, _EXPERTS,
        """
        ?~self_attn.qkv_proj.weight          | attention_in  | heads <width>
        ?~self_attn.output_gate.weight       | attention_in  | heads <width>
        ?~self_attn.out_proj.weight          | attention_out | width <heads>
        ?~self_attn.norm.weight              | norm          | heads
        """,
        active="num_experts_per_tok",
        native={
            "expert_down": "mlp_beta_factor",
            "~self_attn.o_proj.weight": "full_attn_beta_factor",
            "~self_attn.o_proj.bias": "full_attn_beta_factor",
            "~self_attn.out_proj.weight": "linear_attn_beta_factor",
        },
    ),
    _family(
        "qwen2_moe", *_LLAMA, _optional(_DENSE), _GATE, _EXPERTS,
        """
        ~mlp.shared_expert.{gate,up}_proj.weight | shared_up   | hidden <width>
        ~mlp.shared_expert.down_proj.weight      | shared_down | width <hidden>
        ~mlp.shared_expert_gate.weight           | router      | one <width>
        """,
        active="num_experts_per_tok", normalized="norm_topk_prob", native=_GATED_SHARED,
    ),
    _family(
        "qwen3_moe", *_LLAMA, _optional(_DENSE), _GATE, _EXPERTS,
        active="num_experts_per_tok", normalized="norm_topk_prob",
    ),
    _family("olmoe", *_LLAMA, _GATE, _EXPERTS, active="num_experts_per_tok", normalized="norm_topk_prob"),
    # Norms stand behind both branches: the residual factor belongs to their gains.
    _family(
        "flex_olmo", _ENDS, _GATE,
        """
        ~self_attn.{q,k,v}_proj.weight       | attention_in  | heads <width>
        ?~self_attn.{q,k,v}_proj.bias        | bias          | heads
        ~self_attn.o_proj.weight             | attention_out | width <heads>           | inner
        ?~self_attn.o_proj.bias              | bias          | width
        ~self_attn.{q,k}_norm.weight         | norm          | heads
        ~mlp.experts.gate_up_proj            | expert_up     | experts gate_up <width>
        ~mlp.experts.down_proj               | expert_down   | experts width <hidden>  | inner
        ~post_{attention,feedforward}_layernorm.weight | norm | width                  | residual
        """,
        active="num_experts_per_tok", normalized="norm_topk_prob",
    ),
    _family(
        "deepseek_v3", _ENDS, _NORMS, _LATENT_ATTENTION, _optional(_DENSE), _GATE, _EXPERTS, _SHARED,
        active="num_experts_per_tok", normalized="norm_topk_prob", native=_ROUTED_SCALE,
    ),
    _family(
        "glm4_moe", *_LLAMA, _optional(_DENSE), _GATE, _EXPERTS, _SHARED,
        active="num_experts_per_tok", normalized="norm_topk_prob", native=_ROUTED_SCALE,
    ),
    _family(
        "dots1", *_LLAMA, _optional(_DENSE), _GATE, _EXPERTS, _SHARED,
        active="num_experts_per_tok", normalized="norm_topk_prob", native=_ROUTED_SCALE,
    ),
    _family(
        "deepseek_v2", _ENDS, _NORMS, _LATENT_ATTENTION, _optional(_DENSE), _GATE, _EXPERTS, _SHARED,
        active="num_experts_per_tok", normalized=False, native=_ROUTED_SCALE,
    ),
    _family(
        "ernie4_5_moe", *_LLAMA, _optional(_DENSE), _GATE, _EXPERTS, _SHARED,
        active="moe_k", state=("~mlp.gate.moe_statics.e_score_correction_bias",),
    ),
    # Expert tensors lie transposed: the fan-in is the middle axis.
    _family(
        "gpt_oss", *_LLAMA,
        """
        ~self_attn.sinks                     | bias          | heads
        ~mlp.router.weight                   | router        | experts <width>
        ~mlp.router.bias                     | bias          | experts
        ~mlp.experts.gate_up_proj            | expert_up     | experts <width> gate_up
        ~mlp.experts.gate_up_proj_bias       | bias          | experts gate_up
        ~mlp.experts.down_proj               | expert_down   | experts <hidden> width
        ~mlp.experts.down_proj_bias          | bias          | experts width | expert_down
        """,
        active="num_experts_per_tok",
    ),
    *(
        _family(
            name, *_LLAMA,
            """
            ~block_sparse_moe.router.weight      | router        | experts <width>
            ~block_sparse_moe.experts.gate_up_proj | expert_up   | experts gate_up <width>
            ~block_sparse_moe.experts.down_proj  | expert_down   | experts width <hidden>
            ?~shared_mlp.input_linear.weight     | shared_up     | gate_up <width>
            ?~shared_mlp.output_linear.weight    | shared_down   | width <hidden>
            """,
            active="num_experts_per_tok", native=_GRANITE,
        )
        for name in ("granitemoe", "granitemoeshared")
    ),
    # sparsemixer's weights do not sum to one, and it takes two experts whatever the config says.
    _family(
        "phimoe", *_LLAMA, _EXPERTS,
        """
        ~mlp.router.weight                   | router        | experts <width>
        ~{input,post_attention}_layernorm.bias | bias        | width
        model.norm.bias                      | final_norm    | width
        ?lm_head.bias                        | bias          | vocab
        """,
        active=2, normalized=False,
    ),
    _family("minimax_m2", *_LLAMA, _GATE, _EXPERTS, active="num_experts_per_tok"),
    _family(
        "hunyuan_v1_moe", *_LLAMA, _optional(_DENSE), _EXPERTS,
        """
        ~mlp.gate.wg.weight                  | router        | experts <width>
        ?~mlp.shared_mlp.{gate,up}_proj.weight | shared_up   | hidden <width>
        ?~mlp.shared_mlp.down_proj.weight    | shared_down   | width <hidden>
        ?~self_attn.{query,key}_layernorm.weight | norm      | head
        """,
        active="moe_topk",
    ),
)  # fmt: skip

_REFUSED = (
    *(
        Family(name, refused="its router multiplies the experts' input by a sigmoid instead of weighting their "
               "outputs, so the route scale has no meaning there")
        for name in ("llama4", "llama4_text")
    ),
    Family("jamba", refused="its state-space layers (A_log, D, dt, conv1d) have no transfer rule in Complete-muE"),
)  # fmt: skip

FAMILIES: dict[str, Family] = {family.name: family for family in (*_SERVED, *_REFUSED)}
