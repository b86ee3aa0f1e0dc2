from __future__ import annotations

import re

import pytest

import complete_mue as mue

torch = pytest.importorskip("torch")

from complete_mue.lab.nn.rope import rotary_table, rotate  # noqa: E402

pytestmark = pytest.mark.draws


def test_products_depend_on_distance_alone() -> None:
    x, y = torch.randn(2, 1, 1, 16, dtype=torch.float64)
    cos, sin = rotary_table(torch.arange(20), 16)

    def product(i: int, j: int) -> torch.Tensor:
        return (rotate(x, cos[i : i + 1], sin[i : i + 1]) * rotate(y, cos[j : j + 1], sin[j : j + 1])).sum()

    torch.testing.assert_close(product(3, 7), product(11, 15))
    assert not torch.isclose(product(3, 7), product(3, 9))


@pytest.mark.parametrize("lead", [(2,), (3, 2)])
def test_rotation_is_the_formula_to_the_bit(lead: tuple[int, ...]) -> None:
    x = torch.randn(*lead, 7, 3, 10, requires_grad=True)
    cos, sin = rotary_table(torch.arange(7), 10)
    c, s = cos.float()[:, None], sin.float()[:, None]
    first, second = x.chunk(2, dim=-1)
    want = torch.cat([first * c - second * s, second * c + first * s], dim=-1)
    got = rotate(x, cos, sin)
    assert torch.equal(got, want)
    direction = torch.randn_like(got)
    (grad,), (want_grad,) = (torch.autograd.grad(y, x, direction) for y in (got, want))
    assert torch.equal(grad, want_grad)


def test_channel_splits_of_video() -> None:
    """The paper's [48, 48, 24] on three axes: each axis turns its own channels."""
    positions = torch.tensor([[0, 0, 0], [5, 0, 0], [0, 5, 0], [0, 0, 5]])
    cos, sin = rotary_table(positions, 128, [48, 48, 24])
    assert cos.shape == (4, 64)
    turned = (sin != 0).int()
    assert turned[0].sum() == 0
    assert turned[1].nonzero().flatten().tolist() == list(range(24))
    assert turned[2].nonzero().flatten().tolist() == list(range(24, 48))
    assert turned[3].nonzero().flatten().tolist() == list(range(48, 60))


@pytest.mark.parametrize("splits", [[47, 48, 24], [64, 64, 64], [64, 64]])
def test_bad_splits(splits: list[int]) -> None:
    with pytest.raises(mue.MueError, match=rf"{re.escape(str(splits))}.*head_dim = 128"):
        rotary_table(torch.zeros(2, 3), 128, splits)
