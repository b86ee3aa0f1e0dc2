"""A run's directory: one process at a time, metrics as JSON lines, records that appear whole or not at all.

config.json   plan.json   metrics.jsonl   checkpoints/   result.json   (and TensorBoard's files, if installed;
W&B's, if asked for)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from complete_mue.errors import RunError
from complete_mue.storage import whole
from complete_mue.train.config import RunConfig


class Metrics:
    """metrics.jsonl: one line per logged step; on resume, lines of steps that will be run again are cut."""

    def __init__(self, run: Path, start: int, config: RunConfig) -> None:
        self.path = run / "metrics.jsonl"
        self._wandb = _wandb(run, config) if config.wandb else None
        kept = [line for line in read_metrics(run) if line["step"] < start]
        with whole(self.path) as file:
            file.write("".join(json.dumps(line) + "\n" for line in kept).encode())
        self._file = self.path.open("a", encoding="utf-8")
        self._board = _tensorboard(run)

    def write(self, lines: list[dict[str, Any]]) -> None:
        """Append lines and hand them to the system."""
        try:
            self._file.write("".join(json.dumps(line) + "\n" for line in lines))
            self._file.flush()
        except OSError as problem:
            raise RunError(
                f"{self.path} could not be written ({problem.strerror}); free some space and resume"
            ) from None
        for line in lines:
            numbers = _numbers(line)
            if self._board is not None:
                for key, value in numbers.items():
                    self._board.add_scalar(key, value, line["step"])
            if self._wandb is not None:
                self._wandb.log(numbers, step=line["step"])

    def close(self) -> None:
        """Done."""
        with contextlib.suppress(OSError):
            self._file.close()
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """All whole lines of a run's metrics; a line cut off by a kill is left out."""
    path, lines = run / "metrics.jsonl", []
    if not path.exists():
        return []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            line = json.loads(text)
            if isinstance(line, dict) and isinstance(line.get("step"), int):
                lines.append(line)
    return lines


def _numbers(line: dict[str, Any]) -> dict[str, float]:
    """A line's numbers, those of tables as ``table/key``."""
    flat: dict[str, float] = {}
    for key, value in line.items():
        if isinstance(value, dict):
            flat |= {f"{key}/{inner}": number for inner, number in value.items() if number is not None}
        elif isinstance(value, int | float) and key != "step":
            flat[key] = value
    return flat


def _wandb(run: Path, config: RunConfig) -> Any:
    """The run at Weights & Biases; its id comes from directory and config, so that a resumed run is the same one."""
    try:
        import wandb
    except ImportError:
        raise RunError(
            f"wandb={config.wandb}: W&B is not installed; pip install 'complete-mue[logging]', or leave wandb out"
        ) from None
    name = hashlib.sha256(f"{run.resolve()} {config.fingerprint}".encode()).hexdigest()[:16]
    return wandb.init(
        project=config.wandb, name=config.name, id=name, resume="allow", dir=str(run), config=config.to_dict()
    )


def _tensorboard(run: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(run / "tensorboard"))
