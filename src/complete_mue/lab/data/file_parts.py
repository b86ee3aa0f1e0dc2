"""Parts of files by position.

They are read, not mapped (as the safetensors library would): a file that is cut while it is mapped ends the process
without a word; here it is an error.
"""

from __future__ import annotations

import json
import math
import os
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from complete_mue.errors import FileError

_MOST = 256


class OpenFiles:
    """Files that stay open for the next part, the last ``_MOST`` of them; ``advice`` ends the message on a bad one."""

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self._open: OrderedDict[Path, int] = OrderedDict()

    def read(self, path: Path, begin: int, size: int) -> bytes:
        """So many bytes from ``begin`` on."""
        parts, left = list[bytes](), size
        try:
            handle = self._handle(path)
            while left and (part := os.pread(handle, left, begin + size - left)):
                parts.append(part)
                left -= len(part)
        except OSError as problem:
            raise FileError(f"{path}: {problem.strerror}; {self._advice}") from None
        if left:
            raise FileError(f"{path}: ends before byte {begin + size}: cut off; {self._advice}")
        return b"".join(parts)

    def _handle(self, path: Path) -> int:
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        self._open[path] = os.open(path, os.O_RDONLY)
        if len(self._open) > _MOST:
            os.close(self._open.popitem(last=False)[1])
        return self._open[path]

    def __del__(self) -> None:
        with suppress(OSError):
            while self._open:
                os.close(self._open.popitem()[1])


_TYPES = {
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "U8": torch.uint8, "I32": torch.int32,
}  # fmt: skip
_LARGEST_HEADER = 10**8


@dataclass(frozen=True)
class _Stored:
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int


class StoredRows:
    """The tensors of one safetensors file, by name."""

    def __init__(self, path: Path, files: OpenFiles) -> None:
        self.path, self._files = path, files
        try:
            length = int.from_bytes(files.read(path, 0, 8), "little")
            if length > _LARGEST_HEADER:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(files.read(path, 8, length))
            header.pop("__metadata__", None)
            self._tensors = {name: _stored(facts, 8 + length) for name, facts in header.items()}
        except FileError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
            raise FileError(f"{path}: not a safetensors file ({problem}); cache the features again") from None

    def row(self, name: str, number: int) -> Tensor:
        """One row of a tensor."""
        stored = self._tensors.get(name)
        if stored is None or not stored.shape or not 0 <= number < stored.shape[0]:
            raise FileError(f"{self.path}: has no item {number} of {name!r}; cache the features again")
        size = math.prod(stored.shape[1:]) * stored.dtype.itemsize
        content = bytearray(self._files.read(self.path, stored.begin + number * size, size))
        return torch.frombuffer(content, dtype=stored.dtype).reshape(stored.shape[1:])


def _stored(facts: dict[str, object], start: int) -> _Stored:
    shape, offsets = facts["shape"], facts["data_offsets"]
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        raise ValueError(f"no tensor: {str(facts)[:80]}")
    if not all(isinstance(number, int) and 0 <= number < 2**62 for number in (*shape, *offsets)):
        raise ValueError(f"sizes {shape} at {offsets}")
    dtype = _TYPES[str(facts["dtype"])]
    if offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{shape} of {facts['dtype']} in {offsets[1] - offsets[0]} bytes")
    return _Stored(dtype, tuple(shape), start + offsets[0])
