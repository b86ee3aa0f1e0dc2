from __future__ import annotations

import pytest

import complete_mue as mue

torch = pytest.importorskip("torch")

from torch.nn.functional import cross_entropy  # noqa: E402

from complete_mue.apply.bind import bind  # noqa: E402
from complete_mue.lab.models import LanguageModel  # noqa: E402

pytestmark = pytest.mark.draws

VOCAB = 50
LAYOUTS = ["dense", "8e2a", "8e8a", "8e2a1s", "16e4a2g", "16e4a2g1s", "dense@20+4e1a@24+8e2a@12"]


def reference() -> mue.Reference:
    """Ratios to the targets below that are no powers of two, and an eps that matters."""
    shape = mue.ModelShape(24, 2, mue.FeedForward.dense(36), head_dim=8)
    return mue.Reference(shape, mue.Budget(1000, 100), mue.Hyper(1e-2, 0.2, 0.05, betas=(0.9, 0.95), eps=1e-3))


def plan_for(layout: str, depth: int = 3) -> mue.Plan:
    block = mue.FeedForward.parse(layout, 24)
    shape = mue.ModelShape(32, depth, block, dense_layers=0 if block.is_dense else 1, head_dim=8)
    return mue.transfer(reference(), shape, mue.Budget(700, 130))


@pytest.mark.parametrize(("theirs", "own", "scale"), [(16, 0.5, 0.5), (8, 0.5, 0.25), (8, None, 8**0.5 / 16)])
def test_open_heads_are_scaled_as_the_reference_says(theirs: int, own: float | None, scale: float) -> None:
    """A target of width 16 that leaves its heads open has one, of size 16."""
    tuned = mue.Reference(
        mue.ModelShape(16, 2, mue.FeedForward.dense(16), head_dim=theirs), mue.Budget(1000, 100),
        mue.Hyper(1e-2, 0.2, 0.05), attention_scale=own,
    )  # fmt: skip
    shape = mue.ModelShape(16, 2, mue.FeedForward.dense(16))
    model = LanguageModel(shape, VOCAB, mue.transfer(tuned, shape))
    assert [layer.attention.scale for layer in model.layers] == pytest.approx([scale] * 2)


def text(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def next_token_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits[..., :-1, :].flatten(0, -2), tokens[..., 1:].flatten())


def train(model: torch.nn.Module, plan: mue.Plan, steps: int, clip: float) -> list[float]:
    optimizer = torch.optim.AdamW(mue.param_groups(model, plan))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    losses = []
    for step in range(steps):
        tokens = text(4, 12, seed=step % 5)
        loss = next_token_loss(model(tokens), tokens)
        optimizer.zero_grad()
        loss.backward()
        mue.clip_grad_norm_(model, plan, clip)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


@pytest.mark.numeric  # once: in float64 no draw comes near a tie
@pytest.mark.parametrize("layout", LAYOUTS)
def test_folded_and_multiplier_forms_are_one_trajectory(layout: str) -> None:
    """12 AdamW steps in float64 with warmup, weight decay, clipping and a large eps."""
    plan = plan_for(layout)
    with_multipliers = LanguageModel(plan.shape, VOCAB, plan, kernel="reference").double()
    without = LanguageModel(plan.shape, VOCAB, kernel="reference").double()
    assert bind(with_multipliers, plan).form == "multiplier"
    assert bind(without, plan).form == "folded"
    histories = []
    for model in (with_multipliers, without):
        mue.initialize(model, plan)
        histories.append(train(model, plan, steps=12, clip=0.5))
    assert histories[0] == pytest.approx(histories[1], abs=1e-10)
    assert histories[0][-1] < histories[0][0]


