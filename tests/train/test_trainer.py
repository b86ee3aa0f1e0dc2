"""What makes a step lean changes no number: copies of experts, recomputed layers, compiled layers, kept tables."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from complete_mue.lab.nn.rope import PICTURE_BASE, picture_rotary, rotary_table, text_rotary  # noqa: E402
from complete_mue.lab.recipes import recipe  # noqa: E402
from complete_mue.lab.train.config import RunConfig, override  # noqa: E402
from complete_mue.lab.train.cuda_graph import Recorded  # noqa: E402
from complete_mue.lab.train.trainer import Trainer  # noqa: E402

CPU = torch.device("cpu")
pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed"),
]  # CPUs without bfloat16 units say so
SMALL = ("shape.width=16", "shape.depth=3", "shape.head_dim=8", "betas=hold", "budget.steps=10")
RUNS = {
    "lm dense": ("lm_tiny", "task.sequence=16", "budget.batch_tokens=64"),
    "lm moe": ("lm_tiny:8e2a", "task.sequence=16", "budget.batch_tokens=64", "router.balance_loss=0.01"),
    "dit moe": ("dit_tiny:8e2a", "task.size=16", "task.patch=4", "budget.batch_tokens=64"),
}
STEPS = 3


def config_of(name: str, *more: str) -> RunConfig:
    base, *overrides = RUNS[name]
    return override(recipe(base), *SMALL, *overrides, *more)


def losses_and_weights(trainer: Trainer) -> tuple[list[float], dict[str, torch.Tensor]]:
    losses = [float(trainer.step(number).loss) for number in range(STEPS)]
    weights = dict(trainer.model.named_parameters()) | trainer.masters
    return losses, {name: weight.detach().clone() for name, weight in weights.items()}


def doubled(trainer: Trainer) -> Trainer:
    """In float64, where the order of a sum tips no choice of experts."""
    trainer.model.double()
    trainer._placed = lambda batch: tuple(t.double() if t.is_floating_point() else t for t in batch)
    return trainer


def assert_same(one: Trainer, other: Trainer) -> None:
    (losses, weights), (other_losses, other_weights) = losses_and_weights(one), losses_and_weights(other)
    assert losses == other_losses
    for name, weight in weights.items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, other_weights[name]), name


@pytest.mark.parametrize("name", ["lm moe", "dit moe"])
def test_copies_of_experts_are_autocast_to_the_bit(name: str) -> None:
    config = config_of(name, "precision=bfloat16", "accumulate=2")
    plain, lean = Trainer(config, CPU), Trainer(config, CPU)
    lean.start()
    experts = [parameter for key, parameter in lean.model.named_parameters() if "expert_" in key]
    assert len(experts) == len(lean.masters) == 6
    assert {parameter.dtype for parameter in experts} == {torch.bfloat16}
    assert not plain.masters
    assert_same(lean, plain)


@pytest.mark.parametrize("name", RUNS)
def test_recomputed_layers_give_the_same_gradients(name: str) -> None:
    plain, lean = Trainer(config_of(name), CPU), Trainer(config_of(name, "recompute=2"), CPU)
    lean.start()
    assert lean.model.run_layer.recompute == 2
    assert_same(lean, plain)
    assert config_of(name).fingerprint == config_of(name, "recompute=2").fingerprint


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # the compiler's own
@pytest.mark.slow
@pytest.mark.parametrize("name", ["lm moe", "dit moe"])
def test_one_compiled_graph_serves_all_layers(name: str) -> None:
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    plain, compiled = (doubled(Trainer(config_of(name, *more), CPU)) for more in ((), ("recompute=1",)))
    compiled.start()
    runner = compiled.model.run_layer
    runner.call = torch.compile(runner.call, fullgraph=True, dynamic=False, backend="aot_eager")
    (losses, weights), (plain_losses, plain_weights) = losses_and_weights(compiled), losses_and_weights(plain)
    # The compiler writes some operations as sums of others. AdamW divides a gradient by its size: eps bounds what
    # that does to a rounding.
    assert losses == pytest.approx(plain_losses, rel=1e-9)
    for key, weight in weights.items():
        torch.testing.assert_close(weight, plain_weights[key], rtol=0, atol=1e-6, msg=key)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    torch.compiler.reset()


def test_balancing_sees_the_load_of_the_whole_step() -> None:
    biases = []
    for accumulate in (1, 4):
        keys = ("router.selection_bias=true", "bias_rate=0.1", f"accumulate={accumulate}")
        trainer = doubled(Trainer(config_of("lm moe", *keys), CPU))
        trainer.step(0)
        biases.append(torch.stack([layer.feed_forward.selection_bias for layer in trainer.model.layers]))
    assert torch.equal(*biases)
    assert biases[0].abs().max() > 0


@pytest.mark.parametrize(
    ("change", "rate"),
    [
        ("budget.steps=1200", 0.005),
        ("budget.steps=25000", 0.001),
        ("budget.steps=200", 0.01),
        ("bias_rate=0.02", 0.02),
        ("bias_rate=0", 0),
        ("router.selection_bias=false", 0),
        ("router.score=softmax", 0.001),
    ],
)
def test_short_runs_balance_faster(change: str, rate: float) -> None:
    config = override(recipe("lm_proxy:8e2a"), "budget.steps=2000", change)
    assert config.balance_rate == pytest.approx(rate)


def test_details_are_measured_only_when_asked_for() -> None:
    trainer = Trainer(config_of("lm moe"), CPU)
    assert trainer.step(0).updates == {}
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    details = trainer.step(1, detailed=True).details()
    ratios = [
        ((weight - before[name]).norm() / before[name].norm()).item()
        for name, weight in trainer.model.named_parameters()
        if name.endswith("expert_up")
    ]
    assert details["update_ratio"]["expert_up"] == pytest.approx(sum(ratios) / len(ratios), rel=1e-5)
    assert [len(load) for load in details["load"]] == [8, 8, 8]
    assert sum(details["load"][0]) == pytest.approx(8)


def test_tables_are_kept_and_right() -> None:
    like = torch.zeros(1, dtype=torch.float64)
    cos, sin = text_rotary(70, 90, 16, like)
    for kept, made in zip((cos, sin), rotary_table(torch.arange(70, 90), 16), strict=True):
        torch.testing.assert_close(kept, made, rtol=1e-12, atol=1e-12)
    assert text_rotary(70, 90, 16, like)[0].data_ptr() == cos.data_ptr()
    with torch.autocast("cpu", torch.bfloat16):
        assert text_rotary(0, 5, 16, like)[0].dtype == torch.bfloat16
    with torch.inference_mode():
        assert not text_rotary(0, 500, 16, like)[0].is_inference()
    places = torch.tensor([[-2, 0], [-1, 0], [0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]])
    for kept, made in zip(
        picture_rotary(2, (2, 3), 16, (8, 8), like), rotary_table(places, 16, (8, 8), PICTURE_BASE), strict=True
    ):
        assert torch.equal(kept, made)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["lm_tiny", "lm_tiny:16e4a", "dit_tiny:16e4a1s"])
def test_a_recorded_micro_batch_is_the_plain_one(name: str) -> None:
    config = override(recipe(name), "compile=true", "precision=bfloat16", "accumulate=2", "device=cuda")
    trainers = [Trainer(config, torch.device("cuda")) for _ in range(2)]
    for trainer in trainers:
        trainer.start()
    plain, recorded = trainers
    plain._micro_batch = plain._plain_micro_batch
    losses = [[float(trainer.step(number).loss) for number in range(8)] for trainer in trainers]
    assert isinstance(recorded._micro_batch, Recorded)
    assert recorded._micro_batch._graph is not None
    assert losses[1] == pytest.approx(losses[0], rel=2e-3)  # bfloat16, and gradients summed in another order


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
def test_experts_gradients_are_summed_by_their_product() -> None:
    config = override(recipe("lm_tiny:8e2a@64"), "precision=bfloat16", "accumulate=2", "device=cuda", "compile=false")
    summing, plain = (Trainer(config, torch.device("cuda")) for _ in range(2))
    for trainer in (summing, plain):
        trainer.start()
    blocks = [layer.feed_forward for layer in plain.model.layers]
    assert all(block.totals for block in blocks)
    for block in blocks:
        block.totals = None
    for trainer in (summing, plain):
        trainer._backward(trainer._placed(trainer.task.batch(0)))
    for name, master in summing.masters.items():
        other = plain.masters[name].grad
        assert master.grad is not None
        assert other is not None
        assert not torch.equal(master.grad, other)  # else a product was rounded to bfloat16, or did not add
        assert float((master.grad - other).norm() / other.norm()) < 2**-8  # the rounding of bfloat16
