"""A fused replica is its solo run; one that diverges leaves the others' bits unchanged."""

from __future__ import annotations

import pytest

import complete_mue as mue
from quick import quick

torch = pytest.importorskip("torch")

from complete_mue.apply.initialize import initialize  # noqa: E402
from complete_mue.apply.optim import clip_grad_norm_, param_groups  # noqa: E402
from complete_mue.lab.recipes import recipe  # noqa: E402
from complete_mue.lab.sweep.adamw import ReplicaAdamW  # noqa: E402
from complete_mue.lab.sweep.fused import train_fused  # noqa: E402
from complete_mue.lab.train.config import RunConfig, override  # noqa: E402
from complete_mue.lab.train.task import build  # noqa: E402

pytestmark = pytest.mark.numeric

SMALL = ("shape.width=16", "shape.depth=2", "shape.head_dim=8", "betas=hold", "budget.steps=12", "clip=0.5")
CALM = ("reference.hyper.lr=1e-3", "reference.hyper.eps=1e-6")  # large steps would amplify rounding
TEXT = (*SMALL, "task.sequence=16", "budget.batch_tokens=64")
PICTURES = (*SMALL, "task.size=16", "budget.batch_tokens=128")
RUNS = {
    "lm dense": ("lm_tiny", *TEXT),
    "lm moe": ("lm_tiny:8e2a", *TEXT, "router.balance_loss=0.01"),
    "lm shared": ("lm_tiny:8e2a1s", *TEXT),
    "lm open heads": ("lm_tiny", *TEXT, "shape.head_dim=none", "reference.shape.head_dim=8"),
    "lm own scale": ("lm_tiny", *TEXT, "shape.head_dim=none", "reference.attention_scale=0.5"),
    "lm grouped": ("lm_tiny:8e4a2g", *TEXT, "router.logit_bias=true"),
    "dit dense": ("dit_tiny", *PICTURES),
    "dit moe": ("dit_tiny:8e2a1s", *PICTURES),
}
# What replicas may differ in: hyperparameters, seeds, how they are planned.
REPLICAS = [
    (), ("reference.hyper.lr=2e-3", "duration=fixed"), ("reference.hyper.weight_decay=0.5", "seed=3"), ("rules=sp",),
]  # fmt: skip


def config_of(name: str, *more: str) -> RunConfig:
    base, *overrides = (*RUNS[name], *CALM, *more)
    return override(recipe(base), *overrides)


def solo(config: RunConfig, dtype: torch.dtype) -> tuple[list[float], torch.nn.Module]:
    """The plain loop, in multiplier form."""
    task, plan = build(config), config.plan
    model = task.model.to(dtype)
    initialize(model, plan, seed=config.seed)
    optimizer, losses = torch.optim.AdamW(param_groups(model, plan), foreach=False), []
    for step in range(config.budget.steps):
        for group in optimizer.param_groups:
            group["lr"] = group["planned_lr"] * config.schedule.factor(step)
        routings: list = []
        batch = tuple(part.to(dtype) if part.is_floating_point() else part for part in task.batch(step))
        loss = task.loss(model, batch, routings)
        (loss + sum(routing.auxiliary_loss() for routing in routings)).backward()
        clip_grad_norm_(model, plan, config.clip)
        optimizer.step()
        optimizer.zero_grad()
        routed = [layer.feed_forward for layer in model.layers if layer.feed_forward.spec.groups]
        for block, routing in zip(routed, routings, strict=True):
            block.update_bias(routing.load, config.balance_rate)
        losses.append(loss.item())
    return losses, model


@pytest.mark.parametrize("name", quick(RUNS, "lm moe", "lm open heads", "lm own scale", "dit dense"))
def test_each_replica_is_its_solo_run(name: str) -> None:
    configs = [config_of(name, *more) for more in REPLICAS]
    results, fused = train_fused(configs, dtype=torch.float64)
    for k, config in enumerate(configs):
        losses, model = solo(config, torch.float64)
        assert results[k].losses == pytest.approx(losses, abs=1e-10)
        weights = dict(model.named_parameters())
        scale = {spec.name: spec.multiplier for spec in model.tensors()}
        plain = {spec.name: spec.multiplier for spec in fused.tensors()}
        for key, weight in fused.named_parameters():  # the fused model keeps multipliers in its weights
            torch.testing.assert_close(
                plain[key] * weight[k], scale[key] * weights[key], rtol=1e-8, atol=1e-10, msg=f"{k} {key}"
            )


