"""`mue eval` and `mue export` in one process: what they refuse, and the way without the harness."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from complete_mue.cli import app
from complete_mue.errors import MueError
from complete_mue.lab.data import text
from complete_mue.lab.evals.requests import TaskRequests, read_answers, write_requests
from complete_mue.lab.recipes import recipe
from complete_mue.lab.train.config import override
from complete_mue.lab.train.loop import train

SMALL = ("shape.width=16", "shape.depth=2", "shape.head_dim=8", "betas=hold", "budget.steps=1", "device=cpu")


def mue(*arguments: str) -> None:
    app(list(arguments), standalone_mode=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "lm"
    train(override(recipe("lm_tiny:8e2a"), *SMALL, "task.sequence=32", "budget.batch_tokens=64"), folder)
    return folder


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # a CPU without bfloat16 says so
def test_a_run_answers_without_the_harness(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = TaskRequests("copa", [("The man ran, because", " he was late."), ("The man ran, because", " it rained.")])
    write_requests(tmp_path / "q.xz", {"shots": 5, "limit": None}, [asked])
    mue("eval", str(run), "--requests", str(tmp_path / "q.xz"), "--device", "cpu")
    assert "answers in" in capsys.readouterr().out
    header, lines = read_answers(run / "eval" / "answers.jsonl.xz")
    assert header["model"]["name"] == "lm_tiny-8e2a"
    assert len(lines["copa"]["answers"]) == 2
    mue("eval", str(run), "--requests", str(tmp_path / "q.xz"), "--precision", "bfloat16", "--out", str(tmp_path))
    rough = read_answers(tmp_path / "answers.jsonl.xz")[1]["copa"]["answers"]
    assert rough != lines["copa"]["answers"]
    assert [total for total, _ in rough] == pytest.approx(
        [t for t, _ in lines["copa"]["answers"]], rel=0.1
    )  # bfloat16 may route a token elsewhere


def test_a_damaged_checkpoint_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    training, held_out = text._library()
    monkeypatch.setattr(text, "_library", lambda: (training, held_out[:2_000]))
    small = (*SMALL, "task.sequence=32", "budget.batch_tokens=64", "budget.steps=2", "checkpoint_every=1", "keep=2")
    train(override(recipe("lm_tiny:8e2a"), *small), tmp_path / "lm")
    (tmp_path / "lm" / "checkpoints" / "step-00000002" / "model.safetensors").write_bytes(b"damaged")
    for words in (("eval", "--held-out", "--device", "cpu"), ("sample", "--count", "1"), ("export", "--hf", "hf")):
        mue(words[0], str(tmp_path / "lm"), *(str(tmp_path / word) if word == "hf" else word for word in words[1:]))
        said = capsys.readouterr()
        assert "warning: skipped" in said.err
        assert "step-00000002" in said.err
        assert words[0] != "eval" or said.out.endswith("windows) at step 1\n")


def test_bad_requests_are_refused(run: Path, tmp_path: Path) -> None:
    nothing = str(tmp_path / "nothing")
    for words, message in (
        ((), "give a run's directory or hf:PATH"),
        ((str(run),), "give --data"),
        ((nothing, "--requests", nothing), "give a folder with a run's config"),
        (("hf:x", "--requests", nothing), "only our runs"),
        ((str(run), "--requests", nothing, "--device", "cpu"), "file of requests"),
        ((str(run), "--requests", nothing, "--precision", "int8"), "precision = 'int8'"),
        ((str(run), "--requests", nothing, "--device", "abacus"), "device = 'abacus'"),
    ):
        with pytest.raises(MueError, match=message):
            mue("eval", *words)


def test_export_refuses_what_is_no_language_model(tmp_path: Path) -> None:
    small = ("task.size=8", "budget.batch_tokens=16", "shape.depth=1")
    train(override(recipe("dit_tiny"), *SMALL, *small), tmp_path / "dit")
    with pytest.raises(MueError, match="language model"):
        mue("export", str(tmp_path / "dit"), "--hf", str(tmp_path / "hf"))
    with pytest.raises(MueError, match="language model"):
        mue("eval", str(tmp_path / "dit"), "--requests", "q.xz")
    with pytest.raises(MueError, match="give a folder with a run's config"):
        mue("export", str(tmp_path / "nothing"), "--hf", str(tmp_path / "hf"))


def test_without_the_harness_the_way_is_told(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "lm_eval" else real(name, *rest)
    )
    for words in ((str(run), "--data", str(tmp_path)), ("--requests-out", "q.xz", "--data", str(tmp_path))):
        with pytest.raises(MueError, match=r"pip install 'complete-mue\[eval\]'.*--requests-out"):
            mue("eval", *words)
