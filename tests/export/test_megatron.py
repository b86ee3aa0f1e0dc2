"""The Megatron module, run against megatron-core's own classes on one CPU process."""

from __future__ import annotations

import fnmatch
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import complete_mue as mue
from complete_mue.export import export

pytestmark = [pytest.mark.tools, pytest.mark.filterwarnings("ignore")]

ROLES = {
    "word_embeddings": "embedding", "output_layer": "readout", "final_layernorm": "final_norm", "layernorm": "norm",
    "linear_qkv": "attention_in", "linear_proj": "attention_out", "router": "router",
    "shared_experts.linear_fc1": "shared_up", "shared_experts.linear_fc2": "shared_down",
    "mlp.linear_fc1": "dense_up", "mlp.linear_fc2": "dense_down",
    "linear_fc1": "expert_up", "linear_fc2": "expert_down",
}  # fmt: skip
FIELDS = {
    "--num-layers": "num_layers", "--hidden-size": "hidden_size", "--ffn-hidden-size": "ffn_hidden_size",
    "--num-experts": "num_moe_experts", "--moe-ffn-hidden-size": "moe_ffn_hidden_size",
    "--moe-router-topk": "moe_router_topk", "--moe-router-num-groups": "moe_router_num_groups",
    "--moe-router-group-topk": "moe_router_group_topk",
    "--moe-shared-expert-intermediate-size": "moe_shared_expert_intermediate_size",
    "--moe-layer-freq": "moe_layer_freq", "--moe-router-topk-scaling-factor": "moe_router_topk_scaling_factor",
}  # fmt: skip


def role_of(name: str) -> str:
    return next(role for part, role in ROLES.items() if part in name)


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("megatron.core.optimizer", reason="install megatron-core==0.16.1 without its dependencies")


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    from megatron.core import parallel_state

    if torch.distributed.is_initialized():
        pytest.skip("a process group of another test is up")
    store = tmp_path_factory.mktemp("gloo") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    yield
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


@pytest.fixture
def module(tiny_plan: mue.Plan) -> types.ModuleType:
    found = types.ModuleType("mue_megatron")
    exec(compile(export(tiny_plan, "megatron"), "mue_megatron.py", "exec"), found.__dict__)
    return found


@pytest.fixture
def model(module: types.ModuleType, one_process: None) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    words = module.ARGUMENTS
    fields = {FIELDS[flag]: eval(words[words.index(flag) + 1]) for flag in FIELDS}
    config = TransformerConfig(
        **fields,
        moe_router_score_function=words[words.index("--moe-router-score-function") + 1],
        num_attention_heads=2,
        add_bias_linear=False,
        gated_linear_unit=True,
        normalization="RMSNorm",
        use_cpu_initialization=True,
        moe_router_load_balancing_type="none",
    )
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
    return GPTModel(
        config, spec, vocab_size=64, max_sequence_length=16, share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
    )  # fmt: skip


def test_keys_are_disjoint_and_cover_the_model(module: types.ModuleType, model: Any) -> None:
    keys = module.config_overrides()
    for name, parameter in model.named_parameters():
        assert sum(key.matches(parameter, name) for key in keys) == 1, name
        assert module.role_of(name) == role_of(name)


def test_every_parameter_has_its_row(module: types.ModuleType, model: Any, tiny_plan: mue.Plan) -> None:
    from megatron.core.optimizer import OptimizerConfig, _get_param_groups
    from megatron.core.optimizer.optimizer import param_group_identifier_keys
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    words = module.ARGUMENTS
    lr, wd = (float(words[words.index(flag) + 1]) for flag in ("--lr", "--weight-decay"))
    config = OptimizerConfig(optimizer="adam", lr=lr, min_lr=0.0, weight_decay=wd)
    groups = _get_param_groups([model], config, module.config_overrides())
    assert len({tuple(group[key] for key in param_group_identifier_keys) for group in groups}) == len(groups)
    betas = tuple(float(words[words.index(flag) + 1]) for flag in ("--adam-beta1", "--adam-beta2"))
    optimizer = torch.optim.AdamW(groups, lr=lr, weight_decay=wd, betas=betas)
    scheduler = OptimizerParamScheduler(
        optimizer, init_lr=0.0, max_lr=lr, min_lr=0.0, lr_warmup_steps=10, lr_decay_steps=100, lr_decay_style="linear",
        start_wd=wd, end_wd=wd, wd_incr_steps=100, wd_incr_style="constant",
    )  # fmt: skip
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    seen = set()
    for progress, factor in ((5, 0.5), (5, 1.0), (45, 0.5)):
        scheduler.step(progress)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = names[id(parameter)]
                seen.add(name)
                row = tiny_plan.fold().row(role_of(name))
                r = row.folded.route_scale  # the topk scaling factor
                assert group["lr"] == pytest.approx(factor * row.lr / r, rel=1e-9), name
                assert group["weight_decay"] == pytest.approx(row.weight_decay * r, rel=1e-9, abs=1e-200), name
                assert group["eps"] == pytest.approx(row.eps * r, rel=1e-9), name
                assert group["betas"] == tiny_plan.hyper.betas
    assert seen == set(names.values())


def test_initialize(module: types.ModuleType, model: Any, tiny_plan: mue.Plan) -> None:
    module.initialize(model)
    first = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for name, parameter in first.items():
        row = tiny_plan.fold().row(role_of(name))
        if row.init_std is None:
            assert (parameter == 1).all(), name
        else:
            std = row.init_std / row.folded.route_scale
            assert parameter.std().item() == pytest.approx(std, rel=5 / parameter.numel() ** 0.5), name
    module.initialize([model])
    assert all(torch.equal(parameter, first[name]) for name, parameter in model.named_parameters())
    same = [name for name in first if fnmatch.fnmatch(name, "*local_experts.*.linear_fc2.weight")]
    assert not torch.equal(first[same[0]], first[same[1]])


def test_an_unknown_parameter_is_an_error(module: types.ModuleType, one_process: None) -> None:
    with pytest.raises(ValueError, match="0 rows"):
        module.initialize(torch.nn.Linear(2, 2))


def test_routing_takes_an_equal_share_of_each_group(module: types.ModuleType, monkeypatch: Any) -> None:
    from megatron.core.transformer.moe import moe_utils

    monkeypatch.setattr(moe_utils, "group_limited_topk", moe_utils.group_limited_topk)
    module.balance_groups()
    logits = torch.randn(20, 8)
    probs, chosen = moe_utils.topk_routing_with_score_function(
        logits, topk=4, num_groups=2, group_topk=2, scaling_factor=4.0, score_function="sigmoid"
    )[:2]
    assert torch.allclose(probs.sum(-1), torch.full((20,), 4.0))
    assert (chosen.bool()[:, :4].sum(-1) == 2).all()
    assert (chosen.bool()[:, 4:].sum(-1) == 2).all()
    best = logits.view(20, 2, 4).topk(2).indices + torch.tensor([[0], [4]])
    assert chosen.bool().gather(1, best.flatten(1)).all()
