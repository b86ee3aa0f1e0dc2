"""Questions and answers as files, for a machine that has the model and a GPU but not lm-evaluation-harness.

    1. with the harness      tasks -> requests file       (`mue eval --requests-out FILE --data DIR`)
    2. with torch alone      requests, run -> answers     (`mue eval RUN --requests FILE`)
    3. with the harness      answers -> scores            (`mue eval --answers FILE --data DIR`)

Both files are xz-packed JSON lines: a header, then one line per task. A task's questions have a checksum, and answers
count only for questions with the same one, so a changed prompt or data file cannot go unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from complete_mue.errors import RunError
from complete_mue.lab.data.extras import in_our_words
from complete_mue.lab.evals.harness import evaluate, harness_model
from complete_mue.lab.evals.scoring import Generation, Scorer, Tick
from complete_mue.lab.evals.tasks import EvalTask
from complete_mue.storage import make_folder, whole

FORMAT = 1


@dataclass(frozen=True)
class TaskRequests:
    """All questions of one task to a model: (context, continuation) pairs, or texts to go on with."""

    task: str
    questions: list[Any]

    @property
    def checksum(self) -> str:
        """Changes with any question or their order."""
        plain = [asdict(q) if isinstance(q, Generation) else q for q in self.questions]
        return hashlib.sha256(json.dumps(plain).encode("utf-8")).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; a context that several continuations share is written once."""
        about = {"task": self.task, "checksum": self.checksum}
        if self._texts:
            return {**about, "texts": [asdict(question) for question in self.questions]}
        pairs = groupby(self.questions, key=itemgetter(0))
        return {**about, "pairs": [[context, [text for _, text in same]] for context, same in pairs]}

    @property
    def _texts(self) -> bool:
        return bool(self.questions) and isinstance(self.questions[0], Generation)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TaskRequests:
        """Back from plain data."""
        if "texts" in data:
            texts = [Generation(q["context"], tuple(q["stops"]), q["most"]) for q in data["texts"]]
            made = cls(data["task"], texts)
        else:
            made = cls(data["task"], [(c, text) for c, continuations in data["pairs"] for text in continuations])
        if made.checksum != data["checksum"]:
            raise ValueError(f"{made.task}: its questions do not have the checksum they were written with")
        return made

    def answer(self, scorer: Scorer, tick: Tick) -> list[Any]:
        """What a model answers, in order."""
        if self._texts:
            return scorer.generate(self.questions, tick)
        return [list(answer) for answer in scorer.loglikelihoods(self.questions, tick)]


def build(task: EvalTask, folder: Path, shots: int, limit: int | None) -> TaskRequests:
    """A task's questions, as the harness asks them: of a model that only listens."""
    asked: list[Any] = []

    def listen(questions: list[Any], answer: Any) -> list[Any]:
        asked.extend(questions)
        return [answer] * len(questions)

    listener = harness_model(partial(listen, answer=(0.0, False)), partial(listen, answer=""))
    evaluate(task, listener, folder, shots, limit)
    return TaskRequests(task.name, asked)


def replay(name: str, checksum: str, answers: list[Any]) -> Any:
    """A harness model that gives recorded answers to the very questions they were recorded for."""

    def given(questions: list[Any]) -> list[Any]:
        if TaskRequests(name, questions).checksum != checksum or len(questions) != len(answers):
            raise RunError(
                f"{name}: the answers are to other questions: give the --data, and the version of "
                "lm-evaluation-harness, with which the requests were made"
            )
        return answers

    return harness_model(
        lambda asked: [(float(total), bool(best)) for total, best in given(asked)],
        lambda asked: [str(text) for text in given(asked)],
    )


def write_requests(path: Path, about: dict[str, Any], tasks: Iterable[TaskRequests]) -> None:
    """A requests file, whole or not at all."""
    _write(path, {"kind": "requests", **about}, (task.to_dict() for task in tasks))


def read_requests(path: Path) -> tuple[dict[str, Any], list[TaskRequests]]:
    """A requests file's header and tasks."""
    header, lines = _read(path, "requests")
    with in_our_words(f"{path}: damaged", "make it again with `mue eval --requests-out`"):
        return header, [TaskRequests.from_dict(line) for line in lines]


def answer_requests(
    path: Path, out: Path, scorer: Scorer, model: dict[str, Any], progress: Callable[[str], Tick]
) -> None:
    """Answer every task of a requests file into ``out``; answers that are there already, by this model, are kept."""
    asked, tasks = read_requests(path)
    header = {**{key: asked[key] for key in ("shots", "limit")}, "model": model}
    done: dict[str, dict[str, Any]] = {}
    if out.exists():
        earlier, lines = read_answers(out)
        done = lines if {key: earlier.get(key) for key in header} == header else {}
    for task in tasks:
        if done.get(task.task, {}).get("checksum") != task.checksum:
            answers = task.answer(scorer, progress(task.task))
            done[task.task] = {"task": task.task, "checksum": task.checksum, "answers": answers}
            _write(out, {"kind": "answers", **header}, done.values())


def read_answers(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """An answers file's header, and its lines by task."""
    header, lines = _read(path, "answers")
    with in_our_words(f"{path}: damaged", "answer the requests again"):
        return header, {line["task"]: {key: line[key] for key in ("task", "checksum", "answers")} for line in lines}


def _write(path: Path, header: dict[str, Any], lines: Iterable[dict[str, Any]]) -> None:
    make_folder(path.parent)
    with whole(path) as file, lzma.open(file, "wb", preset=1) as packed:
        for line in ({"format": FORMAT, **header}, *lines):
            packed.write(json.dumps(line, ensure_ascii=False).encode("utf-8") + b"\n")


def _read(path: Path, kind: str) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    with in_our_words(f"{path}: no file of {kind}", "give one written by `mue eval`"):
        with lzma.open(path, "rt", encoding="utf-8") as file:
            header, *lines = [json.loads(line) for line in file]
        if header.get("format") != FORMAT or header.get("kind") != kind:
            raise ValueError(f"a file of kind {header.get('kind')!r}, format {header.get('format')!r}")
    return header, iter(lines)
