"""Rotary positions: one axis for text, several (with channel splits) for images and video.

A head's channels are split over the position axes; within a split, pairs of channels rotate by position * frequency.
Channels beyond the splits do not rotate. Tables are made in float64 and kept: a model asks for the same one at every
step, and torch.compile takes it as a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from complete_mue.errors import ShapeError

TEXT_BASE = 10_000.0
PICTURE_BASE = 100.0  # grids are tens of patches wide: with text's 10,000 most channels would hardly turn
_SHORTEST = 64  # tables of text grow in powers of two from here, so that generation needs few


def rotary_table(
    positions: Tensor, head_dim: int, splits: Sequence[int] | None = None, base: float = TEXT_BASE
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


def text_rotary(first: int, last: int, head_dim: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """The table of positions first … last - 1, on the device of ``like`` and in the dtype its products come in."""
    length = max(_SHORTEST, 1 << (last - 1).bit_length())
    cos, sin = _table(0, (length,), head_dim, (head_dim,), TEXT_BASE, str(like.device), _product_dtype(like))
    return cos[first:last], sin[first:last]


def picture_rotary(
    words: int, grid: tuple[int, ...], head_dim: int, splits: tuple[int, ...], like: Tensor
) -> tuple[Tensor, Tensor]:
    """The table of ``words`` text tokens, then the patches of ``grid``, row by row.

    Text stands before the picture on the first axis: -words … -1.
    """
    return _table(words, grid, head_dim, splits, PICTURE_BASE, str(like.device), _product_dtype(like))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [..., tokens, heads, head_dim] by a table of [tokens, head_dim / 2], the two halves paired."""
    cos, sin = (part[:, None, :].to(x.dtype) for part in (cos, sin))
    first, second = x.chunk(2, dim=-1)
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        # The same bits from whole rows of heads, not from pieces of half a head: twice as fast where heads are small.
        wide = (-1, x.shape[-2], -1)
        cos, sin = (torch.cat(halves, dim=-1).expand(wide).contiguous() for halves in ((cos, cos), (-sin, sin)))
        return x * cos + torch.cat([second, first], dim=-1) * sin
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _product_dtype(x: Tensor) -> torch.dtype:
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


# A constant to the compiler; to eager code, a look-up. Inference mode is left so that training may use the same table.
@torch.compiler.assume_constant_result
def _table(
    words: int, grid: tuple[int, ...], head_dim: int, splits: tuple[int, ...], base: float, device: str,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _kept_table(words, grid, head_dim, splits, base, device, dtype)


@lru_cache(maxsize=32)
def _kept_table(
    words: int, grid: tuple[int, ...], head_dim: int, splits: tuple[int, ...], base: float, device: str,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    with torch.inference_mode(False), torch.no_grad():
        places = torch.stack(torch.meshgrid(*(torch.arange(n, device=device) for n in grid), indexing="ij"), dim=-1)
        text = torch.zeros(words, len(grid), device=device, dtype=torch.long)
        text[:, 0] = torch.arange(-words, 0, device=device)
        cos, sin = rotary_table(torch.cat([text, places.flatten(0, -2)]), head_dim, splits, base)
        return cos.to(dtype), sin.to(dtype)
