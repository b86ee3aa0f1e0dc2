"""Layers and heads compile as one graph each, with every kernel that a device has."""

from __future__ import annotations

import pytest
import torch

import complete_mue as mue
from complete_mue.lab.models import DiffusionTransformer, LanguageModel
from complete_mue.lab.nn.router_config import RouterConfig

REPLICAS = 2


def model(kind: str, layout: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    shape = mue.ModelShape(64, 2, mue.FeedForward.parse(layout, 64), head_dim=16)
    router = RouterConfig(selection_bias=True)
    if kind == "text":
        text = torch.randint(0, 50, (REPLICAS, 3, 16))
        return LanguageModel(shape, 50, replicas=REPLICAS, router=router), (text,)
    pictures, times, captions = torch.randn(REPLICAS, 3, 3, 8, 8), torch.rand(REPLICAS, 3), torch.zeros(REPLICAS, 3, 8)
    return DiffusionTransformer(shape, 3, replicas=REPLICAS, router=router), (pictures, times, captions.long())


@pytest.mark.parametrize("kind", ["text", "pictures"])
@pytest.mark.parametrize(
    ("device", "layout"),
    [
        ("cpu", "8e2a2g1s"),
        *(pytest.param("cuda", name, marks=pytest.mark.gpu) for name in ("dense", "8e2a", "8e2a2g1s")),
    ],
)
@pytest.mark.filterwarnings("default")
def test_a_layer_is_one_graph_and_so_is_the_head(kind: str, layout: str, device: str) -> None:
    torch.compiler.reset()
    net, inputs = model(kind, layout)
    net, inputs = net.to(device), tuple(part.to(device) for part in inputs)
    net.run_layer.call = torch.compile(net.run_layer.call, fullgraph=True, backend="aot_eager")
    net.run_head = torch.compile(net.run_head, fullgraph=True, backend="aot_eager")
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        y = net(*inputs)
    y.square().mean().backward()
    assert all(parameter.grad is not None for parameter in net.layers.parameters())
