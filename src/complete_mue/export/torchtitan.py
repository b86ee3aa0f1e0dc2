"""torchtitan: a Python module with parameter groups, router fields, init by name, and a ready config function."""

from __future__ import annotations

import math

from complete_mue.export.settings import Setting, check_attention_scale, header, layer_pattern, route_scale, settings
from complete_mue.export.torchtitan_source import BODY, IMPORTS
from complete_mue.layout.notation import FeedForward
from complete_mue.layout.tensors import Role
from complete_mue.plan.plan import Plan

NAME = "torchtitan"
CHECKED = "torchtitan 0.3.0 on CPU (its config, model, router, init and optimizer classes; no training run)"

# {layer} is a layer's number. Biases are left out on purpose: torchtitan then refuses a model that has them.
# `wkv` and `qk_norm` are names of configs, which torchtitan builds twice each; parameters are never called so.
NAMES = {
    Role.EMBEDDING: r"tok_embeddings\.weight",
    Role.ATTENTION_IN: r"{layer}attention\.(?:qkv_linear\.)?(?:wqkv|wq|wk|wv|wkv|wq_a|wq_b|wkv_a|wkv_b)\.weight",
    Role.ATTENTION_OUT: r"{layer}attention\.wo\.weight",
    Role.DENSE_UP: r"{layer}feed_forward\.(?:w1|w3)\.weight",
    Role.DENSE_DOWN: r"{layer}feed_forward\.w2\.weight",
    Role.SHARED_UP: r"{layer}moe\.shared_experts\.(?:w1|w3)\.weight",
    Role.SHARED_DOWN: r"{layer}moe\.shared_experts\.w2\.weight",
    Role.EXPERT_UP: r"{layer}moe\.routed_experts\.inner_experts\.(?:w1_EFD|w3_EFD)",
    Role.EXPERT_DOWN: r"{layer}moe\.routed_experts\.inner_experts\.w2_EDF",
    Role.ROUTER: r"{layer}moe\.router\.gate\.weight",
    Role.NORM: r"{layer}(?:attention_norm|ffn_norm|attention\.(?:q_norm|k_norm|kv_norm|qk_norm))\.weight",
    Role.FINAL_NORM: r"norm\.weight",
    Role.READOUT: r"lm_head\.weight",
}

_FORM = (
    "folded, except the route scale, which is the router's own field route_scale; the output multiplier A, "
    "the residual and the readout multipliers are inside lr, weight decay, eps and init std."
)
_USE = """\
Use: save this text as a module on your Python path, say mue_run.py, set the constants below, then
    torchrun ... -m torchtitan.train --module mue_run --config train
For a model config of your own (a deepseek_v3, say): apply_plan(model_config) sets its router fields and the init of
every tensor, and optimizer() is its optimizer config. Its own clipping must be off, as in train(): training.max_norm is
1.0 by default; set it to float("inf"), and clip(optimizers, model_parts, max_norm) clips by the weighted norm instead.
Not covered: pipeline parallelism (torchtitan wants every pattern to match in every stage), tied embeddings, biases.
Low-rank projections of latent attention (wq_b, wkv_b) are taken to have ranks that grow with the width; for ranks held
fixed there is no equivalent here. Groups need the router below: torchtitan's fields limit a token to some groups."""


def render(plan: Plan) -> str:
    """The module's text."""
    check_attention_scale(plan, NAME)
    found = settings(plan, NAMES, native_route_scale=True)
    kinds = [_kind(plan, kind) for kind in plan.shape.kinds]
    shape, head_dim = plan.shape, plan.shape.head_dim or math.gcd(128, plan.shape.width)
    constants = [
        f"WIDTH = {shape.width}",
        f"DEPTH = {shape.depth}",
        f"BATCH_TOKENS = {plan.budget.batch_tokens}",
        f"STEPS = {plan.budget.steps}",
        f"BETAS = {plan.hyper.betas!r}",
        "",
        "# Yours to set: the plan does not depend on them.",
        f"HEAD_DIM = {head_dim}  # keep the reference's; heads of that size fill the width, and none share keys",
        "VOCAB_SIZE = 50304",
        f"SEQ_LEN = {math.gcd(2048, plan.budget.batch_tokens)}",
        "MAX_NORM = 1.0  # of clip(), which weighs gradients; None for no clipping",
        "",
        "# The feed-forward block of every layer, and the router's fields.",
        "KINDS = [",
        *kinds,
        "]",
        "",
        "# Role: (pattern of names, optimizer settings, init std or None for a gain, which starts at 1).",
        "# Patterns are disjoint: every trainable parameter has exactly one row.",
        "ROWS = {",
        *[line for one in found for line in _row(one)],
        "}",
        "",
        "# Role: the multiplier inside its values, which clip() weighs its gradient with.",
        "MULTIPLIERS = {",
        *[f"    {one.name!r}: {one.folded!r}," for one in found],
        "}",
    ]
    about = '"""' + "\n".join(header(plan, NAME, _FORM, CHECKED, _USE)) + '\n"""'
    return "\n".join([about, "", IMPORTS, "", *constants, BODY]).rstrip() + "\n"


def _kind(plan: Plan, kind: FeedForward) -> str:
    layers = _short([layer for layer, block in enumerate(plan.shape.blocks) if block == kind])
    if kind.is_dense:
        return f"    {{'layers': {layers}, 'hidden_dim': {kind.active_width}, 'moe': None}},"
    scale, groups = route_scale(plan, kind, NAME), len(kind.groups)
    router: dict[str, object] = {"top_k": kind.active, "score_func": "sigmoid", "route_norm": True}
    router["route_scale"] = scale
    if groups > 1:
        router |= {"num_expert_groups": groups, "num_limited_groups": groups}
    return "\n".join([
        f"    {{'layers': {layers}, 'hidden_dim': {kind.expert_width}, 'moe': {{",
        f"        'num_experts': {kind.experts}, 'shared_hidden_dim': {sum(kind.branches)}, 'router': {{",
        *[f"            {field!r}: {value!r}," for field, value in router.items()],
        "        },",
        "    }},",
    ])  # fmt: skip


def _short(layers: list[int]) -> str:
    straight = range(layers[0], layers[-1] + 1)
    return repr(straight if layers == list(straight) else layers)


def _row(one: Setting) -> list[str]:
    values = {"lr": one.row.lr, "weight_decay": one.row.weight_decay, "eps": one.row.eps}
    return [
        f"    {one.name!r}: (",
        f'        r"{pattern(one)}",',
        f"        {values!r},",
        f"        {one.row.init_std!r},",
        "    ),",
    ]


def pattern(one: Setting) -> str:
    """Anchored, since torchtitan searches; wrappers such as activation checkpointing may stand behind the layer."""
    layer = rf"layers\.{layer_pattern(one.layers)}\.(?:_\w+\.)*"
    return f"^{NAMES[one.role].replace('{layer}', layer)}$"
