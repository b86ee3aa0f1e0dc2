"""Rotary positions: one axis for text, several (with channel splits) for images and video.

A head's channels are split over the position axes; within a split, pairs of channels rotate by position * frequency.
Channels beyond the splits do not rotate.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from complete_mue.errors import ShapeError


def rotary_table(
    positions: Tensor, head_dim: int, splits: Sequence[int] | None = None, base: float = 10_000.0
) -> tuple[Tensor, Tensor]:
    """cos and sin, each [tokens, head_dim / 2], for positions [tokens] or [tokens, axes].

    ``splits`` gives the channels of each axis, such as [48, 48, 24]; without it one axis takes the whole head.
    """
    positions = positions if positions.ndim == 2 else positions[:, None]
    splits = [head_dim] if splits is None else list(splits)
    if len(splits) != positions.shape[1] or any(split % 2 or split <= 0 for split in splits) or sum(splits) > head_dim:
        raise ShapeError(
            f"rotary splits {splits} for {positions.shape[1]} position axes and head_dim = {head_dim}: "
            "give one even number of channels per axis, at most head_dim in all"
        )
    angles = [
        positions[:, axis, None].double()
        * base ** (-torch.arange(0, split, 2, device=positions.device).double() / split)
        for axis, split in enumerate(splits)
    ]
    still = torch.zeros(len(positions), (head_dim - sum(splits)) // 2, device=positions.device, dtype=torch.float64)
    table = torch.cat([*angles, still], dim=-1)  # [tokens, head_dim / 2]
    return table.cos(), table.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [..., tokens, heads, head_dim] by a table of [tokens, head_dim / 2], the two halves paired."""
    cos, sin = (part[:, None, :].to(x.dtype) for part in (cos, sin))
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
