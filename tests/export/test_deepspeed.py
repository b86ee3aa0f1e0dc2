"""DeepSpeed's engine takes the exported config and groups, in one process on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import complete_mue as mue
from complete_mue.export import export

SCRIPT = """
import json, os, re, sys
import torch
import deepspeed

deepspeed.ops.__compatible_ops__ = {}  # nothing is compiled: one process has nobody to send to
exported = json.load(open(sys.argv[1], encoding="utf-8"))
names = json.load(open(sys.argv[2], encoding="utf-8"))


class Stub(torch.nn.Module):
    '''Parameters with the names of a Hugging Face model.'''

    def __init__(self):
        super().__init__()
        for name in names:
            module, *path, last = self, *name.split(".")
            for part in path:
                if part not in module._modules:
                    module.add_module(part, torch.nn.Module())
                module = module._modules[part]
            module.register_parameter(last, torch.nn.Parameter(torch.ones(4)))

    def forward(self):
        return sum((parameter**2).sum() for parameter in self.parameters())


model = Stub()
groups = [dict(group, params=[]) for group in exported["groups"]]
for name, parameter in model.named_parameters():
    (group,) = [group for group in groups if re.fullmatch(group["pattern"], name)]
    group["params"].append(parameter)
groups = [group for group in groups if group["params"]]
config = {**exported["config"], "train_micro_batch_size_per_gpu": 1}
config["optimizer"]["params"]["torch_adam"] = True  # DeepSpeed's own kernels must be compiled
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=0, world_size=1)
engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=groups, config=config)
engine.backward(engine())
engine.step()
known = {id(parameter): name for name, parameter in engine.module.named_parameters()}
found = {}
for group in engine.optimizer.param_groups:
    for parameter in group["params"]:
        found[known[id(parameter)]] = [group[key] for key in ("name", "lr", "weight_decay", "eps", "betas")]
print("RESULT " + json.dumps(found), flush=True)
os._exit(0)  # a thread of gloo that outlives the interpreter would abort it
"""
NAMES = {
    "model.embed_tokens.weight": "embedding",
    "model.layers.0.self_attn.q_proj.weight": "attention_in",
    "model.layers.0.self_attn.o_proj.weight": "attention_out",
    "model.layers.0.input_layernorm.weight": "norm",
    "model.layers.0.mlp.up_proj.weight": "dense_up",
    "model.layers.0.mlp.down_proj.weight": "dense_down",
    "model.layers.1.mlp.gate.weight": "router",
    "model.layers.1.mlp.experts.gate_up_proj": "expert_up",
    "model.layers.1.mlp.experts.down_proj": "expert_down",
    "model.layers.1.mlp.shared_experts.up_proj.weight": "shared_up",
    "model.layers.1.mlp.shared_experts.down_proj.weight": "shared_down",
    "model.norm.weight": "final_norm",
    "lm_head.weight": "readout",
}


@pytest.mark.tools
def test_engine_has_the_planned_groups(tiny_plan: mue.Plan, tmp_path: Path) -> None:
    from importlib.util import find_spec

    for package in ("deepspeed", "psutil", "einops", "hjson", "msgpack", "cpuinfo", "tqdm"):
        if find_spec(package) is None:
            pytest.skip(
                "install deepspeed==0.19.8 without its dependencies, and psutil einops hjson msgpack py-cpuinfo tqdm"
            )
    (tmp_path / "run.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "export.json").write_text(export(tiny_plan, "deepspeed"), encoding="utf-8")
    (tmp_path / "names.json").write_text(json.dumps(list(NAMES)), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "run.py", "export.json", "names.json", str(tmp_path / "store")],
        cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "LOCAL_RANK": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    found = json.loads(result.removeprefix("RESULT "))
    assert found.keys() == NAMES.keys()
    for name, (group, *values, betas) in found.items():
        row = tiny_plan.fold().row(NAMES[name])
        assert group == NAMES[name]
        assert values == pytest.approx([row.lr, row.weight_decay, row.eps], rel=1e-12)
        assert tuple(betas) == tiny_plan.hyper.betas