def test_parameter_counts_of_the_large_model(lm_plan: mue.Plan) -> None:
    """The model on the meta device has the counts of RULES section 7, norms aside."""
    with torch.device("meta"):
        model = LanguageModel(lm_plan.shape, 50_304, lm_plan)
    matrices = sum(
        p.numel() for name, p in model.named_parameters() if "norm" not in name and name not in ("embedding", "readout")
    )
    assert matrices == lm_plan.shape.parameters.total == 6_286_999_552
    names = {spec.name for spec in model.tensors()}
    assert names == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_replicas_equal_solo_models(layout: str) -> None:
    plan, tokens = plan_for(layout, depth=2), text(2, 9)
    fused = LanguageModel(plan.shape, VOCAB, plan, replicas=3, qk_norm=True, kernel="reference").double()
    mue.initialize(fused, plan)
    logits = fused(tokens)
    next_token_loss(logits, tokens.expand(3, -1, -1)).backward()
    for k in range(3):
        solo = LanguageModel(plan.shape, VOCAB, plan, qk_norm=True, kernel="reference").double()
        mue.initialize(solo, plan, seed=k)
        own = solo(tokens)
        torch.testing.assert_close(logits[k], own, rtol=1e-12, atol=1e-12)
        (next_token_loss(own, tokens) / 3).backward()
        for (name, one), (_, many) in zip(solo.named_parameters(), fused.named_parameters(), strict=True):
            torch.testing.assert_close(many.grad[k], one.grad, rtol=1e-9, atol=1e-12, msg=name)


def test_cache_gives_the_same_tokens() -> None:
    plan = plan_for("8e2a1s")
    model = LanguageModel(plan.shape, VOCAB, plan, kernel="reference").double()
    mue.initialize(model, plan)
    start = text(2, 5)
    greedy = model.generate(start, 6, temperature=0)
    logits = model(greedy)[:, 4:-1].detach()
    taken = logits.gather(-1, greedy[:, 5:, None])
    # The best of logits rounded to float32: a token may lose to another by that rounding alone.
    assert (logits.amax(-1, keepdim=True) - taken).max() <= 1e-6 * logits.abs().max()
    drawn = model.generate(start, 6, generator=torch.Generator().manual_seed(1))
    assert torch.equal(drawn, model.generate(start, 6, generator=torch.Generator().manual_seed(1)))


def test_causal() -> None:
    plan = plan_for("8e2a")
    model = LanguageModel(plan.shape, VOCAB, plan, kernel="reference").double()
    mue.initialize(model, plan)
    tokens = text(1, 10)
    changed = tokens.clone()
    changed[0, 6] = (changed[0, 6] + 1) % VOCAB
    before, after = model(tokens), model(changed)
    # The changed token goes to other experts, whose products then have other row counts: other sums of the same terms.
    torch.testing.assert_close(before[:, :6], after[:, :6], rtol=0, atol=1e-12)
    assert not torch.allclose(before[:, 6:], after[:, 6:])


def test_routings_are_collected() -> None:
    plan, routings = plan_for("8e2a"), []
    LanguageModel(plan.shape, VOCAB, plan, kernel="reference")(text(2, 7), routings=routings)
    assert [tuple(routing.index.shape) for routing in routings] == [(14, 2)] * 2  # the first layer is dense


def test_errors() -> None:
    plan = plan_for("8e2a")
    with pytest.raises(mue.MueError, match="another shape"):
        LanguageModel(mue.ModelShape(32, 3, mue.FeedForward.dense(8)), VOCAB, plan)
    with pytest.raises(mue.MueError, match="divides the width"):
        LanguageModel(mue.ModelShape(32, 3, mue.FeedForward.dense(8), head_dim=12), VOCAB)
    with pytest.raises(mue.MueError, match="without replicas"):
        LanguageModel(plan.shape, VOCAB, replicas=2).generate(text(1, 2), 1)


@pytest.mark.parametrize(("width", "scale"), [(32, 32**-0.5), (128, 32**0.5 / 64)])
def test_heads_left_open_that_grow_have_their_scale(width: int, scale: float) -> None:
    """A model narrower than 64 has one head of its width, a wider one heads of 64."""
    small = mue.Reference(mue.ModelShape(32, 1, mue.FeedForward.dense(32)), mue.Budget(64, 10), reference().hyper)
    shape = mue.ModelShape(width, 1, mue.FeedForward.dense(width))
    model = LanguageModel(shape, VOCAB, mue.transfer(small, shape))
    assert model.layers[0].attention.scale == pytest.approx(scale)
