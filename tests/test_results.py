"""The pages of results say what their records say: tables, pictures, and figures in words."""

from __future__ import annotations

import json
import math
import re
import runpy
import statistics
from pathlib import Path
from typing import Any

import pytest

from complete_mue.lab.evals.tasks import TASKS
from complete_mue.lab.report import find_sweeps, summarize
from complete_mue.lab.report.curves import Curve
from complete_mue.lab.report.markdown_page import article, chapters, generated, shown
from in_process import script
from result_pages import ROOT, paired, table


@pytest.mark.parametrize(
    ("folder", "table", "axis"),
    [
        ("moe", "capacity", "experts"),
        ("moe", "granularity", "active"),
        ("moe_layers", "layer_experts", "experts"),
        ("moe_layers", "layer_active", "active"),
        ("moe_width", "width, GPU", "expert_width"),
    ],
)
def test_kernel_tables_equal_the_records(folder: str, table: str, axis: str) -> None:
    records = json.loads((ROOT / f"docs/results/{folder}/moe.json").read_text(encoding="utf-8"))["rows"]
    rows = {(row["kernel"], row[axis]): row for row in records if row["figure"] == table.split(",")[0]}
    text = (ROOT / "docs/kernels.md").read_text(encoding="utf-8").split(f"<!-- table: {table} -->")[1]
    heading, _, *lines = [line for line in text.split("\n\n")[0].splitlines() if line.startswith("|")]
    points = [int(cell.split("=")[-1]) for cell in heading.strip("| ").split("|")[1:]]
    assert points == sorted({point for _, point in rows})
    for line in lines:
        kernel, *cells = [cell.strip() for cell in line.strip("| ").split("|")]
        for point, cell in zip(points, cells, strict=True):
            row = rows[kernel.removesuffix(", peak GiB"), point]
            dense = rows["dense, compiled", point]["ms"]
            if kernel.endswith("peak GiB"):
                assert cell == f"{row['peak_gib']:.1f}"
            elif kernel == "dense, compiled":
                assert cell == f"{row['ms']:.1f}"
            else:
                assert cell == f"{row['ms']:.1f} ({row['ms'] / dense:.2f})"


def test_the_readme_quotes_whole_layers_as_measured() -> None:
    rows = json.loads((ROOT / "docs/results/moe_layers/moe.json").read_text(encoding="utf-8"))["rows"]
    times = {(row["kernel"], row["experts"]): row["ms"] for row in rows if row["figure"] == "layer_experts"}
    ratios = [times[name, e] / times["dense, compiled", e] for name in ("triton", "sonic, tuned") for e in (32, 128)]
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("## Fast MoE layers")[1].split("##")[0]
    assert re.findall(r"[\d.]+(?=x)", text) == [f"{ratio:.2f}" for ratio in ratios]


def test_cpu_table_equals_the_records() -> None:
    records = json.loads((ROOT / "docs/results/moe_cpu/moe.json").read_text(encoding="utf-8"))["rows"]
    times = {(row["kernel"], row["expert_width"]): row["ms"] for row in records}
    text = (ROOT / "docs/kernels.md").read_text(encoding="utf-8").split("<!-- table: width -->")[1]
    line = [line for line in text.splitlines() if line.startswith("|")][2]
    ratios = [f"{times['reference', h] / times['grouped', h]:.1f}x" for h in (16, 32, 64, 128)]
    assert [cell.strip() for cell in line.strip("| ").split("|")] == ratios


def test_sweep_table_equals_the_records() -> None:
    rows = json.loads((ROOT / "docs/results/sweep/sweep.json").read_text(encoding="utf-8"))["rows"]
    found = {(r["layout"], "recorded" if r["recorded"] else "plain", r["replicas"]): r for r in rows}
    for layout, step, *cells, ratio in table("sweep.md", "sweep"):
        speeds = [found[layout, step, k]["tokens_per_second"] for k in (1, 9, 24, 66)]
        assert cells == [f"{speed / 1e6:.2f}" for speed in speeds]
        assert ratio == f"{speeds[-1] / speeds[0]:.1f}"


