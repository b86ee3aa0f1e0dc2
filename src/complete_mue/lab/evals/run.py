"""From a run's directory or a checkpoint to scores: task by task, each kept on disk as soon as it is done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from complete_mue.errors import MueError, RunError, one_of
from complete_mue.lab.data.encoders import fingerprint
from complete_mue.lab.evals.results import Report, Score
from complete_mue.lab.evals.scoring import PRECISIONS, Scorer, Tick
from complete_mue.lab.evals.tasks import EvalTask, select
from complete_mue.lab.train.config import TextTask
from complete_mue.lab.train.sample import load_run, run_tokenizer
from complete_mue.lab.train.trainer import pick_device
from complete_mue.storage import inner_folder, read_json, remove_parts, write_json

Progress = Callable[[str], Tick]


@dataclass(frozen=True)
class Settings:
    """What is asked, of what data."""

    data: Path
    shots: int
    limit: int | None

    def to_dict(self) -> dict[str, Any]:
        """What decides the questions, apart from the data."""
        return {"shots": self.shots, "limit": self.limit}


def open_run(
    run: Path, *, device: str = "auto", precision: str = "auto", batch_tokens: int | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> tuple[Scorer, dict[str, Any]]:  # fmt: skip
    """A language-model run, ready to answer, and what identifies it."""
    config, model, step = load_run(run, warn)
    if not isinstance(config.task, TextTask):
        raise RunError(f"{run}: draws pictures; give the run of a language model")
    place = pick_device(device)
    one_of("precision", precision, ("auto", *PRECISIONS), RunError)
    if precision == "auto":
        precision = config.precision if place.type == "cuda" else "float32"
    identity = {
        "name": config.name,
        "step": step,
        "weights": fingerprint(model)[:16],
        "precision": precision,
        "longest": config.task.sequence,
    }
    size = batch_tokens or (65_536 if place.type == "cuda" else 4096)
    scorer = Scorer(
        model.to(place),
        run_tokenizer(config),
        config.task.sequence,
        device=place,
        precision=precision,
        batch_tokens=size,
    )
    return scorer, identity


def folder_checksum(folder: Path) -> str:
    """Of a checkpoint's folder: names, sizes and times of its files."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def evaluate_model(
    make_lm: Callable[[EvalTask], Any],
    model: dict[str, Any],
    tasks: list[EvalTask],
    settings: Settings,
    out: Path,
    said: Callable[[str], None],
) -> Report:
    """Scores of a harness model on tasks; what an earlier call with the same settings finished is kept."""
    from complete_mue.lab.evals.harness import evaluate, need_harness

    need_harness()
    remove_parts(inner_folder(out / "tasks"))
    scores = []
    for task in tasks:
        asked = {"model": model, **settings.to_dict(), "data": task.checksum(settings.data)}
        path = out / "tasks" / f"{task.name}.json"
        kept = _kept(path, asked)
        if kept is None:
            said(f"{task.title}: {settings.shots}-shot")
            kept = evaluate(task, make_lm(task), settings.data, settings.shots, settings.limit)
            write_json(path, {"asked": asked, "score": kept.to_dict()})
        else:
            said(f"{task.title}: kept from {path}")
        scores.append(kept)
    about = {"identity": model, **settings.to_dict(), "harness": f"lm_eval {version('lm_eval')}"}
    report = Report(str(model["name"]), tuple(scores), about)
    report.write(out)
    return report


def evaluate_answers(
    answers: Path, data: Path, out: Path, names: list[str] | None, said: Callable[[str], None]
) -> Report:
    """Scores of recorded answers."""
    from complete_mue.lab.evals.requests import read_answers, replay

    header, lines = read_answers(answers)
    settings = Settings(data, header["shots"], header["limit"])
    tasks = [task for task in select(names) if names is not None or task.name in lines]
    missing = [task.name for task in tasks if task.name not in lines]
    if missing or not tasks:
        raise RunError(f"{answers}: has no answers for {', '.join(missing) or 'any task'}; it has {', '.join(lines)}")
    return evaluate_model(
        lambda task: replay(task.name, lines[task.name]["checksum"], lines[task.name]["answers"]),
        header["model"], tasks, settings, out, said,
    )  # fmt: skip


def _kept(path: Path, asked: dict[str, Any]) -> Score | None:
    with suppress(MueError, KeyError, TypeError):
        data = read_json(path, "task's score")
        return Score.from_dict(data["score"]) if data["asked"] == asked else None
    return None
