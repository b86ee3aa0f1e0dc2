"""Whether a norm multiplies by its weight w or by 1 + w, and which of its tensors are added."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from complete_mue.apply.one_forward import evaluating, owner
from complete_mue.layout import Role, TensorSpec


@torch.no_grad()
def gain_offsets(model: nn.Module, specs: Sequence[TensorSpec]) -> tuple[dict[str, float], frozenset[str]]:
    """Whether a norm multiplies by w or by 1 + w, and what it adds: one look per class and tensor."""
    known: dict[tuple[type, str, bool], float | None] = {}
    found, shifts = {}, set()
    for spec in specs:
        if spec.role not in (Role.NORM, Role.FINAL_NORM) or spec.name.endswith("bias"):
            continue
        module, name = model.get_submodule(owner(spec)), spec.name.rpartition(".")[2]
        key = type(module), name, bool(getattr(module, "bias", None) is not None)
        if key not in known:
            known[key] = _gain_offset(module, name)
        if (offset := known[key]) == math.inf:
            shifts.add(spec.name)
        elif offset is not None:
            found[spec.name] = offset
    return found, frozenset(shifts)


def _gain_offset(module: nn.Module, name: str) -> float | None:
    """What is added to a gain; infinity for a tensor that is no gain but is added; None where neither is shown."""
    weight = module.get_parameter(name)
    if any(True for _ in module.children()) or weight.dim() != 1 or weight.numel() < 2:
        return None
    size = weight.numel() // 2 * 2
    # Every norm leaves this vector as it is.
    probe = torch.zeros_like(weight)
    probe[:size:2], probe[1:size:2] = 1.0, -1.0
    probe *= math.sqrt(weight.numel() / size)
    given = torch.stack([probe, -probe]).view(1, 2, -1)
    try:
        with evaluating(module):
            out = module(given)
            with torch.nn.utils.stateless._reparametrize_module(module, {name: weight + 1}):
                moved = module(given)
    except Exception:  # a norm that wants more than its input, such as a gate
        return None
    if not isinstance(out, Tensor) or out.shape != (1, 2, weight.numel()):
        return None
    if bool(((moved - out).double() - 1).abs().max() <= 0.05):  # for a vector and for its opposite
        return math.inf
    gain = ((out[0, 0] - out[0, 1]) / 2 / probe)[:size].double()
    added = gain - weight[:size].double()
    slack = min(64 * float(torch.finfo(weight.dtype).eps) * (1 + float(gain.abs().max())), 0.25)  # 0 is not 1
    for offset in (0.0, 1.0):
        if bool(((added - offset).abs() <= max(slack, 1e-4)).all()):
            return offset
    return None
