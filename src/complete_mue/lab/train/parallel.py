"""Many ranks train one run: who has which rows, how the model is cut, what is summed over whom.

Ranks form a mesh dp x ep; all of them take rows of their own. Attention, dense blocks and tables are cut over all
ranks (FSDP2). With ep > 1 a routed block's experts are dealt out over ep, tokens travel to them (kernels/exchange.py),
and each part is cut once more over dp; a shared branch beside them is cut over dp alone.

Routers, gains and biases stay whole on every rank: they are small, and under bfloat16 they alone must not be rounded.
So the numbers are those of one process, but for the order of sums.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from complete_mue.errors import RunError
from complete_mue.lab.nn.feed_forward import FeedForward
from complete_mue.lab.nn.router import Routing
from complete_mue.layout import ModelShape, Role

WHOLE = (Role.ROUTER, Role.NORM, Role.FINAL_NORM, Role.BIAS)  # roles that every rank holds whole


@dataclass(frozen=True)
class Ranks:
    """This process among those of a run. ``ALONE`` is the only one of its run."""

    rank: int = 0
    world: int = 1
    expert_parallel: int = 1
    mesh: Any = None  # DeviceMesh (dp, ep); None when alone

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes the run's records."""
        return self.rank == 0

    # -- the model -------------------------------------------------------------------------------------------------

    def shard(self, model: nn.Module, precision: str) -> None:
        """Cut a model that is still on the meta device; its parameters become DTensors, but for the small ones."""
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        everyone = self.mesh._flatten("ranks")
        plain = MixedPrecisionPolicy()
        # Autocast casts inputs; here weights are cast before they are gathered, to the same bits in half the bytes.
        cast = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
        policy = cast if precision == "bfloat16" else plain
        small = {model.get_parameter(tensor.name) for tensor in model.tensors() if tensor.role in WHOLE}
        for layer in model.layers:
            fully_shard(layer.attention, mesh=everyone, mp_policy=policy, ignored_params=small)
            block = layer.feed_forward
            if not self.deals_out(block):
                fully_shard(block, mesh=everyone, mp_policy=policy, ignored_params=small)
                continue
            self._deal_out(block)
            # Over dp each expert is cut inside, not expert from expert: those are dealt out over ep already.
            fully_shard(
                block, mesh=self.mesh["dp"], mp_policy=policy, ignored_params=small,
                shard_placement_fn=lambda weight: Shard(1) if weight.ndim == 3 else None,
            )  # fmt: skip
        fully_shard(model, mesh=everyone, mp_policy=plain, ignored_params=small)

    def deals_out(self, block: FeedForward) -> bool:
        """Whether the experts of a block live on several ranks."""
        return self.expert_parallel > 1 and bool(block.spec.groups)

    def _deal_out(self, block: FeedForward) -> None:
        """Experts over ep; the other weights of the block on every rank of it."""
        mesh = self.mesh["ep"]
        for tensor in block.tensors():
            if tensor.role in WHOLE:
                continue
            over = Shard(0) if "expert" in tensor.axes else Replicate()
            weight = distribute_tensor(block.get_parameter(tensor.name).detach(), mesh, [over], src_data_rank=None)
            block.register_parameter(tensor.name, nn.Parameter(weight))
        block.expert_ranks = mesh.get_group()

    @torch.no_grad()
    def reduce_gradients(self, model: nn.Module) -> None:
        """What FSDP leaves to us: means over all ranks for whole parameters, and over ep for blocks dealt out."""
        if self.mesh is None:
            return
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        whole = [grad for grad in gradients if not isinstance(grad, DTensor)]
        dealt = [grad for grad in gradients if isinstance(grad, DTensor) and grad.device_mesh.ndim == 2]
        shared = [grad.to_local() for grad in dealt if Replicate() in grad.placements]
        _sum_together(whole, None)
        if dealt:
            _sum_together(shared, self.mesh["ep"].get_group())
        # An expert's gradient is a sum over the tokens of all ranks of ep already; FSDP took the mean over dp.
        for grads, ranks in ((whole, self.world), ([grad.to_local() for grad in dealt], self.expert_parallel)):
            if grads:
                torch._foreach_div_(grads, ranks)

    # -- numbers ---------------------------------------------------------------------------------------------------

    def mean(self, value: Tensor) -> Tensor:
        """Mean over ranks."""
        if self.mesh is None:
            return value
        total = value.clone()
        dist.all_reduce(total)
        return total / self.world

    def any(self, here: bool) -> bool:
        """Whether it is so on any rank; every rank must ask."""
        if self.mesh is None:
            return here
        flag = torch.tensor([here], dtype=torch.int32)  # on the CPU: no rank waits for its device
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag)

    def wait(self) -> None:
        """Until every rank is here."""
        self.any(False)

    def routing(self, routing: Routing) -> Routing:
        """A routing that speaks for the tokens of all ranks."""
        if self.mesh is None:
            return routing
        return _Everywhere(**vars(routing), world=self.world)

    def norms(self, tensors: Sequence[Tensor]) -> Tensor:
        """The norm of each whole tensor."""
        if self.mesh is None:
            return torch.stack(torch._foreach_norm(list(tensors)))
        squares = [local(tensor).float().square().sum() / self._holders(tensor) for tensor in tensors]
        total = torch.stack(squares)
        dist.all_reduce(total)
        return total.sqrt()

    def _holders(self, tensor: Tensor) -> int:
        """How many ranks hold the same part."""
        if not isinstance(tensor, DTensor):
            return self.world
        cuts = zip(tensor.device_mesh.shape, tensor.placements, strict=True)
        return self.world // math.prod(size for size, placement in cuts if not placement.is_replicate())


