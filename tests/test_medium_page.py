"""The page of the medium model says what its records say: tables of losses, and words that are differences of them."""

from __future__ import annotations

import json
import math
import re
import textwrap
from pathlib import Path

from complete_mue.lab.records import read_sweep
from complete_mue.lab.report import summarize
from complete_mue.lab.report.curves import Curve
from in_process import mue
from result_pages import ROOT, cells, paired, table

PAGE = ROOT / "docs/results/medium.md"
RECORDS = PAGE.with_suffix("")


def test_the_page_of_the_medium_model_quotes_its_records(tmp_path: Path) -> None:
    """Its tables are every run's loss; its words are differences of them."""
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    plain, normed = (
        [
            {round(point.value, 5): point.loss for point in curve.points if point.loss is not None}
            for curve in summarize(RECORDS / f"lm-{name}.jsonl").scans[0].curves
        ]
        for name in ("selected", "qk_norm")
    )
    for name, losses in (("medium", plain), ("norms", normed)):
        rows = [[f"{value:.5f}", *(f"{by_value[value]:.4f}" for by_value in losses)] for value in sorted(losses[0])]
        assert table("results/medium.md", name) == rows
    small = summarize(RECORDS / "lm-norms_warmup.jsonl").scans[0].curves
    rows = cells(small, "{:g}")
    assert table("results/medium.md", "small norms") == rows
    rises = [f"{float(row[column]) - float(rows[0][column]):.2f}" for row in rows[3:] for column in (2, 1, 4)]
    assert f"the loss is {rises[0]} nats higher, and {rises[1]} without." in page
    assert f"with both it is {rises[2]}." in page
    best, calm = ([min(by.values()) for by in losses] for losses in (plain, normed))

    def above(value: float, losses: list[dict[float, float]] = plain) -> list[float]:
        return [by[value] - min(by.values()) for by in losses]

    leads = [best[0] - best[2], best[0] - best[3], calm[0] - calm[2]]
    gains = [one - other for one, other in zip(best, calm, strict=False)]
    changed = [one[value] - two[value] for value in (0.00283, 0.004) for one, two in zip(plain, normed, strict=False)]
    at_best, at_half = above(0.00566), above(0.00283)
    assert at_best[0] == 0
    for words in (
        f"`64e8a` ends {leads[0]:.3f} nats below dense and `128e8a4g1s` {leads[1]:.3f}.",
        "`64e4a` pays {:.3f} nats, `64e8a` {:.3f}, `128e8a4g1s` {:.3f}, and `64e8a` at the double width {:.3f}".format(
            *at_best[1:]
        ),
        f"dense pays {at_half[0]:.3f} nats, and the MoEs at most {max(at_half[1:]):.3f}.",
        f"At 0.008 all end {min(above(0.008)):.2f} to {max(above(0.008)):.2f} nats above their best",
        f"It costs dense {above(0.002)[0]:.3f} nats.",
        f"no run ends more than {max(max(above(v, normed)) for v in normed[0] if v < 0.012):.3f} nats above the best",
        "gain {:.3f} nats for dense, {:.3f} for `64e4a` and {:.3f} for `64e8a`".format(*gains),
        f"grows from {leads[0]:.3f} to {leads[2]:.3f}.",
        f"they gain {min(changed):.3f} to {max(changed):.3f};",
        f"0.0057 is only {above(0.00566, normed)[0]:.3f} higher.",
        f"The lowest value for dense costs `64e4a` {above(0.00283, normed)[1]:.3f} nats",
    ):
        assert words in page
    assert min(above(0.01131)) > 1.1
    assert [min(by, key=lambda value: by[value]) for by in plain] == [0.00566, 0.004, 0.00283, 0.002, 0.004]
    assert [min(by, key=lambda value: by[value]) for by in normed] == [0.00283, 0.004, 0.00283]
    block = re.findall(r"(?:^    .*\n|^\n)+", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (toml,) = (textwrap.dedent(found) for found in block if "[shape]" in found)
    pair = " ".join((ROOT / "docs/results/pair.md").read_text(encoding="utf-8").split())
    for text, options, sentence, where in (
        (toml, (), "gives the layers {:.5f},", page),
        (toml, (), "gives the layers of this dense model {:.5f},", page),
        (toml.replace("900", "7676"), (), "a third of that value, {:.6f},", pair),
        (toml.replace("900", "7676"), ("--duration", "fixed"), "`--duration fixed` would give {:.5f}.", pair),
    ):
        (tmp_path / "medium.toml").write_text(text)
        given = (ROOT / "docs/results/pair/reference.toml", "medium.toml", *options, "--json")
        (lr,) = (
            row["lr"]
            for row in json.loads(mue("plan", *given, cwd=tmp_path).stdout)["rows"]
            if row["role"] == "dense_up"
        )
        assert sentence.format(lr) in where


def test_the_longer_warmup_of_the_medium_model_is_in_its_records() -> None:
    """Means over the seeds that there are; the words are differences of them."""
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    plain, normed, warm = (
        summarize(RECORDS / f"lm-{name}.jsonl").scans[0].curves for name in ("selected", "qk_norm", "norms_long_warmup")
    )
    assert table("results/medium.md", "norms and warmup") == cells(warm, "{:.5f}")
    assert sum(point.missing for curve in warm for point in curve.points) == 4

    def losses(curve: Curve) -> dict[float, float]:
        return {round(point.value, 5): point.loss for point in curve.points if point.loss is not None}

    def least(curve: Curve) -> float:
        return min(losses(curve).values())

    dense, few, eight = map(losses, warm)
    assert [min(by, key=lambda value: by[value]) for by in (dense, few, eight)] == [0.002, 0.00283, 0.002]
    gains = [least(one) - least(other) for one, other in zip(normed, warm, strict=True)]
    leads = [least(curves[0]) - least(curves[2]) for curves in (warm, normed, plain)]
    curves = []
    for name in ("qk_norm", "norms_long_warmup"):
        stored = read_sweep(RECORDS / f"lm-{name}.jsonl")
        (point,) = (p for p in stored.plan.points if (p.target, p.value, p.seed) == ("reference", 0.002828427, 0))
        curve = stored.outcomes[point.id].curve
        curves.append(dict(zip(curve.step, curve.loss, strict=True)))
    short, long = curves
    assert [step for step in range(9, 253, 9) if short[step] < long[step]] == list(range(9, 136, 9))
    for words in (
        f"costs `64e4a` {few[0.002] - least(warm[1]):.3f} nats.",
        "dense ends {:.3f} nats lower than with norms and 4 %, `64e4a` {:.3f} and `64e8a` {:.3f}".format(*gains),
        "now ends {:.3f} nats below dense. It was {:.3f} with norms, {:.3f} without.".format(*leads),
        f"by step 252 it is {short[252] - long[252]:.3f} behind.",
        f"dense jumps by {dense[0.00283] - dense[0.002]:.3f}",
    ):
        assert words in page
    whole = [least(one) - least(other) for one, other in zip(plain, warm, strict=False)]  # dense and the two MoEs
    said = f"all three models end {min(whole):.2f} to {max(whole):.2f} nats lower."
    assert said in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert max(abs(dense[value] - dense[0.00283]) for value in dense if value > 0.0028) < 0.04


def test_the_lengths_of_a_warmup_are_in_their_records() -> None:
    """Tables of means; gains are means over paired seeds, each warmup at its best learning rate."""
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    told: dict[int, list[str]] = {}
    for steps, best in ((300, 3), (900, 2)):
        curves = summarize(RECORDS / f"lm-warmup_{steps}.jsonl").scans[0].curves
        assert table("results/medium.md", f"warmup {steps}") == cells(curves, "{:.4f}")
        lowest = [min(curve.points, key=lambda point: point.loss or math.inf) for curve in curves]
        assert min(lowest, key=lambda point: point.loss or math.inf) is lowest[best]
        told[steps] = [f"{differ:.4f} ± {error:.4f}" for differ, error in (paired(p, lowest[best]) for p in lowest)]
        for curve, point in zip(curves, lowest, strict=True):
            told[steps].append(f"{(curve.points[-1].loss or 0) - (point.loss or 0):.3f}")
        told[steps].append(f"{curves[3].drift:.2f} ± {curves[3].drift_error:.2f}")
    short, long = told[300], told[900]
    for words in (
        f"ends {short[0]} nats below 4 % with 300 steps, and {long[0]} with 900.",
        f"of 900 steps 10 and 40 % end only {long[1]} and {long[3]} higher.",
        f"0.0226 costs {short[4]} nats with a warmup of 4 %, and {short[7]} with 40 %.",
        f"costs {min(long[4:8])} to {max(long[4:8])}, whatever the warmup.",
        f"by {short[8]} octaves with 300 steps",
        f"by {long[8]} with 900.",
    ):
        assert words in page
