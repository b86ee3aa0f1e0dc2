"""The sources of Python's own standard library: text that is on every machine."""

from __future__ import annotations

import sys
import sysconfig
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from complete_mue.errors import FileError

LARGEST = 20_000_000


def library_texts() -> tuple[bytes, ...]:
    """The files of the standard library, in an order drawn from their names, up to ``LARGEST`` bytes."""
    root = Path(sysconfig.get_path("stdlib"))
    tops = sys.stdlib_module_names - {"test", "idlelib", "lib2to3", "turtledemo", "antigravity", "this"}
    files = [root / f"{name}.py" for name in tops]
    for name in tops:
        files += [path for path in (root / name).rglob("*.py") if not {"test", "tests"} & set(path.parts[:-1])]
    # By the checksum of the name, so that a prefix and the held-out end are samples of the whole.
    named = sorted((sha256(path.relative_to(root).as_posix().encode()).digest(), path) for path in files)
    texts, size = list[bytes](), 0
    for _, path in named:
        if path.is_file() and size < LARGEST:
            texts.append(path.read_bytes())
            size += len(texts[-1])
    if len(texts) < 20:
        raise FileError(f"{root}: the standard library's sources are not there; give prepared text instead")
    return tuple(texts)


@lru_cache(maxsize=1)
def library_checksum() -> str:
    """Says whether two machines have the same sources; those of another Python version are others."""
    total = sha256()
    for text in library_texts():
        total.update(sha256(text).digest())
    return total.hexdigest()