ALONE = Ranks()


@dataclass(frozen=True)
class _Everywhere(Routing):
    """Loads are summed over ranks; losses are this rank's share times the world, for a mean over ranks follows."""

    world: int = 1

    @property
    def load(self) -> Tensor:
        total = super().load
        dist.all_reduce(total)
        return total

    @property
    def _tokens(self) -> int:
        return self.world * max(self.index.shape[-2], 1)

    def auxiliary_loss(self) -> Tensor:
        return self.world * super().auxiliary_loss()


def split_by_mesh(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parameter groups whose parameters are all cut over the same ranks, as one call of a fused optimizer asks for."""
    split = []
    for group in groups:
        meshes: dict[Any, list[tuple[Tensor, str]]] = {}
        for parameter, name in zip(group["params"], group["param_names"], strict=True):
            mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
            meshes.setdefault(mesh, []).append((parameter, name))
        for number, own in enumerate(meshes.values()):
            parameters, names = map(list, zip(*own, strict=True))
            called = f"{group['name']}:{number}" if number else group["name"]
            split.append({**group, "params": parameters, "param_names": names, "name": called})
    return split


@contextmanager
def launched(expert_parallel: int, device: torch.device) -> Iterator[Ranks]:
    """The ranks that torchrun started, connected; ``ALONE`` without torchrun."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    check_dealing(world, expert_parallel)
    if "RANK" not in os.environ:
        yield ALONE
        return
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")  # nothing is added in place
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store, rank, world = next(iter(dist.rendezvous("env://")))
    dist.init_process_group(backend, store=_of_this_start(store), rank=rank, world_size=world)
    yield arranged(expert_parallel, device)
    # Not after an error: it could wait for ranks that wait for this one, and keep torchrun from ending them.
    dist.destroy_process_group()


def leave(status: int = 0, *, at_once: bool = False) -> NoReturn:
    """End a process whose work is done; a rank of torchrun without the interpreter's own end, and others ``at_once``,
    where a thread is still within torch: that would abort the process, too.

    A thread of gloo lets go of a tensor some time after the wait for it is over. If the interpreter has gone meanwhile,
    that aborts the process, and torchrun counts a finished rank as failed (pytorch/pytorch#179291).
    """
    if at_once or "RANK" in os.environ:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _of_this_start(store: dist.Store) -> dist.Store:
    """A part of the store of its own for every start: on one node torchrun keeps the store when it starts ranks again,
    and a rank that finds an address of the last start connects to a process that is gone.
    """
    if os.environ.get("GROUP_WORLD_SIZE") != "1":
        return store
    return dist.PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def arranged(expert_parallel: int, device: torch.device) -> Ranks:
    """The connected ranks as a mesh dp x ep."""
    world = dist.get_world_size()
    mesh = dist.device_mesh.init_device_mesh(
        device.type, (world // expert_parallel, expert_parallel), mesh_dim_names=("dp", "ep")
    )
    return Ranks(dist.get_rank(), world, expert_parallel, mesh)


def check_dealing(world: int, expert_parallel: int, shape: ModelShape | None = None) -> None:
    """Refuse experts or ranks that cannot be shared out evenly."""
    if world % expert_parallel:
        raise RunError(
            f"expert_parallel = {expert_parallel} with {world} ranks: give a divisor of the number of ranks, and start "
            f"the run with `torchrun --nproc-per-node N -m complete_mue train …`"
        )
    cut = world // expert_parallel
    for kind in shape.kinds if shape is not None and expert_parallel > 1 else ():
        for width in {group.expert_width for group in kind.groups}:
            experts = sum(group.experts for group in kind.groups if group.expert_width == width)
            if experts % expert_parallel:
                raise RunError(
                    f"expert_parallel = {expert_parallel} with {experts} experts of width {width}: "
                    "give a divisor of the number of experts"
                )
            if shape is not None and (2 * width % cut or shape.width % cut):
                raise RunError(
                    f"expert_parallel = {expert_parallel} with {world} ranks cuts experts of width {width} in a model "
                    f"of width {shape.width} into {cut} parts: give a larger expert_parallel, or a number of ranks "
                    f"over it that divides {shape.width} and {2 * width}"
                )


def _sum_together(tensors: list[Tensor], group: Any) -> None:
    """Sum tensors of one dtype over a group, in place, in one message."""
    if tensors:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat, group=group)
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
