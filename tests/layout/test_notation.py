from __future__ import annotations

import pytest
from hypothesis import given

from complete_mue.errors import NotationError, ShapeError
from complete_mue.layout import FeedForward, ModelShape, RoutedGroup
from strategies import layouts

# notation, expert width, active width, experts, active, groups, density, route scale
TABLE = [
    ("128e8a4g1s", 512, 4608, 128, 8, 4, 1 / 16, 8),
    ("64e8a", 16, 128, 64, 8, 1, 1 / 8, 8),
    ("64e2a", 16, 32, 64, 2, 1, 1 / 32, 2),
    ("128e8a1s", 64, 576, 128, 8, 1, 1 / 16, 8),
    ("8e8a", 16, 128, 8, 8, 1, 1.0, 8),  # Dense MoE
    ("1e1a", 7, 7, 1, 1, 1, 1.0, 1),
    ("dense", 256, 256, 0, 0, 0, 1.0, 1),
]


@pytest.mark.parametrize(("text", "h", "H", "N", "a", "G", "density", "r"), TABLE)
def test_what_a_notation_means(text: str, h: int, H: int, N: int, a: int, G: int, density: float, r: int) -> None:
    block = FeedForward.parse(text, expert_width=h)
    assert (block.active_width, block.experts, block.active, len(block.groups)) == (H, N, a, G)
    assert (block.density, block.route_scale, block.expert_width) == (density, r, h)
    assert str(block) == text


@given(layouts)
def test_str_reads_back(block: FeedForward) -> None:
    assert FeedForward.parse(str(block), block.expert_width) == block


def test_mixed_widths() -> None:
    block = FeedForward((512,), (RoutedGroup(32, 2, 512), RoutedGroup(16, 2, 256)))
    assert str(block) == "dense@512+32e2a@512+16e2a@256"
    assert FeedForward.parse(str(block)) == block
    assert block.active_width == 512 + 2 * 512 + 2 * 256
    assert block.active == block.route_scale == 4
    assert block.expert_width is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("64e", "cannot read"),
        ("e8a", "cannot read"),
        ("64e8a2s4g", "cannot read"),
        ("64E8A", "cannot read"),
        ("٦٤e8a", "cannot read"),
        ("", "give a notation"),
        ("64e8a+", "cannot read"),
        ("4e8a", "cannot activate more experts"),
        ("64e0a", "whole number"),
        ("0e0a", "whole number"),
        ("64e8a0g", "whole number"),
        ("64e8a3g", "must divide"),
        ("64e6a4g", "must divide"),
        ("9" * 30 + "e8a", "too large"),
    ],
)
def test_bad_notation(text: str, says: str) -> None:
    with pytest.raises(NotationError, match=says):
        FeedForward.parse(text, expert_width=16)


def test_width_is_needed() -> None:
    with pytest.raises(NotationError, match="expert_width"):
        FeedForward.parse("64e8a")
    with pytest.raises(ShapeError, match="empty"):
        FeedForward()
    with pytest.raises(ShapeError, match="whole number"):
        FeedForward.dense(12.5)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="whole number"):
        FeedForward.dense(True)


def test_parameters_of_the_large_language_model() -> None:
    block = FeedForward.parse("128e8a4g1s", expert_width=512)
    every = ModelShape(1024, 32, block).parameters
    first_dense = ModelShape(1024, 32, block, dense_layers=2).parameters
    assert round(every.active / 1e9, 2) == round(first_dense.active / 1e9, 2) == 0.62
    assert round(every.total / 1e9, 2) == 6.66
    assert round(first_dense.total / 1e9, 2) == 6.29


def test_layers() -> None:
    moe = FeedForward.parse("8e2a", 16)
    shape = ModelShape(64, 4, moe, dense_layers=1)
    assert shape.blocks == (FeedForward.dense(32), moe, moe, moe)
    assert shape.kinds == (FeedForward.dense(32), moe)
    assert ModelShape(64, 4, shape.blocks).parameters == shape.parameters
    with pytest.raises(ShapeError, match="one per layer"):
        ModelShape(64, 3, shape.blocks)
    for wrong in ("8e2a", None, 64, ["dense"] * 4, [moe, moe, moe, "8e2a"]):
        with pytest.raises(ShapeError, match=r"feed_forward = .*: give a FeedForward, such as"):
            ModelShape(64, 4, wrong)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="dense_layers = 5: give a whole number from 0 to 4"):
        ModelShape(64, 4, moe, dense_layers=5)
    with pytest.raises(ShapeError, match="dense_layers"):
        ModelShape(64, 4, shape.blocks, dense_layers=1)
