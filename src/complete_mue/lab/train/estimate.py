"""What a run needs on many GPUs, on paper: memory per rank, time per step, what travels between ranks.

Weights are counted tensor by tensor as ``parallel.Ranks.shard`` cuts them; activations and messages are formulas, and
arithmetic goes by the speeds of kernels. They are checked against runs measured on one GPU (docs/distributed.md).

Speeds are measured on one NVIDIA H200 with torch 2.11 by ``mue bench train RECIPE --profile``: each record in
docs/results/train holds the time of every kernel of a step, and a test compares the sum of what is below with the step
as it was timed. Other GPUs are taken to be as far from their own peak and bandwidth; that is not measured.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from complete_mue.errors import RunError, one_of
from complete_mue.lab.train.config import PictureTask, RunConfig
from complete_mue.lab.train.flops import Cost
from complete_mue.lab.train.gpus import GPUS
from complete_mue.lab.train.parallel import WHOLE, check_dealing
from complete_mue.lab.train.precision import EXPERTS
from complete_mue.lab.train.task import Task, build
from complete_mue.layout.numbers import count, real

_STATE = 16  # bytes of a weight, its gradient and its two moments in float32

# Shares of the peak in bfloat16, and of the memory's speed. Attention counts all pairs of tokens, causal or not.
_PRODUCTS, _EXPERTS, _ATTENTION, _MEMORY = 0.68, 0.61, 0.69, 0.875
_PADDING = 64  # rows: half of the last tile of each expert

# Bytes moved, per weight and step: AdamW, the norm of gradients, their scaling and zeroing, the experts' copies.
_OPTIMIZER = 56
_SUMS = 8  # per weight of an expert and micro-batch: its float32 gradient, read and written
# Bytes moved, per token and layer: times the width, or the hidden width of a dense branch.
_LAYER, _MODULATION, _ROUTING, _ATTENTION_BYTES, _SWIGLU = 140, 60, 60, 70, 26
_OVERHEAD = 1.015  # the step against the sum of its kernels


@dataclass(frozen=True)
class Machine:
    """GPUs, and how fast they talk: bytes per second and GPU inside a machine (of ``node`` GPUs) and between them.

    ``mfu`` is the share of the peak that arithmetic reaches; None goes by the speeds of kernels.
    """

    gpu: str = "H200"
    mfu: float | None = None
    node: int = 8
    link: float = 450e9
    network: float = 50e9

    def __post_init__(self) -> None:
        one_of("GPU", self.gpu, GPUS, RunError)
        if self.mfu is not None and real("mfu", self.mfu) > 1:
            raise RunError(f"mfu = {self.mfu}: give a fraction of the peak, at most 1")
        count("node", self.node)
        real("link", self.link)
        real("network", self.network)

    def bandwidth(self, ranks: int) -> float:
        """Of messages among neighbouring ``ranks``."""
        return self.link if ranks <= self.node else self.network


@dataclass(frozen=True)
class _Weights:
    """Elements by how they are cut."""

    whole: int = 0  # on every rank: routers, gains, biases
    root: int = 0  # over all ranks, gathered in float32 and kept for the step
    layers: int = 0  # over all ranks, gathered layer by layer
    experts: int = 0  # dealt out over ep, then cut over dp
    shared: int = 0  # beside dealt-out experts: cut over dp alone
    routed: int = 0  # of all experts, dealt out or not
    gathered: int = 0  # the most that a rank gathers at once, elements

    @classmethod
    def of(cls, task: Task, expert_parallel: int) -> _Weights:
        model: Any = task.model
        found, modules = Counter[str](), Counter[str]()
        dealt = {
            f"layers.{number}.feed_forward"
            for number, layer in enumerate(model.layers)
            if expert_parallel > 1 and layer.feed_forward.spec.groups
        }
        for tensor in model.tensors():
            size, module = model.get_parameter(tensor.name).numel(), tensor.name.rpartition(".")[0]
            if tensor.role in EXPERTS:
                found["routed"] += size
            if tensor.role in WHOLE:
                found["whole"] += size
            elif not module.startswith("layers."):
                found["root"] += size
            elif module in dealt and "expert" in tensor.axes:
                found["experts"] += size
                modules[module] += size // expert_parallel
            else:
                found["shared" if module in dealt else "layers"] += size
                modules[module] += size
        return cls(**found, gathered=max(modules.values(), default=0))


@dataclass(frozen=True)
class Estimate:
    """One way of running a config. Bytes are those of one rank; a step's messages are what a rank sends."""

    gpus: int
    expert_parallel: int
    micro_batches: int
    tokens: int  # of one micro-batch of one rank, text tokens of a picture included
    states: float
    gathered: float
    activations: float
    flops_per_token: float
    fsdp: float
    exchange: float
    compute_seconds: float
    fsdp_seconds: float
    exchange_seconds: float
    batch_tokens: int
    steps: int
    gib: float
    peak: float  # FLOP/s of one GPU

    @property
    def bytes(self) -> float:
        """Memory of one rank."""
        return self.states + self.gathered + self.activations

    @property
    def fits(self) -> bool:
        """Whether that is less than the GPU has."""
        return self.bytes / 2**30 <= self.gib

    @property
    def seconds(self) -> float:
        """Of one step: FSDP's messages pass beside the arithmetic, the exchange of tokens does not."""
        return max(self.compute_seconds, self.fsdp_seconds) + self.exchange_seconds

    @property
    def tokens_per_second(self) -> float:
        """Of all ranks together."""
        return self.batch_tokens / self.seconds

    @property
    def mfu(self) -> float:
        """Share of the GPUs' peak over the whole step, messages included."""
        return self.flops_per_token * self.tokens_per_second / (self.gpus * self.peak)

    def memory(self) -> str:
        """Memory per rank in one line."""
        return (
            f"memory per rank {self.bytes / 2**30:.2f} GiB on {self.gpus} ranks, experts over {self.expert_parallel}: "
            f"states {self.states / 2**30:.2f}, gathered weights {self.gathered / 2**30:.2f}, activations of "
            f"{self.tokens:,} tokens {self.activations / 2**30:.2f} ({self.micro_batches} micro-batches)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with what follows from it."""
        names = ("bytes", "fits", "seconds", "tokens_per_second", "mfu")
        return {**vars(self), **{name: getattr(self, name) for name in names}}


def estimate(config: RunConfig, gpus: int, machine: Machine, task: Task | None = None) -> Estimate:
    """Memory, time and messages of a config on ``gpus`` ranks, ``config.expert_parallel`` of them per set of experts.

    Micro-batches are as large as the config's on one GPU, or smaller where a rank has fewer rows.
    """
    check_dealing(count("gpus", gpus), config.expert_parallel, config.shape)
    if config.rows % gpus:
        raise RunError(
            f"{config.rows} rows of a step over {gpus} ranks: give a budget.batch_tokens that is a multiple of "
            f"{config.task.tokens_per_row() * gpus}"
        )
    task = task or meta_task(config)
    deal, cost, peak = config.expert_parallel, Cost.of(config, task), GPUS[machine.gpu].flops
    weights, dp = _Weights.of(task, deal), gpus // deal
    here, most = config.rows // gpus, config.rows // config.accumulate
    parts = next(n for n in range(1, here + 1) if here % n == 0 and here // n <= most)
    tokens = here // parts * task.sequence
    narrow = 2 if config.precision == "bfloat16" else 4

    # -- memory
    own = weights.whole + (weights.root + weights.layers + weights.experts) / gpus + weights.shared / dp
    states = _STATE * own
    if gpus == 1:
        states, gathered = float(cost.state_bytes), 0.0
    else:
        # Two modules' weights (one in use, one on its way), one's gradients and their float32 sum, and the tables.
        gathered = (3 * narrow + 4) * weights.gathered + 8.0 * weights.root
    kept = activation_bytes(config, task, narrow)

    # -- arithmetic
    if machine.mfu is None:
        compute = _compute_seconds(
            config, task, machine.gpu, tokens=here * task.sequence, parts=parts, weights=own,
            experts=weights.routed / deal, deal=deal,
        )  # fmt: skip
    else:
        compute = cost.flops_per_token * config.budget.batch_tokens / (gpus * peak * machine.mfu)

    # -- messages: weights are gathered for the forward and again for the backward, gradients summed in float32
    passes = 2 * narrow + 4
    over_all = (passes * weights.layers + 8 * weights.root) * (gpus - 1) / gpus
    over_dp = passes * (weights.experts / deal + weights.shared) * (dp - 1) / dp
    once = 8 * weights.whole * (gpus - 1) / gpus + 8 * weights.shared / dp * (deal - 1) / deal
    fsdp = parts * (over_all + over_dp) + once
    routed = sum(sum(group.active for group in block.groups) for block in config.shape.blocks)
    rows = 4 * narrow * config.shape.width * routed  # there and back, forward and backward
    exchange = rows * here * task.sequence * (deal - 1) / deal
    return Estimate(
        gpus=gpus, expert_parallel=deal, micro_batches=parts, tokens=tokens, states=states, gathered=gathered,
        activations=kept * tokens, flops_per_token=cost.flops_per_token, fsdp=fsdp, exchange=exchange,
        compute_seconds=compute, fsdp_seconds=fsdp / machine.bandwidth(gpus),
        exchange_seconds=exchange / machine.bandwidth(deal), batch_tokens=config.budget.batch_tokens,
        steps=config.budget.steps, gib=GPUS[machine.gpu].gib, peak=peak,
    )  # fmt: skip


def _compute_seconds(
    config: RunConfig, task: Task, gpu: str, *, tokens: int, parts: int, weights: float, experts: float, deal: int = 1
) -> float:
    """One rank's step of ``tokens`` (a picture's text included) in ``parts`` micro-batches.

    ``weights`` are those its optimizer updates and ``experts`` those of experts whose gradients it sums; ``deal`` ranks
    share a set of experts and send each other tokens.
    """
    shape, peak, bandwidth = config.shape, GPUS[gpu].flops, _MEMORY * GPUS[gpu].bandwidth
    plain = shape.parameters.active + task.embedding  # active weights outside of experts
    routed = moved = 0.0
    for block in shape.blocks:
        active, number = sum(group.active for group in block.groups), sum(group.experts for group in block.groups)
        moved += (_LAYER + _ATTENTION_BYTES) * shape.width + _SWIGLU * sum(block.branches)
        if isinstance(config.task, PictureTask):
            moved += _MODULATION * shape.width
        if active:
            inside = 3 * shape.width * sum(group.active * group.expert_width for group in block.groups)
            rows = tokens / parts * deal * active / number
            plain -= inside
            routed += inside * (1 + _PADDING / rows)
            moved += (_ROUTING + 4 * (active + 1)) * shape.width  # each token's rows are read and summed, twice
    attention = 12 * shape.depth * shape.width * task.sequence
    per_token = (6 * plain / _PRODUCTS + 6 * routed / _EXPERTS + attention / _ATTENTION) / peak + moved / bandwidth
    return _OVERHEAD * (tokens * per_token + (_OPTIMIZER * weights + _SUMS * experts * parts) / bandwidth)


def meta_task(config: RunConfig) -> Task:
    """The task of a config with a model that has shapes and no weights."""
    with torch.device("meta"):
        return build(dataclasses.replace(config, compile=False))


def activation_bytes(config: RunConfig, task: Task, narrow: int) -> float:
    """Bytes that the backward needs per token, ``narrow`` of them to a number that matrix products take.

    A layer keeps its input and the middle of its residual stream in float32; both norms' outputs, query, key, value,
    gate, attention's result and its gated form; of a dense branch gate, value and their product; of experts gate and
    value of each row. A recomputed layer keeps its input. Logits are kept once narrow and once in float32.
    """
    width, total = config.shape.width, 0.0
    for number, block in enumerate(config.shape.blocks):
        if number < config.recompute:
            total += 4 * width
            continue
        inside = 3 * sum(block.branches) + 2 * sum(group.active * group.expert_width for group in block.groups)
        total += 2 * 4 * width + narrow * (8 * width + inside)
    outputs = task.embedding / width
    return total + (narrow + 4) * outputs
