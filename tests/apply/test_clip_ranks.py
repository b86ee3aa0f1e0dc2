"""Clipping where one model has plain tensors and DTensors of several meshes, as FSDP2 with experts over ranks makes."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from clip_rank import clip  # noqa: E402
from ranks import connected  # noqa: E402


def test_plain_tensors_and_two_meshes_in_one_process(tmp_path: Path) -> None:
    clip([(1, 1)], f"file://{tmp_path}/rendezvous")


@pytest.mark.slow
def test_experts_dealt_out_and_cut_over_ranks() -> None:
    meshes = [(4, 1), (1, 4), (2, 2)]
    connected(clip, 4, meshes)
