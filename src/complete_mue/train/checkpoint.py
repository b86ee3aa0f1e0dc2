"""Checkpoints: whole or not at all, checked when read, safetensors and JSON only.

    checkpoints/step-00000200/
      model.safetensors        weights by parameter name
      optimizer.safetensors    AdamW's moments by parameter name, and its step
      state.json               step, fingerprint of the config, sha256 of all files

Several ranks write a pair of files each (pieces.py); whoever reads them, and on how many ranks, gets the same tensors.
Data and noise are pure functions of the step, so there is no other state to keep.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from complete_mue.errors import MueError, RunError
from complete_mue.storage import inner_folder, read_json, sha256
from complete_mue.train.parallel import ALONE, Ranks
from complete_mue.train.pieces import KINDS, Part, Pieces, plain_name, written_here

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
            if digits.isascii() and digits.isdigit() and len(digits) < 19 and folder.is_dir():
                found.append(cls(folder, int(digits)))
        return sorted(found, key=lambda checkpoint: -checkpoint.step)


# -- writing -------------------------------------------------------------------------------------------------------


def save(
    run: Path,
    step: int,
    fingerprint: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    keep: int,
    masters: Mapping[str, nn.Parameter] | None = None,
    ranks: Ranks = ALONE,
) -> Path:
    """Write a checkpoint beside the others, then let it appear under its name; older ones beyond ``keep`` go.

    ``masters`` are weights, by name, that the optimizer trains in the place of the model's own. Of several ranks each
    writes what it holds, into one folder that all of them see.
    """
    parent = run / "checkpoints"
    draft, final = parent / f".writing-{os.getpid() if ranks.mesh is None else 'ranks'}", parent / f"step-{step:08d}"
    masters = masters or {}
    names = {id(parameter): name for name, parameter in (*model.named_parameters(), *masters.items())}
    stages = (
        lambda: _clear(draft) if ranks.first else None,
        lambda: _write(draft, (model.state_dict() | masters, _moments(optimizer, names)), ranks),
        lambda: _publish(draft, final, step, fingerprint, ranks) if ranks.first else None,
    )
    for stage in stages:  # each begins when all ranks have done the one before
        problem: Exception | None = None
        try:
            stage()
        except (OSError, SafetensorError, MueError) as found:
            problem = found
        if ranks.any(problem is not None):
            if ranks.first:
                shutil.rmtree(draft, ignore_errors=True)
            raise RunError(
                f"{final}: the checkpoint could not be written ({problem or 'another rank could not'}); free some "
                f"space and resume: earlier checkpoints are intact"
            ) from None
    for old in Checkpoint.listed(run)[keep:] if ranks.first else ():
        shutil.rmtree(old.folder, ignore_errors=True)
    return final


def _clear(draft: Path) -> None:
    inner_folder(draft.parent)
    for stale in draft.parent.glob(".writing-*"):
        shutil.rmtree(stale, ignore_errors=True)
    draft.mkdir()


def _write(draft: Path, tensors: tuple[Mapping[str, Tensor], ...], ranks: Ranks) -> None:
    """This rank's files, and for several ranks a note of what is in them."""
    note: dict[str, Any] = {"sha256": {}, "offsets": {}}
    for file, named in zip(_FILES, tensors, strict=True):
        if ranks.mesh is not None:
            file = f"{file.partition('.')[0]}-{ranks.rank:05d}.safetensors"
            named = {name: tensor for name, tensor in named.items() if written_here(tensor, ranks.rank)}
            note["offsets"][file] = {name: list(Part.of(tensor).offset) for name, tensor in named.items()}
        save_file({name: _local(tensor).detach().contiguous() for name, tensor in named.items()}, draft / file)
        note["sha256"][file] = sha256(draft / file)
        _flush(draft / file)
    (draft / f"note-{ranks.rank:05d}.json").write_text(json.dumps(note), encoding="utf-8")


