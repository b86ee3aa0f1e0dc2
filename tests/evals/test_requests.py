"""Questions and answers as files, without the harness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from complete_mue.errors import FileError  # noqa: E402
from complete_mue.lab.data.tokenizers import ByteTokenizer  # noqa: E402
from complete_mue.lab.evals.requests import (  # noqa: E402
    TaskRequests,
    answer_requests,
    read_answers,
    read_requests,
    write_requests,
)
from complete_mue.lab.evals.scoring import Generation, Scorer  # noqa: E402
from complete_mue.lab.models.lm import LanguageModel  # noqa: E402
from complete_mue.layout import FeedForward, ModelShape  # noqa: E402

PAIRS = TaskRequests("copa", [("one", " a"), ("one", " é"), ("two", " a"), ("one", " a")])
TEXTS = TaskRequests("svamp", [Generation("one", ("\n",), 4), Generation("two", ("\n", "Q"), 3)])
ABOUT = {"shots": 5, "limit": None}
MODEL = {"name": "m", "weights": "0"}


class Counting(Scorer):
    """A scorer that counts what it is asked."""

    asked = 0

    def loglikelihoods(self, pairs: Any, *rest: Any) -> Any:
        self.asked += len(pairs)
        return super().loglikelihoods(pairs, *rest)

    def generate(self, requests: Any, *rest: Any) -> Any:
        self.asked += len(requests)
        return super().generate(requests, *rest)


def scorer() -> Counting:
    torch.manual_seed(0)
    return Counting(LanguageModel(ModelShape(16, 1, FeedForward.parse("4e2a@8"), head_dim=8), 257), ByteTokenizer(), 32)


def quiet(what: str) -> Any:
    return lambda done, total: None


def test_questions_come_back_as_they_were(tmp_path: Path) -> None:
    write_requests(tmp_path / "q.xz", ABOUT, [PAIRS, TEXTS])
    header, tasks = read_requests(tmp_path / "q.xz")
    assert tasks == [PAIRS, TEXTS]
    assert {key: header[key] for key in ABOUT} == ABOUT
    assert PAIRS.checksum != TaskRequests("copa", PAIRS.questions[::-1]).checksum


def test_answers_are_the_scorers_and_are_kept(tmp_path: Path) -> None:
    path, out = tmp_path / "q.xz", tmp_path / "out" / "answers.xz"
    write_requests(path, ABOUT, [PAIRS])
    first = scorer()
    answer_requests(path, out, first, MODEL, quiet)
    assert first.asked == 4
    write_requests(path, ABOUT, [PAIRS, TEXTS])
    again = scorer()
    answer_requests(path, out, again, MODEL, quiet)
    assert again.asked == 2  # copa's answers were there
    header, lines = read_answers(out)
    assert header["model"] == MODEL
    assert lines["copa"]["answers"] == [list(answer) for answer in scorer().loglikelihoods(PAIRS.questions)]
    assert lines["svamp"]["answers"] == scorer().generate(TEXTS.questions)
    other = scorer()
    answer_requests(path, out, other, {**MODEL, "weights": "1"}, quiet)
    assert other.asked == 6  # another model's answers are no answers


def test_strange_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "q.xz"
    with pytest.raises(FileError, match="requests"):
        read_requests(path)
    path.write_bytes(b"nothing")
    with pytest.raises(FileError, match="no file of requests"):
        read_requests(path)
    write_requests(path, ABOUT, [PAIRS])
    with pytest.raises(FileError, match="kind 'requests'"):
        read_answers(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileError, match="no file of requests"):
        read_requests(path)
