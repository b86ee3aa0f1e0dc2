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
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from complete_mue.errors import FileError
from complete_mue.lab.data.extras import in_our_words

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
        if path not in self._open:
            self._open[path] = os.open(path, os.O_RDONLY)
            if len(self._open) > _MOST:
                os.close(self._open.popitem(last=False)[1])
        self._open.move_to_end(path)
        return self._open[path]

    def __del__(self) -> None:
        with suppress(OSError):
            while self._open:
                os.close(self._open.popitem()[1])


_TYPES = {
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "U8": torch.uint8, "I32": torch.int32,
}  # fmt: skip


class StoredRows:
    """The tensors of one safetensors file, by name, row by row."""

    def __init__(self, path: Path, files: OpenFiles) -> None:
        self.path, self._files = path, files
        with in_our_words(f"{path}: not a safetensors file", "cache the features again"):
            safe_open(str(path), framework="pt")  # the library checks the header
        length = int.from_bytes(files.read(path, 0, 8), "little")
        self._header, self._begin = json.loads(files.read(path, 8, length)), 8 + length

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Of a row of a tensor; None where there is no such tensor, or one of a type that is never written."""
        facts = self._header.get(name)
        return tuple(facts["shape"][1:]) if facts and facts["dtype"] in _TYPES and facts["shape"] else None

    def row(self, name: str, number: int) -> Tensor:
        """One row of a tensor."""
        facts, shape = self._header[name], self.shape(name)
        if shape is None or number >= facts["shape"][0]:
            raise FileError(f"{self.path}: has no item {number} of {name!r}; cache the features again")
        dtype = _TYPES[facts["dtype"]]
        size = math.prod(shape) * dtype.itemsize
        begin = self._begin + facts["data_offsets"][0] + number * size
        return torch.frombuffer(bytearray(self._files.read(self.path, begin, size)), dtype=dtype).reshape(shape)
