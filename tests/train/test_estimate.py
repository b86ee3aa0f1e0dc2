"""Estimates of many GPUs: against runs measured on one, against tensors really cut, and against plain arithmetic."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from complete_mue.errors import RunError  # noqa: E402
from complete_mue.lab.recipes import recipe  # noqa: E402
from complete_mue.lab.train.config import override  # noqa: E402
from complete_mue.lab.train.estimate import Machine, estimate  # noqa: E402
from complete_mue.lab.train.gpus import GPUS  # noqa: E402

RECORDS = sorted((Path(__file__).parents[2] / "docs/results/train").glob("*/train.json"))


def test_there_are_measured_points() -> None:
    assert {"lm_large", "lm_large_dense"} <= {path.parent.name for path in RECORDS}


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_one_gpu_is_as_measured(path: Path) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    (row,) = record["rows"]
    config = override(recipe(record["recipe"]), *record["overrides"])
    found = estimate(config, 1, Machine("H200", mfu=row["mfu"]))
    assert found.tokens_per_second == pytest.approx(row["tokens_per_second"], rel=1e-3)  # both count FLOPs alike
    # By the speeds of kernels alone, which these runs together have set.
    assert estimate(config, 1, Machine("H200")).seconds == pytest.approx(row["ms_per_step"] / 1e3, rel=0.1)
    # What is not in the formulas (temporaries of the backward, what the allocator holds unused) is an eighth at most.
    assert 0.87 < found.bytes / 2**30 / row["reserved_gib"] < 1.02


def test_states_are_cut_as_the_mesh_says() -> None:
    config = override(recipe("lm_tiny:8e2a1s"), "expert_parallel=4")
    width, experts, hidden, vocab, depth = 64, 8, 16, 257, 4  # bytes and the end of a text
    whole = depth * (experts * width + 2 * width) + width  # routers and gains
    everywhere = 2 * vocab * width + depth * 5 * width**2
    dealt, shared = depth * experts * 3 * hidden * width, depth * 3 * hidden * width
    found = estimate(config, 8, Machine())
    assert found.states == pytest.approx(16 * (whole + (everywhere + dealt) / 8 + shared / 2))
    assert estimate(override(config, "expert_parallel=1"), 8, Machine()).states < found.states


def test_messages_are_those_of_the_steps() -> None:
    config = override(recipe("lm_tiny:8e2a"), "expert_parallel=2")
    found = estimate(config, 2, Machine(link=1e9))
    rows = config.rows // 2 * 128 * 2 * 4  # tokens of a rank, experts of a token, layers
    assert found.exchange == 4 * 4 * 64 * rows / 2  # four trips of float32 rows, half of which stay at home
    assert found.exchange_seconds == pytest.approx(found.exchange / 1e9)
    assert estimate(override(config, "expert_parallel=1"), 2, Machine()).exchange == 0
    assert found.seconds >= found.compute_seconds


def test_more_gpus_need_less_each_and_take_less_time() -> None:
    config = override(recipe("lm_large"), "expert_parallel=8")
    found = [estimate(config, gpus, Machine()) for gpus in (8, 64, 512)]
    assert all(one.bytes > two.bytes and one.seconds > two.seconds for one, two in itertools.pairwise(found))
    assert all(one.fits for one in found)
    assert not estimate(override(recipe("lm_large"), "accumulate=1"), 8, Machine("4090")).fits
    with pytest.raises(RunError, match=r"512 rows.* 1024 ranks"):
        estimate(config, 1024, Machine())
    with pytest.raises(RunError, match="'H200'"):
        Machine("H20")


def test_the_docs_table_is_this() -> None:
    page = (Path(__file__).parents[2] / "docs/distributed.md").read_text(encoding="utf-8")
    lines = page.split("<!-- table: estimates -->\n")[1].split("\n\n")[0].splitlines()[2:]
    assert len(lines) == len(RECORDS)
    for line, path in zip(lines, RECORDS, strict=True):
        record = json.loads(path.read_text(encoding="utf-8"))
        (row,) = record["rows"]
        config = override(recipe(record["recipe"]), *record["overrides"])
        found = estimate(config, 1, Machine("H200"))
        assert line == (
            f"| `{record['recipe']}` | {row['tokens_per_second']:,.0f} | {found.tokens_per_second:,.0f} | "
            f"{100 * row['mfu']:.1f} % | {100 * found.mfu:.1f} % | "
            f"{row['reserved_gib']:.1f} | {found.bytes / 2**30:.1f} |"
        )


def test_the_share_of_the_peak_counts_messages_too() -> None:
    """Without messages it is what was given; waiting for tokens takes its part of it."""
    config = recipe("lm_large")
    one = estimate(config, 1, Machine(mfu=0.4))
    assert one.mfu == pytest.approx(0.4)
    dealt = estimate(override(config, "expert_parallel=8"), 8, Machine(mfu=0.4))
    assert dealt.mfu == pytest.approx(0.4 * dealt.compute_seconds / dealt.seconds)
    assert dealt.mfu < 0.4


def test_arithmetic_goes_by_the_speeds_of_kernels() -> None:
    config = override(recipe("lm_large"), "expert_parallel=8")
    dealt, alone = (estimate(override(config, f"expert_parallel={deal}"), 64, Machine()) for deal in (8, 1))
    # Experts that are dealt out get more rows each: less of their last tiles is padding, and less is summed.
    assert dealt.compute_seconds < alone.compute_seconds
    two, four = (estimate(config, gpus, Machine()).compute_seconds for gpus in (16, 32))
    # With more ranks the shares of the optimizer and of the tokens fall; the sums of the experts' gradients do not.
    assert 1.6 < two / four < 2.0
    slower = estimate(config, 64, Machine("A100")).compute_seconds / dealt.compute_seconds
    one, other = GPUS["H200"], GPUS["A100"]
    assert one.bandwidth / other.bandwidth < slower < one.flops / other.flops
