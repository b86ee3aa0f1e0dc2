"""From a folder with a known loss surface to drift, regret, errors and words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from complete_mue.errors import FileError
from complete_mue.lab.report.across_sweeps import overview_lines, overview_table, tallies
from complete_mue.lab.report.curves import Curve
from complete_mue.lab.report.pictures import pictures
from complete_mue.lab.report.summary import Summary, summarize
from complete_mue.lab.report.tables import tables

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
            assert curve.regret == pytest.approx(0.03 * drift**2, abs=0.003)
    first = summary.verdict[0]
    assert first.kind == "good"
    assert re.search(r"^Learning rate.*0\.008.*all 3 layouts.* 0\.30 octaves", first.text)
    assert "none of 3 layouts" in words(summary)
    assert "higher than" in words(summary)


def test_the_transferred_value_is_called_by_its_name(sweep_folder: Write) -> None:
    summary = summarize(sweep_folder(drifts={"8e2a": 0.1}))
    assert "the value transferred from dense (0.008) held on its one layout" in words(summary)
    assert "the value transferred from dense held on its one layout" in overview_lines(tallies([summary]))[0].text
    missing = summarize(
        sweep_folder("other", drifts={"8e2a": 0.1}, missing=lambda target, rules, value: target == "dense")
    )
    assert "the value transferred from dense held on none of 1 layout" in words(missing)


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


def test_open_edges_are_said(sweep_folder: Write) -> None:
    summary = summarize(
        sweep_folder(drifts={"8e2a": 0.1, "64e16a": 2.9}, curvature=0.0001, run_noise=1e-6, seed_noise=0)
    )
    assert curve_of(summary, "64e16a").status == "open"
    assert "high edge" in words(summary)
    assert "1 of 2 layouts" in summary.verdict[0].text


def test_an_open_edge_that_already_costs_too_much_is_a_miss(sweep_folder: Write) -> None:
    curve = curve_of(summarize(sweep_folder(drifts={"64e16a": 5.0})), "64e16a")
    assert curve.status == "missed"
    assert "regret at least" in curve.says


def test_an_open_edge_that_the_reference_shares_is_no_miss(sweep_folder: Write) -> None:
    """Where the reference itself was not tuned, what a layout pays for its value says nothing of the transfer."""
    grid = {"other_drifts": {"complete_mue": {"dense": 5.0, "64e16a": 5.0, "8e2a": -5.0}}}
    summary = summarize(sweep_folder(**grid))
    assert curve_of(summary, "64e16a").says == "optimum at the high edge of the grid, as that of dense: scan wider"
    assert curve_of(summary, "8e2a").status == "missed"


@pytest.mark.parametrize(("drift", "says"), [(0.0, ": it does as well as"), (1.0, "nats higher than by")])
def test_a_rule_set_at_the_transferred_value_alone_is_compared_by_its_loss(
    sweep_folder: Write, drift: float, says: str
) -> None:
    folder = sweep_folder(drifts={"8e2a": 0.0, "16e4a": 0.0}, other_drifts={"sp": {"8e2a": drift, "16e4a": drift}})
    plan = json.loads((folder / "sweep.json").read_text())
    plan["points"] = [p for p in plan["points"] if p["rules"] != "sp" or math.isclose(p["value"], 0.008)]
    (folder / "sweep.json").write_text(json.dumps(plan))
    summary = summarize(folder)
    curve = curve_of(summary, "8e2a", "sp")
    assert (curve.status, curve.regret, curve.drift) == ("open", None, None)
    assert re.search(rf"sp, not scanned.*{says} complete_mue", words(summary))
    assert "sp held" not in words(summary)
    assert "sp" not in [row.cells[2] for row in overview_table(tallies([summary])).rows]


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
    assert "16e4a, missed: diverges" in words(summary)
    everywhere = summarize(sweep_folder("b", diverged=lambda target, rules, value: target == "16e4a"))
    assert curve_of(everywhere, "16e4a").says == "diverges at every value"
    reference = summarize(sweep_folder("c", diverged=lambda target, rules, value: target == "dense"))
    assert "dense: the reference diverges at every value" in words(reference)
    above = summarize(sweep_folder("d", diverged=lambda target, rules, value: target == "dense" and value >= 0.008))
    assert "dense: the reference diverges at its tuned learning rate 0.008" in words(above)


def test_what_diverged_first_is_no_verdict_on_values_that_have_not_run(sweep_folder: Write) -> None:
    first = {"diverged": lambda target, rules, value: True, "missing": lambda target, rules, value: value < 0.05}
    summary = summarize(sweep_folder(**first))
    assert (curve_of(summary, "8e2a").status, curve_of(summary, "8e2a").says) == ("unfinished", "no result yet")
    assert not any(line.kind == "bad" for line in summary.verdict)


def test_the_edge_of_what_has_run_is_not_the_edge_of_the_grid(sweep_folder: Write) -> None:
    summary = summarize(sweep_folder(missing=lambda target, rules, value: value > 0.01))
    assert "the reference's runs are missing at 0.016" in words(summary)
    assert "scan wider" not in words(summary)


def test_noise_larger_than_the_goal_cannot_tell(sweep_folder: Write) -> None:
    summary = summarize(sweep_folder(drifts={"8e2a": 0.1}, run_noise=0.05, curvature=0.01))
    curve = curve_of(summary, "8e2a")
    assert curve.status in ("unclear", "open")
    assert "budget" in words(summary) or "wider" in words(summary)
    assert not any(line.kind == "good" for line in summary.verdict)


def test_another_rule_set_that_does_as_well_is_said(sweep_folder: Write) -> None:
    drifts = {"8e2a": 0.1, "16e4a": -0.2}
    summary = summarize(sweep_folder(drifts=drifts, other_drifts={"mup_moe": drifts}))
    assert "as well as complete_mue" in words(summary)
    better = summarize(sweep_folder("b", drifts={"8e2a": 1.5}, other_drifts={"sp": {"8e2a": 0.0}}))
    assert "it does better here" in words(better)


def test_rule_sets_are_compared_seed_by_seed(sweep_folder: Write) -> None:
    """What a seed adds to both is none: 0.03 * 0.4^2 = 0.0048 shows through seeds that differ by ten times that."""
    other = dict.fromkeys(("8e2a", "16e4a", "64e16a"), -0.4)
    noise = {"seed_noise": 0.05, "run_noise": 0.0002, "seeds": 2}
    summary = summarize(sweep_folder(drifts=dict.fromkeys(other, 0.0), other_drifts={"sp": other}, **noise))
    assert "0.005 ± 0.000 nats higher" in words(summary)
    spread = curve_of(summary, "8e2a").spread
    assert spread is not None
    assert spread > 0.02


def test_what_blew_up_is_not_better(sweep_folder: Write) -> None:
    def blown(target: str, rules: str, value: float) -> bool:
        return rules == "mup" and target != "64e16a" and value >= 0.008

    drifts = {"8e2a": 0.1, "16e4a": 0.1, "64e16a": 0.6}
    folder = sweep_folder(drifts=drifts, other_drifts={"mup": dict.fromkeys(drifts, 0.0)}, diverged=blown)
    line = next(line for line in summarize(folder).verdict if line.text.startswith("mup held"))
    assert "diverged" in line.text
    assert "for 8e2a, 16e4a" in line.text
    assert "lower than" in line.text
    assert "1 layout where both finished" in line.text
    assert line.kind == "note"
    assert "better" not in line.text


def test_a_flat_basin_holds_and_says_so(sweep_folder: Write) -> None:
    """Between two walls the loss is level: its optimum cannot be told, and need not be."""
    folder = sweep_folder(drifts={"8e2a": 0.0, "16e4a": 0.0}, seeds=2, seed_noise=0.001)
    for path in (folder / "ledger").glob("8e2a-*.json"):
        record = json.loads(path.read_text())
        value = 0.008 if "tuned" in path.name else float(path.name.split("-")[3])
        wall = 0.02 * max(0.0, abs(math.log2(value / 0.008)) - 1.5) ** 2
        loss = record["loss"] - 0.03 * math.log2(value / 0.008) ** 2 + wall
        path.write_text(json.dumps({**record, "loss": loss}))
    summary = summarize(folder)
    curve = curve_of(summary, "8e2a")
    assert curve.status == "flat"
    assert curve.held
    assert curve.regret is not None
    assert curve.regret_error is not None
    assert curve.drift_error is not None
    assert curve.drift_error > 0.5
    assert curve.regret + 2 * curve.regret_error <= 0.01
    assert summary.verdict[0].kind == "good"
    assert "1 of them flat" in summary.verdict[0].text
    assert re.search(r"8e2a, held, flat: .*0\.00\d nats", words(summary))
    row = next(row for row in tables(summary)[0].rows if row.cells[1] == "8e2a")
    assert re.match(r"held, flat: .*0\.00", row.cells[-1])


def test_a_sweep_without_our_rules_names_its_own(sweep_folder: Write) -> None:
    folder = sweep_folder(drifts={"8e2a": 0.1}, other_drifts={"sp": {"8e2a": 1.5}})
    sweep = json.loads((folder / "sweep.json").read_text())
    sweep["points"] = [p for p in sweep["points"] if p["rules"] == "sp" or p["target"] == "dense"]
    (folder / "sweep.json").write_text(json.dumps(sweep))
    summary = summarize(folder)
    assert re.search(r"^Learning rate by sp.*0\.008.*none of 1 layout", summary.verdict[0].text)
    found = tallies([summary])
    assert [tally.main for tally in found] == [False]
    assert re.search("by sp.*none of 1 layout", overview_lines(found)[0].text)


def test_one_seed_has_no_error_bars(sweep_folder: Write) -> None:
    summary = summarize(sweep_folder(seeds=1))
    curve = curve_of(summary, "8e2a")
    assert (curve.drift_error, curve.regret_error, curve.spread) == (None, None, None)
    assert curve.status == "held"
    assert "One seed per value" in words(summary)


def test_an_unfinished_sweep_says_what_is_missing(sweep_folder: Write) -> None:
    summary = summarize(sweep_folder(missing=lambda target, rules, value: target == "64e16a" and value > 0.01))
    assert summary.progress.missing == 9
    assert "9 of 84 runs" in words(summary)
    assert curve_of(summary, "64e16a").status == "unfinished"
    assert "layouts, 1 unfinished" in words(summary)
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
    curve = curve_of(summary, "8e2a")
    assert (curve.status, curve.gaps) == ("unfinished", (0.016,))  # beside the best: its mean is over other seeds
    assert re.search(r"8e2a, unfinished: .*missing at 0\.016", words(summary))
    path.write_text(json.dumps(record))
    far = folder / "ledger" / "8e2a-complete_mue-lr-0.064-1.json"
    far.unlink()
    assert curve_of(summarize(folder), "8e2a").status == "held"


def test_a_reference_that_lacks_a_seed_leaves_the_drift_unknown(sweep_folder: Write) -> None:
    folder = sweep_folder(drifts={"8e2a": 0.1}, seeds=2)
    (folder / "ledger" / "dense-complete_mue-lr-0.004-0.json").unlink()
    summary = summarize(folder)
    curve = curve_of(summary, "8e2a")
    assert curve.status == "unfinished"
    assert "dense" in curve.says
    assert "missing at 0.004" in words(summary)


def test_a_mistuned_reference_is_said(sweep_folder: Write) -> None:
    summary = summarize(_mistuned(sweep_folder))
    assert "tune the reference" in words(summary)
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
    assert re.search(r"1\.899 .*1\.799 nats .*12\.3k .*49\.4k", good.text)
    assert bad.kind != "good"


def test_scaling_is_drawn_along_the_axes_that_its_targets_lie_on(sweep_folder: Write) -> None:
    folder = sweep_folder(grid=(0.008,), drifts={"8e2a": 0.0, "16e4a": 0.0}, other_drifts={"sp": {"16e4a": 3.0}})
    (picture,) = (p for p in pictures(summarize(folder)) if p.key == "scaling")
    assert [(panel.title, panel.x.label) for panel in picture.panels] == [("", "active parameters")]
    sweep = json.loads((folder / "sweep.json").read_text())
    sweep["targets"][1]["places"] = [{"title": "A", "label": "active", "x": 2}]
    sweep["targets"][2]["places"] = [
        {"title": "A", "label": "active", "x": 4},
        {"title": "B", "label": "experts", "x": 16},
    ]
    (folder / "sweep.json").write_text(json.dumps(sweep))
    (picture,) = (p for p in pictures(summarize(folder)) if p.key == "scaling")
    drawn = {panel.title: {line.name: [dot.x for dot in line.dots] for line in panel.lines} for panel in picture.panels}
    assert drawn == {"A": {"complete_mue": [2, 4], "sp": [2, 4]}, "B": {"complete_mue": [16], "sp": [16]}}
    assert picture.level == pytest.approx(1.9, abs=0.01)  # dense itself
    sweep["targets"][1]["places"] = [{"title": "A", "x": 2}]
    (folder / "sweep.json").write_text(json.dumps(sweep))
    with pytest.raises(FileError, match="label"):
        summarize(folder)


def test_only_a_rise_against_nothing_larger_counts(sweep_folder: Write) -> None:
    """More total at less active is another way to grow, not a step up."""

    def lines(**last: float) -> list[str]:
        folder = sweep_folder(f"s{len(list(tmp.iterdir()))}", grid=(0.008,), drifts={"8e2a": 0.0, "16e4a": 0.0})
        sweep = json.loads((folder / "sweep.json").read_text())
        sweep["targets"][2] |= last
        (folder / "sweep.json").write_text(json.dumps(sweep))
        for path in (folder / "ledger").glob("16e4a-*.json"):
            record = json.loads(path.read_text())
            path.write_text(json.dumps({**record, "loss": 1.87}))
        return [line.text for line in summarize(folder).verdict]

    tmp = sweep_folder("first").parent
    assert "but not at 16e4a" in lines()[0]  # larger in both, and worse than 8e2a
    assert "but not" not in lines(active=12_345)[0]  # fewer active parameters than 8e2a


def test_the_speedup_has_a_spread_and_needs_one_batch(sweep_folder: Write) -> None:
    folder = sweep_folder(drifts={"8e2a": 0.0, "16e4a": 0.0})
    sweep = json.loads((folder / "sweep.json").read_text())
    sweep["targets"][2]["batch_tokens"] *= 2
    (folder / "sweep.json").write_text(json.dumps(sweep))
    _, same, other = summarize(folder).runs
    assert same.speedup_spread is not None
    assert 0 < same.speedup_spread < 0.1
    assert same.speedup_median == pytest.approx(2.0, abs=3 * same.speedup_spread)
    assert (other.speedup, other.speedup_median, other.speedup_spread) == (None, None, None)


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
    assert "(learning rate 0.0113)" in words(summary)
    (table,) = tables(summary)
    assert re.match(r"Learning rate: .*0\.0113$", table.title)


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
    assert curve_of(summary, "dense").optimum.value == pytest.approx(0.008, rel=0.01)
    assert "within 0.01 nats" in first.text


@pytest.mark.parametrize(("curvature", "noise"), [(0.003, 0.02), (0.001, 0.0001)])
def test_an_optimum_that_is_not_known_well_is_not_green(sweep_folder: Write, curvature: float, noise: float) -> None:
    first = summarize(sweep_folder(drifts={}, seeds=2, curvature=curvature, run_noise=noise)).verdict[0]
    assert first.kind == "open"
    assert "more seeds" in first.text or "off the grid" in first.text
