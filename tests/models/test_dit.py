from __future__ import annotations

import pytest

import complete_mue as mue

torch = pytest.importorskip("torch")

from complete_mue.apply.bind import bind  # noqa: E402
from complete_mue.lab.models import DiffusionTransformer  # noqa: E402
from complete_mue.lab.models.flow_sampling import heun, sample  # noqa: E402
from complete_mue.lab.train.task import interpolate, next_token_loss, velocity_loss  # noqa: E402

pytestmark = pytest.mark.draws

LAYOUTS = ["dense", "8e2a1s", "16e4a2g"]
PICTURES = {"image": ((2, 2), (8, 6)), "video": ((1, 2, 2), (3, 8, 6))}


def plan_for(layout: str) -> mue.Plan:
    small = mue.ModelShape(24, 2, mue.FeedForward.dense(36), head_dim=8)
    reference = mue.Reference(small, mue.Budget(1000, 100), mue.Hyper(1e-2, 0.2, 0.05, eps=1e-3))
    shape = mue.ModelShape(32, 3, mue.FeedForward.parse(layout, 24), head_dim=8)
    return mue.transfer(reference, shape, mue.Budget(700, 130))


def batch(size: tuple[int, ...], rows: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, *size, generator=generator, dtype=torch.float64)
    return (
        x,
        torch.rand(rows, generator=generator, dtype=torch.float64),
        torch.randint(0, 256, (rows, 5), generator=generator),
    )


@pytest.mark.numeric  # once: in float64 no draw comes near a tie
@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_folded_and_multiplier_forms_train_alike(layout: str, kind: str) -> None:
    plan, (patch, size) = plan_for(layout), PICTURES[kind]
    x, t, text = batch(size)
    noisy, velocity = interpolate(torch.zeros_like(x), x, t)
    histories = []
    for given in (plan, None):
        model = DiffusionTransformer(plan.shape, 3, patch, given, kernel="reference").double()
        assert bind(model, plan).form == ("multiplier" if given else "folded")
        mue.initialize(model, plan)
        optimizer = torch.optim.AdamW(mue.param_groups(model, plan))
        losses = []
        for _ in range(5):
            loss = velocity_loss(model(noisy, t, text), velocity, len(patch))
            optimizer.zero_grad()
            loss.backward()
            mue.clip_grad_norm_(model, plan, 0.5)
            optimizer.step()
            losses.append(loss.item())
        histories.append(losses)
    assert histories[0] == pytest.approx(histories[1], abs=1e-10)
    assert histories[0][-1] < histories[0][0]


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("features", [None, 7])
def test_replicas_equal_solo_models(kind: str, features: int | None) -> None:
    plan, (patch, size) = plan_for("8e2a1s"), PICTURES[kind]
    x, t, text = batch(size)
    text = text if features is None else torch.randn(3, 5, features, dtype=torch.float64)

    def build(replicas: int | None, seed: int) -> DiffusionTransformer:
        model = DiffusionTransformer(
            plan.shape, 3, patch, plan, text_features=features, replicas=replicas, kernel="reference"
        ).double()
        mue.initialize(model, plan, seed=seed)
        return model

    text = build(None, 0).drop_text(text, torch.tensor([True, False, False]))
    together = build(2, 0)(x, t, text)
    for k in range(2):
        torch.testing.assert_close(together[k], build(None, k)(x, t, text), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", PICTURES)
def test_patches_come_back(kind: str) -> None:
    patch, size = PICTURES[kind]
    model = DiffusionTransformer(plan_for("dense").shape, 3, patch)
    x, _, _ = batch(size)
    tokens, grid = model._patches(x)
    assert tokens.shape == (3, torch.tensor(grid).prod(), 3 * torch.tensor(patch).prod())
    assert torch.equal(model._image(tokens, grid), x)
    with pytest.raises(mue.MueError, match=r"patch \("):
        model._patches(x[..., :-1])


def test_text_and_time_matter() -> None:
    plan = plan_for("dense")
    model = DiffusionTransformer(plan.shape, 3, (2, 2), plan, kernel="reference").double()
    mue.initialize(model, plan)
    x, t, text = batch((8, 6))
    out = model(x, t, text)
    assert not torch.allclose(out, model(x, t / 2, text))
    assert not torch.allclose(out, model(x, t, text.flip(1)))  # the order of words counts
    dropped = model(x, t, model.drop_text(text, torch.tensor([True, False, False])))
    assert not torch.allclose(out[0], dropped[0])
    assert torch.equal(out[1:], dropped[1:])


def test_the_sampler_solves_a_known_flow() -> None:
    """dx/dt = x has x_1 = e x_0: Heun comes near it to second order."""
    x = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    errors = [abs(float(heun(lambda x, t: x, x, steps)) - torch.e) for steps in (20, 40)]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)


def test_sampling_is_deterministic_and_guided() -> None:
    plan = plan_for("8e2a1s")
    model = DiffusionTransformer(plan.shape, 3, (2, 2), plan, kernel="reference")
    mue.initialize(model, plan)
    _, _, text = batch((8, 6))

    def draw(**options: object) -> torch.Tensor:
        return sample(model, text, (8, 6), steps=2, generator=torch.Generator().manual_seed(0), **options)

    assert torch.equal(draw(), draw())
    assert not torch.allclose(draw(guidance=3.0), draw())


def test_objectives() -> None:
    noise, data = torch.zeros(2, 1, 2, 2), torch.ones(2, 1, 2, 2)
    x, velocity = interpolate(noise, data, torch.tensor([0.25, 1.0]))
    assert x[:, 0, 0, 0].tolist() == [0.25, 1.0]
    assert torch.equal(velocity, data)
    assert velocity_loss(noise, velocity, 2).item() == 1
    logits = torch.zeros(2, 3, 4, 8, dtype=torch.float64)
    tokens = torch.zeros(3, 5, dtype=torch.long)
    assert next_token_loss(logits, tokens).tolist() == pytest.approx([torch.log(torch.tensor(8.0)).item()] * 2)
    assert next_token_loss(logits[0], tokens, z_loss=0.1) > next_token_loss(logits[0], tokens)
