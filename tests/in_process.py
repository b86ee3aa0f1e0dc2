"""Commands and scripts without a process of their own: most of what one costs is the import of torch."""

from __future__ import annotations

import contextlib
import io
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from complete_mue.cli import main

POPEN = subprocess.Popen


def mue(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """What `mue ARGUMENTS` prints and returns in the folder ``cwd``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        patch.chdir(cwd)
        return _called(main, "mue", *map(str, arguments))


def script(path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """What `python PATH ARGUMENTS` prints and returns, of a script that ends with ``sys.exit(main())``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(path.parent), *sys.path])
        return _called(lambda: runpy.run_path(str(path), run_name="__main__"), str(path), *map(str, arguments))


def popen(command: list[str], **_: object) -> subprocess.Popen[bytes]:
    """In place of ``subprocess.Popen``, for a script that starts `mue`: it runs here, and a process ends as it did."""
    status = mue(*command[command.index("complete_mue") + 1 :], cwd=Path.cwd()).returncode
    return POPEN(["sh", "-c", f"exit {status}"])


def _called(function: Callable[[], object], *words: str) -> subprocess.CompletedProcess[str]:
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", list(words))
        with pytest.raises(SystemExit) as left:
            function()
    return subprocess.CompletedProcess(words, int(left.value.code or 0), out.getvalue(), err.getvalue())
