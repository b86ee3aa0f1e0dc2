"""Folding as a training run: with AdamW, the multiplier form and the folded form are one trajectory in float64."""

from __future__ import annotations

import pytest

import complete_mue as mue

pytestmark = pytest.mark.draws

torch = pytest.importorskip("torch")


def train(m: float, std: float, lr: float, decay: float, eps: float, steps: int) -> tuple[list[float], torch.Tensor]:
    """Regress random targets through y = m * down(silu(up x)) for some AdamW steps; only ``down`` differs."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, target, up = draw(64, 8), draw(64, 4), draw(8, 16)
    down = (std * draw(16, 4)).requires_grad_()
    up = (0.3 * up).requires_grad_()
    optimizer = torch.optim.AdamW(
        [{"params": [down], "lr": lr, "weight_decay": decay, "eps": eps}, {"params": [up], "lr": 1e-2}],
        betas=(0.9, 0.9),
    )
    losses = []
    for _ in range(steps):
        loss = (m * torch.nn.functional.silu(x @ up) @ down - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, m * down.detach()


def test_both_forms_train_alike() -> None:
    reference = mue.Reference(
        mue.ModelShape(64, 4, mue.FeedForward.dense(64)), mue.Budget(10, 100), mue.Hyper(3e-2, 0.3, 0.5, eps=1e-2)
    )
    plan = mue.transfer(reference, mue.ModelShape(128, 12, mue.FeedForward.parse("16e4a1s", 48)))
    results = []
    for form in (plan, plan.fold()):
        row = form.row("expert_down")
        assert row.init_std is not None
        results.append(train(row.multiplier, row.init_std, row.lr, row.weight_decay, row.eps, steps=50))
    (losses, weights), (folded_losses, folded_weights) = results
    assert plan.row("expert_down").multiplier != 1
    assert losses == pytest.approx(folded_losses, rel=1e-12)
    torch.testing.assert_close(weights, folded_weights, rtol=1e-11, atol=1e-13)
    assert losses[-1] < 0.9 * losses[0]
