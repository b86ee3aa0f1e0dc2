"""Whatever happens to a run between its steps, nothing it could go on from is lost.

Random walks of real runs: trained for a while, killed at any file operation, their checkpoints damaged, copied, joined
by strays, resumed. After every resume either an error was raised and nothing has changed, or the newest sound
checkpoints up to the step it reached are there; a run that finishes has the bits of the undisturbed one.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from complete_mue.errors import MueError  # noqa: E402
from complete_mue.lab.recipes import recipe  # noqa: E402
from complete_mue.lab.train.config import RunConfig, override  # noqa: E402
from complete_mue.lab.train.loop import Result, train  # noqa: E402

STEPS, EVERY = 12, 3
KEYS = (
    "shape.width=16", "shape.depth=1", "shape.head_dim=8", "betas=hold", f"budget.steps={STEPS}", "log_every=1",
    f"checkpoint_every={EVERY}", "task.sequence=16", "budget.batch_tokens=32", "device=cpu",
)  # fmt: skip
FILES = ("state.json", "model.safetensors", "optimizer.safetensors")


def config_of(keep: int) -> RunConfig:
    return override(recipe("lm_tiny"), *KEYS, f"keep={keep}")


# -- a kill at any file operation ----------------------------------------------------------------------------------


class Killed(BaseException):
    """Nothing of ours catches it; once it was raised, every later file operation in the folder raises it, too."""


class _Trap:
    folder, left = "", 0


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if not _Trap.folder or not event.startswith(("open", "os.", "shutil.")) or not arguments:
        return
    path = os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes | os.PathLike) else ""
    if path.startswith(_Trap.folder):
        _Trap.left -= 1
        if _Trap.left < 0:
            raise Killed


sys.addaudithook(_audit)


@contextmanager
def killed_after(folder: Path, operations: int) -> Iterator[None]:
    _Trap.folder, _Trap.left = str(folder), operations
    try:
        yield
    finally:
        _Trap.folder = ""


# -- what is on disk, found without the code under test ------------------------------------------------------------


def folders(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("step-*"))


def sound(run: Path) -> set[int]:
    return {int(folder.name[5:]) for folder in folders(run) if _is_sound(folder)}


def _is_sound(folder: Path) -> bool:
    try:
        state = json.loads((folder / "state.json").read_text())
        right = all(
            hashlib.sha256((folder / file).read_bytes()).hexdigest() == state["sha256"][file] for file in FILES[1:]
        )
        return right and state["step"] == int(folder.name[5:])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def lines(run: Path) -> set[bytes]:
    found = set[bytes]()
    for name in ("metrics.jsonl", "metrics-cut.jsonl"):
        if (run / name).exists():
            found |= set((run / name).read_bytes().splitlines())
    return found


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"step-{STEPS:08d}" / "model.safetensors")


# -- the walk ------------------------------------------------------------------------------------------------------


class Walk:
    """One run and what happens to it."""

    def __init__(self, run: Path, seed: int) -> None:
        self.run, self.draw = run, random.Random(seed)
        self.config = config_of(self.draw.randint(1, 3))
        self.trail: list[str] = [f"seed {seed}, keep {self.config.keep}"]

    def go(self, events: int) -> Result:
        for _ in range(events):
            self.happen(self.draw.choice(("train", "leave", "kill", "kill", "damage", "damage", "copy", "stray")))
        return self.finish()

    def happen(self, what: str) -> None:
        self.trail.append(what)
        if what in ("damage", "copy") and not folders(self.run):
            return
        if what == "damage":
            self._damage(self.draw.choice(folders(self.run)[-2:]))
        elif what == "copy":
            target = self.run / "checkpoints" / f"step-{self.draw.randint(1, 20):08d}"
            if not target.exists():
                shutil.copytree(self.draw.choice(folders(self.run)), target)
        elif what == "stray":
            (self.run / "checkpoints" / f"step-{self.draw.randint(1, 20):08d}").mkdir(parents=True, exist_ok=True)
        else:
            self._resume(what)

    def finish(self) -> Result:
        self.trail.append("finish")
        result = self._resume("finish") or self._restart()
        assert result.status == "finished", self.trail
        return result

    def _damage(self, folder: Path) -> None:
        path, how = folder / self.draw.choice(FILES), self.draw.choice(("cut", "flip", "empty", "remove"))
        self.trail.append(f"{how} {folder.name}/{path.name}")
        content = path.read_bytes() if path.exists() else b""
        if not content or how == "remove":
            path.unlink(missing_ok=True)
        elif how == "flip":
            at = self.draw.randrange(len(content))
            path.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        else:
            path.write_bytes(content[: self.draw.randrange(len(content)) if how == "cut" else 0])

    def _resume(self, how: str) -> Result | None:
        """Go on, until something ends it; None where it was refused."""
        before, present, known = sound(self.run), bool(folders(self.run)), lines(self.run)
        reached, until, result = [max(before, default=0)], self.draw.randrange(STEPS), None

        def report(line: dict[str, int]) -> None:
            reached.append(line["step"])  # so every checkpoint up to this step has been written
            if how == "train" and line["step"] >= until:
                raise Killed
            if how == "leave" and line["step"] >= until:
                os.kill(os.getpid(), signal.SIGTERM)

        try:
            with killed_after(self.run, self.draw.randrange(120) if how == "kill" else sys.maxsize):
                result = train(self.config, self.run, resume=True, report=report)  # type: ignore[arg-type]
            reached.append(result.steps)
        except Killed:
            self.trail.append(f"killed at {reached[-1]}")
        except MueError as problem:
            self.trail.append(refusal := f"refused: {problem}")
            assert present, self.trail
            assert "another config" in refusal or not before, self.trail  # a flipped fingerprint reads like that
            assert (sound(self.run), lines(self.run)) == (before, known), self.trail
            return None
        written = {step for step in range(EVERY, STEPS + 1, EVERY) if reached[0] < step <= reached[-1]}
        after, current = sound(self.run), reached[-1] + 1  # a kill may come after the checkpoint of a step, unreported
        kept = sorted(step for step in before | written | after if step <= current)[-self.config.keep :]
        assert set(kept) <= after, (self.trail, kept, after)
        assert known <= lines(self.run), self.trail
        return result

    def _restart(self) -> Result:
        return train(self.config, self.run, restart=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, dict[str, torch.Tensor]]:
    run = tmp_path_factory.mktemp("whole")
    return train(config_of(1), run), weights(run)


def check(tmp_path: Path, seeds: range, whole: tuple[Result, dict[str, torch.Tensor]]) -> str:
    trails = []
    for seed in seeds:
        walk = Walk(tmp_path / str(seed), seed)
        assert walk.go(8) == whole[0], walk.trail
        for name, weight in weights(walk.run).items():
            assert torch.equal(weight, whole[1][name]), walk.trail
        shutil.rmtree(walk.run)
        trails.append(" ".join(walk.trail))
    return " ".join(trails)


def test_nothing_is_lost_on_a_few_walks(tmp_path: Path, whole: tuple[Result, dict[str, torch.Tensor]]) -> None:
    trail = check(tmp_path, range(6), whole)
    for word in ("killed at", "refused", "damage", "copy", "stray"):
        assert word in trail, "the walks must meet every kind of event"


@pytest.mark.slow
def test_nothing_is_lost_on_many_walks(tmp_path: Path, whole: tuple[Result, dict[str, torch.Tensor]]) -> None:
    check(tmp_path, range(6, 46), whole)
