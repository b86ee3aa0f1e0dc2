"""The parts of the torchtitan module that are the same for every plan."""

IMPORTS = """\
import dataclasses
import re
from functools import partial

import torch
from torch import nn
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig, register_moe_load_balancing_hook
from torchtitan.models.common import CosSinRoPE, Embedding, Linear
from torchtitan.models.common.config_utils import (
    get_attention_config,
    make_ffn_config,
    make_gqa_config,
    make_moe_config,
    make_routed_experts_config,
    make_router_config,
)
from torchtitan.models.common.moe import TokenChoiceTopKRouter
from torchtitan.models.common.nn_modules import RMSNorm
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock
from torchtitan.protocols.module import Module
"""

BODY = '''

class GroupBalancedRouter(TokenChoiceTopKRouter):
    """The plan's groups: top_k / groups experts in each group.

    The stock fields alone would let a token take all its experts from any num_limited_groups of the groups.
    """

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(TokenChoiceTopKRouter.Config):
        pass

    def _get_node_limited_routing_scores(self, scores_for_choice_BLE: torch.Tensor) -> torch.Tensor:
        groups = self.num_expert_groups
        grouped = scores_for_choice_BLE.unflatten(-1, (groups, self.num_experts // groups))
        best = grouped.topk(self.top_k // groups, dim=-1).indices
        left_out = torch.ones_like(grouped, dtype=torch.bool).scatter_(-1, best, False)
        return grouped.masked_fill(left_out, float("-inf")).flatten(-2)



def optimizer(**options) -> OptimizersContainer.Config:
    """AdamW with the plan's parameter groups; options such as implementation="fused" pass through."""
    return OptimizersContainer.Config(
        param_groups=[
            ParamGroupConfig(pattern=pattern, optimizer_name="AdamW", optimizer_kwargs={**values, "betas": BETAS})
            for pattern, values, _ in ROWS.values()
        ],
        **options,
    )


def clip(optimizers, model_parts, max_norm):
    """Clip before every step by the norm over multiplier times gradient: the norm that the multiplier form has.

    torchtitan's own clipping takes the plain norm, which folded weights distort: keep training.max_norm infinite. Every
    rank must call. Gradients may be DTensors of several meshes.
    """
    weights = {}
    for part in model_parts:
        for name, parameter in part.named_parameters():
            plain = re.sub(r"\\b_\\w+\\.", "", name)  # without what wrappers insert
            role = next(role for role, (pattern, _, _) in ROWS.items() if re.search(pattern, plain))
            weights[parameter] = MULTIPLIERS[role]

    @torch.no_grad()
    def before_step(*args, **kwargs):
        held = [(p.grad, weight) for p, weight in weights.items() if p.grad is not None]
        norms = [weight * torch.linalg.vector_norm(grad, dtype=torch.float32) for grad, weight in held]
        whole = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
        factor = (max_norm / (torch.linalg.vector_norm(torch.stack(whole)) + 1e-6)).clamp(max=1.0)
        for grad, _ in held:
            (grad.to_local() if hasattr(grad, "to_local") else grad).mul_(factor)

    optimizers.register_step_pre_hook(before_step)


def after_optimizers(optimizers, model_parts, parallel_dims):
    """What train() does once the optimizers stand: torchtitan's balancing of experts, and the weighted clip."""
    register_moe_load_balancing_hook(optimizers, model_parts, parallel_dims)
    if MAX_NORM is not None:
        clip(optimizers, model_parts, MAX_NORM)


def apply_plan(config):
    """Set router fields and the init of every tensor in a torchtitan decoder config, in place.

    All stock inits are replaced, those that depend on the layer (w2, w3, wo and router of deepseek_v3) too.
    """
    if config.dim != WIDTH or len(config.layers) != DEPTH:
        raise ValueError(f"the plan is for dim={WIDTH}, {DEPTH} layers; got dim={config.dim}, {len(config.layers)}")
    if config.enable_weight_tying:
        raise ValueError("embedding and readout follow different rules: set enable_weight_tying=False")
    for kind in KINDS:
        for number in kind["layers"]:
            _set_block(number, config.layers[number], kind)
    unused = set(ROWS)
    for fqn, module, _, _ in config.traverse(Module.Config, recurse=True):
        names = list(module.param_init or ())
        if not names and isinstance(module, (Linear.Config, Embedding.Config, RMSNorm.Config)):
            names = ["weight"]
        if names:
            module.param_init = {name: _init(f"{fqn}.{name}", unused) for name in names}
    if unused:
        raise ValueError(f"the model has no tensors of these roles of the plan: {sorted(unused)}")
    return config


def _set_block(number, layer, kind):
    moe = kind["moe"]
    if (layer.moe is None) != (moe is None):
        raise ValueError(f"layer {number}: the plan has {'a dense block' if moe is None else 'an MoE'} there")
    if moe is None:
        built, planned = {"hidden_dim": layer.feed_forward.w1.out_features}, {"hidden_dim": kind["hidden_dim"]}
    else:
        shared = layer.moe.shared_experts
        built = {
            "hidden_dim": layer.moe.routed_experts.inner_experts.hidden_dim,
            "num_experts": layer.moe.num_experts,
            "shared_hidden_dim": shared.w1.out_features if shared is not None else 0,
            "top_k": layer.moe.router.top_k,
        }
        planned = {"hidden_dim": kind["hidden_dim"], "top_k": moe["router"]["top_k"]}
        planned |= {key: moe[key] for key in ("num_experts", "shared_hidden_dim")}
    if built != planned:
        raise ValueError(f"layer {number}: the plan is for {planned}, the model has {built}")
    if moe is not None:
        layer.moe.router = _router(layer.moe.router, moe["router"])


def _router(router, fields):
    values = {field.name: getattr(router, field.name) for field in dataclasses.fields(router)}
    values |= {"num_expert_groups": None, "num_limited_groups": None} | fields
    kind = GroupBalancedRouter if fields.get("num_expert_groups") else TokenChoiceTopKRouter
    return kind.Config(**values)


def _init(name, unused):
    if name.endswith(".bias"):
        return nn.init.zeros_  # not used: torchtitan refuses parameters that no group claims
    for role, (pattern, _, std) in ROWS.items():
        if re.search(pattern, name):
            unused.discard(role)
            return nn.init.ones_ if std is None else partial(nn.init.normal_, std=std)
    raise ValueError(f"the plan has no row for {name!r}: describe it, or leave that part out of the model")


def model_config(attn_backend: str = "flex", moe_comm_backend: str = "standard") -> Qwen3Model.Config:
    """The planned shape with torchtitan's Qwen3 blocks: pre-norm, rotary attention with QK norm, SwiGLU or MoE."""

    if WIDTH % HEAD_DIM:
        raise ValueError(f"heads of {HEAD_DIM} do not fill the width {WIDTH}: set HEAD_DIM to a divisor of it")

    def norm(width):
        return RMSNorm.Config(normalized_shape=width, eps=1e-6, param_init={"weight": nn.init.ones_})

    stock = {"weight": nn.init.normal_, "bias": nn.init.zeros_}  # apply_plan replaces it
    kinds = {number: kind for kind in KINDS for number in kind["layers"]}
    layers = []
    for number in range(DEPTH):
        kind, feed_forward, moe = kinds[number], None, None
        ffn = partial(make_ffn_config, dim=WIDTH, w1_param_init=stock, w2w3_param_init=stock)
        if kind["moe"] is None:
            feed_forward = ffn(hidden_dim=kind["hidden_dim"])
        else:
            experts, shared = kind["moe"]["num_experts"], kind["moe"]["shared_hidden_dim"]
            top_k = kind["moe"]["router"]["top_k"]
            moe = make_moe_config(
                num_experts=experts,
                router=make_router_config(dim=WIDTH, num_experts=experts, top_k=top_k, gate_param_init=stock),
                routed_experts=make_routed_experts_config(
                    dim=WIDTH,
                    hidden_dim=kind["hidden_dim"],
                    num_experts=experts,
                    top_k=top_k,
                    param_init=dict.fromkeys(("w1_EFD", "w2_EDF", "w3_EFD"), nn.init.normal_),
                    comm_backend=moe_comm_backend,
                ),
                shared_experts=ffn(hidden_dim=shared) if shared else None,
            )
        layers.append(
            Qwen3TransformerBlock.Config(
                attention_norm=norm(WIDTH),
                ffn_norm=norm(WIDTH),
                attention=make_gqa_config(
                    dim=WIDTH,
                    n_heads=WIDTH // HEAD_DIM,
                    n_kv_heads=WIDTH // HEAD_DIM,
                    head_dim=HEAD_DIM,
                    wqkv_param_init=stock,
                    wo_param_init=stock,
                    inner_attention=get_attention_config(attn_backend),
                    fuse_qkv=True,
                    rope=CosSinRoPE.Config(dim=HEAD_DIM, max_seq_len=SEQ_LEN, theta=10000.0),
                    qk_norm=norm(HEAD_DIM),
                ),
                feed_forward=feed_forward,
                moe=moe,
            )
        )
    return apply_plan(
        Qwen3Model.Config(
            vocab_size=VOCAB_SIZE,
            dim=WIDTH,
            norm=norm(WIDTH),
            tok_embeddings=Embedding.Config(num_embeddings=VOCAB_SIZE, embedding_dim=WIDTH, param_init=stock),
            lm_head=Linear.Config(in_features=WIDTH, out_features=VOCAB_SIZE, param_init=stock),
            layers=layers,
        )
    )


def train():
    """A whole torchtitan config; name it with --config. Data, tokenizer and checkpoints are set on the command line."""
    from torchtitan.components.loss import CrossEntropyLoss
    from torchtitan.components.optimizer import LRSchedulersContainer
    from torchtitan.config import TrainingConfig
    from torchtitan.distributed.pipeline_parallel import pipeline_llm
    from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
    from torchtitan.models.qwen3 import parallelize_qwen3
    from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter
    from torchtitan.protocols.model_spec import ModelSpec
    from torchtitan.trainer import Trainer

    if BATCH_TOKENS % SEQ_LEN:
        raise ValueError(f"{BATCH_TOKENS} tokens are not whole rows of {SEQ_LEN}: set SEQ_LEN to a divisor of them")
    return Trainer.Config(
        model_spec=ModelSpec(
            name="qwen3",
            flavor="complete_mue",
            model=model_config(),
            parallelize_fn=parallelize_qwen3,
            pipelining_fn=pipeline_llm,
            post_optimizer_build_fn=after_optimizers,
            state_dict_adapter=Qwen3StateDictAdapter,
        ),
        loss=CrossEntropyLoss.Config(global_vocab_size=VOCAB_SIZE),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
        optimizer=optimizer(),
        lr_scheduler=LRSchedulersContainer.Config(
            warmup_steps=max(1, STEPS // 100), decay_ratio=0.2, decay_type="linear", min_lr_factor=0.0
        ),
        training=TrainingConfig(
            local_batch_size=1,
            global_batch_size=BATCH_TOKENS // SEQ_LEN,
            seq_len=SEQ_LEN,
            steps=STEPS,
            max_norm=float("inf"),  # its own clipping off: clip() stands in for it
        ),
    )
'''