def test_train_table_equals_the_records() -> None:
    for name, steps, speed, mfu, memory in table("train.md", "train"):
        record = json.loads((ROOT / f"docs/results/train/{name}/train.json").read_text(encoding="utf-8"))
        (row,) = record["rows"]
        assert [steps, speed] == [str(record["steps"]), f"{row['tokens_per_second']:,.0f}"]
        assert [mfu, memory] == [f"{100 * row['mfu']:.1f} %", f"{row['reserved_gib']:.1f}"]


def test_pair_table_equals_the_records() -> None:
    def read(name: str) -> Any:
        path = ROOT / "docs/results/pair" / name
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    models = [f"{width}/{name}" for width in ("width-256", "width-512") for name in ("dense", "128e8a1s")]
    held = [read(f"{model}/held_out.json") for model in models]
    answers = [read(f"{model}/eval.json") for model in models]
    loss, bits, *scores, average = table("results/pair.md", "pair")
    assert loss[1:5] == [f"{record['loss']:.3f}" for record in held]
    assert bits[1:5] == [f"{record['bits_per_byte']:.3f}" for record in held]
    assert average[1:5] == [f"{100 * record['average']:.1f}" if record else "–" for record in answers]
    assert average[5] == f"{100 * answers[0]['average_chance']:.1f}"
    for (title, *given, chance), name in zip(scores, answers[0]["tasks"], strict=True):
        tasks = [record and record["tasks"][name] for record in answers]
        assert title == TASKS[name].title
        assert given == [f"{100 * t['score']:.1f} ± {100 * t['error']:.1f}" if t else "–" for t in tasks]
        assert chance == f"{100 * tasks[0]['chance']:.0f}"
    page = " ".join((ROOT / "docs/results/pair.md").read_text(encoding="utf-8").split())
    narrow, wide = held[0]["loss"] - held[1]["loss"], held[2]["loss"] - held[3]["loss"]
    assert f"ends {narrow:.3f} nats ahead** at width 256, and {wide:.3f} at width 512" in page
    for row in (256, 512):
        speedup = read(f"width-{row}/128e8a1s/speedup.json")
        assert re.search(rf"\| width {row}[^|]*\| {speedup['median']:.2f}x \| {speedup['final']:.2f}x \|", page)


@pytest.mark.parametrize("show", ["images", "sprites"])
def test_the_page_of_pictures_quotes_its_records(show: str) -> None:
    folder = ROOT / "docs/results/pictures"
    losses, speedup = (
        json.loads((folder / name).read_text(encoding="utf-8"))
        for name in ("pictures.json", f"{show}-64e8a/speedup.json")
    )
    dense, sparse = (losses[f"{show}-{name}"]["loss"] for name in ("dense", "64e8a"))
    page = " ".join((ROOT / "docs/results/pictures.md").read_text(encoding="utf-8").split())
    assert f"ends {100 * (1 - sparse / dense):.1f} % lower**, {sparse:.4f} against {dense:.4f}" in page
    assert f"needs {speedup['median']:.2f} times its steps" in page
    assert f"in the median, and {speedup['final']:.2f} times at the end of the stable phase" in page
    if show == "sprites":
        least, loss = min(zip(speedup["ratio"], speedup["loss"], strict=True))
        assert (
            f"takes {max(speedup['ratio']):.2f} times its steps. At a loss of {loss:.3f} it has none, {least:.2f}"
            in page
        )


def test_the_same_runs_differ_from_one_sweep_to_the_next_as_the_page_says() -> None:
    """With eight layers; both sweeps of depth are kept."""
    found = []
    for file in ("depth/lm-whole-octaves", "transfer/lm-depth"):
        curves = summarize(ROOT / f"docs/results/{file}.jsonl").scans[0].curves
        (curve,) = (curve for curve in curves if curve.target == "64e8a, 8 layers")
        found.append({(round(p.value, 6), seed): loss for p in curve.points for seed, loss in p.losses})
    before, after = found
    differ = max(abs(before[run] - after[run]) for run in before.keys() & after.keys())
    assert f"differ by up to {differ:.3f} nats" in (ROOT / TRANSFER).read_text(encoding="utf-8")


