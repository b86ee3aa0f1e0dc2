"""The quickstart: what it calls held and missed, and the command itself in small."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")


from complete_mue.lab.records import Place
from complete_mue.lab.report.curves import Curve, ValuePoint
from complete_mue.lab.sweep.quickstart import COST_LIMIT, OURS, RIVAL, found_by, sweep_of, worst_along
from complete_mue.lab.sweep.quickstart_parts import RECORDS, recorded, spark
from in_process import mue

VALUES = (0.0025, 0.005, 0.01, 0.02)


def curve(target: str, rules: str, octaves: float, *, steep: float = 0.1, bad_seed: float = 0.0) -> Curve:
    """A parabola around 2^octaves of the transferred value, for three seeds of different levels."""
    points = []
    for value in VALUES:
        height = steep * (math.log2(value / 0.01) - octaves) ** 2
        losses = [(seed, 2.0 + seed + height) for seed in range(3)]
        if value == 0.01:
            losses[2] = (2, losses[2][1] + bad_seed)
        mean = sum(loss for _, loss in losses) / 3
        points.append(ValuePoint(value, mean, 0.0, 3, False, 0, tuple(losses)))
    return Curve("lr", rules, target, 0.01, tuple(points))


def summary(*curves: Curve) -> Any:
    targets = [SimpleNamespace(name="dense", places=())]
    targets += [
        SimpleNamespace(name=name, places=(Place("width", "width", 1.0),))
        for name in dict.fromkeys(curve.target for curve in curves)
    ]
    dense = curve("dense", "complete_mue", 0.0)
    return SimpleNamespace(reference="dense", targets=targets, scans=[SimpleNamespace(curves=[dense, *curves])])


def test_an_optimum_far_off_is_a_miss_where_it_costs() -> None:
    _, near, far, flat = found_by(
        summary(curve("near", OURS, -0.5), curve("far", OURS, -1.6), curve("flat", OURS, -1.6, steep=0.001))
    )
    assert (near.held, far.held, flat.held) == (True, False, True)
    assert near.drift == pytest.approx(-0.5, abs=0.05)
    assert far.cost > COST_LIMIT > flat.cost


def test_one_outlier_decides_nothing() -> None:
    _, calm, wild = found_by(summary(curve("calm", OURS, 0.0), curve("wild", OURS, 0.0, bad_seed=3.0)))
    assert (wild.drift, wild.cost) == pytest.approx((calm.drift, calm.cost), abs=1e-9)


def test_diverging_at_the_transferred_value_is_a_miss() -> None:
    whole = curve("blown", OURS, -0.6)
    points = tuple(dataclasses.replace(p, diverged=True, losses=()) if p.value >= 0.01 else p for p in whole.points)
    _, blown = found_by(summary(dataclasses.replace(whole, points=points)))
    assert not blown.held
    lost = tuple(dataclasses.replace(p, diverged=True, losses=()) for p in whole.points)
    assert not found_by(summary(dataclasses.replace(whole, points=lost)))[1].held


def test_an_axis_is_judged_by_the_model_that_missed() -> None:
    worst = worst_along(
        summary(
            curve("x1", OURS, 0.1), curve("x4", OURS, 0.2), curve("x1", RIVAL, 0.9, steep=1.0), curve("x4", RIVAL, -1.5)
        )
    )  # fmt: skip
    assert worst["width"][OURS].held
    assert (worst["width"][RIVAL].target, worst["width"][RIVAL].held) == ("x4", False)


def test_seeds_share_no_run() -> None:
    first, second = (sweep_of(seed) for seed in (0, 1))
    assert not {point.id for point in first.points} & {point.id for point in second.points}
    assert [target.config.shape.width for target in first.targets] == [32, 32, 32, 32, 64, 128]


def test_sparks() -> None:
    assert spark([1.0, 1.0]) == spark([1.0]) * 2
    assert spark([1.0, 4.0, 0.25])[1:] == "█▁"


def test_the_records_speak_where_they_are(tmp_path: Path) -> None:
    assert recorded(tmp_path).picture is None
    part = recorded(RECORDS)
    assert len(part.lines) == 3
    assert part.picture is not None
    assert [panel.title for panel in part.picture.panels] == ["complete_mue", "sp"]


@pytest.mark.slow
def test_quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("complete_mue.lab.sweep.quickstart.SEEDS", 1)
    monkeypatch.setattr("complete_mue.lab.sweep.quickstart_parts._DRAWS", 1)
    done = mue("quickstart", "--out", "quick", "--steps", 4, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "quick" / "quickstart.json").read_text())
    verdict = {tuple(key.split(", ")): word for key, word in found["verdict"].items()}
    sizes = {key: word for key, word in verdict.items() if key[0] == "sizes"}
    assert len(sizes) == 6
    assert all(word == ("missed" if key[2] == "sp" else "held") for key, word in sizes.items())
    assert {key[1:] for key in verdict if key[0] == "trained"} == {
        (axis, rules) for axis in ("activated experts", "width") for rules in (OURS, RIVAL)
    }
    page = (tmp_path / "quick" / "quickstart.html").read_text(encoding="utf-8")
    assert page.count('<svg class="chart"') == 6 + 2 + 2
    assert len(list((tmp_path / "quick" / "runs" / "ledger").glob("[!.]*.json"))) == 44
