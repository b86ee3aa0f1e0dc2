"""Files that others wrote, or broke: of thousands of mutants of checkpoints, manifests and configs come only our own
errors; nothing in them is executed, nothing is overwritten. Archives and pictures are in data/test_images.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

from complete_mue.errors import MueError  # noqa: E402
from complete_mue.lab.data import TextData, prepare  # noqa: E402
from complete_mue.lab.data.manifest import Manifest  # noqa: E402
from complete_mue.lab.recipes import recipe  # noqa: E402
from complete_mue.lab.train import checkpoint  # noqa: E402
from complete_mue.lab.train.config import RunConfig, override, pinned, read_config  # noqa: E402
from complete_mue.lab.train.loop import train  # noqa: E402
from complete_mue.lab.train.run_folder import read_metrics  # noqa: E402
from complete_mue.lab.train.trainer import Trainer  # noqa: E402
from complete_mue.storage import sha256  # noqa: E402

CPU = torch.device("cpu")
ROUNDS = [pytest.param(100, id="100"), pytest.param(1_000, id="1000", marks=pytest.mark.slow)]
JUNK: list[Any] = [
    None, True, -1, 0, 1, 2**63, 10**400, 0.5, -1e308, 1e308, "", "x", "\x00", "../../etc/passwd", "/etc/passwd", [],
    {}, [[]], {"a": 1}, [0] * 50, "9" * 5000, "\ud800", "dense", "8e2a@16", "999999999e8a@16", "single",
]  # fmt: skip


def config_of(*more: str) -> RunConfig:
    small = ("shape.width=16", "shape.depth=1", "shape.head_dim=8", "budget.steps=4", "task.sequence=16", "betas=hold")
    return override(recipe("lm_tiny:4e2a"), *small, "budget.batch_tokens=32", "checkpoint_every=2", *more)


def mutated_json(data: Any, dice: random.Random) -> Any:
    """One value somewhere inside replaced, removed or renamed."""
    at = data
    while True:
        key = dice.choice(list(at)) if isinstance(at, dict) else dice.randrange(len(at))
        if isinstance(at[key], dict | list) and at[key] and dice.random() < 0.85:
            at = at[key]
            continue
        kind = dice.randrange(4)
        if kind == 0 and isinstance(at, dict):
            at[dice.choice(["x", "../x", "model.safetensors", "step"])] = at.pop(key)
        elif kind == 1:
            del at[key]
        else:
            at[key] = dice.choice(JUNK)
        return data


def mutated_bytes(content: bytes, dice: random.Random) -> bytes:
    kind = dice.randrange(5)
    if kind == 0:
        return content[: dice.randrange(len(content) + 1)]
    if kind == 1:
        return content + dice.randbytes(dice.choice([1, 100]))
    if kind == 2:
        return dice.randbytes(dice.randrange(200))
    broken = bytearray(content)
    for _ in range(dice.randint(1, 8)):
        if broken:
            broken[dice.randrange(min(len(broken), 2000 if kind == 3 else len(broken)))] = dice.randrange(256)
    return bytes(broken)


def mutate_json_file(path: Path, dice: random.Random) -> None:
    if dice.random() < 0.7:
        data = mutated_json(json.loads(path.read_text()), dice)
        path.write_text(json.dumps(data), encoding="utf-8")
    else:
        path.write_bytes(mutated_bytes(path.read_bytes(), dice))


def mutated_header(content: bytes, dice: random.Random) -> bytes:
    """A safetensors file whose header says something else of the same bytes."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.dumps(mutated_json(json.loads(content[8 : 8 + length]), dice)).encode()
    said = len(header) if dice.random() < 0.8 else dice.choice([0, 2**40, 2**63])
    return struct.pack("<Q", said) + header + content[8 + length :]


class Bomb:
    """A pickle that leaves a mark when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (os.mkdir, (str(self.mark),))


def fingerprint_of(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def in_pieces(folder: Path) -> None:
    """A checkpoint of one process as two ranks would have written it."""
    state = json.loads((folder / "state.json").read_text())
    state |= {"format": 2, "sha256": {}, "offsets": {}}
    for kind in ("model", "optimizer"):
        tensors = load_file(folder / f"{kind}.safetensors")
        (folder / f"{kind}.safetensors").unlink()
        for rank in range(2):
            name, part, offsets = f"{kind}-{rank:05d}.safetensors", {}, {}
            for key, tensor in tensors.items():
                if tensor.ndim == 0 or len(tensor) < 2:
                    if rank == 0:
                        part[key], offsets[key] = tensor, [0] * tensor.ndim
                else:
                    cut = len(tensor) // 2
                    part[key] = (tensor[cut:] if rank else tensor[:cut]).contiguous()
                    offsets[key] = [cut if rank else 0] + [0] * (tensor.ndim - 1)
            save_file(part, folder / name)
            state["sha256"][name], state["offsets"][name] = sha256(folder / name), offsets
    (folder / "state.json").write_text(json.dumps(state))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; its newest checkpoint in pieces, the one before whole."""
    folder = tmp_path_factory.mktemp("hardening") / "run"
    train(config_of(), folder)
    in_pieces(checkpoint.Checkpoint.listed(folder)[0].folder)
    return folder