TRANSFER, ROLES = Path("docs/results/transfer.md"), Path("docs/results/roles.md")
SMALL_BATCH, LARGER_BATCH = Path("docs/results/small_batch.md"), Path("docs/results/larger_batch.md")
ROUTERS, MEDIUM = Path("docs/results/routers.md"), Path("docs/results/medium.md")
STEPS, STEPS_TABLES = (
    Path("docs/results/steps.md"),
    ("powers", "gains", "tested", "longer", "more", "betas", "plain", "plain_moe", "plain_dit"),
)
PAGES_OF_RESULTS = [TRANSFER, ROLES, SMALL_BATCH, LARGER_BATCH, ROUTERS, STEPS, MEDIUM]


def assert_same_page(got: str, want: str) -> None:
    """The same words; figures may differ by one in the last place, where a library's logarithm rounds otherwise."""
    figure = re.compile(r"(\d+(?:\.\d+)?)")
    ours, theirs = figure.split(got), figure.split(want)
    assert ours[::2] == theirs[::2]
    for one, other in zip(ours[1::2], theirs[1::2], strict=True):
        assert len(one.partition(".")[2]) == len(other.partition(".")[2]), (one, other)
        assert abs(float(one) - float(other)) <= ("." in one) * 1.01 * 10.0 ** -len(one.partition(".")[2]), (one, other)


