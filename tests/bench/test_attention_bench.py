"""`mue bench attention` times CUDA kernels; elsewhere it says so before it prints anything."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from complete_mue.errors import RunError
from complete_mue.lab.bench.attention import SHAPES, run


def test_without_a_gpu_it_refuses_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RunError, match="NVIDIA"):
        run()


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # of the compiler, at its first import
def test_every_shape_is_timed_both_ways() -> None:
    rows = list(run())
    assert [(row.tokens, row.head_dim) for row in rows] == list(SHAPES)
    assert all(min(row.plain_ms, row.kernel_ms) > 0 for row in rows)
