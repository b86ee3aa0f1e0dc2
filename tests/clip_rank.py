"""One rank of the test of clipping, in a module of its own so that spawned processes can import it."""

from __future__ import annotations

import math
import os

import pytest
import torch
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

import complete_mue as mue
from complete_mue.apply import bind

FAMILY = mue.Family.define(
    "small",
    """
    embed.weight        | embedding     | vocab width
    layers.*.into       | attention_in  | heads <width>
    layers.*.out        | attention_out | width <heads>
    layers.*.router     | router        | experts <width>
    layers.*.experts.up   | expert_up     | experts hidden <width>
    layers.*.experts.down | expert_down   | experts width <hidden>
    head.weight         | readout       | vocab <width>
    """,
    active=2,
)


def drawn(*size: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(size) / 5)


class Experts(torch.nn.Module):
    """All of them on all tokens: the gradients are what matters here."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = drawn(4, 20, 24), drawn(4, 24, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up, down = (p.to_local() if isinstance(p, DTensor) else p for p in (self.up, self.down))
        return torch.einsum("ewh,ehv,tv->tw", down, up, x).clone()  # FSDP2 warns about views


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out, self.router, self.experts = drawn(72, 24), drawn(24, 72), drawn(4, 24), Experts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + torch.tanh(x @ self.into.T) @ self.out.T
        return x + self.experts(x) * (x @ self.router.T).sigmoid().mean(-1, keepdim=True)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(50, 24), torch.nn.Linear(24, 50, bias=False)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return torch.nn.functional.cross_entropy(self.head(x), tokens)


def clip(meshes: list[tuple[int, int]], meet: str = "env://") -> None:
    """On meshes dp x ep, one after another; ranks ``meet`` there."""
    rank = int(os.environ.get("RANK", 0))
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=math.prod(meshes[0]))
    try:
        for sizes in meshes:
            check_clipping(rank, sizes)
    finally:
        dist.destroy_process_group()
    if math.prod(meshes[0]) > 1:
        os._exit(0)  # a thread of gloo that outlives the interpreter would abort it


def check_clipping(rank: int, sizes: tuple[int, int]) -> None:
    """The norm is that of the whole gradients, and all of them are scaled by one factor."""
    mesh = dist.device_mesh.init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "ep"))
    torch.manual_seed(0)
    model = Model()
    reference = mue.Reference(
        mue.ModelShape(16, 3, mue.FeedForward.dense(32)), mue.Budget(64, 70), mue.Hyper(1e-2, 0.1, 0.05)
    )
    plan = mue.transfer(reference, mue.describe(model, FAMILY), mue.Budget(64, 50))
    routers = [layer.router for layer in model.layers]
    for layer in model.layers:  # experts over ep, then over dp as FSDP2 does it: both along the experts' axis
        for name, weight in dict(layer.experts.named_parameters()).items():
            dealt = distribute_tensor(weight.detach(), mesh["ep"], [Shard(0)])
            layer.experts.register_parameter(name, torch.nn.Parameter(dealt))
        fully_shard(layer.experts, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh._flatten("ranks"), ignored_params=set(routers))
    tokens = torch.randint(50, (16,), generator=torch.Generator().manual_seed(rank))
    model(tokens).backward()
    for router in routers:
        dist.all_reduce(router.grad)
    kinds = {(type(p), p.device_mesh if isinstance(p, DTensor) else None) for p in model.parameters()}
    assert len(kinds) == 3, "plain tensors, and DTensors of two meshes"

    def gradients() -> dict[str, torch.Tensor]:
        found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        return {n: (g.full_tensor() if isinstance(g, DTensor) else g).clone() for n, g in found.items()}

    before = gradients()
    factors = {bound.name: bound.folded for bound in bind(model, plan, FAMILY)}
    assert before.keys() == factors.keys()
    expected = math.sqrt(sum((factors[n] * g).double().square().sum().item() for n, g in before.items()))
    norms = [mue.clip_grad_norm_(model, plan, limit, family=FAMILY).item() for limit in (1e9, expected / 3, 1e9)]
    assert norms == pytest.approx([expected, expected, expected / 3], rel=1e-5)
    for name, gradient in gradients().items():
        torch.testing.assert_close(gradient, before[name] / 3, rtol=1e-5, atol=1e-9, msg=name)

    open_sum = model.layers[0].experts.up
    zeros = torch.zeros(open_sum.shape)
    open_sum.grad = DTensor.from_local(zeros, open_sum.device_mesh, [Partial(), Partial()], run_check=False)
    with pytest.raises(mue.MueError, match="reduce it before clipping"):
        mue.clip_grad_norm_(model, plan, 1.0, family=FAMILY)
