"""Checkpoints: whole or not at all, checked when read, safetensors only.

    checkpoints/step-00000200/
      model.safetensors        weights by parameter name
      optimizer.safetensors    AdamW's moments by parameter name, and its step
      state.json               step, fingerprint of the config, sha256 of both files

Data and noise are pure functions of the step, so there is no other state to keep.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from complete_mue.errors import MueError, RunError
from complete_mue.storage import sha256

_FILES = ("model.safetensors", "optimizer.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint on disk."""

    folder: Path
    step: int

    @classmethod
    def listed(cls, run: Path) -> list[Checkpoint]:
        """All of a run, newest first; half-written ones have other names."""
        found = []
        for folder in (run / "checkpoints").glob("step-*"):
            digits = folder.name.removeprefix("step-")
            if digits.isdigit() and folder.is_dir():
                found.append(cls(folder, int(digits)))
        return sorted(found, key=lambda checkpoint: -checkpoint.step)


def save(run: Path, step: int, fingerprint: str, model: nn.Module, optimizer: torch.optim.Optimizer, keep: int) -> Path:
    """Write a checkpoint beside the others, then let it appear under its name; older ones beyond ``keep`` go."""
    parent = run / "checkpoints"
    parent.mkdir(parents=True, exist_ok=True)
    for stale in parent.glob(".writing-*"):
        shutil.rmtree(stale, ignore_errors=True)
    draft, final = parent / f".writing-{os.getpid()}", parent / f"step-{step:08d}"
    try:
        draft.mkdir()
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        weights = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
        save_file(weights, draft / _FILES[0])
        save_file(_moments(optimizer, names), draft / _FILES[1])
        sums = {file: sha256(draft / file) for file in _FILES}
        state = {"format": 1, "step": step, "fingerprint": fingerprint, "sha256": sums}
        (draft / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
        for file in (*_FILES, "state.json"):
            _flush(draft / file)
        if final.exists():
            shutil.rmtree(final)
        draft.replace(final)
        _flush(parent)
    except (OSError, SafetensorError) as problem:
        shutil.rmtree(draft, ignore_errors=True)
        raise RunError(
            f"{final}: the checkpoint could not be written ({problem}); free some space and resume: "
            f"earlier checkpoints are intact"
        ) from None
    for old in Checkpoint.listed(run)[keep:]:
        shutil.rmtree(old.folder, ignore_errors=True)
    return final


def load_newest(
    run: Path,
    fingerprint: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    warn: Callable[[str], None],
) -> int:
    """Restore the newest sound checkpoint and return its step; 0 if there is none. Damaged ones are named."""
    for checkpoint in Checkpoint.listed(run):
        try:
            weights, moments = read(checkpoint, fingerprint)
        except _Damaged as problem:
            warn(f"{checkpoint.folder} is damaged ({problem}); going on from the one before")
            continue
        model.load_state_dict(weights)
        if optimizer is not None:
            _restore(optimizer, {id(p): name for name, p in model.named_parameters()}, moments)
        return checkpoint.step
    return 0


class _Damaged(Exception):  # noqa: N818 - an inner signal, never seen by users
    pass


def read(checkpoint: Checkpoint, fingerprint: str | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A checkpoint's tensors after checking its sums; a config that differs is an error, damage a signal to go on."""
    try:
        state: Any = json.loads((checkpoint.folder / "state.json").read_text(encoding="utf-8"))
        sums, known = dict(state["sha256"]), str(state["fingerprint"])
        for file in _FILES:
            if sha256(checkpoint.folder / file) != sums[file]:
                raise _Damaged(f"{file} does not have the checksum it was written with")
        tensors = [load_file(checkpoint.folder / file) for file in _FILES]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MueError, SafetensorError) as problem:
        raise _Damaged(f"{type(problem).__name__}: {problem}") from None
    if fingerprint is not None and known != fingerprint:
        raise RunError(
            f"{checkpoint.folder} belongs to another config: resume with the config in config.json, "
            "or give the new run a directory of its own"
        )
    return tensors[0], tensors[1]


def _moments(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> dict[str, Tensor]:
    return {
        f"{names[id(parameter)]}.{key}": value.detach().contiguous()
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def _restore(optimizer: torch.optim.Optimizer, names: dict[int, str], moments: dict[str, Tensor]) -> None:
    kept: dict[str, dict[str, Tensor]] = {}
    for key, value in moments.items():
        name, _, entry = key.rpartition(".")
        kept.setdefault(name, {})[entry] = value
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = kept.get(names[id(parameter)], {})
            optimizer.state[parameter] = {
                entry: value if entry == "step" and not group.get("fused") else value.to(parameter.device)
                for entry, value in state.items()
            }


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
