"""The parts of the Megatron-Core module that are the same for every plan."""

IMPORTS = """\
import fnmatch
import hashlib

import torch
from megatron.core import parallel_state
from megatron.core.optimizer.optimizer_config import ParamKey
from megatron.core.transformer.moe import moe_utils
"""

BODY = '''

def config_overrides():
    """For get_megatron_optimizer(config_overrides=...): the keys are disjoint, and every group has its own values."""
    return {
        ParamKey(name=names): {"max_lr": lr, "min_lr": lr * MIN_LR_RATIO, "wd_mult": wd_mult, "eps": eps}
        for names, lr, wd_mult, eps, _ in ROWS.values()
    }


def role_of(name):
    """The one role whose patterns match a parameter's name."""
    found = [role for role, (names, *_) in ROWS.items() if any(fnmatch.fnmatch(name, glob) for glob in names)]
    if len(found) != 1:
        raise ValueError(f"parameter {name!r} has {len(found)} rows in the plan {found}: leave it out of the model")
    return found[0]


@torch.no_grad()
def initialize(model, seed=1234):
    """Draw every trainable parameter as the plan says, in place, on all ranks; takes a model or a list of chunks.

    Dense, shared and routed fc2 share one init callable in Megatron, so their different stds are written here. Every
    shard has its own generator, seeded by its name and its place among tensor, expert and pipeline ranks; data-parallel
    copies draw the same.
    """
    for chunk, part in enumerate(model if isinstance(model, (list, tuple)) else [model]):
        for name, parameter in part.named_parameters():
            if not parameter.requires_grad:
                continue
            std = ROWS[role_of(name)][4]
            if std is None:
                parameter.fill_(1.0)
                continue
            digest = hashlib.sha256(f"{seed}:{chunk}:{name}:{_place(parameter)}".encode()).digest()
            generator = torch.Generator(parameter.device).manual_seed(int.from_bytes(digest[:7], "little"))
            drawn = torch.empty(parameter.shape, dtype=torch.float32, device=parameter.device)
            parameter.copy_(drawn.normal_(0.0, std, generator=generator))
    return model


def _place(parameter):
    """Ranks on which this parameter differs."""
    expert = not getattr(parameter, "allreduce", True)
    sharded = getattr(parameter, "tensor_model_parallel", False)
    place = [parallel_state.get_pipeline_model_parallel_rank()]
    if expert:
        place += [parallel_state.get_expert_model_parallel_rank()]
    if sharded and expert:
        place += [parallel_state.get_expert_tensor_parallel_rank()]
    elif sharded:
        place += [parallel_state.get_tensor_model_parallel_rank()]
    return place


def balance_groups():
    """Take topk / groups experts from each group, as the plan's layout says.

    Megatron's own groups choose the best --moe-router-group-topk groups and then any experts in them; with all groups
    allowed that is plain top-k.
    """
    if GROUPS == 1:
        return

    def group_balanced_topk(scores, topk, num_tokens, num_experts, num_groups, group_topk):
        size = num_experts // num_groups
        probs, index = scores.view(num_tokens, num_groups, size).topk(topk // num_groups, dim=-1)
        first = torch.arange(num_groups, device=index.device).view(1, -1, 1) * size
        return probs.flatten(1), (index + first).flatten(1)

    moe_utils.group_limited_topk = group_balanced_topk
'''
