"""Tensors in pieces: every rank writes what it holds, any number of ranks reads what it needs.

    model-00003.safetensors, optimizer-00003.safetensors    what rank 3 holds, by parameter name
    state.json                                              shape of each whole tensor, place of each piece in it

torch.distributed.checkpoint keeps the same facts in a pickle, which runs code when it is read; JSON cannot.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

KINDS = ("model", "optimizer")
_NAME = re.compile(r"(model|optimizer)(-[0-9]{5,8})?\.safetensors")


@dataclass(frozen=True)
class Part:
    """A box of a whole tensor: where it begins, and its size along each axis."""

    offset: tuple[int, ...]
    size: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Part:
        """What this rank holds of a tensor."""
        if not isinstance(tensor, DTensor):
            return cls((0,) * tensor.ndim, tuple(tensor.shape))
        size, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
        return cls(tuple(offset), tuple(size))


def written_here(tensor: Tensor, rank: int) -> bool:
    """Whether this rank writes its part; of ranks that hold the same one, the first does."""
    if not isinstance(tensor, DTensor):
        return rank == 0
    place = tensor.device_mesh.get_coordinate()
    copies = [at for at, placement in zip(place, tensor.placements, strict=True) if placement.is_replicate()]
    return not any(copies) and tensor.to_local().numel() > 0


def plain_name(file: str) -> str:
    """The name of a file of ours; a record cannot point out of its folder."""
    if not isinstance(file, str) or not _NAME.fullmatch(file):
        raise ValueError(f"{file!r} is not the name of a checkpoint's file")
    return file


class Pieces:
    """One kind of tensors (weights, or moments) of a checkpoint, wherever they lie."""

    def __init__(self, folder: Path, files: Mapping[str, Mapping[str, list[int]] | None]) -> None:
        """``files`` gives each file's tensors and where they begin; None for a file of whole tensors."""
        self._pieces: dict[str, list[tuple[Any, Part]]] = {}
        for file, offsets in files.items():
            handle = safe_open(folder / plain_name(file), framework="pt")
            for name in handle.keys():  # noqa: SIM118 - not a dictionary
                size = tuple(handle.get_slice(name).get_shape())
                offset = tuple(offsets[name]) if offsets is not None else (0,) * len(size)
                if len(offset) != len(size) or not all(isinstance(at, int) and at >= 0 for at in offset):
                    raise ValueError(f"{name} begins at {offset}")
                self._pieces.setdefault(name, []).append((handle, Part(offset, size)))
        self.shapes = {name: _shape(name, [part for _, part in found]) for name, found in self._pieces.items()}

    def read(self, name: str, part: Part) -> Tensor:
        """A part of a tensor, put together from the pieces it overlaps."""
        out: Tensor | None = None
        for handle, piece in self._pieces[name]:
            low = [max(a, b) for a, b in zip(part.offset, piece.offset, strict=True)]
            ends = zip(part.offset, part.size, piece.offset, piece.size, strict=True)
            high = [min(a + b, c + d) for a, b, c, d in ends]
            if any(begin >= end for begin, end in zip(low, high, strict=True)):
                continue
            source = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, piece.offset, strict=True))
            target = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, part.offset, strict=True))
            found = handle.get_slice(name)[source] if piece.size else handle.get_tensor(name)
            if out is None:
                out = torch.zeros(part.size, dtype=found.dtype)
            out[target] = found
        return torch.zeros(part.size) if out is None else out


def _shape(name: str, parts: list[Part]) -> tuple[int, ...]:
    """The whole's shape, from pieces that must fill it exactly."""
    if len({len(part.size) for part in parts}) != 1:
        raise ValueError(f"pieces of {name} have different numbers of axes")
    ends = [[at + size for at, size in zip(part.offset, part.size, strict=True)] for part in parts]
    shape = tuple(max(axis) for axis in zip(*ends, strict=True))
    if sum(math.prod(part.size) for part in parts) != math.prod(shape):
        raise ValueError(f"pieces of {name} do not fill its shape {shape}")
    return shape
