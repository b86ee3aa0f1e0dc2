"""The paper's 13 tasks (its appendix on LLM benchmark evaluation): split, count, metric, chance level, prompt.

Prompts follow lm-evaluation-harness where it has the task on the same fields (ARC, PIQA, HellaSwag, BoolQ, MMLU) and
the MosaicML Eval Gauntlet, whose sets and counts are the paper's, for the rest. Multiple-choice tasks score each
choice after the question and take the likeliest; WinoGrande scores one ending after each of two beginnings.

Data are local files: ``NAME.jsonl`` or ``NAME.jsonl.xz``, one JSON object per line.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from complete_mue.errors import FileError, RunError, one_of
from complete_mue.lab.data.text_files import json_lines, unpacked

Record = dict[str, Any]
ENDINGS = (".jsonl", ".jsonl.xz")
Kind = Literal["choice", "schema", "word", "arithmetic"]
LETTERS = "ABCDE"


@dataclass(frozen=True)
class EvalTask:
    """One task. ``document`` turns a record of the file into what the prompt needs; ``keys`` are those it reads."""

    name: str
    title: str
    split: str
    count: int
    kind: Kind
    chance: float
    keys: tuple[str, ...]
    document: Callable[[Record], dict[str, Any]]
    own_pool: bool = True  # examples come from NAME.fewshot; else from the evaluation file, never the item itself
    by_subject: bool = False  # the first examples of the item's own subject, in file order

    @property
    def metric(self) -> str:
        """The score of the table, in lm-evaluation-harness's words."""
        return "exact_match" if self.kind == "arithmetic" else "acc"

    def files(self, folder: Path) -> list[Path]:
        """The evaluation file, then the file of examples if the task has one."""
        return [find(folder, self.name), *([find(folder, f"{self.name}.fewshot")] if self.own_pool else [])]

    def checksum(self, folder: Path) -> str:
        """Changes with the data."""
        total = hashlib.sha256()
        for path in self.files(folder):
            total.update(hashlib.sha256(path.read_bytes()).digest())
        return total.hexdigest()[:16]

    def read(self, folder: Path) -> dict[str, list[dict[str, Any]]]:
        """Documents to evaluate on (``test``) and to show as examples (``fewshot``, if the task has its own)."""
        splits = zip(("test", "fewshot"), self.files(folder), strict=False)
        return {split: [self.document(r) for r in read_records(path, self.keys)] for split, path in splits}


def select(names: Iterable[str] | None) -> list[EvalTask]:
    """Tasks by name, in the paper's order; all of them for None."""
    if names is None:
        return list(TASKS.values())
    wanted = [name.strip() for name in names if name.strip()]
    for name in wanted:
        one_of("task", name, TASKS, RunError)
    if not wanted:
        raise RunError(f"no task named: tasks are {', '.join(TASKS)}")
    return [task for task in TASKS.values() if task.name in wanted]


def find(folder: Path, name: str) -> Path:
    """The file that holds ``name``, packed or not."""
    for ending in ENDINGS:
        path = folder / f"{name}{ending}"
        if path.is_file():
            return path
    raise FileError(
        f"{folder}: has no {name}{ENDINGS[0]} and no {name}{ENDINGS[1]}; give the folder of the evaluation sets as "
        "--data, or leave that task out with --tasks"
    )


def read_records(path: Path, keys: tuple[str, ...]) -> list[Record]:
    """All records of a file, each of which must have ``keys``."""
    with unpacked(path) as (_, file):
        records = [_checked(record, keys, where) for where, record in json_lines(file, path)]
    if not records:
        raise FileError(f"{path}: holds no record; copy the file again")
    return records


def _checked(record: Record, keys: tuple[str, ...], where: str) -> Record:
    missing = [key for key in keys if key not in record]
    if missing:
        raise FileError(f"{where}: has no {', '.join(missing)}; this task needs the keys {', '.join(keys)}")
    if "gold" in keys:
        gold, choices = record["gold"], record.get("choices", record.get("context_options"))
        if not (isinstance(gold, int) and isinstance(choices, list) and 0 <= gold < len(choices)):
            raise FileError(f"{where}: gold = {gold!r} must be an index, from 0, into its choices")
    return record


def _choice(prompt: str) -> Callable[[Record], dict[str, Any]]:
    """A question with choices, whose query is the record's fields in the prompt."""
    return lambda record: {
        "query": prompt.format_map(record), "choices": record["choices"], "gold": record["gold"]
    }  # fmt: skip


def _subject(record: Record) -> dict[str, Any]:
    subject = record["subject"].replace("_", " ")
    lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, record["choices"], strict=False)]
    return {
        "description": f"The following are multiple choice questions (with answers) about {subject}.\n\n",
        "query": "\n".join([record["question"].strip(), *lines, "Answer:"]),
        "choices": list(LETTERS[: len(lines)]),
        "gold": record["gold"],
        "subject": record["subject"],
    }