@pytest.mark.parametrize("name", quick(["lm moe", "dit dense"], "lm moe"))
def test_float32_within_rounding(name: str) -> None:
    configs = [config_of(name, *more) for more in REPLICAS]
    results, _ = train_fused(configs)
    for config, result in zip(configs, results, strict=True):
        assert result.losses == pytest.approx(solo(config, torch.float32)[0], rel=2e-4)


@pytest.mark.parametrize("name", ["lm dense", "lm moe", "dit moe"])
def test_a_diverging_replica_touches_no_other(name: str) -> None:
    good, worse = config_of(name), config_of(name, "reference.hyper.lr=1e30")
    calm, _ = train_fused([good, good, good])
    results, model = train_fused([good, worse, good])
    assert results[1].loss is None
    assert results[1].diverged is not None
    assert results[0] == calm[0]
    assert results[2] == calm[2]
    assert all(parameter[0].isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("name", ["lm shared", "dit moe"])
def test_every_replica_starts_as_its_solo_run_whatever_memory_held(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose weights and selection biases are NaN before they are set; seeds and inits repeat among replicas."""
    stale = torch.nn.Module.to_empty

    def full_of_nan(model: torch.nn.Module, **options: object) -> torch.nn.Module:
        stale(model, **options)
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.detach().fill_(torch.nan)
        return model

    monkeypatch.setattr(torch.nn.Module, "to_empty", full_of_nan)
    changes = [*REPLICAS, ("reference.hyper.lr=4e-3",), ("reference.hyper.init_std=0.5",), ("seed=3",)]
    configs = [config_of(name, *more, "budget.steps=1") for more in changes]
    monkeypatch.setattr(ReplicaAdamW, "step", lambda *arguments: None)
    _, fused = train_fused(configs)
    plain = {spec.name: spec.multiplier for spec in fused.tensors()}
    for k, config in enumerate(configs):
        alone = build(config).model
        initialize(alone, config.plan, seed=config.seed)
        scale = {spec.name: spec.multiplier for spec in alone.tensors()}
        for key, weight in fused.named_parameters():
            wanted = scale[key] * alone.get_parameter(key)
            torch.testing.assert_close(plain[key] * weight[k], wanted, msg=f"{k} {key}")
    assert all(buffer.isfinite().all() for buffer in fused.buffers())


def test_only_alike_configs_are_fused() -> None:
    with pytest.raises(mue.MueError, match="differ in 'budget'"):
        train_fused([config_of("lm dense"), config_of("lm dense", "budget.steps=9")])
    with pytest.raises(mue.MueError, match="at least one"):
        train_fused([])


def test_micro_batches_and_balancing_are_those_of_the_solo_run() -> None:
    from complete_mue.lab.train.trainer import Trainer

    more = ("accumulate=2", "bias_rate=0.01", "budget.batch_tokens=128")
    configs = [config_of("lm moe", *more), config_of("lm moe", *more, "seed=5", "reference.hyper.lr=2e-3")]
    results, fused = train_fused(configs, dtype=torch.float64)
    for k, config in enumerate(configs):
        trainer = Trainer(config, torch.device("cpu"))
        trainer.model.double()
        initialize(trainer.model, config.plan, seed=config.seed)  # drawn in float64, as the replicas were
        trainer.start()
        losses = [float(trainer.step(step).loss) for step in range(config.budget.steps)]
        assert results[k].losses == pytest.approx(losses, abs=1e-9)
        for layer, alone in zip(fused.layers, trainer.model.layers, strict=True):
            assert alone.feed_forward.selection_bias.abs().sum() > 0
            torch.testing.assert_close(layer.feed_forward.selection_bias[k], alone.feed_forward.selection_bias)
        assert results[k].load_variation is not None


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["lm dense", "lm moe", "dit moe"])
def test_a_recorded_step_is_the_plain_step(name: str) -> None:
    configs = [config_of(name, *more, "device=cuda") for more in REPLICAS]
    plain, _ = train_fused(configs, graph=False)
    recorded, _ = train_fused(configs, graph=True)
    for one, two in zip(plain, recorded, strict=True):
        assert one.losses == pytest.approx(two.losses, rel=1e-4)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_recorded_and_compiled_a_diverging_replica_touches_no_other() -> None:
    more = ("device=cuda", "compile=true", "precision=bfloat16", "shape.width=64", "shape.head_dim=16")
    good, worse = config_of("lm moe", *more), config_of("lm moe", *more, "reference.hyper.lr=1e30")
    calm, _ = train_fused([good, good, good])
    results, _ = train_fused([good, worse, good])
    assert results[1].loss is None
    assert results[0].losses == calm[0].losses
    assert results[2].losses == calm[2].losses
