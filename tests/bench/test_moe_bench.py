"""The MoE benchmark: its shapes are the paper's, its rows survive failure, its record reads back."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from complete_mue.cli import app
from complete_mue.errors import FileError, KernelError, ShapeError
from complete_mue.lab.bench import moe, sonic_tune
from complete_mue.lab.bench.moe_records import WHOLE_LAYERS, BenchResult, BenchRow
from complete_mue.lab.bench.profiler import machine
from complete_mue.lab.kernels import grouped

TINY = (
    moe.Case("capacity", 32, 16, 4, 2, 8, torch.float32),
    moe.Case("granularity", 32, 16, 8, 4, 4, torch.float32),
)
LAYERS = (
    moe.Case("layer_experts", 32, 16, 4, 2, 8, torch.float32),
    moe.Case("layer_experts", 32, 16, 8, 2, 8, torch.float32),
    moe.Case("layer_active", 32, 16, 8, 4, 4, torch.float32),
    moe.Case("layer_active", 32, 16, 4, 2, 8, torch.float32),
)
HERE = machine(torch.device("cpu"))


@pytest.fixture
def no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


def row(kernel: str, ms: float | None, experts: int = 8, **more: object) -> BenchRow:
    return BenchRow("capacity", kernel, 64, 16, experts, 2, 8, "float32", ms, ms, ms, **more)  # type: ignore[arg-type]


def printed(result: BenchResult) -> str:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(result.table())
    console.file.close()
    return console.export_text()


def test_the_papers_shapes_on_a_gpu() -> None:
    capacity, granularity = moe.cases("capacity", "cuda"), moe.cases("granularity", "cuda")
    assert [c.experts for c in capacity] == [8, 16, 32, 64, 128, 256]
    assert {(c.active, c.expert_width) for c in capacity} == {(8, 2048)}
    assert [c.active for c in granularity] == [2, 4, 8, 16, 32, 64]
    for case in (*capacity, *granularity):
        assert (case.tokens, case.width, case.dtype) == (40_960, 4096, torch.bfloat16)
        assert case.active_width == 16_384
    assert all(c.experts == 8 * c.active for c in granularity)
    assert [c.expert_width for c in moe.cases("width", "cpu")] == [16, 32, 64, 128]
    assert {(c.tokens, c.width, c.experts, c.active) for c in moe.cases("width", "cpu")} == {(4096, 128, 64, 8)}


def test_a_small_run_writes_reads_prints_and_draws(tmp_path: Path, no_compile: None) -> None:
    result = moe.run(device="cpu", shapes=TINY, repeats=3, progress=False)
    kernels = [r.kernel for r in result.rows if r.figure == "capacity"]
    assert kernels == ["dense", "dense, compiled", "grouped", "grouped, compiled", "reference"]
    assert all(r.error is None and 0 < r.fastest_ms <= r.ms <= r.slowest_ms for r in result.rows)
    again = BenchResult.read(result.write(tmp_path / "new"))
    assert again == result
    assert BenchResult.read(tmp_path / "new") == result
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["moe.json"]
    assert json.loads((tmp_path / "new/moe.json").read_text())["bench"] == "moe"
    picture = again.plot(tmp_path / "pictures" / "moe.svg")
    assert picture is not None
    assert {"dense, compiled", "grouped", "experts E", "ms"} <= set(ElementTree.parse(picture).getroot().itertext())


def test_only_figures_with_a_time_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed, failed = row("dense", 2.0), replace(row("dense", None, error="out of memory"), figure="granularity")
    result = BenchResult((timed, failed), {"gpu": "none"}, 1)
    assert result.plot(tmp_path / "moe.svg") is not None
    assert "granularity" not in (tmp_path / "moe.svg").read_text()
    nothing = BenchResult((failed,), {"gpu": "none"}, 1)
    assert nothing.plot(tmp_path / "none.svg") is None
    done = CliRunner().invoke(app, ["bench", "moe", "--draw", str(nothing.write(tmp_path / "failed"))])
    assert done.exit_code == 0, done.output
    assert "no row has a time, so nothing is drawn" in done.stderr


def test_a_row_that_fails_is_a_row_with_an_error(monkeypatch: pytest.MonkeyPatch, no_compile: None) -> None:
    def broken(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate a lot")

    monkeypatch.setattr(grouped, "routed_experts", broken)
    result = moe.run(device="cpu", shapes=TINY[:1], repeats=2, progress=False)
    errors = {r.kernel: r.error for r in result.rows}
    assert errors["grouped"] == "OutOfMemoryError: CUDA out of memory."
    assert errors["reference"] is None
    assert errors["dense"] is None
    assert "out of memory" in printed(result)


def test_a_kernel_that_cannot_run_is_left_out_unless_asked_for(no_compile: None) -> None:
    silent = moe.run(device="cpu", shapes=TINY[:1], repeats=1, progress=False)
    assert "triton" not in {r.kernel for r in silent.rows}
    asked = moe.run(device="cpu", shapes=TINY[:1], repeats=1, progress=False, kernels=["triton", "reference"])
    errors = {r.kernel: r.error for r in asked.rows}
    assert errors.keys() == {"dense", "dense, compiled", "triton", "reference"}
    assert "cpu" in errors["triton"]


def test_ratios_are_taken_at_the_same_shape() -> None:
    rows = (row("dense, compiled", 2.0), row("grouped", 3.0), row("reference", 9.0), row("grouped", 5.0, experts=16))
    result = BenchResult(rows, {"device": "test"}, 1)
    assert result.ratio(rows[1]) == 1.5
    assert result.ratio(rows[1], "reference") == pytest.approx(1 / 3)
    assert result.ratio(rows[3]) is None
    text = printed(result)
    assert "1.50" in text
    assert "3.00" in text


def test_bad_arguments_say_what_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="'capacity'"):
        moe.run(["capacty"], "cpu", progress=False)
    with pytest.raises(KernelError, match="'grouped'"):
        moe.run(device="cpu", kernels=["group"], progress=False)
    with pytest.raises(ShapeError, match="repeats"):
        moe.run(device="cpu", repeats=0, progress=False)
    with pytest.raises(FileError, match=r"missing\.json"):
        BenchResult.read(tmp_path / "missing.json")
    (tmp_path / "moe.json").write_text("{}")
    with pytest.raises(FileError, match="run the benchmark again"):
        BenchResult.read(tmp_path)
    if not torch.cuda.is_available():
        with pytest.raises(KernelError, match="cpu"):
            moe.run(device="cuda", progress=False)


# -- whole layers ---------------------------------------------------------------------------------------------


def test_whole_layers_have_the_papers_active_width_and_begin_with_the_same_shape() -> None:
    experts, active = (moe.cases(figure, "cuda") for figure in WHOLE_LAYERS)
    assert sorted((c.experts, c.active) for c in experts) == [(8, 8), (32, 8), (128, 8), (256, 8)]
    assert sorted((c.experts, c.active) for c in active) == [(128, 2), (128, 8), (128, 16), (128, 64)]
    assert {c.active_width for c in (*experts, *active)} == {16_384}
    assert experts[0].shape == active[0].shape
    assert all(c.whole_layer for c in (*experts, *active, *moe.cases("layer_active", "cpu")))


def test_whole_layers_run_router_and_all(no_compile: None, monkeypatch: pytest.MonkeyPatch) -> None:
    routed = []
    forward = grouped.routed_experts
    monkeypatch.setattr(grouped, "routed_experts", lambda *a: routed.append(a[4].requires_grad) or forward(*a))
    result = moe.run(device="cpu", shapes=LAYERS[:1], repeats=2, progress=False, kernels=["grouped"])
    assert [r.kernel for r in result.rows] == ["dense, compiled", "grouped", "grouped, compiled"]
    assert all(r.error is None for r in result.rows)
    assert routed  # and the router's own gradient is asked for:
    assert all(routed)


def test_a_peer_that_is_absent_is_a_row_that_says_so(no_compile: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sonic_tune, "compile_all", lambda *_, **__: pytest.fail("compiled for a peer that cannot run"))
    result = moe.run(device="cpu", shapes=LAYERS[:1], repeats=1, progress=False, kernels=["grouped", "sonic"])
    assert {r.kernel: r.error for r in result.rows if r.error} == {"sonic": moe.unavailable("sonic", *two_tensors())}


def two_tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(1, 128), torch.empty(1, 16, 128)


class Clock:
    """Each measured shape takes ten seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.measured: list[int] = []
        monkeypatch.setattr(moe.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(moe, "_run_case", self.run)

    def run(self, case: moe.Case, *_: object) -> list[BenchRow]:
        self.now += 10
        self.measured.append(case.experts * case.active)
        return [BenchRow(case.figure, "dense, compiled", *case.shape, "float32", 1.0, 1.0, 1.0)]


@pytest.mark.parametrize(("seconds", "measured"), [(5.0, [8]), (19.0, [8]), (20.0, [8, 16]), (99.0, [8, 16, 32])])
def test_no_shape_is_begun_that_would_end_too_late(
    seconds: float, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, kept = Clock(monkeypatch), []
    result = moe.run(device="cpu", shapes=LAYERS, progress=False, seconds=seconds, each=kept.append)
    assert clock.measured == measured
    shared = [row for row in result.rows if row.shape == ("layer_active", *LAYERS[0].shape)]
    assert len(shared) == 1  # costs nothing, so it is there whatever the limit
    assert [len(so_far.rows) for so_far in kept] == list(range(1, len(result.rows) + 1))


def test_a_run_goes_on_where_another_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    first = moe.run(device="cpu", shapes=LAYERS, repeats=3, progress=False, seconds=20.0)
    clock.measured.clear()
    second = moe.run(device="cpu", shapes=LAYERS, repeats=3, progress=False, known=first)
    assert clock.measured == [32]
    assert {r.shape for r in second.rows} == {(case.figure, *case.shape) for case in LAYERS}
    broken = tuple(replace(r, ms=None, error="no") if r.experts * r.active == 16 else r for r in second.rows)
    clock.measured.clear()
    moe.run(device="cpu", shapes=LAYERS, repeats=3, progress=False, known=BenchResult(broken, HERE, 3))
    assert clock.measured == [16]
    for other in (BenchResult(first.rows, {"device": "another"}, 3), BenchResult(first.rows, HERE, 4)):
        with pytest.raises(KernelError, match=f"{other.repeats} repeats"):
            moe.run(device="cpu", shapes=LAYERS, repeats=3, progress=False, known=other)


def test_a_layer_and_its_routed_part_are_two_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    moe.run(device="cpu", shapes=(TINY[0], LAYERS[0]), progress=False)
    assert TINY[0].shape == LAYERS[0].shape
    assert clock.measured == [8, 8]


# -- a peer's tilings -----------------------------------------------------------------------------------------

SHARE = """
import pathlib, sys, time
folder = pathlib.Path(__file__).parent
(folder / f"share-{sys.argv[1]}").write_text(" ".join(sys.argv[2:]))
time.sleep(600 if (folder / "slow").exists() else 0)
"""


@pytest.fixture
def shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "peer_share.py").write_text(SHARE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sonic_tune, "_MODULE", "peer_share")
    return tmp_path


def test_shares_of_the_compiling_run_side_by_side(shares: Path) -> None:
    sonic_tune.compile_all([8, 2, 8], 40_960, 4096, processes=3, seconds=60)
    assert [(shares / f"share-{n}").read_text() for n in range(3)] == ["3 40960 4096 2 8"] * 3


def test_compiling_ends_at_its_limit(shares: Path) -> None:
    (shares / "slow").touch()
    began = time.monotonic()
    sonic_tune.compile_all([8], 40_960, 4096, processes=2, seconds=0.5)
    assert time.monotonic() - began < 60


def test_what_a_tuner_chose_is_told_by_product(monkeypatch: pytest.MonkeyPatch) -> None:
    def tuner(*tiles: tuple[int, int, bool]) -> SimpleNamespace:
        configs = [SimpleNamespace(tile_m=m, tile_n=n, pingpong=p, cluster_m=2, cluster_n=1) for m, n, p in tiles]
        return SimpleNamespace(cache={at: SimpleNamespace(kwargs={"config": c}) for at, c in enumerate(configs)})

    plain = tuner((128, 256, False), (256, 128, False), (128, 192, True), (192, 128, True))
    monkeypatch.setattr(sonic_tune, "_tuners", lambda: (plain, tuner((128, 160, True)), tuner()))
    assert sonic_tune.chosen().split(", ") == [
        "down 128x256 2x1", "ddown 256x128 2x1", "dx 128x192p 2x1", "dup 192x128p 2x1", "up 128x160p 2x1",
    ]  # fmt: skip
