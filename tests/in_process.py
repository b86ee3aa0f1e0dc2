"""`mue` without a process of its own: most of what a command costs is the import of torch."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path

import pytest

from complete_mue.cli import main


def mue(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """What `mue ARGUMENTS` prints and returns in the folder ``cwd``."""
    words, out, err = ["mue", *map(str, arguments)], io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", words)
        patch.setenv("COLUMNS", "100")
        patch.chdir(cwd)
        with pytest.raises(SystemExit) as left:
            main()
    return subprocess.CompletedProcess(words, int(left.value.code or 0), out.getvalue(), err.getvalue())
