"""Small evaluation sets of all 13 tasks, written by the tests: nothing here needs the real ones."""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path
from typing import Any

import pytest

WORDS = ("apple", "bridge", "cloud", "door", "earth", "fire", "green", "house", "iron", "jump", "kind", "light", "moon")
SUBJECTS = ("abstract_algebra", "world_history")


def _text(rnd: random.Random, least: int, most: int) -> str:
    return " ".join(rnd.choices(WORDS, k=rnd.randint(least, most))).capitalize()


def _choices(rnd: random.Random, count: int) -> dict[str, Any]:
    return {"choices": [_text(rnd, 1, 6) for _ in range(count)], "gold": rnd.randrange(count)}


def _record(name: str, rnd: random.Random, number: int) -> dict[str, Any]:
    a, b = rnd.randint(10, 99), rnd.randint(1, 9)
    exam = {"passage": _text(rnd, 10, 40), "question": _text(rnd, 4, 9)}
    options = [f"{_text(rnd, 3, 8)} {word}" for word in rnd.sample(WORDS, 2)]
    return {
        "svamp": {"question": f"{_text(rnd, 4, 12)} {a} {b}?", "equation": f"( {a}.0 - {b}.0 )", "answer": str(a - b)},
        "mmlu": {"subject": SUBJECTS[number % 2], "question": _text(rnd, 4, 12), **_choices(rnd, 4)},
        "copa": {"query": f"{_text(rnd, 4, 8)}, because", **_choices(rnd, 2)},
        "piqa": {"goal": _text(rnd, 4, 8), **_choices(rnd, 2)},
        "hellaswag": {"query": _text(rnd, 5, 20), **_choices(rnd, 4)},
        "winogrande": {"context_options": options, "continuation": _text(rnd, 3, 6), "gold": rnd.randrange(2)},
        "lambada": {"context": _text(rnd, 10, 40), "continuation": rnd.choice(WORDS)},
        "boolq": {**exam, "choices": ["no", "yes"], "gold": rnd.randrange(2)},
    }.get(name) or {**exam, **_choices(rnd, 4)}


def write_sets(folder: Path, count: int) -> Path:
    """All files of the 13 tasks with ``count`` questions each, some packed and some not."""
    from complete_mue.lab.evals.tasks import TASKS

    rnd = random.Random(0)
    folder.mkdir()
    for task in TASKS.values():
        names = [task.name, *([f"{task.name}.fewshot"] if task.own_pool else [])]
        for name in names:
            lines = [json.dumps(_record(task.name, rnd, number)) for number in range(count)]
            text = "\n".join(lines) + "\n"
            if rnd.random() < 0.5:
                (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
            else:
                with lzma.open(folder / f"{name}.jsonl.xz", "wt", encoding="utf-8") as file:
                    file.write(text)
    return folder


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 questions of every task."""
    return write_sets(tmp_path_factory.mktemp("evals") / "sets", 200)
