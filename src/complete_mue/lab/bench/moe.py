"""``mue bench moe``: every kernel against the dense block of the same active width, forward + backward.

The paper's two figures at 40,960 tokens, width 4096, bfloat16: capacity (h = 2048, k = 8, more experts) and granularity
(h k = 16,384, E = 8 k, finer experts). On CPU the shapes shrink, and a third figure widens the experts.

Kernels are timed on the routed part alone, with one routing drawn beforehand, so that all do the same work. The figures
``layer_experts`` and ``layer_active`` time whole layers instead, router included: ours, and SonicMoE's own with its own
tuner. The rows of one shape are timed in turns, and each row is the median of its repeats; a row that fails says why
and ends nothing.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from complete_mue.errors import KernelError, first_line, one_of
from complete_mue.lab.bench import sonic_tune
from complete_mue.lab.bench.moe_records import DENSE, DENSE_COMPILED, WHOLE_LAYERS, BenchResult, BenchRow, check_names
from complete_mue.lab.bench.profiler import kernel_times, machine
from complete_mue.lab.kernels.dispatch import KERNELS, unavailable
from complete_mue.lab.nn.feed_forward import FeedForward
from complete_mue.layout import FeedForward as FeedForwardSpec
from complete_mue.layout.numbers import count

_WARM_UP = 2
_GIB = 2.0**30


@dataclass(frozen=True)
class Case:
    """One shape of one figure."""

    figure: str
    tokens: int
    width: int
    experts: int
    active: int
    expert_width: int
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """Tokens, width, experts, activated experts, expert width: what a row calls its shape."""
        return self.tokens, self.width, self.experts, self.active, self.expert_width

    @property
    def active_width(self) -> int:
        """Width of the dense block it is compared with."""
        return self.active * self.expert_width

    @property
    def whole_layer(self) -> bool:
        """Whether the router is timed too."""
        return self.figure in WHOLE_LAYERS

    def measured_by(self, row: BenchRow) -> bool:
        """Whether a row is of this shape and, layer or routed part, of this kind."""
        return row.shape[1:] == self.shape and (row.figure in WHOLE_LAYERS) == self.whole_layer


def cases(figure: str, device: str) -> tuple[Case, ...]:
    """The shapes of a figure: the paper's on a GPU, smaller ones on CPU; ``tiny`` is the same on both."""
    check_names([figure], device)
    if figure == "tiny":
        return tuple(Case(figure, 1024, 64, experts, 4, 8, torch.float32) for experts in (4, 8, 16, 32, 64))
    if device == "cpu":
        series = {
            "width": [(64, 8, h) for h in (16, 32, 64, 128)],
            "capacity": [(experts, 8, 32) for experts in (8, 16, 32, 64, 128)],
            "granularity": [(8 * k, k, 256 // k) for k in (2, 4, 8, 16, 32)],
            "layer_experts": [(experts, 8, 32) for experts in (32, 8, 128)],
            "layer_active": [(32, k, 256 // k) for k in (8, 2, 16)],
        }
        tokens, width, dtype = 4096, 128, torch.float32
    else:
        series = {
            "width": [(64, 8, h) for h in (256, 512, 1024, 2048)],
            "capacity": [(experts, 8, 2048) for experts in (8, 16, 32, 64, 128, 256)],
            "granularity": [(8 * k, k, 16_384 // k) for k in (2, 4, 8, 16, 32, 64)],
            # the most telling first, in case the time is up
            "layer_experts": [(experts, 8, 2048) for experts in (128, 8, 256, 32)],
            "layer_active": [(128, k, 16_384 // k) for k in (8, 2, 64, 16)],
        }
        tokens, width, dtype = 40_960, 4096, torch.bfloat16
    return tuple(Case(figure, tokens, width, *shape, dtype) for shape in series[figure])


def run(
    figures: Sequence[str] | None = None,
    device: str | None = None,
    *,
    repeats: int = 10,
    kernels: Sequence[str] | None = None,
    progress: bool = True,
    shapes: Sequence[Case] | None = None,
    each: Callable[[BenchResult], object] = lambda result: None,
    seconds: float = math.inf,
    known: BenchResult | None = None,
    profiled: bool = False,
) -> BenchResult:
    """Time every kernel that can run here (or ``kernels``) at every shape of ``figures`` (or at ``shapes``).

    ``figures`` defaults to the paper's two, on CPU with ``width`` too; ``kernels`` to all, on a GPU without
    ``reference``, whose plain loop needs minutes there. SonicMoE is timed as a whole layer alone, tuned.
    ``each`` is called with all rows so far after every shape, so that a run that is cut short leaves what it has;
    ``known`` is what such a run left, and shapes with a time there are not measured again. No shape is begun that
    would, by the slowest so far, end later than ``seconds`` from now. ``profiled`` also records the time of every
    kernel, in steps of their own.
    """
    began = time.monotonic()
    check_names((), device)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise KernelError(f"device {device!r}: this machine or this torch has no CUDA; give device 'cpu'")
    count("repeats", repeats)
    for name in kernels or ():
        one_of("kernel", name, KERNELS, KernelError)
    on_cpu = torch.device(device).type == "cpu"
    names = tuple(kernels or (name for name in KERNELS if on_cpu or name != "reference"))
    figures = figures or (("width", "capacity", "granularity") if on_cpu else ("capacity", "granularity"))
    todo = shapes or [case for figure in figures for case in cases(figure, torch.device(device).type)]
    where = machine(torch.device(device))
    if known is not None and (known.machine, known.repeats) != (where, repeats):
        ran = ", ".join(known.machine.values())
        raise KernelError(f"cannot go on with a result of {known.repeats} repeats on {ran}: write to another folder")
    before = () if known is None else known.rows
    timed = {row.shape for row in before if row.ms is not None}
    rows = [row for row in before if row.shape in timed]
    if "sonic" in names and any(case.whole_layer for case in todo):
        _compile_peer(todo, torch.device(device), min(seconds / 2, 300.0))
    slowest, left = 0.0, 0
    blocks: dict[tuple[object, ...], torch.nn.Module] = {}
    console = Console(stderr=True)
    with _many_compilations():
        for case in track(todo, "timing", console=console, transient=True, disable=not progress):
            done = [row for row in rows if case.measured_by(row)]
            if any(row.figure == case.figure for row in done):
                continue
            start = time.monotonic()
            if not done and start - began + slowest > seconds:
                left += 1
                continue
            rows += [replace(row, figure=case.figure) for row in done] or _run_case(  # two figures may share a shape
                case, torch.device(device), repeats, names, kernels is not None, blocks, profiled
            )
            _free()
            slowest = max(slowest, time.monotonic() - start)
            each(BenchResult(tuple(rows), where, repeats))
    if left:
        console.print(f"time is up: {left} of {len(todo)} shapes are not measured")
    return BenchResult(tuple(rows), where, repeats)


# -- what is timed ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Inputs:
    """One shape's tensors, the same for every kernel."""

    x: Tensor  # [tokens, width]
    up: Tensor  # [experts, 2 expert_width, width]
    down: Tensor  # [experts, width, expert_width]
    index: Tensor  # [tokens, active]
    weight: Tensor  # [tokens, active]
    dy: Tensor  # [tokens, width]
    router: Tensor  # [experts, width]

    @classmethod
    def draw(cls, case: Case, device: torch.device) -> _Inputs:
        generator = torch.Generator(device).manual_seed(0)

        def normal(*shape: int, std: float = 1.0, grad: bool = True) -> Tensor:
            values = torch.empty(shape, dtype=case.dtype, device=device)
            return values.normal_(std=std, generator=generator).requires_grad_(grad)

        logits = torch.randn(case.tokens, case.experts, device=device, generator=generator)
        chosen, index = logits.topk(case.active)
        return cls(
            normal(case.tokens, case.width),
            normal(case.experts, 2 * case.expert_width, case.width, std=case.width**-0.5),
            normal(case.experts, case.width, case.expert_width, std=case.expert_width**-0.5),
            index,
            chosen.softmax(-1).mul_(case.active).requires_grad_(),
            normal(case.tokens, case.width, grad=False),
            normal(case.experts, case.width, std=case.width**-0.5),
        )


@dataclass(frozen=True)
class _Candidate:
    """One row to come: ``forward`` of ``x`` and the other inputs, and backward to ``x`` and ``weights``."""

    forward: Callable[..., Tensor]
    inputs: _Inputs
    weights: tuple[Tensor, ...]
    others: tuple[Tensor, ...] = ()
    note: Callable[[], str | None] = lambda: None

    def step(self) -> None:
        """Run forward and backward once."""
        y = self.forward(self.inputs.x, *self.others)
        torch.autograd.grad(y, (self.inputs.x, *self.weights), self.inputs.dy)

    @property
    def bytes(self) -> int:
        """What its inputs and weights take."""
        tensors = {self.inputs.x, self.inputs.dy, *self.weights, *self.others}
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _candidates(inputs: _Inputs, name: str) -> Iterator[tuple[str, Callable[[], _Candidate]]]:
    """The rows of one kernel, by name, and how to make each; making one may fail, as any row may."""
    module = KERNELS[name].load()

    def candidate(function: Callable[..., Tensor]) -> _Candidate:
        weights = (inputs.up, inputs.down, inputs.weight)
        return _Candidate(function, inputs, weights, (inputs.up, inputs.down, inputs.index, inputs.weight))

    yield name, lambda: candidate(module.routed_experts)
    if name == "grouped":
        compiled = torch.compile(module.routed_experts, fullgraph=True, dynamic=False)
        yield "grouped, compiled", lambda: candidate(compiled)


def _layer_candidates(case: Case, inputs: _Inputs, name: str) -> Iterator[tuple[str, Callable[[], _Candidate]]]:
    """The same for whole layers: ours with the kernel of that name, as it is and compiled; or SonicMoE's own."""
    if name == "sonic":
        module = KERNELS[name].load()

        def peer() -> _Candidate:
            sonic_tune.all_tilings()
            up = module.native(inputs.up.detach()).requires_grad_()
            weights = (inputs.router, up, inputs.down)
            forward = partial(module.layer, active=case.active)
            return _Candidate(forward, inputs, weights, weights, sonic_tune.chosen)

        yield "sonic, tuned", peer
        return
    spec = FeedForwardSpec.moe(case.experts, case.active, case.expert_width)
    layer = FeedForward(spec, case.width, kernel=name, device="meta", dtype=case.dtype)
    weights = {"router": inputs.router, "expert_up": inputs.up, "expert_down": inputs.down}
    layer.load_state_dict({key: weight.detach() for key, weight in weights.items()}, assign=True)
    yield name, lambda: _Candidate(layer, inputs, tuple(layer.parameters()))
    compiled = torch.compile(layer, dynamic=False)
    yield f"{name}, compiled", lambda: _Candidate(compiled, inputs, tuple(layer.parameters()))


def _compile_peer(todo: Sequence[Case], device: torch.device, seconds: float) -> None:
    """All tilings of SonicMoE's products, side by side, where it can run."""
    probe = torch.empty(1, 128, dtype=torch.bfloat16, device=device)
    if unavailable("sonic", probe, probe.new_empty(1, 16, 128)) is None:
        whole = [case for case in todo if case.whole_layer]
        first, actives = whole[0], [case.active for case in whole]
        sonic_tune.compile_all(actives, first.tokens, first.width, processes=os.cpu_count() or 1, seconds=seconds)


def _dense_candidate(
    case: Case, inputs: _Inputs, name: str, blocks: dict[tuple[object, ...], torch.nn.Module]
) -> _Candidate:
    spec = FeedForwardSpec.dense(case.active_width)
    key = (name, spec, case.width, case.tokens, case.dtype)
    if key not in blocks:  # the dense block is the same at many shapes: compile it once
        layer = FeedForward(spec, case.width, device=inputs.x.device, dtype=case.dtype)
        blocks[key] = torch.compile(layer, dynamic=False) if name == DENSE_COMPILED else layer
    return _Candidate(blocks[key], inputs, tuple(blocks[key].parameters()))


def _run_case(
    case: Case,
    device: torch.device,
    repeats: int,
    kernels: Sequence[str],
    forced: bool,
    blocks: dict[tuple[object, ...], torch.nn.Module],
    profiled: bool,
) -> list[BenchRow]:
    shape = (*case.shape, str(case.dtype).removeprefix("torch."))
    try:
        inputs = _Inputs.draw(case, device)
    except RuntimeError as problem:
        return [BenchRow(case.figure, name, *shape, error=first_line(problem, 200)) for name in kernels]
    makers: list[tuple[str, Callable[[], _Candidate]]] = [
        (label, partial(_dense_candidate, case, inputs, label, blocks))
        for label in ((DENSE_COMPILED,) if case.whole_layer else (DENSE, DENSE_COMPILED))
    ]
    rows: list[BenchRow] = []
    for name in kernels:
        reason = unavailable(name, inputs.x, inputs.up)
        if reason is None and name == "sonic" and not case.whole_layer:
            reason = f"is timed, and tuned, as a whole layer: give {' or '.join(WHOLE_LAYERS)} as figure"
        if reason is not None:
            rows += [BenchRow(case.figure, name, *shape, error=reason)] if forced else []
            continue
        makers += _layer_candidates(case, inputs, name) if case.whole_layer else _candidates(inputs, name)

    ready: dict[str, tuple[_Candidate, float | None]] = {}
    for label, maker in makers:
        try:
            candidate = maker()
            ready[label] = candidate, _warm_up(candidate, device)
        except Exception as problem:
            rows.append(BenchRow(case.figure, label, *shape, error=first_line(problem, 200)))
            _free()
    times: dict[str, list[float]] = {label: [] for label in ready}
    failed: dict[str, str] = {}
    for _ in range(repeats):
        for label in [label for label in ready if label not in failed]:
            try:
                times[label].append(_milliseconds(ready[label][0].step, device))
            except Exception as problem:
                failed[label] = first_line(problem, 200)
    for label, (candidate, peak) in ready.items():
        if label in failed:
            rows.append(BenchRow(case.figure, label, *shape, error=failed[label]))
            continue
        summary = (statistics.median(times[label]), min(times[label]), max(times[label]))
        profile = kernel_times(candidate.step, device) if profiled else None
        rows.append(BenchRow(case.figure, label, *shape, *summary, peak, note=candidate.note(), kernels=profile))
    return rows


# -- how it is timed ----------------------------------------------------------------------------------------


def _warm_up(candidate: _Candidate, device: torch.device) -> float | None:
    """Compile, tune and fill caches; on CUDA, the peak memory of one step in GiB, without other rows' tensors."""
    for _ in range(_WARM_UP):
        candidate.step()
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    candidate.step()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before + candidate.bytes) / _GIB


def _milliseconds(step: Callable[[], None], device: torch.device) -> float:
    if device.type != "cuda":
        step()  # the row before this one left the allocator's pages to itself; training would find its own again
        start = time.perf_counter()
        step()
        return 1e3 * (time.perf_counter() - start)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    step()
    end.record()
    torch.cuda.synchronize(device)
    return begin.elapsed_time(end)


@contextmanager
def _many_compilations() -> Iterator[None]:
    """One compiled graph per shape, however many shapes."""
    with torch._dynamo.config.patch(recompile_limit=256, accumulated_recompile_limit=1024):
        yield
    torch.compiler.reset()


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