def _exam(record: Record) -> dict[str, Any]:
    lines = [f"{letter}.) {choice}" for letter, choice in zip(LETTERS, record["choices"], strict=False)]
    asked = [f"Passage: {record['passage']}", f"Q: {record['question']}", "Choices:", *lines, "Answer:"]
    return {"query": "\n".join(asked), "choices": list(LETTERS[: len(lines)]), "gold": record["gold"]}


def _schema(record: Record) -> dict[str, Any]:
    return {"choices": record["context_options"], "target": record["continuation"], "gold": record["gold"]}


def _last_word(record: Record) -> dict[str, Any]:
    return {"query": record["context"], "target": f" {record['continuation']}"}


def _arithmetic(record: Record) -> dict[str, Any]:
    answer = number(str(record["answer"]))
    return {
        "query": f"Question: {record['question']}\nAnswer:",
        "target": f"{_working(record['equation'])} = {answer}. The answer is {answer}.",
        "answer": answer,
    }


def _working(equation: str) -> str:
    """``( 8.0 - 7.0 )`` -> ``8 - 7``: the chain of thought of an example."""
    text = re.sub(r"\d+(?:\.\d+)?", lambda match: f"{float(match[0]):.12g}", equation).strip()
    depths = accumulate((letter == "(") - (letter == ")") for letter in text[:-1])
    return text[1:-1].strip() if text.startswith("(") and 0 not in depths else text


def number(text: str) -> str:
    """A number as it is compared: ``1,200.0`` and ``1200`` are the same; text that is none stays as it is."""
    plain = text.strip().replace(",", "").rstrip(".")
    try:
        return f"{float(plain):.12g}"
    except ValueError:
        return plain


def final_answer(generated: str) -> str:
    """The number after the last ``The answer is``; empty without one."""
    found = re.findall(r"[Tt]he answer is:? *\$? *(-?[\d,]*\.?\d+)", generated)
    return number(found[-1]) if found else ""


_CHOICES = ("choices", "gold")
_EXAM = ("passage", "question", *_CHOICES)

TASKS: dict[str, EvalTask] = {
    task.name: task
    for task in (
        EvalTask("svamp", "SVAMP", "test", 300, "arithmetic", 0.0,
                 keys=("question", "equation", "answer"), document=_arithmetic),
        EvalTask("mmlu", "MMLU", "test", 14_042, "choice", 0.25,
                 keys=("subject", "question", *_CHOICES), document=_subject, by_subject=True),
        EvalTask("arc_easy", "ARC-Easy", "test", 2_376, "choice", 0.25,
                 keys=("question", *_CHOICES), document=_choice("Question: {question}\nAnswer:")),
        EvalTask("arc_challenge", "ARC-Challenge", "test", 1_172, "choice", 0.25,
                 keys=("question", *_CHOICES), document=_choice("Question: {question}\nAnswer:")),
        EvalTask("copa", "COPA", "val", 100, "choice", 0.5,
                 keys=("query", *_CHOICES), document=_choice("{query}"), own_pool=False),
        EvalTask("piqa", "PIQA", "val", 1_838, "choice", 0.5,
                 keys=("goal", *_CHOICES), document=_choice("Question: {goal}\nAnswer:")),
        EvalTask("hellaswag", "HellaSwag", "val", 10_042, "choice", 0.25,
                 keys=("query", *_CHOICES), document=_choice("{query}")),
        EvalTask("winogrande", "WinoGrande", "val", 1_267, "schema", 0.5,
                 keys=("context_options", "continuation", "gold"), document=_schema),
        EvalTask("lambada", "LAMBADA", "test", 5_153, "word", 0.0,
                 keys=("context", "continuation"), document=_last_word, own_pool=False),
        EvalTask("boolq", "BoolQ", "val", 3_270, "choice", 0.5,
                 keys=_EXAM, document=_choice("{passage}\nQuestion: {question}?\nAnswer:")),
        EvalTask("agieval_lsat_rc", "AGIEval-LSAT-RC", "test", 268, "choice", 0.25,
                 keys=_EXAM, document=_exam, own_pool=False),
        EvalTask("agieval_lsat_lr", "AGIEval-LSAT-LR", "test", 510, "choice", 0.25,
                 keys=_EXAM, document=_exam, own_pool=False),
        EvalTask("agieval_sat_en", "AGIEval-SAT-EN", "test", 206, "choice", 0.25,
                 keys=_EXAM, document=_exam, own_pool=False),
    )
}  # fmt: skip
