"""Initial weights: seeded by name alone, whole or in shards; buffers restored; what is frozen stays."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import complete_mue as mue  # noqa: E402
from complete_mue.apply import bind  # noqa: E402
from complete_mue.apply.initialize import initial_value  # noqa: E402
from complete_mue.apply.setup import _chances, text  # noqa: E402
from complete_mue.errors import BindError  # noqa: E402
from complete_mue.layout import Role, TensorSpec  # noqa: E402

pytestmark = pytest.mark.numeric

FAMILY = mue.Family.define(
    "small",
    """
    embed.weight      | embedding  | vocab width
    layers.*.norm     | norm       | width
    layers.*.up       | dense_up   | hidden <width>
    layers.*.down     | dense_down | width <hidden>
    head.weight       | readout    | vocab <width>
    """,
)
SHAPE = mue.ModelShape(width=24, depth=2, feed_forward=mue.FeedForward.dense(40))


class Small(torch.nn.Module):
    def __init__(self, backwards: bool = False) -> None:
        super().__init__()
        if not backwards:
            self.embed = torch.nn.Embedding(50, 24)
        self.layers = torch.nn.ModuleList(torch.nn.Module() for _ in range(2))
        for layer in self.layers:
            sizes = {"norm": (24,), "up": (40, 24), "down": (24, 40)}
            for name in reversed(sizes) if backwards else sizes:
                setattr(layer, name, torch.nn.Parameter(torch.zeros(sizes[name])))
        self.head = torch.nn.Linear(24, 50, bias=False)
        if backwards:
            self.embed = torch.nn.Embedding(50, 24)


@pytest.fixture
def plan() -> mue.Plan:
    reference = mue.Reference(
        mue.ModelShape(16, 3, mue.FeedForward.dense(32)), mue.Budget(64, 70), mue.Hyper(1e-2, 0.1, 0.05)
    )
    return mue.transfer(reference, SHAPE, mue.Budget(64, 50))


def values(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def test_values_depend_on_seed_and_name_alone(plan: mue.Plan) -> None:
    state = torch.get_rng_state()
    first = values(mue.initialize(Small(), plan, family=FAMILY))
    torch.manual_seed(99)
    second = values(mue.initialize(Small(backwards=True), plan, family=FAMILY))
    assert list(first) != list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = values(mue.initialize(Small(), plan, seed=1, family=FAMILY))
    assert not torch.equal(first["head.weight"], other["head.weight"])
    assert not torch.equal(first["layers.0.up"], first["layers.1.up"])
    torch.set_rng_state(state)


def test_the_global_random_state_is_left_alone(plan: mue.Plan) -> None:
    model = Small()
    before = torch.get_rng_state()
    mue.initialize(model, plan, family=FAMILY)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_default_device_has_no_say(plan: mue.Plan) -> None:
    """Draws are made on the CPU by a generator of the CPU; with the default device elsewhere they still are."""
    model, plain = Small(), values(mue.initialize(Small(), plan, family=FAMILY))
    expected = text(32, 2, 0, 8)
    _chances.cache_clear()
    with torch.device("meta"):
        mue.initialize(model, plan, family=FAMILY)
        found = text(32, 2, 0, 8)
    assert all(torch.equal(value, plain[name]) for name, value in values(model).items())
    assert torch.equal(found, expected)


def test_half_precision_is_the_rounded_draw(plan: mue.Plan) -> None:
    full = values(mue.initialize(Small(), plan, family=FAMILY))
    half = values(mue.initialize(Small().to(torch.bfloat16), plan, family=FAMILY))
    assert all(torch.equal(half[name], full[name].to(torch.bfloat16)) for name in full)


def test_stds_gains_and_folding(plan: mue.Plan) -> None:
    model = mue.initialize(Small(), plan, family=FAMILY)
    for bound in bind(model, plan, FAMILY):
        row = plan.fold().row(bound.spec.role)
        if row.init_std is None:
            assert torch.equal(bound.parameter.detach(), torch.ones(24))
        else:
            rel = 5 / math.sqrt(2 * bound.parameter.numel())
            assert bound.parameter.std().item() == pytest.approx(row.init_std, rel=rel)


def test_frozen_parameters_are_untouched(plan: mue.Plan) -> None:
    model = Small()
    model.embed.weight.requires_grad_(False)
    model.layers[0].down.requires_grad_(False)
    before = values(model)
    mue.initialize(model, plan, family=FAMILY)
    after = values(model)
    for name, parameter in model.named_parameters():
        assert torch.equal(before[name], after[name]) == (not parameter.requires_grad), name


def test_meta_parameters_are_refused_with_the_remedy(plan: mue.Plan) -> None:
    with torch.device("meta"):
        model = Small()
    with pytest.raises(BindError, match=r"8 .*meta.*'embed.weight'.*to_empty"):
        mue.initialize(model, plan, family=FAMILY)
    loaded = values(mue.initialize(model.to_empty(device="cpu"), plan, family=FAMILY))
    built = values(mue.initialize(Small(), plan, family=FAMILY))
    assert all(torch.equal(loaded[name], built[name]) for name in built)


def test_buffers_by_callback_or_by_the_modules_own_method(plan: mue.Plan) -> None:
    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("value", torch.tensor([3.0]), persistent=False)

    class Own(Scale):
        def reset_buffers(self) -> None:
            self.value.fill_(3.0)

    model = Small()
    model.scale, model.own = Scale(), Own()
    model = model.to("meta").to_empty(device="cpu")
    model.scale.value.fill_(-1.0)
    mue.initialize(model, plan, family=FAMILY)
    assert model.scale.value.item() == -1.0
    assert model.own.value.item() == 3.0
    mue.initialize(model, plan, family=FAMILY, buffers=lambda net: net.scale.value.fill_(3.0))
    assert model.scale.value.item() == 3.0


def test_replicas_start_as_their_solo_runs(plan: mue.Plan) -> None:
    class Replicas(torch.nn.Module):
        shape = SHAPE

        def __init__(self, replicas: int) -> None:
            super().__init__()
            self.up = torch.nn.Parameter(torch.zeros(replicas, 40, 24))

        def tensors(self) -> list[TensorSpec]:
            return [TensorSpec("up", Role.DENSE_UP, ("replica", "hidden", "width"), "width", layer=0)]

    many, one = (mue.initialize(Replicas(k), plan, seed=s) for k, s in ((3, 5), (1, 7)))
    assert torch.equal(many.up[2], one.up[0])
    assert not torch.equal(many.up[0], many.up[1])


def test_shards_are_parts_of_the_whole(plan: mue.Plan, tmp_path: Any) -> None:
    from torch.distributed.tensor import DTensor, Shard

    from complete_mue.apply.initialize import _write

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        model = Small()
        bound = next(b for b in bind(model, plan, FAMILY) if b.name == "layers.1.down")
        sharded = torch.nn.Parameter(DTensor.from_local(torch.zeros(24, 40), mesh, [Shard(1)]))
        with torch.no_grad():
            _write(sharded, initial_value(bound))
        assert torch.equal(sharded.full_tensor(), values(mue.initialize(model, plan, family=FAMILY))["layers.1.down"])
    finally:
        torch.distributed.destroy_process_group()


# -- stock models --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3", "ernie4_5_moe", "minimax", "minimax_m2", "gpt_oss"])
def test_stock_models_from_meta_equal_built_ones(name: str) -> None:
    pytest.importorskip("transformers", reason="stock families need transformers")
    from transformers import AutoModelForCausalLM

    from stock_families import tiny_config, tiny_model, tiny_plan

    built = tiny_model(name)
    mine = tiny_plan(built)
    mue.initialize(built, mine)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(tiny_config(name), experts_implementation="eager")
    model.to_empty(device="cpu")
    with torch.no_grad():  # to_empty leaves what was in memory; make that visible
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(7)
    state = torch.get_rng_state()
    mue.initialize(model, mine)
    assert torch.equal(torch.get_rng_state(), state)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    expected = {**dict(built.named_parameters()), **dict(built.named_buffers())}
    assert tensors.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(tensors[key], value), key
    assert not any("initialized" in attribute for p in model.parameters() for attribute in vars(p))
    tokens = torch.arange(3, 35).view(2, 16)
    with torch.no_grad():
        assert torch.equal(model.eval()(tokens).logits, built.eval()(tokens).logits)


def test_stock_init_of_buffers_leaves_frozen_weights_beside_them() -> None:
    pytest.importorskip("transformers", reason="stock families need transformers")
    from stock_families import tiny_model, tiny_plan

    model = tiny_model("deepseek_v3")
    router = model.model.layers[1].mlp.gate
    router.weight.requires_grad_(False)
    router.e_score_correction_bias.fill_(2.0)
    before = router.weight.clone()
    mue.initialize(model, tiny_plan(model))
    assert torch.equal(router.weight, before)
    assert router.e_score_correction_bias.abs().max() == 0
