"""The known families, as data. Names and axes are those of transformers 5.x (checked by the tests, model by model).

``~`` abbreviates ``model.layers.*.``. Linear attention has one rule for all: its projections are attention's, a
depthwise convolution sums over a kernel that does not grow, and the vectors of its decay start where the stock model
starts them, with a vector's learning rate and no weight decay.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from complete_mue.apply.family import Family
from complete_mue.apply.refused import REFUSED

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
    ?~mlp.{gate,up}_proj.bias            | bias          | hidden
    ?~mlp.down_proj.bias                 | bias          | width         | dense_down
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


_SWITCHED_SHARED = """
    ?~mlp.shared_expert.{gate,up}_proj.weight | shared_up   | hidden <width>
    ?~mlp.shared_expert.down_proj.weight      | shared_down | width <hidden>
    ?~mlp.shared_expert_gate.weight           | router      | one <width>
"""
_GATED_DELTA = """
    ?~linear_attn.in_proj_{qkvz,ba,qkv,z,b,a}.weight | attention_in | heads <width>
    ?~linear_attn.conv1d.weight          | attention_in  | heads one <kernel>
    ?~linear_attn.dt_bias                | bias          | heads         |  | ones
    ?~linear_attn.A_log                  | bias          | heads         |  | log_uniform
    ?~linear_attn.norm.weight            | norm          | head
    ?~linear_attn.out_proj.weight        | attention_out | width <heads>
"""
_KIMI_DELTA = """
    ?~self_attn.{k,v,b,g}_proj.weight    | attention_in  | heads <width>
    ?~self_attn.g_a_proj.weight          | attention_in  | rank <width>
    ?~self_attn.g_b_proj.weight          | attention_in  | heads <rank>
    ?~self_attn.forget_gate.f_proj.weight   | attention_in | heads <width>
    ?~self_attn.forget_gate.f_a_proj.weight | attention_in | rank <width>
    ?~self_attn.forget_gate.f_b_proj.weight | attention_in | heads <rank>
    ?~self_attn.forget_gate.dt_bias      | bias          | heads         |  | dt
    ?~self_attn.conv1d.weight            | attention_in  | heads one <kernel>
    ?~self_attn.o_norm.weight            | norm          | head
"""
# Sparse attention: an indexer chooses which keys are read. The choice passes no gradient: only its own loss trains it.
_INDEXER = """
    ?~self_attn.indexer.wq_b.weight      | attention_in  | heads <rank>
    ?~self_attn.indexer.{wk,weights_proj}.weight | attention_in | heads <width>
    ?~self_attn.indexer.k_norm.weight    | norm          | head
    ?~self_attn.indexer.k_norm.bias      | bias          | head
"""


def _optional(table: str) -> str:
    return "\n".join(f"?{line.strip().removeprefix('?')}" for line in table.splitlines() if line.strip())


def _cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if line.strip()]


def _centred(table: str) -> str:
    """The same table for a model whose norms multiply by 1 + w."""
    rows = [[*row, *[""] * (4 - len(row)), "1+w"] if row[1] in ("norm", "final_norm") else row for row in _cells(table)]
    return "\n".join(" | ".join(row) for row in rows)


def _inner(table: str) -> str:
    """The same table for branches that end in a norm: their residual factor belongs to its gain."""
    ends = ("attention_out", "dense_down", "shared_down", "expert_down")
    rows = [[*row[:3], "inner"] if row[1] in ends else row[:3] for row in _cells(table)]
    return "\n".join(" | ".join(row) for row in rows)


def _without(table: str, name: str) -> str:
    return "\n".join(line for line in table.splitlines() if name not in line)


def _norms(before: str, behind: str = "") -> str:
    """Norms of the width before a branch, and behind one."""
    lines = [f"~{before}.weight | norm | width"]
    return "\n".join([*lines, f"~{behind}.weight | norm | width | residual"] if behind else lines)


def _long(name: str) -> str:
    return name.replace("~", "model.layers.*.")


def _family(
    name: str,
    *tables: str,
    active: str | int = 0,
    normalized: bool | str = True,
    native: Mapping[str, str | float] | None = None,
    state: tuple[str, ...] = (),
    refuses: Mapping[str, str] | None = None,
) -> Family:
    table = _long("\n".join(tables))
    return Family.define(
        name,
        table,
        active=active,
        normalized=normalized,
        native={_long(line): given for line, given in (native or {}).items()},
        fan_in_ratios={"kernel": 1.0} if "<kernel>" in table else {},
        state=map(_long, state),
        refuses={_long(line): reason for line, reason in (refuses or {}).items()},
    )


# A family whose layers may each be dense or routed; without any routed one, it can be a reference.
_moe = partial(_family, active="num_experts_per_tok", normalized="norm_topk_prob")

_LLAMA = (_ENDS, _NORMS, _ATTENTION)
_ROUTED = _optional(_DENSE + _GATE + _EXPERTS)
_ROUTED_SCALE = {"expert_down": "routed_scaling_factor"}
# A sigmoid behind a gate of random weights starts at one half, on average.
_GATED_SHARED = {"shared_down": 0.5}
_GRANITE = {
    "embedding": "embedding_multiplier",
    "attention_out": "residual_multiplier",
    "dense_down": "residual_multiplier",
    "shared_down": "residual_multiplier",
    "expert_down": "residual_multiplier",
    "readout": "1/logits_scaling",
}
_GRANITE_MOE = """
    ~block_sparse_moe.router.weight      | router        | experts <width>
    ~block_sparse_moe.experts.gate_up_proj | expert_up   | experts gate_up <width>
    ~block_sparse_moe.experts.down_proj  | expert_down   | experts width <hidden>
    ?~shared_mlp.input_linear.weight     | shared_up     | gate_up <width>
    ?~shared_mlp.output_linear.weight    | shared_down   | width <hidden>
    ?~self_attn.sinks                    | bias          | heads