@pytest.mark.parametrize("page", PAGES_OF_RESULTS)
def test_a_page_of_results_equals_its_records(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its generated part is what `mue report docs/results/NAME --page docs/results/NAME.md` writes."""
    monkeypatch.chdir(ROOT)
    found = find_sweeps(page.with_suffix(""))
    made = chapters([(summarize(path), path) for path in found])
    written = generated(page.read_text(encoding="utf-8"), page)
    assert written is not None
    assert_same_page(f"\n{article(made, page)}", written)
    files = [path for path in page.with_suffix("").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 20e6
    drawn = {f"{c.stem}-{picture.key}.svg" for c in made for picture in shown(c.summary)}
    assert {path.name for path in files} == drawn | {path.name for path in found}


FIGURE = re.compile(r"([-+]?\d+\.(\d+)) ± (\d+\.(\d+))")


def measured(*pages: Path) -> str:
    """The generated parts of some pages of results."""
    return "".join(generated((ROOT / page).read_text(encoding="utf-8"), page) or "" for page in pages)


def quotable(*pages: Path) -> str:
    """What words may quote: generated parts, and tables and words that tests hold against the records."""
    rows = (row for name in STEPS_TABLES for row in table("results/steps.md", name) if {TRANSFER, STEPS} & {*pages})
    words = (ROOT / MEDIUM).read_text(encoding="utf-8") if MEDIUM in pages else ""
    return measured(*pages) + "".join(f"{row}\n" for row in rows) + words


def assert_quoted(words: str, below: str, least: int) -> None:
    """Every ``figure ± error`` in some words is one of the generated part's: words do not outlive their records."""
    known = [(float(found[1]), float(found[3])) for found in FIGURE.finditer(below)]
    quoted = list(FIGURE.finditer(words))
    assert len(quoted) >= least
    for found in quoted:
        value, error = (float(found[1]), len(found[2])), (float(found[3]), len(found[4]))
        near = [
            k for k in known if all(abs(abs(k[i]) - abs(x)) <= 0.51 * 10**-d for i, (x, d) in enumerate((value, error)))
        ]
        near = [k for k in near if k[0] * value[0] >= 0 or not found[1].startswith(("-", "+"))]
        assert near, f"{found[0]} is none of the figures below it"


@pytest.mark.parametrize("page", [page for page in PAGES_OF_RESULTS if page != MEDIUM])  # its runs have one seed
def test_the_words_above_a_page_of_results_quote_its_figures(page: Path) -> None:
    """Its own, or those that it is compared with."""
    words = (ROOT / page).read_text(encoding="utf-8").partition(measured(page))[0]
    assert_quoted(words, quotable(page, *([TRANSFER] if page in (ROUTERS, STEPS) else [])), least=7)


def better(curve: Curve, value: float) -> str:
    """By how much a value ends lower than the transferred one: mean of paired seeds, and its standard error."""
    found = [point for point in curve.points if math.isclose(point.value, value, rel_tol=0.01)]
    if not found or curve.at_transferred is None:
        return "–"
    gain, error = paired(curve.at_transferred, found[0])
    return f"{gain:+.4f} ± {error:.4f}"


@pytest.mark.parametrize(
    ("name", "sweeps"),
    [
        ("plain", ("lm-duration", "lm-batch_steps", "lm-batch_tokens")),
        ("plain_moe", ("lm-duration_moe", "lm-batch_steps_moe", "lm-batch_tokens_moe")),
        ("plain_dit", ("dit-batch_steps", "dit-batch_tokens")),
    ],
)
def test_the_tables_of_plain_learning_rates_equal_the_records(name: str, sweeps: tuple[str, ...]) -> None:
    """Optima with the rules' factor for the number of steps put back, and what leaving it out gains."""
    found: dict[tuple[float, int], list[str]] = {}
    for sweep in sweeps:
        summary = summarize(ROOT / f"docs/results/transfer/{sweep}.jsonl")
        dense = summary.target("dense")
        for curve in summary.scans[0].curves:
            target = summary.target(curve.target)
            if curve.optimum is None or curve.regret is None or curve.optimum_error is None:
                continue
            if name == "plain_moe" and curve.target == "dense":
                continue
            factor = (dense.steps / target.steps) ** 0.5
            least, cost = f"{curve.optimum.value * factor:.5f}", f"{curve.regret:.4f}"
            cells = [least, f"{curve.optimum_error:.2f}", cost]
            cells = [f"at least {least}", "–", f"at least {cost}"] if curve.optimum.open else cells
            cells.append(better(curve, curve.transferred / factor) if factor != 1 else "–")
            found.setdefault((target.batch_tokens / dense.batch_tokens, target.steps), cells)
    want = [" ".join([f"x{batch:g}", f"{steps:,}", *cells]) for (batch, steps), cells in sorted(found.items())]
    assert_same_page("\n".join(map(" ".join, table("results/steps.md", name))), "\n".join(want))


def assert_table(page: str, name: str, rows: list[list[str]]) -> None:
    """The cells beside the first column."""
    found = [row[1:] for row in table(page, name)]
    assert_same_page("\n".join(" | ".join(row) for row in found), "\n".join(" | ".join(row) for row in rows))


def test_the_tables_of_batch_and_steps_are_what_the_script_computes() -> None:
    made = runpy.run_path(str(ROOT / "scripts/batch_or_steps.py"))
    page = " ".join((ROOT / STEPS).read_text(encoding="utf-8").split())
    found, root = [made["cases"](name) for name in made["SETTINGS"]], made["RULES"]["batch^(1/4)"]
    fits = [[f"{value:+.2f} ± {error:.2f}" for value, error in made["powers"](cases)] for cases in found]
    assert_table(
        "results/steps.md", "powers", [[str(len(cases)), *fit] for cases, fit in zip(found, fits, strict=True)]
    )
    lower = [made["gains"](cases, root) for cases in found]
    worst = [min(statistics.fmean(by_seed.values()) for _, by_seed in setting) for setting in lower]
    rows = [
        [*map(made["_shown"], made["by_steps"](setting)), f"{least:+.4f}"]
        for setting, least in zip(lower, worst, strict=True)
    ]
    assert_table("results/steps.md", "gains", rows)
    rows = [
        [
            f"x{case.batch:g}, x{case.steps:g}", *made["values"](made["tested"](name)[0], case),
            made["_shown"](made["mean"]([(case, by_seed)])),
        ]
        for name in made["TESTED"]
        for case, by_seed in made["gains"](made["tested"](name), root)
    ]  # fmt: skip
    assert_table("results/steps.md", "tested", rows)
    rows, missed = [], []
    for name in made["LONGER"]:
        reference, *_ = made["longer"](name)
        for case, by_seed in made["gains"](made["longer"](name), root):
            optimum, *planned = made["values"](reference, case)
            before, lower = made["foretold"](name, case), made["_shown"](made["mean"]([(case, by_seed)]))
            missed.append(abs(math.log2(float(optimum.split()[0]) / before)))
            rows.append([f"x{case.batch:g}, x{case.steps:g}", optimum, *planned, f"{before:.4f}", lower])
    assert_table("results/steps.md", "longer", rows)
    assert max(missed[:3]) < 0.1
    assert [sum(far < bound for far in missed) for bound in (0.2, 0.4)] == [5, 6]
    longer = [made["of_more_steps"](name) for name in made["LONGER"]]
    assert_table(
        "results/steps.md", "more", [[str(len(lower)), made["_shown"](made["mean"](lower))] for lower in longer]
    )
    ours, plain = made["against"]("batch^(1/4)"), made["against"]("unchanged")
    assert [f"{abs(octaves):.2f}" for octaves, _ in ours if abs(octaves) > 0.4] == ["0.41"]
    assert sum(abs(octaves) <= 0.4 for octaves, _ in plain) == 11
    assert len(ours) == sum(lower > 0 for _, lower in ours) == sum(lower > 0 for _, lower in plain) == 20
    assert sum(root > level for (_, root), (_, level) in zip(ours, plain, strict=True)) == 14
    assert sum(map(len, found)) == 47
    others = [made["power_of_others"](name) for name in made["SETTINGS"]]
    assert f"fitted on four settings, {min(others):.2f} to {max(others):.2f}, ends lower" in page
    scales = [made["noise_scale"](name) for name in ("small batch", "dense", "diffusion", "larger batch")]
    said = [row[3].removesuffix(" or more") for row in table("results/steps.md", "noise")]
    assert [float(cell) for cell in said] == pytest.approx(scales, abs=0.05)


def test_the_table_of_held_betas_equals_the_records() -> None:
    """Against the same runs with transferred betas: at the reference's lr seed by seed, and each at its best value."""
    held, *moved = (summarize(ROOT / "docs/results" / f"{name}.jsonl") for name in (
        "steps/lm-shorter", "transfer/lm-duration", "transfer/lm-duration_moe",
    ))  # fmt: skip
    want = []
    for curve in held.scans[0].curves[1:]:
        target = held.target(curve.target)
        factor = (held.target("dense").steps / target.steps) ** 0.5
        (other,) = (c for summary in moved for c in summary.scans[0].curves if c.target == curve.target)
        ours, theirs = (
            next(dict(p.losses) for p in c.points if math.isclose(p.value, c.transferred / factor, rel_tol=0.01))
            for c in (curve, other)
        )
        higher = [ours[seed] - theirs[seed] for seed in sorted(ours)]
        best = [min(p.loss for p in c.points if p.loss) for c in (curve, other)]
        want.append([
            f"{statistics.fmean(higher):+.3f} ± {statistics.stdev(higher) / len(higher) ** 0.5:.3f}",
            f"{best[0] - best[1]:+.3f}",
            *(f"{c.optimum.value * factor:.5f} ± {c.optimum_error:.2f}" for c in (curve, other) if c.optimum),
        ])  # fmt: skip
    assert_table("results/steps.md", "betas", want)


@pytest.mark.parametrize(
    ("name", "file", "horizon"), [("decay", "lm-decay", 9.6), ("decay_long", "lm-decay-long", 38.4)]
)
def test_the_tables_of_weight_decays_equal_the_records(name: str, file: str, horizon: float) -> None:
    """``horizon`` is lr x steps."""
    least, *others = summarize(ROOT / f"docs/results/small_batch/{file}.jsonl").scans[0].curves[0].points
    lowest = dict(least.losses)
    rows = [
        [f"{horizon * point.value:.2f}", *(f"{loss - lowest[seed]:+.4f}" for seed, loss in sorted(point.losses))]
        for point in others
    ]
    assert_table("results/small_batch.md", name, rows)


def test_the_small_models_plain_learning_rates_equal_the_records() -> None:
    """With a larger batch: its optima with the rules' factor put back, and what the betas change at the best value."""
    held, moved = (
        summarize(ROOT / LARGER_BATCH.with_suffix("") / f"lm-{n}.jsonl") for n in ("duration-betas-held", "duration")
    )
    dense, half, twice = moved.scans[0].curves
    optima = [curve.optimum.value * f for curve, f in ((half, 2**0.5), (dense, 1), (twice, 0.5**0.5)) if curve.optimum]
    best = [[min(p.loss for p in curve.points if p.loss) for curve in s.scans[0].curves[1:]] for s in (held, moved)]
    page = " ".join((ROOT / LARGER_BATCH).read_text(encoding="utf-8").split())
    assert f"one plain number: {optima[0]:.4f}, {optima[1]:.4f} and {optima[2]:.4f}." in page
    assert f"betas of 0.9 end {best[0][0] - best[1][0]:.2f} nats lower" in page
    assert f"transferred 0.975 end {best[1][1] - best[0][1]:.2f} nats higher" in page


@pytest.mark.slow
def test_the_page_of_update_effects_shows_what_its_script_prints(tmp_path: Path) -> None:
    """From the records beside it: the optimum against alignment, and the table of all roles."""
    records, data = ROOT / "docs/results/update-effect", ROOT / "docs/results"
    for path in records.glob("*.json"):
        (tmp_path / path.name).symlink_to(path)
    options = ["--reference", str(data / "pair/reference.toml"), "--optima", str(data / "roles/lm-roles.jsonl")]
    done = script(ROOT / "scripts/update_effect.py", "runs/data/bytes", *options, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    printed = done.stdout
    page = (ROOT / "docs/results/update-effect.md").read_text(encoding="utf-8")
    roles, optima = re.findall(r"^target .*?(?=^target |\Z)", printed, re.MULTILINE | re.DOTALL)
    for block, lines in zip(page.split("```")[1::2], (optima, roles), strict=True):
        assert_same_page(block.strip(), lines.strip())


@pytest.mark.slow
def test_update_effects_are_measured_in_training(tmp_path: Path) -> None:
    few = ["--scale", "tiny", "--target", "8e2a", "--seeds", "1", "--steps", "6", "--at", "2", "--over", "2"]
    done = script(ROOT / "scripts/update_effect.py", "stdlib", *few, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    for name, role in (("dense-0", "dense_up"), ("8e2a-0", "expert_up")):
        found = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
        assert next(line for line in found if line["role"] == role)["change"] > 0


def test_the_table_of_noise_scales_equals_the_records() -> None:
    rows = table("results/steps.md", "noise")
    for row, name in zip(rows, ("small_batch", "language", "diffusion", "larger_batch"), strict=True):
        record = json.loads((ROOT / f"docs/results/noise/{name}.json").read_text(encoding="utf-8"))
        found = [line["as AdamW"] / record["batch_tokens"] for seed in record["seeds"] for line in seed]
        assert row[1] == f"{statistics.median(found):.1f} ({min(found):.1f} to {max(found):.1f})"


def test_the_noise_scale_is_found_in_gradients_of_known_noise() -> None:
    """400 gradients of 8 tokens around G, a token's noise of variance S: S / G^2 tokens, each weight by itself."""
    torch = pytest.importorskip("torch")
    made = runpy.run_path(str(ROOT / "scripts/noise_scale.py"))["noise_scale"]
    draws = torch.Generator().manual_seed(0)
    mean, noise = torch.full((50_000,), 0.5), torch.tensor([1.0, 3.0]).repeat(25_000)
    seen = [mean + noise * torch.randn(50_000, generator=draws) / 8**0.5 for _ in range(400)]
    sums, squares = [sum(seen)], [sum(grad.square() for grad in seen)]
    plain, adamw = (made(sums, squares, 400, 8, as_adamw=flag) for flag in (False, True))
    weights = [1 / (0.25 + variance / 8) for variance in (1, 9)]
    assert plain == pytest.approx(5 / 0.25, rel=0.01)  # S is 5 on average
    assert adamw == pytest.approx((weights[0] + 9 * weights[1]) / (0.25 * sum(weights)), rel=0.01)


@pytest.mark.slow
def test_noise_scales_are_measured_in_training(tmp_path: Path) -> None:
    few = ["--scale", "tiny", "--seeds", "1", "--at", "2", "4", "--batches", "2", "--out", tmp_path]
    done = script(ROOT / "scripts/noise_scale.py", "stdlib", *few)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "noise.json").read_text(encoding="utf-8"))["seeds"][0]
    assert [line["step"] for line in found] == [2, 4]
    assert all(line["plain"] > 0 and line["as AdamW"] > 0 for line in found)


@pytest.mark.parametrize(("page", "least"), [("README.md", 2), ("docs/results/index.md", 25)])
def test_other_pages_quote_the_pages_of_results(page: str, least: int) -> None:
    assert_quoted((ROOT / page).read_text(encoding="utf-8"), quotable(*PAGES_OF_RESULTS), least)


def test_the_table_of_axes_equals_the_pages_of_results() -> None:
    """Each "4 of 4" of the README is what the overview of a page says of that axis and rule set."""
    overview = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for page in (TRANSFER, ROLES)
        for line in measured(page).split("**Diffusion")[0].splitlines()
        if "| learning rate |" in line
    ]
    held = {(row[0].split(":")[0], row[2]): row[3].split(" (")[0] for row in overview}
    names = ["complete_mue_sparse", "complete_mue", "mup", "mup_moe", "sp"]
    found = 0
    for axis, *cells in table("../README.md", "axes"):
        for rules, cell in zip(names, cells, strict=True):
            if re.fullmatch(r"\d+ of \d+", cell):
                assert held[axis, rules] == cell, (axis, rules)
                found += 1
            else:
                assert (axis, rules) not in held, (axis, rules)
    assert found > 15


def test_the_claims_have_a_verdict() -> None:
    page = (ROOT / "docs/results/index.md").read_text(encoding="utf-8")
    *papers, ours = (table("results/index.md", name) for name in re.findall(r"<!-- table: (claims, .*) -->", page))
    verdicts = [verdict for rows in papers for _, _, verdict in rows]
    assert {*verdicts, *(verdict for _, _, verdict in ours)} == {"agrees", "does not", "cannot tell"}
    agree, differ, open_ = (verdicts.count(verdict) for verdict in ("agrees", "does not", "cannot tell"))
    assert f"Of the paper's {len(verdicts)} claims below, {agree} agree" in page
    assert f"{differ} do not, and for {open_} we cannot tell." in page


def test_the_first_picture_equals_the_records() -> None:
    script = runpy.run_path(str(ROOT / "scripts/hero.py"))
    assert_same_page("\n".join(script["drawn"]()) + "\n", (ROOT / "docs/hero.svg").read_text(encoding="utf-8"))
    for sweep, target, *_ in script["LAYOUTS"]:  # the README says that ours is lowest on all of them
        assert all(script["behind"](sweep, target, rules)[0] > 0 for rules in script["RULES"]), target
