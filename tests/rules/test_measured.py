"""Every range that a plan is trusted in has runs behind it."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path

import pytest

from complete_mue.lab.report import summarize
from complete_mue.layout import FeedForward
from complete_mue.rules import CATALOG
from complete_mue.rules.measured import (
    DRIFT,
    EXPERT_SIGMA0,
    FIXED_DRIFT_FEWER,
    FIXED_DRIFT_MORE,
    FIXED_HORIZON,
    FIXED_LAMBDA,
    FIXED_STEPS,
    MEASURED,
    SIGMA0,
)

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def swept(rules: str) -> list[dict[str, float]]:
    """What was swept over the learning rate by a rule set, as ratios to the dense model of its sweep. A dense target
    is planned alike by both of our sets; by the sparse one the transferred value alone counts too."""
    sparse = rules == "complete_mue_sparse"
    found = []
    for path in sorted(RESULTS.rglob("lm-*.jsonl")):
        with path.open(encoding="utf-8") as file:
            sweep = json.loads(file.readline())
        targets = {target["name"]: target for target in sweep["targets"]}
        routed = {name for name in targets if name[0].isdigit()}
        points = [
            point
            for point in sweep["points"]
            if point["hyper"] == "lr"
            and (
                point["rules"] == rules
                or (sparse and point["rules"] == "complete_mue" and point["target"] not in routed)
            )
        ]
        values = {(point["target"], point["value"]) for point in points}
        number = Counter(target for target, _ in values)
        scanned = {target for target in number if number[target] >= (1 if sparse else 3)}  # enough to see an optimum
        for name in scanned & targets.keys() if "dense" in targets else ():
            target, dense = targets[name], targets["dense"]
            layout = re.split("[, @]", name)[0]
            block = FeedForward.parse(layout, 8) if "e" in layout and layout[0].isdigit() else None
            ratios = {key: target[key] / dense[key] for key in ("width", "depth", "batch_tokens", "steps")}
            experts = block.experts if block else 0
            found.append({**ratios, "experts": experts, "sparsity": experts / block.active if block else 1})
    return found


@pytest.mark.parametrize("rules", MEASURED)
def test_ranges_have_runs_at_their_ends(rules: str) -> None:
    assert rules in CATALOG
    assert (RESULTS.parents[1] / MEASURED[rules].source).exists()
    runs = swept(rules)
    for name in ("width", "depth", "batch", "steps", "experts", "sparsity"):
        reach = getattr(MEASURED[rules], name)
        values = [run["batch_tokens" if name == "batch" else name] for run in runs]
        assert any(value == pytest.approx(reach.low) for value in values) or name == "experts", name
        assert any(value == pytest.approx(reach.high) for value in values), name


def test_optima_moved_as_far_as_the_verdict_says() -> None:
    """The largest drift that was located: an optimum at the edge of its grid was not."""
    drifts = []
    for path in RESULTS.glob("transfer/lm-*.jsonl"):
        summary = summarize(path)
        for curve in (curve for scan in summary.scans if scan.hyper == "lr" for curve in scan.curves):
            located = curve.drift is not None and curve.optimum is not None and curve.optimum.open is None
            fewer = summary.target(curve.target).steps < summary.target("dense").steps
            if curve.rules == "complete_mue" and located and not fewer:
                drifts.append(abs(curve.drift or 0))
    assert round(max(drifts), 1) == DRIFT


def test_noise_moved_as_far_as_the_verdict_says() -> None:
    runs = swept("complete_mue")
    sigma0 = [(run["batch_tokens"] * run["steps"]) ** -0.5 for run in runs]
    assert all(any(noise == pytest.approx(end) for noise in sigma0) for end in SIGMA0)
    expert = [noise * math.sqrt(run["sparsity"]) for noise, run in zip(sigma0, runs, strict=True)]
    assert all(any(noise == pytest.approx(end) for noise in expert) for end in EXPERT_SIGMA0)


def test_a_fixed_duration_was_scanned_as_far_as_the_verdict_says() -> None:
    """At other steps than the reference's, an lr by the batch alone lay within the values; optima count from it."""
    fewer, more, changes = [0.0], [0.0], set()
    for path in RESULTS.glob("transfer/lm-*.jsonl"):
        summary = summarize(path)
        for curve in (curve for scan in summary.scans if scan.hyper == "lr" for curve in scan.curves):
            target, dense = summary.target(curve.target), summary.target(summary.reference)
            steps, lr = target.steps / dense.steps, (target.batch_tokens / dense.batch_tokens) ** 0.25
            planned = steps**0.5 * lr  # in units of the grid
            values = [point.value / curve.transferred for point in curve.points]
            if curve.rules != "complete_mue" or steps == 1 or not values[0] <= planned <= values[-1]:
                continue
            located = curve.drift is not None and curve.optimum is not None and curve.optimum.open is None
            changes.add((steps, steps**-0.5 / lr, steps * lr**2))
            if located:
                (fewer if steps < 1 else more).append(abs((curve.drift or 0) - math.log2(planned)))
    reached = [(min(ratios), max(ratios)) for ratios in zip(*changes, strict=True)]
    assert reached == [pytest.approx(reach) for reach in (FIXED_STEPS, FIXED_LAMBDA, FIXED_HORIZON)]
    assert (round(max(fewer), 1), round(max(more), 1)) == (FIXED_DRIFT_FEWER, FIXED_DRIFT_MORE)