def _publish(draft: Path, final: Path, step: int, fingerprint: str, ranks: Ranks) -> None:
    """All ranks' notes become the state; the folder gets its name."""
    state: dict[str, Any] = {"format": 1, "step": step, "fingerprint": fingerprint, "sha256": {}}
    if ranks.mesh is not None:
        state |= {"format": 2, "offsets": {}}
    for rank in range(ranks.world):
        path = draft / f"note-{rank:05d}.json"
        note = read_json(path, "note of a rank")
        for key in set(note) & set(state):
            state[key] |= note[key]
        path.unlink()
    (draft / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
    _flush(draft / "state.json")
    if final.exists():
        shutil.rmtree(final)
    draft.replace(final)
    _flush(final.parent)


# -- reading -------------------------------------------------------------------------------------------------------


def load_newest(
    run: Path,
    fingerprint: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    warn: Callable[[str], None],
    ranks: Ranks = ALONE,
) -> int:
    """Restore the newest sound checkpoint and return its step; 0 if there is none. Damaged ones are named."""
    for checkpoint in Checkpoint.listed(run):
        problem: _Damaged | None = None
        values: list[tuple[Tensor, Tensor]] = []
        states: dict[nn.Parameter, dict[str, Tensor]] = {}
        try:
            weights, moments = _opened(checkpoint, fingerprint, ranks)
            values = _weights(weights, model)
            states = _states(moments, model, optimizer) if optimizer is not None else {}
        except _Damaged as found:
            problem = found
        if ranks.any(problem is not None):
            if ranks.first:
                damage = problem or "another rank could not read it"
                warn(f"{checkpoint.folder} is damaged ({damage}); going on from the one before")
            continue
        with torch.no_grad():
            for target, value in values:
                target.copy_(value)
        if optimizer is not None:
            optimizer.state.update(states)
        return checkpoint.step
    return 0


class _Damaged(Exception):  # noqa: N818 - an inner signal, never seen by users
    pass


_SIGNS = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, SafetensorError)


def read(checkpoint: Checkpoint, fingerprint: str | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A checkpoint's whole tensors after checking its sums; a config that differs is an error, damage a signal to go
    on.
    """
    weights, moments = _opened(checkpoint, fingerprint, ALONE)
    try:
        return weights.whole(), moments.whole()
    except _SIGNS as problem:
        raise _Damaged(f"{type(problem).__name__}: {problem}") from None


def _opened(checkpoint: Checkpoint, fingerprint: str | None, ranks: Ranks) -> tuple[Pieces, Pieces]:
    """Weights and moments of a checkpoint whose files have their sums; each rank checks its share of them."""
    try:
        state = read_json(checkpoint.folder / "state.json", "checkpoint")
        sums, known = dict(state["sha256"]), str(state["fingerprint"])
        files = [plain_name(file) for file in sums]
        for file in files[ranks.rank :: ranks.world]:
            if sha256(checkpoint.folder / file) != sums[file]:
                raise _Damaged(f"{file} does not have the checksum it was written with")
        offsets = state["offsets"] if state["format"] == 2 else dict.fromkeys(_FILES)
        of_kind = [{file: offsets[file] for file in files if file.startswith(kind)} for kind in KINDS]
        opened = [Pieces(checkpoint.folder, found) for found in of_kind]
    except (*_SIGNS, MueError) as problem:
        raise _Damaged(f"{type(problem).__name__}: {problem}") from None
    if fingerprint is not None and known != fingerprint:
        raise RunError(
            f"{checkpoint.folder} belongs to another config: resume with the one it was started with, "
            "or give the new run a directory of its own"
        )
    return opened[0], opened[1]


def _weights(weights: Pieces, model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Where values go, with the values; a tensor that is missing, left over or of another shape is damage."""
    targets = model.state_dict(keep_vars=True)
    if odd := set(targets) ^ set(weights.shapes):
        raise _Damaged(f"{sorted(odd)[0]} is in the model or in the checkpoint, not in both")
    return [(_local(target), _read(weights, name, target)) for name, target in targets.items()]


def _states(
    moments: Pieces, model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[nn.Parameter, dict[str, Tensor]]:
    """AdamW's state of every parameter."""
    names, states = {id(parameter): name for name, parameter in model.named_parameters()}, {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            count = torch.zeros((), device=parameter.device if group.get("fused") else None)
            state = {"step": count, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
            if not any(f"{name}.{entry}" in moments.shapes for entry in state):
                continue  # it never had a gradient
            for entry, tensor in state.items():
                _local(tensor).copy_(_read(moments, f"{name}.{entry}", tensor))
            states[parameter] = state
    return states


def _read(pieces: Pieces, name: str, target: Tensor) -> Tensor:
    found = pieces.shapes.get(name)
    if found != tuple(target.shape):
        raise _Damaged(f"{name} has shape {found}, not {tuple(target.shape)}")
    try:
        value = pieces.read(name, Part.of(target))
    except _SIGNS as problem:
        raise _Damaged(f"{name}: {type(problem).__name__}: {problem}") from None
    if value.dtype != target.dtype:
        raise _Damaged(f"{name} is {value.dtype}, not {target.dtype}")
    return value


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _moments(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> dict[str, Tensor]:
    return {
        f"{names[id(parameter)]}.{key}": value
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
