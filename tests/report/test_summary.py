"""From a folder with a known loss surface to drift, regret, errors and words."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from complete_mue.report.curves import Curve, ValuePoint, curve_noise, fit_curve, seed_noise
from complete_mue.report.summary import Summary, summarize
from complete_mue.report.tables import tables

Write = Callable[..., Path]


def curve_of(summary: Summary, target: str, rules: str = "complete_mue", hyper: str = "lr") -> Curve:
    scan = next(scan for scan in summary.scans if scan.hyper == hyper)
    return next(curve for curve in scan.curves if (curve.target, curve.rules) == (target, rules))


def words(summary: Summary) -> str:
    return " ".join(line.text for line in summary.verdict)


def test_drift_and_regret_of_a_known_surface(sweep_folder: Write) -> None:
    drifts = {"8e2a": 0.1, "16e4a": -0.2, "64e16a": 0.3}
    others = {"sp": {"8e2a": 1.0, "16e4a": 1.5, "64e16a": 2.0}}
    summary = summarize(sweep_folder(drifts=drifts, other_drifts=others, hypers=("lr", "weight_decay", "init_std")))
    assert [scan.hyper for scan in summary.scans] == ["lr", "weight_decay", "init_std"]
    for scan in summary.scans:
        assert scan.curves[0].status == "reference"
        for curve in scan.curves[1:]:
            drift = (drifts if curve.rules == "complete_mue" else others["sp"])[curve.target]
            assert curve.drift == pytest.approx(drift, abs=0.02)
            assert curve.drift_error is not None
            assert abs(curve.drift - drift) < 5 * curve.drift_error
            assert curve.status == ("held" if curve.rules == "complete_mue" else "missed")
            best_on_grid = 0.03 * (round(drift) - drift) ** 2
            assert curve.regret == pytest.approx(0.03 * drift**2 - best_on_grid, abs=0.003)
    first = summary.verdict[0]
    assert first.kind == "good"
    assert first.text.startswith(
        "Learning rate: the dense optimum (0.008) served all 3 layouts: drift at most 0.30 octaves"
    )
    assert "sp served none of 3 layouts; its loss at the transferred value is" in words(summary)
    assert "higher than that of complete_mue" in words(summary)


def test_runs_at_the_transferred_values(sweep_folder: Write) -> None:
    summary = summarize(sweep_folder(hypers=("lr", "weight_decay"), speedup=2.5))
    dense, *others = summary.runs
    assert (dense.target, dense.speedup, dense.load_variation) == ("dense", None, None)
    assert [run.target for run in others] == ["8e2a", "16e4a", "64e16a"]
    for run in others:
        assert run.seeds == 3  # the tuned point is shared between scans and counts once
        assert run.speedup_median == pytest.approx(2.5, rel=0.02)
        assert 0.2 <= (run.load_variation or 0) <= 0.25
        assert len(run.first) == 100


def test_the_error_of_the_drift_is_honest() -> None:
    """Over many noisy sweeps the miss of the optimum is as large as the error says."""
    state = random.Random(3)
    values = [2.0**k for k in range(-3, 4)]
    misses, errors = [], []
    for _ in range(60):
        points = []
        for value in values:
            losses = tuple((s, 2 + 0.03 * (math.log2(value) - 0.3) ** 2 + state.gauss(0, 0.006)) for s in range(3))
            found = [loss for _, loss in losses]
            points.append(ValuePoint(value, statistics.fmean(found), statistics.stdev(found), 3, False, 0, losses))
        curve = fit_curve("lr", "complete_mue", "8e2a", 1.0, points)
        assert curve.optimum is not None
        assert curve.optimum_error is not None
        misses.append(curve.optimum.log2 - 0.3)
        errors.append(curve.optimum_error)
        assert fit_curve("lr", "complete_mue", "8e2a", 1.0, points) == curve  # drawn with a fixed random state
    rms = math.sqrt(statistics.fmean(miss**2 for miss in misses))
    assert 0.6 < rms / statistics.fmean(errors) < 1.6


@pytest.mark.parametrize(
    ("at", "noise", "cubic"),
    [(0.3, 0.004, 0.0), (0.5, 0.012, 0.0), (0.5, 0.001, 0.003)],
    ids=["between values", "noisy", "lopsided"],
)
def test_the_errors_of_two_seeds_cover_the_truth(at: float, noise: float, cubic: float) -> None:
    """Scans of a reference and two targets, two seeds, seven values: drift and regret lie within one standard error of
    the truth two times out of three or more, within two of them nearly always."""
    state = random.Random(7)
    steps = range(-3, 4)

    def curve(place: float) -> list[ValuePoint]:
        shifts = [state.gauss(0, 0.003) for _ in range(2)]
        points = []
        for k in steps:
            true = 2 + 0.03 * (k - place) ** 2 + cubic * (k - place) ** 3
            runs = tuple((seed, true + shift + state.gauss(0, noise)) for seed, shift in enumerate(shifts))
            found = [loss for _, loss in runs]
            points.append(ValuePoint(2.0**k, statistics.fmean(found), statistics.stdev(found), 2, False, 0, runs))
        return points

    true_losses = [0.03 * (k - at) ** 2 + cubic * (k - at) ** 3 for k in steps]
    true_regret = true_losses[3] - min(true_losses)
    drifts, regrets = [], []
    for number in range(40):
        scan = {"dense": curve(0.0), f"a{number}": curve(at), f"b{number}": curve(at)}
        shared = statistics.median(noise for points in scan.values() if (noise := curve_noise(points)) is not None)
        dense, *others = (fit_curve("lr", "complete_mue", name, 1.0, points, shared) for name, points in scan.items())
        for found in others:
            assert dense.optimum is not None
            assert found.optimum is not None
            error = math.hypot(found.optimum_error or 0, dense.optimum_error or 0)
            drifts.append(abs(found.optimum.log2 - dense.optimum.log2 - at) / error)
            regrets.append(abs((found.regret or 0.0) - true_regret) / (found.regret_error or math.inf))
    for misses in (drifts, regrets):
        within = [sum(miss <= errors for miss in misses) / len(misses) for errors in (1, 2)]
        assert within[0] >= 0.6
        assert within[1] >= 0.9
    assert sum(miss <= 0.1 for miss in drifts) / len(drifts) < 0.35  # and the bars are not wide for the sake of it


def test_what_a_seed_adds_everywhere_is_no_noise() -> None:
    def points(shift: float) -> list[ValuePoint]:
        state = random.Random(0)
        rows = [tuple((s, 2 + shift * s + state.gauss(0, 0.001)) for s in range(3)) for _ in range(5)]
        return [
            ValuePoint(
                2.0**i, statistics.fmean(y for _, y in row), statistics.stdev(y for _, y in row), 3, False, 0, row
            )
            for i, row in enumerate(rows)
        ]

    assert seed_noise(points(0.0)) == pytest.approx(seed_noise(points(0.5)) or 0, rel=1e-6)
    assert seed_noise(points(0.0)) == pytest.approx(0.001, rel=0.5)


def test_open_edges_are_said(sweep_folder: Write) -> None:
    summary = summarize(
        sweep_folder(drifts={"8e2a": 0.1, "64e16a": 2.9}, curvature=0.0001, run_noise=1e-6, seed_noise=0)
    )
    assert curve_of(summary, "64e16a").status == "open"
    assert "64e16a: optimum at the high edge of the grid: scan wider." in words(summary)
    assert "served 1 of 2 layouts" in summary.verdict[0].text


def test_an_open_edge_that_already_costs_too_much_is_a_miss(sweep_folder: Write) -> None:
    curve = curve_of(summarize(sweep_folder(drifts={"64e16a": 5.0})), "64e16a")
    assert curve.status == "missed"
    assert "regret at least" in curve.says


def test_divergence_above_is_no_open_edge(sweep_folder: Write) -> None:
    folder = sweep_folder(drifts={"8e2a": 1.2}, diverged=lambda target, rules, value: target == "8e2a" and value > 0.02)
    curve = curve_of(summarize(folder), "8e2a")
    assert curve.optimum is not None
    assert (curve.optimum.open, curve.optimum.diverges) == (None, "above")
    assert curve.drift_error is not None
    assert curve.drift_error >= 0.5  # half a grid step: no parabola could be put through
    assert all(point.diverged for point in curve.points if point.value > 0.02)


def test_one_diverged_seed_takes_the_value_out(sweep_folder: Write) -> None:
    folder = sweep_folder()
    path = folder / "ledger" / "8e2a-complete_mue-lr-0.016-1.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "status": "diverged", "loss": None, "diverged": 200}))
    curve = curve_of(summarize(folder), "8e2a")
    point = next(point for point in curve.points if point.value == 0.016)
    assert point.diverged
    assert point.seeds == 2
    assert curve.optimum is not None
    assert curve.optimum.diverges == "above"


def test_divergence_at_the_transferred_value_is_a_miss(sweep_folder: Write) -> None:
    summary = summarize(sweep_folder(diverged=lambda target, rules, value: target == "16e4a" and value >= 0.008))
    curve = curve_of(summary, "16e4a")
    assert (curve.status, curve.regret) == ("missed", None)
    assert "16e4a: diverges at the transferred value." in words(summary)
    everywhere = summarize(sweep_folder("b", diverged=lambda target, rules, value: target == "16e4a"))
    assert curve_of(everywhere, "16e4a").says == "diverges at every value"


def test_noise_larger_than_the_goal_cannot_tell(sweep_folder: Write) -> None:
    summary = summarize(sweep_folder(drifts={"8e2a": 0.1}, run_noise=0.05, curvature=0.01))
    curve = curve_of(summary, "8e2a")
    assert curve.status in ("unclear", "open")
    assert "too small a budget to tell" in words(summary) or "scan wider" in words(summary)
    assert not any(line.kind == "good" for line in summary.verdict)


def test_another_rule_set_that_does_as_well_is_said(sweep_folder: Write) -> None:
    drifts = {"8e2a": 0.1, "16e4a": -0.2}
    summary = summarize(sweep_folder(drifts=drifts, other_drifts={"mup_moe": drifts}))
    assert "mup_moe served all 2 layouts: it does as well as complete_mue here" in words(summary)
    better = summarize(sweep_folder("b", drifts={"8e2a": 1.5}, other_drifts={"sp": {"8e2a": 0.0}}))
    assert "it does better here" in words(better)


def test_one_seed_has_no_error_bars(sweep_folder: Write) -> None:
    summary = summarize(sweep_folder(seeds=1))
    curve = curve_of(summary, "8e2a")
    assert (curve.drift_error, curve.regret_error, curve.spread) == (None, None, None)
    assert curve.status == "held"
    assert "One seed per value" in words(summary)


def test_an_unfinished_sweep_says_what_is_missing(sweep_folder: Write) -> None:
    summary = summarize(sweep_folder(missing=lambda target, rules, value: target == "64e16a" and value > 0.01))
    assert summary.progress.missing == 9
    assert "9 of 84 runs are missing" in words(summary)
    assert curve_of(summary, "64e16a").status == "unfinished"
    empty = summarize(sweep_folder("b", missing=lambda *_: True))
    assert empty.progress.missing == empty.progress.runs == 84
    assert curve_of(empty, "8e2a").says == "no result yet"
    assert not any(line.kind == "good" for line in empty.verdict)


def test_a_failed_run_counts_as_missing_and_is_said(sweep_folder: Write) -> None:
    folder = sweep_folder(seeds=2)
    path = folder / "ledger" / "8e2a-complete_mue-lr-0.016-1.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "status": "failed", "loss": None, "error": "out of\nmemory"}))
    summary = summarize(folder)
    assert summary.progress.failed == 1
    assert "1 of 56 runs failed" in words(summary)
    assert curve_of(summary, "8e2a").status == "held"


def test_a_mistuned_reference_is_said(sweep_folder: Write) -> None:
    summary = summarize(_mistuned(sweep_folder))
    assert "dense: its own optimum here is" in words(summary)
    assert "tune the reference again" in words(summary)
    assert curve_of(summary, "8e2a").drift == pytest.approx(-1.4, abs=0.05)


def _mistuned(sweep_folder: Write) -> Path:
    folder = sweep_folder(drifts={"8e2a": 0.1})
    for path in (folder / "ledger").glob("dense-*.json"):
        record = json.loads(path.read_text())
        value = 0.008 if "tuned" in path.name else float(path.name.split("-")[3])
        path.write_text(json.dumps({**record, "loss": 1.9 + 0.03 * (math.log2(value / 0.008) - 1.5) ** 2}))
    return folder


def test_scaling_has_no_optimum(sweep_folder: Write) -> None:
    summary = summarize(
        sweep_folder(grid=(0.008,), drifts={"8e2a": 0.0, "16e4a": 0.0}, other_drifts={"sp": {"16e4a": 3.0}})
    )
    assert summary.scaling
    assert summary.scans == ()
    good, bad = (
        next(line for line in summary.verdict if line.text.startswith(rules)) for rules in ("complete_mue", "sp")
    )
    assert good.kind == "good"
    assert "falls from 1.899 to 1.799 nats between 12.3k and 49.4k active parameters" in good.text
    assert bad.kind != "good"


def test_an_off_grid_transferred_value_is_interpolated(sweep_folder: Write) -> None:
    folder = sweep_folder(drifts={"8e2a": 0.0}, run_noise=1e-6)
    sweep = json.loads((folder / "sweep.json").read_text())
    sweep["reference"]["hyper"]["lr"] = 0.008 * 2**0.5
    (folder / "sweep.json").write_text(json.dumps(sweep))
    curve = curve_of(summarize(folder), "8e2a")
    assert curve.transferred_loss == pytest.approx(1.85 + 0.03 * 0.25, abs=0.002)
    assert curve.regret == pytest.approx(0.03 * 0.25, abs=1e-4)
    summary = summarize(folder)
    assert summary.runs == ()
    assert "No run was planned at the transferred value (learning rate 0.0113)" in words(summary)
    assert [table.title for table in tables(summary)] == ["Learning rate: transferred value 0.0113"]


def test_the_main_rule_set_is_that_of_the_reference(sweep_folder: Write) -> None:
    folder = sweep_folder(drifts={"8e2a": 0.1}, other_drifts={"sp": {"8e2a": 1.5}})
    sweep = json.loads((folder / "sweep.json").read_text())
    before = summarize(folder).to_dict()
    sweep["points"].sort(key=lambda point: point["rules"] != "sp")  # as if sp had been run first
    (folder / "sweep.json").write_text(json.dumps(sweep))
    assert summarize(folder).to_dict() == before


def test_the_summary_is_json_without_nan(sweep_folder: Write) -> None:
    folder = sweep_folder(diverged=lambda target, rules, value: target == "8e2a", task="dit")
    data = summarize(folder).to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["unit"] == "in loss"
    assert data == summarize(folder).to_dict()


def test_a_scan_of_the_reference_alone_gives_its_optimum(sweep_folder: Write) -> None:
    summary = summarize(sweep_folder(drifts={}))
    first = summary.verdict[0]
    assert first.kind == "good"
    assert first.text.startswith("Learning rate: dense has its optimum at 0.008")
    assert "the loss is within 0.01 nats of the best" in first.text
