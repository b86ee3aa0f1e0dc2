"""Megatron-Core: a Python module with arguments, per-parameter overrides and an in-place init."""

from __future__ import annotations

import math

from complete_mue.errors import TransferError
from complete_mue.export.megatron_source import BODY, IMPORTS
from complete_mue.export.settings import Setting, check_attention_scale, header, route_scale, settings
from complete_mue.layout.tensors import Role
from complete_mue.plan.plan import Plan

NAME = "megatron"
CHECKED = (
    "megatron-core 0.16.1 on CPU, local layer specs (its GPTModel, TransformerConfig, ParamKey, optimizer, scheduler "
    "and router; the command line's parser and Transformer Engine's modules are not in that package: unchecked)"
)

# fnmatch patterns, whose * crosses dots. The last names of a line are those of Transformer Engine's fused modules.
NAMES = {
    Role.EMBEDDING: ("*embedding.word_embeddings.weight",),
    Role.ATTENTION_IN: (
        "*.self_attention.linear_qkv.weight",
        "*.self_attention.linear_q_proj.weight",
        "*.self_attention.linear_q_down_proj.weight",
        "*.self_attention.linear_q_up_proj.weight",
        "*.self_attention.linear_kv_down_proj.weight",
        "*.self_attention.linear_kv_up_proj.weight",
    ),
    Role.ATTENTION_OUT: ("*.self_attention.linear_proj.weight",),
    Role.DENSE_UP: ("*.mlp.linear_fc1.weight",),
    Role.DENSE_DOWN: ("*.mlp.linear_fc2.weight",),
    Role.SHARED_UP: ("*.mlp.shared_experts.linear_fc1.weight",),
    Role.SHARED_DOWN: ("*.mlp.shared_experts.linear_fc2.weight",),
    Role.EXPERT_UP: (
        "*.mlp.experts.local_experts.*.linear_fc1.weight",
        "*.mlp.experts.weight1",
        "*.mlp.experts.linear_fc1.weight*",
    ),
    Role.EXPERT_DOWN: (
        "*.mlp.experts.local_experts.*.linear_fc2.weight",
        "*.mlp.experts.weight2",
        "*.mlp.experts.linear_fc2.weight*",
    ),
    Role.ROUTER: ("*.mlp.router.weight", "*.mlp.shared_experts.gate_weight"),
    Role.NORM: (
        "*.input_layernorm.weight",
        "*.pre_mlp_layernorm.weight",
        "*.self_attention.q_layernorm.weight",
        "*.self_attention.k_layernorm.weight",
        "*.self_attention.kv_layernorm.weight",
        "*.layer_norm_weight",
    ),
    Role.FINAL_NORM: ("*final_layernorm.weight",),
    Role.READOUT: ("*output_layer.weight",),
}

_FORM = (
    "folded, except the route scale, which is --moe-router-topk-scaling-factor; the output multiplier A, the residual "
    "and the readout multipliers are inside max_lr, wd_mult, eps and init std."
)
_USE = """\
Use, in your training script:
    sys.argv += ARGUMENTS                 # what the plan decides; batch: BATCH_TOKENS tokens per step
    balance_groups()                      # before the model runs; does nothing for ungrouped layouts
    initialize(model)                     # after the model is built, before the optimizer copies its weights
    get_megatron_optimizer(config, model, config_overrides=config_overrides())
The warmup must start at 0 (--lr-warmup-init 0): Megatron does not scale that value per group. Not covered: biases
(--disable-bias-linear), tied embeddings, the fused router kernel with grouped layouts (--moe-router-fusion).
Heads fill the width here (if they do not, their number is left to you), and none share keys: where your model has other
numbers, set --num-attention-heads, --group-query-attention and --num-query-groups as it has them; nothing else here
depends on them.
Clipping is off (--clip-grad 0.0; Megatron's default is 1.0): its norm is taken inside the optimizer, over all groups
alike, and has no place for weights. Low-rank projections of latent attention are taken to have ranks that grow with the
width: ranks held fixed have no equivalent here. Groups need balance_groups(): Megatron's own limit a token to some."""