"""
_QUERY_KEY_NORMS = """
    ?~self_attn.{query,key}_layernorm.weight | norm      | head
"""
_FUSED_DENSE = """
    ~mlp.gate_up_proj.weight             | dense_up      | gate_up <width>
    ~mlp.down_proj.weight                | dense_down    | width <hidden>
"""
_SCALED_EMBEDDING = {"embedding": "hidden_size**0.5"}
_POST_NORM_ATTENTION = _inner(_ATTENTION).replace("norm | head", "norm | heads")
_MAMBA = "Complete-muE has rules for its attention layers, but none for its state-space layers (A_log, D, dt, conv1d)"

_DENSE_FAMILIES = (
    *(
        _family(name, *_LLAMA, _DENSE)
        for name in ("llama", "mistral", "qwen2", "qwen3", "ministral", "ministral3", "smollm3", "ernie4_5", "seed_oss")
    ),
    _family("hunyuan_v1_dense", *_LLAMA, _DENSE, _QUERY_KEY_NORMS),
    _family("arcee", *_LLAMA, _DENSE.replace("{gate,up}", "up")),
    _family(
        "phi3", _ENDS, _NORMS, _FUSED_DENSE,
        """
        ~self_attn.qkv_proj.weight           | attention_in  | heads <width>
        ~self_attn.o_proj.weight             | attention_out | width <heads>
        """,
    ),
    _family("granite", *_LLAMA, _DENSE, native=_GRANITE),
    *(
        _family(
            name, _ENDS, _without(_ATTENTION, "_norm"), _DENSE, _norms("input_layernorm"),
            "?~self_attn.{q,k}_norm.weight | norm | heads head", native={"readout": "logit_scale"},
        )
        for name in ("cohere", "cohere2")
    ),
    _family("gemma", *map(_centred, (_ENDS, _NORMS)), _ATTENTION, _DENSE, native=_SCALED_EMBEDDING),
    *(
        _family(
            name, _centred(_ENDS), _centred(_POST_NORM_ATTENTION), _inner(_DENSE),
            _centred(_norms("{input,pre_feedforward}_layernorm", "post_{attention,feedforward}_layernorm")),
            native=_SCALED_EMBEDDING,
        )
        for name in ("gemma2", "gemma3_text")
    ),
    *(
        _family(
            name, _ENDS, _POST_NORM_ATTENTION, _inner(_DENSE),
            "~post_{attention,feedforward}_layernorm.weight | norm | width | residual",
        )
        for name in ("olmo2", "olmo3", "exaone4")
    ),
    _family(
        "glm4", _ENDS, _POST_NORM_ATTENTION, _inner(_FUSED_DENSE),
        _norms("{input,post_attention}_layernorm", "post_{self_attn,mlp}_layernorm"),
    ),
    _family(
        "starcoder2", *_LLAMA,
        """
        ~{input,post_attention}_layernorm.bias | bias        | width
        model.norm.bias                      | final_norm    | width
        ~mlp.c_fc.weight                     | dense_up      | hidden <width>
        ?~mlp.c_fc.bias                      | bias          | hidden
        ~mlp.c_proj.weight                   | dense_down    | width <hidden>
        ?~mlp.c_proj.bias                    | bias          | width         | dense_down
        """,
    ),
    # Its projections lie transposed.
    _family(
        "gpt2",
        """
        transformer.wte.weight               | embedding     | vocab width
        transformer.wpe.weight               | embedding     | positions width
        transformer.ln_f.weight              | final_norm    | width
        transformer.ln_f.bias                | final_norm    | width
        lm_head.weight                       | readout       | vocab <width>
        transformer.h.*.ln_{1,2}.weight      | norm          | width
        transformer.h.*.ln_{1,2}.bias        | bias          | width
        transformer.h.*.attn.c_attn.weight   | attention_in  | <width> heads
        transformer.h.*.attn.c_attn.bias     | bias          | heads
        transformer.h.*.attn.c_proj.weight   | attention_out | <heads> width
        transformer.h.*.attn.c_proj.bias     | bias          | width         | attention_out
        transformer.h.*.mlp.c_fc.weight      | dense_up      | <width> hidden
        transformer.h.*.mlp.c_fc.bias        | bias          | hidden
        transformer.h.*.mlp.c_proj.weight    | dense_down    | <hidden> width
        transformer.h.*.mlp.c_proj.bias      | bias          | width         | dense_down
        """,
    ),
)  # fmt: skip

_MOE_FAMILIES = (
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
    _moe("qwen2_moe", *_LLAMA, _ROUTED, _SWITCHED_SHARED, native=_GATED_SHARED),
    *(_moe(name, *_LLAMA, _ROUTED) for name in ("qwen3_moe", "mellum")),
    *(
        _moe(
            name, *map(_centred, (_ENDS, _NORMS, _optional(_ATTENTION))), _ROUTED, _SWITCHED_SHARED, _GATED_DELTA,
            normalized=normalized, native=_GATED_SHARED,
        )
        for name, normalized in (("qwen3_next", "norm_topk_prob"), ("qwen3_5_moe_text", True))
    ),
    _moe("olmoe", *_LLAMA, _GATE, _EXPERTS),
    # Norms stand behind both branches: the residual factor belongs to their gains.
    _moe(
        "flex_olmo", _ENDS, _GATE, _POST_NORM_ATTENTION, _inner(_EXPERTS),
        "~post_{attention,feedforward}_layernorm.weight | norm | width | residual",
    ),
    *(
        _moe(name, _ENDS, _NORMS, _LATENT_ATTENTION, _ROUTED, _SHARED, native=_ROUTED_SCALE)
        for name in ("deepseek_v3", "glm4_moe_lite")
    ),
    *(
        _moe(name, _ENDS, _NORMS, _LATENT_ATTENTION, _INDEXER, _ROUTED, _SHARED, native=_ROUTED_SCALE)
        for name in ("deepseek_v32", "glm_moe_dsa")
    ),
    _moe(
        "deepseek_v2", _ENDS, _NORMS, _LATENT_ATTENTION, _ROUTED, _SHARED, normalized=False, native=_ROUTED_SCALE
    ),
    # The norm stands behind routed blocks only.
    _moe(
        "axk1", _ENDS, _NORMS, _LATENT_ATTENTION, _optional(_DENSE), _optional(_GATE), _optional(_inner(_EXPERTS)),
        _optional(_inner(_SHARED)), "?~mlp.post_mlp_layernorm.weight | norm | width | residual", native=_ROUTED_SCALE,
    ),
    *(
        _moe(
            name, _ENDS, _NORMS, _optional(_LATENT_ATTENTION), _KIMI_DELTA,
            f"?~self_attn.forget_gate.A_log | bias | {axes} |  | log_uniform_1", _ROUTED, _SHARED, native=_ROUTED_SCALE,
        )
        for name, axes in (("bailing_hybrid", "heads"), ("kimi_linear", "one two heads three"))
    ),
    *(
        _moe(name, *_LLAMA, _ROUTED, _SHARED, native=_ROUTED_SCALE)
        for name in ("glm4_moe", "dots1", "solar_open", "exaone_moe")
    ),
    _moe("hy_v3", *_LLAMA, _ROUTED, _SHARED, normalized=True, native={"expert_down": "router_scaling_factor"}),
    _moe("mimo_v2_flash", *_LLAMA, _ROUTED, "?~self_attn.sinks | bias | heads", native=_ROUTED_SCALE),
    _moe(
        "laguna", *_LLAMA, _ROUTED, _SHARED, "?~self_attn.g_proj.weight | attention_in | heads <width>",
        normalized=True, native={"expert_down": "moe_routed_scaling_factor"},
        state=("~mlp.gate.e_score_correction_bias",),
    ),
    _moe("flint", *_LLAMA, _ROUTED, _SWITCHED_SHARED, "?~self_attn.sinks | bias | heads"),
    _moe(
        "kolibri1", _ENDS, _POST_NORM_ATTENTION, _GATE, _inner(_EXPERTS), _inner(_SHARED),
        _norms("{input,post_attention}_layernorm", "post_{self_attn,mlp}_layernorm"),
    ),
    _moe(
        "afmoe", _ENDS, _POST_NORM_ATTENTION, _optional(_inner(_DENSE)), _optional(_inner(_EXPERTS)), _inner(_SHARED),
        _norms("{input_layernorm,pre_mlp_layernorm}", "post_{attention,mlp}_layernorm"),
        """
        ?~self_attn.gate_proj.weight         | attention_in  | heads <width>
        ?~mlp.router.gate.weight             | router        | experts <width>
        """,
        normalized=True, native={"expert_down": "route_scale"}, state=("~mlp.expert_bias",),
    ),
    _moe(
        "minimax_m3_vl_text", *map(_centred, (_ENDS, _NORMS, _ATTENTION)), _optional(_FUSED_DENSE), _GATE, _EXPERTS,
        """
        ?~mlp.shared_experts.gate_up_proj.weight | shared_up | gate_up <width>
        ?~mlp.shared_experts.down_proj.weight | shared_down  | width <hidden>
        """,
        normalized=True, native=_ROUTED_SCALE,
    ),
    _moe(
        "cohere2_moe", _ENDS, _without(_ATTENTION, "_norm"), _norms("input_layernorm"), _ROUTED, _SHARED,
        normalized=True, native={"readout": "logit_scale"},
    ),
    _family(
        "ernie4_5_moe", *_LLAMA, _ROUTED, _SHARED,
        active="moe_k", state=("~mlp.gate.moe_statics.e_score_correction_bias",),
    ),
    _moe(
        "lfm2_moe", _ENDS.replace("model.norm", "model.embedding_norm"), _norms("{operator_norm,ffn_norm}"),
        """
        ?~self_attn.{q,k,v}_proj.weight      | attention_in  | heads <width>
        ?~self_attn.{q,k}_layernorm.weight   | norm          | head
        ?~self_attn.out_proj.weight          | attention_out | width <heads>
        ?~conv.in_proj.weight                | attention_in  | heads <width>
        ?~conv.{in_proj,conv}.bias           | bias          | heads
        ?~conv.conv.weight                   | attention_in  | heads one <kernel>
        ?~conv.out_proj.weight               | attention_out | width <heads>
        ?~conv.out_proj.bias                 | bias          | width         | attention_out
        ?~feed_forward.{w1,w3}.weight        | dense_up      | hidden <width>
        ?~feed_forward.w2.weight             | dense_down    | width <hidden>
        """,
        _optional((_GATE + _EXPERTS).replace("~mlp.", "~feed_forward.")), native=_ROUTED_SCALE,
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
        _family(name, *_LLAMA, _GRANITE_MOE, active="num_experts_per_tok", native=_GRANITE)
        for name in ("granitemoe", "granitemoeshared", "granitemoe_swa")
    ),
    _family(
        "granitemoehybrid", *_LLAMA, _GRANITE_MOE,
        active="num_experts_per_tok", native=_GRANITE, refuses={"~mamba.": _MAMBA},
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
        "hunyuan_v1_moe", *_LLAMA, _optional(_DENSE), _EXPERTS, _QUERY_KEY_NORMS,
        """
        ~mlp.gate.wg.weight                  | router        | experts <width>
        ?~mlp.shared_mlp.{gate,up}_proj.weight | shared_up   | hidden <width>
        ?~mlp.shared_mlp.down_proj.weight    | shared_down   | width <hidden>
        """,
        active="moe_topk",
    ),
    _family(
        "aria_text", *_LLAMA, _SHARED,
        """
        ~mlp.router.weight                   | router        | experts <width>
        ~mlp.experts.gate_up_proj            | expert_up     | experts <width> gate_up
        ~mlp.experts.down_proj               | expert_down   | experts <hidden> width
        """,
        active="moe_topk",
    ),
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    **{family.name: family for family in (*_DENSE_FAMILIES, *_MOE_FAMILIES)},
    **{name: Family(name, refused=reason) for name, reason in REFUSED.items()},
}
