"""The MoE benchmark: its shapes are the paper's, its rows survive failure, its record reads back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from complete_mue.errors import FileError, KernelError, ShapeError
from complete_mue.lab.bench import moe
from complete_mue.lab.bench.moe_records import BenchResult, BenchRow
from complete_mue.lab.kernels import grouped

TINY = (
    moe.Case("capacity", 32, 16, 4, 2, 8, torch.float32),
    moe.Case("granularity", 32, 16, 8, 4, 4, torch.float32),
)


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
    pytest.importorskip("matplotlib")
    picture = again.plot(tmp_path / "pictures" / "moe.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


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


def test_list_is_the_dispatchers() -> None:
    assert {info.name for info in moe.list_kernels()} == {"triton", "sonic", "grouped", "reference"}
