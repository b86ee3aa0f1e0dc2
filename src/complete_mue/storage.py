"""Files that appear whole or not at all, folders that one process works on at a time, JSON that is bounded."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from complete_mue.errors import FileError, MueError, RunError

LARGEST_JSON = 2**28
_TEMPORARY = ".part"
_LOCK = ".lock"


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write that takes its name only when the block ends well: temp file, fsync, rename."""
    temporary = path.with_name(f".{path.name}{_TEMPORARY}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as problem:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise RunError(
                f"{path}: cannot be written ({problem.strerror}); make room and run the same again: "
                "what was finished is kept"
            ) from None
        raise


def write_json(path: Path, data: Any) -> None:
    """Write ``data`` as JSON, whole or not at all."""
    with whole(path) as file:
        file.write(json.dumps(data, indent=1, ensure_ascii=False).encode("utf-8") + b"\n")


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in ``path``; ``what`` names the kind of file in messages."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise FileError(f"{path}: larger than {LARGEST_JSON} bytes, so no {what}")
        data = json.loads(path.read_bytes().decode("utf-8"))
    except MueError:
        raise
    except OSError as problem:
        raise FileError(f"{path}: {problem.strerror or problem}; give a folder with a {what}") from None
    except (ValueError, RecursionError) as problem:
        raise FileError(f"{path}: not a {what} ({str(problem) or 'nested too deeply'}); make it again") from None
    if not isinstance(data, dict):
        raise FileError(f"{path}: not a {what} (a {type(data).__name__}, not an object); make it again")
    return data


@contextmanager
def exclusive(folder: Path, doing: str) -> Iterator[None]:
    """Hold ``folder`` (made if missing) for this process; a second process is refused. A killed holder lets go."""
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as problem:
        raise FileError(f"{folder}: {problem.strerror}; give a folder that can be written") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 32).decode("ascii", "replace").strip() or "unknown"
            raise RunError(
                f"{folder}: another process (pid {holder}) is at work there; "
                f"wait for it, or give {doing} another folder"
            ) from None
        except OSError as problem:
            raise FileError(
                f"{folder}: cannot be locked ({problem.strerror}); use a file system with file locks"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode("ascii"), 0)
        remove_parts(folder)
        yield
    finally:
        os.close(handle)


def remove_parts(folder: Path) -> None:
    """Remove what a killed process left half-written."""
    for path in folder.glob(f".*{_TEMPORARY}"):
        path.unlink(missing_ok=True)


def refuse_strangers(folder: Path, own: tuple[str, ...], doing: str) -> None:
    """Refuse to write among files that are not ours; ``own`` are the names (or their beginnings) that may be there."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name != _LOCK and not path.name.startswith(own) and not path.match(f".*{_TEMPORARY}"):
            raise FileError(f"{folder}: holds {path.name!r}, which {doing} did not write; give an empty folder")


def sha256(path: Path) -> str:
    """Checksum of a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as problem:
        raise FileError(f"{path}: {problem.strerror or problem}") from None