def render(plan: Plan) -> str:
    """The module's text."""
    check_attention_scale(plan, NAME)
    found = settings(plan, NAMES, native_route_scale=True)
    # The global value, which every group's is a multiple of; a role's own where the global one is 0.
    base = plan.hyper.weight_decay or max(one.row.weight_decay for one in found)
    arguments = _arguments(plan, base)
    multiples = _weight_decay_multiples(found, base)
    shares = next((len(kind.groups) for kind in plan.shape.kinds if kind.groups), 1)
    lines = [
        f"BATCH_TOKENS = {plan.budget.batch_tokens}",
        f"GROUPS = {shares}  # of experts; each token takes an equal share from each",
        "MIN_LR_RATIO = 0.0  # final lr over peak lr, the same for every group",
        "",
        "ARGUMENTS = [",
        *[f"    {', '.join(map(repr, words))}," for words in arguments],
        "]",
        "",
        "# Role: (names, peak lr, weight decay over --weight-decay, eps, init std or None for a gain: it starts at 1).",
        "# Megatron's checkpoints tell groups apart by wd_mult, not by lr or eps: where two groups had the same,",
        "# one is moved by its last digit, far below what training can see.",
        "ROWS = {",
    ]
    for one in found:
        row = one.row
        values = f"{row.lr!r}, {multiples[_key(one)]!r}, {row.eps!r}, {row.init_std!r}"
        names = [f"            {name!r}," for name in NAMES[one.role]]
        lines += [f"    {one.role.value!r}: (", "        (", *names, "        ),", f"        {values},", "    ),"]
    about = '"""' + "\n".join(header(plan, NAME, _FORM, CHECKED, _USE)) + '\n"""'
    return "\n".join([about, "", IMPORTS, *lines, "}", BODY]).rstrip() + "\n"


def _arguments(plan: Plan, weight_decay: float) -> list[tuple[str, ...]]:
    shape, hyper = plan.shape, plan.hyper
    dense = [kind for kind in shape.kinds if kind.is_dense]
    routed = [kind for kind in shape.kinds if kind.groups]
    for what, kinds in (("dense", dense), ("routed", routed)):
        if len(kinds) > 1:
            names = ", ".join(kind.with_widths for kind in kinds)
            raise TransferError(
                f"{NAME} has one {what} block for all layers, but the shape has {names}: "
                "use one layout, or apply the plan to a PyTorch model of your own"
            )
    lines: list[tuple[str, ...]] = [
        ("--num-layers", str(shape.depth)),
        ("--hidden-size", str(shape.width)),
        ("--swiglu",),
        ("--disable-bias-linear",),
        ("--normalization", "RMSNorm"),
        ("--untie-embeddings-and-output-weights",),
    ]
    if shape.head_dim is not None:
        lines += [("--kv-channels", str(shape.head_dim))]
        if shape.width % shape.head_dim == 0:
            lines += [("--num-attention-heads", str(shape.width // shape.head_dim))]
    width = dense[0].active_width if dense else shape.main.active_width
    lines += [("--ffn-hidden-size", str(width))]
    if routed:
        block = routed[0]
        scale, groups, shared = route_scale(plan, block, NAME), len(block.groups), sum(block.branches)
        if block.active == 1:
            raise TransferError(
                f"{NAME} does not normalize the routing weight of a single activated expert ({block}): "
                "activate at least two"
            )
        lines += [
            ("--num-experts", str(block.experts)),
            ("--moe-ffn-hidden-size", str(block.expert_width)),
            ("--moe-router-topk", str(block.active)),
            ("--moe-router-score-function", "sigmoid"),
            ("--moe-router-topk-scaling-factor", repr(scale)),
        ]
        if groups > 1:
            lines += [("--moe-router-num-groups", str(groups)), ("--moe-router-group-topk", str(groups))]
        if shared:
            lines += [("--moe-shared-expert-intermediate-size", str(shared))]
        if dense:
            freq = ",".join("0" if block.is_dense else "1" for block in shape.blocks)
            lines += [("--moe-layer-freq", f"[{freq}]")]
    return [
        *lines,
        ("--train-iters", str(plan.budget.steps)),
        ("--optimizer", "adam"),
        ("--lr", repr(hyper.lr)),
        ("--min-lr", "0.0"),
        ("--lr-warmup-init", "0.0"),
        ("--weight-decay", repr(weight_decay)),
        ("--adam-beta1", repr(hyper.betas[0])),
        ("--adam-beta2", repr(hyper.betas[1])),
        ("--adam-eps", repr(hyper.eps)),
        ("--clip-grad", "0.0"),
        ("--init-method-std", repr(hyper.init_std)),
    ]


_Key = tuple[float, float, float]


def _key(one: Setting) -> _Key:
    return one.row.lr, one.row.weight_decay, one.row.eps


def _weight_decay_multiples(found: tuple[Setting, ...], base: float) -> dict[_Key, float]:
    """wd_mult of every group, all different: a checkpoint that loads two groups alike would swap their eps."""
    multiples: dict[_Key, float] = {}
    for key in map(_key, found):
        if key in multiples:
            continue
        multiple = key[1] / base if base else 1.0
        while multiple in multiples.values():
            multiple = math.nextafter(multiple, math.inf) if multiple else 1e-300
        multiples[key] = multiple
    return multiples
