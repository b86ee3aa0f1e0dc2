"""SonicMoE as a kernel: its CuTe DSL products through the entry for any routing, where the package can be imported.

SonicMoE 0.1.2 runs on newer PyTorch than its metadata admits (it asks for at most 2.9.1), needs Python 3.12 and a
Hopper GPU, and cannot be traced by torch.compile. Its native weights interleave the rows of gate and value.
`routed_experts` takes our order (all gate rows, then all value rows) by SonicMoE's own `concat_layout`, without a copy;
for a measurement on its home ground, `native` reorders the weights once and `layer` takes them so.
"""

from typing import Any

import torch
from torch import Tensor


def unavailable(x: Tensor, up: Tensor) -> str | None:
    """Why SonicMoE cannot run on these tensors of a Hopper GPU, in one line; None when it can."""
    if x.dtype not in (torch.bfloat16, torch.float16):
        return f"takes bfloat16 or float16; this tensor is {x.dtype}"
    if x.shape[1] % 8 or up.shape[1] % 16:
        return f"takes widths that are multiples of 8; these are {x.shape[1]} and {up.shape[1] // 2}"
    return None


def native(up: Tensor) -> Tensor:
    """`up` [experts, 2 * expert_width, width] with its gate and value rows interleaved: one copy of the tensor."""
    experts, both, width = up.shape
    return up.view(experts, 2, both // 2, width).transpose(1, 2).reshape(experts, both, width)


def is_default(config: Any) -> bool:
    """Whether a tiling is the one SonicMoE takes on Hopper without tuning."""
    tile = (config.tile_m, config.tile_n, config.cluster_m, config.cluster_n)
    return tile == (128, 192, 2, 1) and config.pingpong and not config.swap_ab


def routed_experts(x: Tensor, up: Tensor, down: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """The routed experts by SonicMoE; arguments as in `triton_experts.routed_experts`."""
    from sonicmoe import moe_general_routing_inputs
    from sonicmoe.enums import ActivationType

    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, up, down = x.to(dtype), up.to(dtype), down.to(dtype)
    tokens, active = index.shape
    token = torch.arange(tokens * active, device=x.device, dtype=torch.int32) // active
    y, _ = moe_general_routing_inputs(
        x.contiguous(), weight.flatten().float(), token, index.flatten().int(),
        up.permute(1, 2, 0), None, down.permute(1, 2, 0), None,
        up.shape[0], torch.cuda.current_stream(x.device).cuda_stream, ActivationType.SWIGLU,
        concat_layout=True,
    )  # fmt: skip
    return y


def layer(x: Tensor, router: Tensor, up: Tensor, down: Tensor, active: int) -> Tensor:
    """SonicMoE's whole layer, with its own router: the softmax over the ``active`` best logits.

    x [tokens, width], router [experts, width], `up` as `native` gives it -> [tokens, width]
    """
    from sonicmoe import moe_TC_softmax_topk_layer
    from sonicmoe.enums import ActivationType

    y, _, _ = moe_TC_softmax_topk_layer(
        x, router, up.permute(1, 2, 0), None, down.permute(1, 2, 0), None, active,
        torch.cuda.current_stream(x.device).cuda_stream, ActivationType.SWIGLU,
    )  # fmt: skip
    return y
