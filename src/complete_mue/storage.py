"""Files that appear whole or not at all, folders that one process works on at a time, JSON that is bounded."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from complete_mue.errors import FileError, MueError, RunError

LARGEST = 2**28  # bytes that a file to be read at once may hold
_TEMPORARY = ".part"
_LOCK = ".lock"
_LINKED = "is a link, and what is behind it would be written; remove it"


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write that takes its name only when the block ends well: temp file, fsync, rename.

    The temporary file has a name of its own, so two writers never share one, and nothing that lies there is followed.
    """
    try:
        with _unshared(path) as file:
            temporary = Path(file.name)
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _no_room(path, problem) from None
        raise


def _no_room(path: Path, problem: OSError) -> RunError:
    return RunError(
        f"{path}: cannot be written ({problem.strerror}); make room and run the same again: what was finished is kept"
    )


def _unshared(path: Path) -> BinaryIO:
    """A new file beside ``path``, locked while its writer lives: what no one holds is what a killed process left."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
        with suppress(FileExistsError):
            file = temporary.open("xb")
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            if temporary.exists():  # not taken for a leftover before it was locked
                return file
            file.close()


def write_text(path: Path, text: str) -> None:
    """Write ``text`` in UTF-8, whole or not at all."""
    with whole(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: Path, data: Any) -> None:
    """Write ``data`` as JSON, whole or not at all."""
    write_text(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def plain_file(path: Path) -> BinaryIO:
    """A file to read. A pipe or a device is refused: reading one may never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
    os.close(handle)
    raise IsADirectoryError(errno.EISDIR, "Is a directory") if is_folder else FileError(f"{path}: not a plain file")


def read_json(path: Path, what: str, remedy: str = "make it again") -> dict[str, Any]:
    """The JSON object in ``path``; messages name the kind of file, and what to do about a damaged one."""
    return json_object(read_bytes(path, f"give a folder with a {what}"), str(path), what, remedy)


def read_bytes(path: Path, remedy: str, largest: int = LARGEST) -> bytes:
    """What a file holds, if that is not too much; ``remedy`` says what to do where it cannot be read, or is."""
    try:
        with plain_file(path) as file:
            if os.fstat(file.fileno()).st_size > largest:
                raise FileError(f"{path}: larger than {largest} bytes; {remedy}")
            return file.read()
    except OSError as problem:
        raise FileError(f"{path}: {problem.strerror or problem}; {remedy}") from None


def json_object(content: str | bytes, where: str, what: str, remedy: str) -> dict[str, Any]:
    """The object that JSON text is; messages say where it stands."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as problem:
        raise FileError(f"{where}: not a {what} ({str(problem) or 'nested too deeply'}); {remedy}") from None
    if not isinstance(data, dict):
        raise FileError(f"{where}: not a {what} (a {type(data).__name__}, not an object); {remedy}")
    return data


def open_lock(path: Path) -> int:
    """A file to lock, made if missing. A link is refused: the file behind it is not ours to write."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as problem:
        if problem.errno != errno.ELOOP:
            raise
        raise FileError(f"{path}: {_LINKED}") from None
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise FileError(f"{path}: not a plain file, so it cannot be locked; remove it")


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, unless it is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        reason = "a file, or a link to nothing" if isinstance(problem, FileExistsError) else problem.strerror
        raise FileError(f"{path}: {reason}; give a folder that can be written") from None


def inner_folder(path: Path) -> Path:
    """Make a folder inside one of ours. A link in its place is refused: what goes there would land elsewhere."""
    refuse_links(path.parent, (path.name,))
    make_folder(path)
    return path


def refuse_links(folder: Path, names: tuple[str, ...]) -> None:
    """Refuse a folder of ours in which one of these is a link."""
    for path in (folder / name for name in names):
        if path.is_symlink():
            raise FileError(f"{path}: {_LINKED}")


@contextmanager
def exclusive(folder: Path, doing: str) -> Iterator[None]:
    """Hold ``folder`` (made if missing) for this process; a second process is refused. A killed holder lets go."""
    make_folder(folder)
    try:
        handle = open_lock(folder / _LOCK)
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
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode("ascii"), 0)
        except OSError as problem:
            raise _no_room(folder / _LOCK, problem) from None
        remove_parts(folder)
        yield
    finally:
        os.close(handle)


def remove_parts(folder: Path) -> None:
    """Remove what killed processes left half-written; what a living one writes is locked, and stays."""
    for path in folder.glob(f".*{_TEMPORARY}"):
        with suppress(OSError, MueError):
            handle = open_lock(path)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(handle)


def refuse_strangers(folder: Path, own: tuple[str, ...], doing: str) -> None:
    """Refuse to write among files that are not ours; ``own`` are the names (or their beginnings) that may be there."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name != _LOCK and not path.name.startswith(own) and not path.match(f".*{_TEMPORARY}"):
            raise FileError(f"{folder}: holds {path.name!r}, which {doing} did not write; give an empty folder")


def sha256(path: Path) -> str:
    """Checksum of a file."""
    try:
        with plain_file(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    except OSError as problem:
        raise FileError(f"{path}: {problem.strerror or problem}") from None
