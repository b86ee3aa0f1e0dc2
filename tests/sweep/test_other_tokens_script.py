"""The sweep over tokenizers runs from nothing, and a second start finds it done."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from complete_mue.lab.data.manifest import Manifest
from complete_mue.lab.report.summary import summarize
from in_process import script

SCRIPT = Path(__file__).parents[2] / "scripts" / "other_tokens.py"


@pytest.mark.slow
def test_the_same_text_in_other_tokens(tmp_path: Path) -> None:
    few = ["--words", "300", "--set", "budget.steps=2", "--set", "budget.batch_tokens=128", "--out", tmp_path]
    for _ in range(2):
        done = script(SCRIPT, *few)
        assert done.returncode == 0, done.stderr
    summary = summarize(tmp_path / "sweep")
    assert [target.name for target in summary.targets] == ["reference", "300 words"]
    assert all(len(point.losses) == 2 for curve in summary.scans[0].curves for point in curve.points)
    assert len(summary.scans[0].curves[0].points) == 9
    plain, words = (Manifest.read(tmp_path / name) for name in ("bytes", "words-300"))
    assert words.tokenizer.vocab == 300
    assert plain.splits["train"].documents == words.splits["train"].documents
