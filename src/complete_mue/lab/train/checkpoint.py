"""Checkpoints: whole or not at all, checked when read, safetensors and JSON only.

    checkpoints/step-00000200/
      model.safetensors        weights by parameter name
      optimizer.safetensors    AdamW's moments by parameter name, and its step
      state.json               step, fingerprint of the config, what the data was, sha256 of all files

Several ranks write a pair of files each (sharded_tensors.py); whoever reads them, and on how many ranks, gets the same
tensors. Data and noise are pure functions of the step, so there is no other state to keep.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from complete_mue.errors import MueError, RunError
from complete_mue.lab.train.checkpoint_folder import FOLDER, SIGNS, Checkpoint, Damaged, refuse_obstacle
from complete_mue.lab.train.config import RunConfig, refuse_other_data
from complete_mue.lab.train.parallel import ALONE, Ranks, local
from complete_mue.lab.train.sharded_tensors import KINDS, Part, Pieces, written_here
from complete_mue.storage import inner_folder, read_json, sha256

__all__ = ["Checkpoint", "load_newest", "save"]

_FILES = ("model.safetensors", "optimizer.safetensors")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


# -- writing -------------------------------------------------------------------------------------------------------


def save(
    run: Path,
    step: int,
    config: RunConfig,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    masters: Mapping[str, nn.Parameter] | None = None,
    ranks: Ranks = ALONE,
) -> Path:
    """Write a checkpoint beside the others, then let it appear under its name; older ones go as soon as there are
    ``config.keep`` sound ones up to this step.

    ``masters`` are weights, by name, that the optimizer trains in the place of the model's own. Of several ranks each
    writes what it holds, into one folder that all of them see.
    """
    parent = run / FOLDER
    draft, final = parent / f".writing-{os.getpid() if ranks.mesh is None else 'ranks'}", parent / f"step-{step:08d}"
    masters = masters or {}
    weights: dict[str, Tensor] = model.state_dict() | masters
    names = {id(parameter): name for name, parameter in (*model.named_parameters(), *masters.items())}
    stages = (
        lambda: _clear(draft) if ranks.first else None,
        lambda: _write(draft, (weights, _moments(optimizer, names)), ranks),
        lambda: _publish(draft, Checkpoint(final, step), config, ranks) if ranks.first else None,
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
            advice = "free some space" if problem is None or _full(problem) else "fix that"
            raise RunError(
                f"{final}: the checkpoint could not be written ({problem or 'another rank could not'}); {advice} "
                "and resume: earlier checkpoints are intact"
            ) from None
    if ranks.first:
        _rotate(run, step, config, {name: tuple(tensor.shape) for name, tensor in weights.items()})
    return final


def _rotate(run: Path, step: int, config: RunConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Remove what is older than the last ``config.keep`` sound checkpoints up to ``step``, the one just written.

    Damaged ones and strays never count, so they cannot push out one that a run could go on from.
    """
    sound = 0
    for found in Checkpoint.listed(run):
        if sound >= config.keep:
            shutil.rmtree(found.folder, ignore_errors=True)
        elif found.step <= step:
            sound += found.step == step or _usable(found, config, shapes)


