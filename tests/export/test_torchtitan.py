"""The torchtitan module, run against torchtitan's own classes: configs, models, router, init, optimizer."""

from __future__ import annotations

import types
import warnings
from typing import Any

import pytest
import torch

import complete_mue as mue
from complete_mue.export import export

INSTALL = (
    "install torchtitan==0.3.0 without its dependencies, and tyro spmd_types==0.2.3 torch_checkpointing torchdata "
    "einops triton tokenizers"
)
NEEDED = ("torchtitan.components.optimizer", "triton", "torchtitan.models.qwen3", "torchtitan.models.deepseek_v3")
pytestmark = pytest.mark.tools

ROLES = {
    "tok_embeddings.": "embedding", "lm_head.": "readout",
    ".attention.wo.": "attention_out", ".attention.w": "attention_in", ".attention.qkv_linear.": "attention_in",
    ".feed_forward.w2.": "dense_down", ".feed_forward.": "dense_up",
    ".shared_experts.w2.": "shared_down", ".shared_experts.": "shared_up",
    ".w2_EDF": "expert_down", ".w1_EFD": "expert_up", ".w3_EFD": "expert_up", ".router.": "router",
    "layers.": "norm", "norm.": "final_norm",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in NEEDED:
            pytest.importorskip(module, reason=INSTALL)


def role_of(name: str) -> str:
    return next(role for part, role in ROLES.items() if part in name)


def run(plan: mue.Plan) -> types.ModuleType:
    module = types.ModuleType("mue_run")
    exec(compile(export(plan, "torchtitan"), "mue_run.py", "exec"), module.__dict__)
    module.__dict__.update(HEAD_DIM=16, VOCAB_SIZE=64, SEQ_LEN=16)
    return module


def build(config: Any) -> torch.nn.Module:
    model = config.build()
    model.init_states()
    return model


def check_optimizer(run: types.ModuleType, model: torch.nn.Module, plan: mue.Plan) -> None:
    container = run.optimizer(implementation="for-loop").build(model_parts=[model])
    assert len(container.optimizers) == 1
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    seen = set()
    for group in container.optimizers[0].param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            seen.add(name)
            row = plan.fold().row(role_of(name))
            r = row.folded.route_scale  # torchtitan applies it
            assert group["lr"] == pytest.approx(row.lr / r, rel=1e-12), name
            assert group["weight_decay"] == pytest.approx(row.weight_decay * r, rel=1e-12), name
            assert group["eps"] == pytest.approx(row.eps * r, rel=1e-12), name
            assert group["betas"] == plan.hyper.betas
    assert seen == set(names.values())


def check_init(model: torch.nn.Module, plan: mue.Plan) -> None:
    for name, parameter in model.named_parameters():
        row = plan.fold().row(role_of(name))
        if row.init_std is None:
            assert (parameter == 1).all(), name
        else:
            std = row.init_std / row.folded.route_scale
            assert parameter.std().item() == pytest.approx(std, rel=5 / parameter.numel() ** 0.5), name


def test_every_parameter_has_its_row(tiny_plan: mue.Plan) -> None:
    module = run(tiny_plan)
    model = build(module.model_config())
    check_optimizer(module, model, tiny_plan)
    check_init(model, tiny_plan)


def test_names_survive_activation_checkpointing(tiny_plan: mue.Plan) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    module = run(tiny_plan)
    model = build(module.model_config())
    for name, layer in list(model.layers.named_children()):
        model.layers.register_module(name, checkpoint_wrapper(layer))
    assert any("_checkpoint_wrapped_module" in name for name, _ in model.named_parameters())
    check_optimizer(module, model, tiny_plan)


@pytest.mark.filterwarnings("ignore:In CPU autocast")
def test_routing_takes_an_equal_share_of_each_group(tiny_plan: mue.Plan) -> None:
    model = build(run(tiny_plan).model_config())
    router = model.layers["1"].moe.router
    scores, index, _ = router(torch.randn(2, 5, 32))
    assert torch.allclose(scores.sum(-1), torch.full((2, 5), 4.0))
    assert ((index < 4).sum(-1) == 2).all()
    assert all(len(set(chosen)) == 4 for chosen in index.flatten(0, 1).tolist())
    logits = torch.tensor([9.0, 8, 7, 6, 1, 0, 3, 2])
    chosen = router._get_node_limited_routing_scores(logits.expand(1, 1, 8)).topk(4).indices
    assert sorted(chosen.flatten().tolist()) == [0, 1, 6, 7]


def test_stock_deepseek_takes_the_plan(tiny_reference: mue.Reference) -> None:
    """A stock flavor: its inits, which grow smaller from layer to layer, are all replaced."""
    from torchtitan.models.deepseek_v3 import deepseekv3_configs

    config = deepseekv3_configs["debugmodel"](attn_backend="flex", moe_comm_backend="standard")
    moe = mue.FeedForward(branches=(512,), groups=(mue.RoutedGroup(8, 3, 256),))
    blocks = (mue.FeedForward.dense(1024), *(moe,) * 5)
    plan = mue.transfer(tiny_reference, mue.ModelShape(width=256, depth=6, feed_forward=blocks))
    module = run(plan)
    config = module.apply_plan(config)
    for layer in config.layers[1:]:
        router = layer.moe.router
        assert (router.score_func, router.route_norm, router.route_scale) == ("sigmoid", True, 3.0)
        assert router.num_expert_groups is None
    model = build(config)
    check_optimizer(module, model, plan)
    check_init(model, plan)


def test_another_model_is_refused(tiny_plan: mue.Plan) -> None:
    module = run(tiny_plan)
    config = module.model_config()
    config.layers[1].moe.router.top_k = 2
    with pytest.raises(ValueError, match="layer 1"):
        module.apply_plan(config)
    config = module.model_config()
    config.enable_weight_tying = True
    with pytest.raises(ValueError, match="enable_weight_tying=False"):
        module.apply_plan(config)


def test_biases_are_refused(tiny_plan: mue.Plan) -> None:
    module = run(tiny_plan)
    config = module.model_config()
    config.layers[0].attention.wo.bias = True
    with pytest.raises(AssertionError, match="Parameter mismatch"):
        module.optimizer(implementation="for-loop").build(model_parts=[config.build()])


@pytest.mark.filterwarnings("ignore")
def test_config_function_gives_a_trainer_config(tiny_plan: mue.Plan, tmp_path: Any, monkeypatch: Any) -> None:
    pytest.importorskip("torchtitan.trainer", reason="install tensorboard and datasets too")
    from torchtitan.config.manager import ConfigManager

    (tmp_path / "mue_run_of_a_test.py").write_text(export(tiny_plan, "torchtitan"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["--module", "mue_run_of_a_test", "--config", "train", "--hf_assets_path", str(tmp_path)]
    config = ConfigManager().parse_args(words)
    assert config.training.steps == 200
    assert len(config.optimizer.param_groups) == 13
    assert config.model_spec.model.layers[1].moe.router.route_scale == 4.0
    config.model_spec.model.update_from_config(config=config)
    assert config.training.global_batch_size * config.training.seq_len == tiny_plan.budget.batch_tokens


def test_heads_and_rows_that_leave_something_over_are_refused(tiny_plan: mue.Plan) -> None:
    module = run(tiny_plan)
    module.__dict__.update(HEAD_DIM=12)
    with pytest.raises(ValueError, match="heads of 12 do not fill the width 32"):
        module.model_config()
