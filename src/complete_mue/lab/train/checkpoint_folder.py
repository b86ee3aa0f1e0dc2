"""The checkpoints of a run on disk: which there are, and whether one is what it was written as."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from complete_mue.errors import RunError
from complete_mue.lab.train.sharded_tensors import KINDS, plain_name
from complete_mue.storage import read_json, sha256

FOLDER = "checkpoints"
SIGNS = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, SafetensorError)

_Stamp = tuple[tuple[str, str, int, int, int], ...]
_sound: dict[Path, _Stamp] = {}  # folders whose sums held in this process: sum, size and time of each file then


class Damaged(Exception):  # noqa: N818 - an inner signal, never seen by users
    """A checkpoint that cannot be used, and why."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint on disk."""

    folder: Path
    step: int

    @classmethod
    def listed(cls, run: Path) -> list[Checkpoint]:
        """All of a run, newest first; half-written ones have other names."""
        found = [cls(path, step) for path, step in _named(run) if path.is_dir()]
        return sorted(found, key=lambda checkpoint: -checkpoint.step)

    def state(self) -> dict[str, Any]:
        """Its state.json, which must be that of this step: a folder that was copied or renamed is another's."""
        state = read_json(self.folder / "state.json", "checkpoint")
        if state["step"] != self.step:
            raise Damaged(f"its state.json is that of step {state['step']}: the folder was copied or renamed")
        return state

    def check_sums(self, state: dict[str, Any], rank: int = 0, world: int = 1) -> list[str]:
        """The names of its files, after comparing this rank's share of them with their sums.

        What held once in this process is believed as long as sizes and times of the files stay the same.
        """
        sums = dict(state["sha256"])
        files = [plain_name(file) for file in sums]
        if any(not [file for file in files if file.startswith(kind)] for kind in KINDS):
            raise Damaged(f"its state.json names {', '.join(files) or 'no file'}, and not {' and '.join(KINDS)}")
        stamp = _stamp(self.folder, sums)
        if _sound.get(self.folder) != stamp:
            for file in files[rank::world]:
                if sha256(self.folder / file) != sums[file]:
                    raise Damaged(f"{file} does not have the checksum it was written with")
            if world == 1:
                _sound[self.folder] = stamp
        return files

    def written_here(self, state: dict[str, Any]) -> None:
        """This process has just written the files, with their sums."""
        _sound[self.folder] = _stamp(self.folder, state["sha256"])


def refuse_obstacles(run: Path) -> None:
    """Refuse a run whose next checkpoints cannot take their names, or would be written elsewhere, before it trains."""
    for path in (run / FOLDER, *(path for path, _ in _named(run))):
        refuse_obstacle(path)


def refuse_obstacle(path: Path) -> None:
    """Refuse a link or a file that has the name of a folder of checkpoints."""
    if path.is_symlink() or (os.path.lexists(path) and not path.is_dir()):
        kind = "a link" if path.is_symlink() else "no folder"
        raise RunError(f"{path}: is {kind}, and checkpoints go into plain folders; move it away")


def _named(run: Path) -> list[tuple[Path, int]]:
    """What has a checkpoint's name."""
    digits = {path: path.name.removeprefix("step-") for path in (run / FOLDER).glob("step-*")}
    return [(path, int(text)) for path, text in digits.items() if text.isascii() and text.isdigit() and len(text) < 19]


def _stamp(folder: Path, sums: dict[str, str]) -> _Stamp:
    found = [(file, str(sums[file]), (folder / file).stat()) for file in sorted(sums)]
    return tuple((file, known, stat.st_ino, stat.st_size, stat.st_mtime_ns) for file, known, stat in found)
