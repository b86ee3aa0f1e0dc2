"""Parts of files by position.

They are read, not mapped: a file that is cut while it is mapped ends the process without a word; here it is an error.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

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
