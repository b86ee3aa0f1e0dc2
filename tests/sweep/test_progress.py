"""What a sweep, or a run, says of itself while it runs."""

from __future__ import annotations

import pytest
from rich.console import Console

pytest.importorskip("torch")

from complete_mue.cli.sweep_progress import _lines
from complete_mue.cli.train import _facts, _live
from complete_mue.lab.sweep.run import Group, Pace, Status
from small_sweeps import sweep_of


def test_a_line_for_every_group_and_one_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("complete_mue.lab.sweep.run.time.monotonic", lambda: 100.0)
    points = sweep_of().points
    compiles, trains = Group(points[:3]), Group(points[3:], step=5, best=1.25, pace=Pace(80.0, 1))
    first, second, whole = _lines(Status(0, 6, 0, (compiles, trains), None, 3700.0))
    assert first == f"{'░' * 10} dense × 3 · complete_mue  step 0/10"
    assert second == f"{'█' * 5}{'░' * 5} 8e2a × 3 · complete_mue_sparse  step 5/10  0:25 left  best 1.250"
    assert whole == f"{'█' * 2}{'░' * 8} 0/6 runs  1:01:40 left", "half of one of two groups"
    (whole,) = _lines(Status(6, 6, 1, (), (1.25, "dense, lr 0.004"), None))
    assert whole == f"{'█' * 10} 6/6 runs  1 failed  best 1.2500 (dense, lr 0.004)"


def test_a_long_run_says_its_step_and_time_left_in_eighty_columns() -> None:
    line = {"step": 999, "loss": 2.34567, "tokens_per_second": 86474.0, "mfu": 0.398, "seconds_left": 400_000.0}
    (shown,) = Console(width=80).render_lines(_live("lm_large-128e8a4g1s", 1000, 100_000, _facts(line)))
    assert "1000/100000  loss 2.3457  111:06:40 left" in "".join(part.text for part in shown)
