"""Scores as text, Markdown and data."""

from __future__ import annotations

import json
from pathlib import Path

from complete_mue.lab.evals.results import Report, Score

REPORT = Report(
    "model",
    (
        Score("piqa", "acc", 0.75, 0.0101, 1838, 5, {"acc_norm": 0.5}),
        Score("svamp", "exact_match", 0.05, 0.0126, 300, 5),
    ),
    {"shots": 5},
)


def test_the_table_has_chance_error_and_counts() -> None:
    _, heading, svamp, piqa, average = REPORT.to_text().splitlines()
    assert heading.split() == ["task", "shots", "metric", "score", "±", "se", "chance", "count", "of", "paper's"]
    assert svamp.split() == ["SVAMP", "5", "exact_match", "5.0", "1.3", "0", "300", "300"]
    assert piqa.split() == ["PIQA", "5", "acc", "75.0", "1.0", "50", "1,838", "1,838"]
    assert average.split() == ["Average", "of", "2", "40.0", "25.0"]
    rows = [line.split("|")[1:-1] for line in REPORT.to_markdown().splitlines() if line.startswith("|")]
    assert {len(row) for row in rows} == {8}
    assert [cell.strip() for cell in rows[3]] == piqa.split()


def test_scores_come_back_from_data(tmp_path: Path) -> None:
    REPORT.write(tmp_path)
    data = json.loads((tmp_path / "eval.json").read_text())
    assert [Score.from_dict(data["tasks"][name]) for name in ("piqa", "svamp")] == list(REPORT.scores)
    assert data["average"] == 0.4
    assert (tmp_path / "eval.md").read_text() == REPORT.to_markdown()