def test_a_checkpoint_in_pieces_is_the_same(run: Path) -> None:
    trainer = Trainer(config_of(), CPU)
    warnings: list[str] = []
    assert checkpoint.load_newest(run, pinned(config_of()), trainer.model, trainer.optimizer, warnings.append) == 4
    assert warnings == []
    assert trainer.optimizer.state[trainer.model.embedding]["step"] == 4


@pytest.mark.parametrize("rounds", ROUNDS)
def test_mutated_checkpoints(run: Path, tmp_path: Path, rounds: int) -> None:
    config, dice, mark = pinned(config_of()), random.Random(5), tmp_path / "executed"
    trainer = Trainer(config, CPU)
    before, outcomes = fingerprint_of(run), dict.fromkeys(("whole", "earlier", "refused"), 0)
    for number in range(rounds):
        mutant = tmp_path / "mutant"
        shutil.copytree(run, mutant)
        newest = checkpoint.Checkpoint.listed(mutant)[0 if number % 2 else 1]
        if number % 2 == 0:
            shutil.rmtree(checkpoint.Checkpoint.listed(mutant)[0].folder)
        files = sorted(newest.folder.glob("*.safetensors"))
        victim, kind = dice.choice(files), dice.randrange(6)
        if kind == 0:
            mutate_json_file(newest.folder / "state.json", dice)
        elif kind == 1:
            victim.write_bytes(mutated_bytes(victim.read_bytes(), dice))
        elif kind == 2:
            victim.write_bytes(pickle.dumps(Bomb(mark)))
        elif kind == 3:
            victim.unlink()
            if dice.random() < 0.5:
                victim.mkdir()
        else:
            victim.write_bytes(
                mutated_header(victim.read_bytes(), dice)
                if kind == 4
                else mutated_bytes(victim.read_bytes(), dice)
            )  # fmt: skip
        if kind in (2, 4, 5) and dice.random() < 0.9:  # a forger makes the sums right
            state = json.loads((newest.folder / "state.json").read_text())
            state["sha256"][victim.name] = sha256(victim)
            (newest.folder / "state.json").write_text(json.dumps(state))
        shown = fingerprint_of(mutant)
        try:
            step = checkpoint.load_newest(mutant, config, trainer.model, trainer.optimizer, lambda text: None)
            outcomes["whole" if step == newest.step else "earlier"] += 1
        except MueError:
            outcomes["refused"] += 1
        assert fingerprint_of(mutant) == shown, "reading changed the run"
        shutil.rmtree(mutant)
    assert not mark.exists(), "a file was executed"
    assert fingerprint_of(run) == before
    assert all(outcomes.values()), outcomes


@pytest.mark.parametrize("rounds", ROUNDS)
def test_mutated_configs_of_runs(run: Path, tmp_path: Path, rounds: int) -> None:
    dice, read = random.Random(6), 0
    for _ in range(rounds):
        path = tmp_path / "config.json"
        shutil.copy(run / "config.json", path)
        mutate_json_file(path, dice)
        with contextlib.suppress(MueError):
            config = read_config(path)
            assert config.plan.rows
            assert config.fingerprint
            assert config.schedule.steps
            read += 1
        shutil.copy(run / "metrics.jsonl", tmp_path / "metrics.jsonl")
        (tmp_path / "metrics.jsonl").write_bytes(mutated_bytes((run / "metrics.jsonl").read_bytes(), dice))
        read_metrics(tmp_path)
    assert read > rounds // 50  # some mutants are still configs
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "metrics.jsonl"]


@pytest.mark.parametrize("rounds", ROUNDS)
def test_mutated_manifests(tmp_path: Path, rounds: int) -> None:
    (tmp_path / "text.txt").write_text("a tale of bytes, once more. " * 200, encoding="utf-8")
    prepared, mutant = tmp_path / "prepared", tmp_path / "mutant"
    prepare([tmp_path / "text.txt"], prepared)
    dice, read, before = random.Random(7), 0, fingerprint_of(prepared)
    for _ in range(rounds):
        shutil.copytree(prepared, mutant)
        if dice.random() < 0.8:
            mutate_json_file(mutant / "manifest.json", dice)
        else:
            shard = dice.choice(sorted(mutant.glob("*.bin")))
            shard.write_bytes(mutated_bytes(shard.read_bytes(), dice))
        shown = fingerprint_of(mutant)
        with contextlib.suppress(MueError):
            Manifest.read(mutant).check(mutant, "train", verify=dice.random() < 0.5)
            data = TextData(mutant, sequence=16, rows=2)
            assert int(data.batch(0).max()) < data.vocab
            read += 1
        assert fingerprint_of(mutant) == shown
        shutil.rmtree(mutant)
    assert read > 0
    assert fingerprint_of(prepared) == before