def _usable(checkpoint: Checkpoint, config: RunConfig, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    try:
        weights, _ = _opened(checkpoint, config, ALONE)
    except (Damaged, MueError):
        return False
    return weights.shapes == shapes


def _full(problem: Exception) -> bool:
    """Whether the disk is full; safetensors says so in words alone."""
    return getattr(problem, "errno", None) in _FULL or any(f"os error {code})" in str(problem) for code in _FULL)


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
        save_file({name: local(tensor).detach().contiguous() for name, tensor in named.items()}, draft / file)
        note["sha256"][file] = sha256(draft / file)
        _flush(draft / file)
    (draft / f"note-{ranks.rank:05d}.json").write_text(json.dumps(note), encoding="utf-8")


def _publish(draft: Path, final: Checkpoint, config: RunConfig, ranks: Ranks) -> None:
    """All ranks' notes become the state; the folder gets its name."""
    state: dict[str, Any] = {
        "format": 1, "step": final.step, "fingerprint": config.fingerprint, "data": config.task.data, "sha256": {},
    }  # fmt: skip
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
    refuse_obstacle(final.folder)
    replaced = draft.with_name(f"{draft.name}-replaced")
    if final.folder.exists():
        final.folder.replace(replaced)
    draft.replace(final.folder)
    _flush(final.folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    final.written_here(state)


# -- reading -------------------------------------------------------------------------------------------------------


def load_newest(
    run: Path,
    config: RunConfig,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    warn: Callable[[str], None],
    ranks: Ranks = ALONE,
) -> int:
    """Restore the newest sound checkpoint and return its step; 0 if there is none at all. Those that had to be passed
    over are named; where none can be used, that is an error.
    """
    passed: list[str] = []
    for checkpoint in Checkpoint.listed(run):
        problem: Damaged | None = None
        values: list[tuple[Tensor, Tensor]] = []
        states: dict[nn.Parameter, dict[str, Tensor]] = {}
        try:
            weights, moments = _opened(checkpoint, config, ranks)
            values = _weights(weights, model)
            states = _states(moments, model, optimizer) if optimizer is not None else {}
        except Damaged as found:
            problem = found
        if ranks.any(problem is not None):
            passed.append(f"{checkpoint.folder} ({problem or 'another rank could not read it'})")
            continue
        with torch.no_grad():
            for target, value in values:
                target.copy_(value)
        if optimizer is not None:
            optimizer.state.update(states)
        for name in passed if ranks.first else ():
            warn(f"skipped {name}; continuing from step {checkpoint.step}")
        return checkpoint.step
    if passed:
        raise RunError(
            f"{run}: none of its checkpoints can be used: {'; '.join(passed)}; fix the cause and try again, or start "
            "over with --restart, which sets the old files aside"
        )
    return 0


def _opened(checkpoint: Checkpoint, config: RunConfig, ranks: Ranks) -> tuple[Pieces, Pieces]:
    """Weights and moments of a checkpoint whose files have their sums; each rank checks its share of them."""
    try:
        state = checkpoint.state()
        known, data = str(state["fingerprint"]), str(state.get("data", ""))
        files = checkpoint.check_sums(state, ranks.rank, ranks.world)
        offsets = state["offsets"] if state["format"] == 2 else dict.fromkeys(_FILES)
        of_kind = [{file: offsets[file] for file in files if file.startswith(kind)} for kind in KINDS]
        opened = [Pieces(checkpoint.folder, found) for found in of_kind]
    except SIGNS as problem:
        kind = "" if isinstance(problem, MueError) else f"{type(problem).__name__}: "
        raise Damaged(f"{kind}{problem}") from None
    if not config.is_known_as(known):
        refuse_other_data(str(checkpoint.folder), config, data)
        raise RunError(
            f"{checkpoint.folder} belongs to another config: resume with the one it was started with, "
            "or give the new run a directory of its own"
        )
    return opened[0], opened[1]


def _weights(weights: Pieces, model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Where values go, with the values; a tensor that is missing, left over or of another shape is damage."""
    targets = model.state_dict(keep_vars=True)
    if odd := set(targets) ^ set(weights.shapes):
        raise Damaged(f"{sorted(odd)[0]} is in the model or in the checkpoint, not in both")
    return [(local(target), _read(weights, name, target)) for name, target in targets.items()]


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
                local(tensor).copy_(_read(moments, f"{name}.{entry}", tensor))
            states[parameter] = state
    return states


def _read(pieces: Pieces, name: str, target: Tensor) -> Tensor:
    found = pieces.shapes.get(name)
    if found != tuple(target.shape):
        raise Damaged(f"{name} has shape {found}, not {tuple(target.shape)}")
    try:
        value = pieces.read(name, Part.of(target))
    except SIGNS as problem:
        raise Damaged(f"{name}: {type(problem).__name__}: {problem}") from None
    if value.dtype != target.dtype:
        raise Damaged(f"{name} is {value.dtype}, not {target.dtype}")
    return value


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
