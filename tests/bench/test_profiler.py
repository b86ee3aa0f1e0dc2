"""Where the time goes: the kernels of a step, by torch's profiler."""

from __future__ import annotations

import pytest
import torch

from complete_mue.lab.bench import moe, sweep, train
from complete_mue.lab.bench.profiler import Profiler, kernel_table

PRODUCTS = {"aten::mm", "aten::bmm", "aten::addmm"}  # which of them a product becomes depends on the machine
SMALL = (
    "shape.width=16", "shape.depth=2", "shape.head_dim=8", "task.sequence=16", "budget.batch_tokens=32", "log_every=2",
)  # fmt: skip


def test_the_kernels_of_a_step_are_named_longest_first() -> None:
    profiler, a = Profiler(torch.device("cpu")), torch.ones(256, 256)
    profiler.start()
    for _ in range(4):
        torch.mm(a, a).relu()
    found = profiler.stop(4)
    assert "aten::mm" in found
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_a_table_holds_the_longest_kernels_and_the_rest_in_one_row() -> None:
    table = kernel_table("a step", {f"kernel {i}": 100.0 - i for i in range(20)})
    assert table.row_count == 13
    assert list(table.columns[0].cells)[-1] == "8 others"
    assert sum(float(cell.rstrip("%")) for cell in table.columns[2].cells) == pytest.approx(100, abs=0.7)


def test_every_benchmark_can_be_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    shape = moe.Case("layer_experts", 32, 16, 4, 2, 8, torch.float32)
    layers = moe.run(device="cpu", repeats=1, kernels=["grouped"], shapes=[shape], progress=False, profiled=True)
    fused = sweep.run(["8e2a"], [2], "cpu", intervals=1, overrides=SMALL[:-1], profiled=True)
    trained = train.measure("lm_tiny:8e2a", SMALL, steps=1, warm_up=1, device="cpu", profiled=True)
    for row in (*layers.rows, *fused.rows, *trained.rows):
        assert row.title
        assert row.kernels
        assert PRODUCTS & row.kernels.keys()


def test_nothing_is_profiled_unasked() -> None:
    (row,) = train.measure("lm_tiny:8e2a", SMALL, steps=1, warm_up=1, device="cpu").rows
    assert row.kernels is None
