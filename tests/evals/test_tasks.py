"""The 13 tasks against the paper's table, and their reading of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from complete_mue.errors import FileError, RunError
from complete_mue.lab.evals.tasks import TASKS, final_answer, number, select

# The paper's table of evaluation datasets: split, samples, chance.
PAPER = {
    "SVAMP": ("test", 300, 0), "MMLU": ("test", 14042, 25), "ARC-Easy": ("test", 2376, 25),
    "ARC-Challenge": ("test", 1172, 25), "COPA": ("val", 100, 50), "PIQA": ("val", 1838, 50),
    "HellaSwag": ("val", 10042, 25), "WinoGrande": ("val", 1267, 50), "LAMBADA": ("test", 5153, 0),
    "BoolQ": ("val", 3270, 50), "AGIEval-LSAT-RC": ("test", 268, 25), "AGIEval-LSAT-LR": ("test", 510, 25),
    "AGIEval-SAT-EN": ("test", 206, 25),
}  # fmt: skip


def test_the_table_is_the_papers() -> None:
    assert {t.title: (t.split, t.count, 100 * t.chance) for t in TASKS.values()} == PAPER
    assert [t.title for t in TASKS.values()] == list(PAPER)
    assert {t.name for t in TASKS.values() if t.metric == "exact_match"} == {"svamp"}


def test_the_real_files_have_the_papers_counts() -> None:
    folder = os.environ.get("MUE_EVALS")
    if not folder:
        pytest.skip("set MUE_EVALS to the folder of the evaluation sets to count them")
    for task in TASKS.values():
        docs = task.read(Path(folder))
        assert len(docs["test"]) == task.count, task.name
        assert task.own_pool == ("fewshot" in docs)
        assert all("gold" not in doc or doc["gold"] < len(doc["choices"]) for split in docs.values() for doc in split)


def test_every_task_reads_its_files(sets: Path) -> None:
    for task in TASKS.values():
        docs = task.read(sets)
        assert {split: len(found) for split, found in docs.items()} == dict.fromkeys(docs, 200)
    before = TASKS["copa"].checksum(sets)
    assert before == TASKS["copa"].checksum(sets) != TASKS["piqa"].checksum(sets)


def test_arithmetic_shows_its_working(tmp_path: Path) -> None:
    line = '{"question": "Q", "equation": "( ( 8.0 - 2.5 ) * ( 4.0 + 2.0 ) )", "answer": "33.0"}\n'
    for name in ("svamp", "svamp.fewshot"):
        (tmp_path / f"{name}.jsonl").write_text(line)
    (doc,) = TASKS["svamp"].read(tmp_path)["test"]
    assert doc["target"] == "( 8 - 2.5 ) * ( 4 + 2 ) = 33. The answer is 33."
    assert final_answer(doc["target"]) == doc["answer"] == "33"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("5 - 3 = 2. The answer is 2.", "2"),
        ("The answer is 3. No: the answer is $ 1,200.50", "1200.5"),
        ("The answer is -4", "-4"),
        ("The answer is 7.0 apples", "7"),
        ("It is 12", ""),
        ("The answer is twelve", ""),
    ],
)
def test_the_final_answer_is_a_number(text: str, answer: str) -> None:
    assert final_answer(text) == answer
    assert number(answer) == answer


def test_selection_keeps_the_papers_order_and_names_the_unknown() -> None:
    assert [task.name for task in select(["piqa", " mmlu"])] == ["mmlu", "piqa"]
    assert len(select(None)) == 13
    with pytest.raises(RunError, match="'winogrande'"):
        select(["winogrnade"])
    with pytest.raises(RunError, match="no task named"):
        select([""])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"copa\.jsonl:1: not a JSON object"),
        ("[]", r"copa\.jsonl:1: not a JSON object \(a list"),
        ('{"query": "a", "choices": ["b"]}', r"copa\.jsonl:1: has no gold"),
        ('{"query": "a", "choices": ["b"], "gold": 1}', "gold = 1 must be an index"),
        ("", "holds no record"),
    ],
)
def test_damaged_files_are_named(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "copa.jsonl").write_text(line)
    with pytest.raises(FileError, match=message):
        TASKS["copa"].read(tmp_path)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"no copa\.jsonl"):
        TASKS["copa"].read(tmp_path)
    (tmp_path / "copa.jsonl.xz").write_bytes(b"no xz")
    with pytest.raises(FileError, match=r"copa\.jsonl\.xz: damaged"):
        TASKS["copa"].read(tmp_path)
