"""SonicMoE at its best: its own tuner over all of its tilings for Hopper, compiled beforehand by many processes.

Left alone, the tuner compiles for minutes at the first shape of each kind. But a product is compiled for all shapes at
once and kept as an object file (in QUACK_CACHE_DIR), and compiling needs no GPU: shares of the work run side by side,
on this machine or on one without a GPU whose files are then carried over. Timing and choosing stay the tuner's.

    python -m complete_mue.lab.bench.sonic_tune 0 2    # the first of two shares
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch

_MODULE = "complete_mue.lab.bench.sonic_tune"
_OPERATORS = ("gemm", "gemm_gated", "gemm_dgated")
TARGET = {"QUACK_ARCH": "sm_90", "CUTE_DSL_ARCH": "sm_90a"}  # what to compile for, where no GPU says so
_EXPERTS, _WIDTH, _EXPERT_WIDTH, _TOKENS, _ACTIVE = 4, 256, 128, 64, 2  # of the products' descriptions: any will do


@dataclass(frozen=True)
class Product:
    """One of the layer's six grouped products: its tuner, and the arguments the layer gives it."""

    tuner: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def configs(self) -> list[Any]:
        """The tilings its tuner would try on Hopper."""
        self.tuner.nargs = dict(zip(self.tuner.arg_names, self.args, strict=False))
        found: list[Any] = self.tuner.prune_configs(self.kwargs)
        return found

    def compile(self, config: Any) -> None:
        """Compile one tiling, or find its object file; outside a share of `compile_all` it would be launched."""
        self.tuner.fn(*self.args, **self.kwargs, **config.all_kwargs())


def products(*, concatenated: bool) -> list[Product]:
    """Up, down, and backwards the gradients of hidden rows, down, x and up, as the layer calls them.

    ``concatenated``: with our order of gate and value rows; else with its own, interleaved.
    """
    from quack import gemm_interface as quack
    from sonicmoe.functional import backward, forward

    found: list[Product] = []

    def recorder(tuner: Any) -> Any:
        def record(*args: Any, **kwargs: Any) -> torch.Tensor:
            found.append(Product(tuner, args, kwargs))
            return torch.zeros(rows)

        return record

    def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    rows, both = _TOKENS * _ACTIVE, 2 * _EXPERT_WIDTH
    x, dy, y, dx_rows = zeros(_TOKENS, _WIDTH), zeros(_TOKENS, _WIDTH), zeros(rows, _WIDTH), zeros(rows, _WIDTH)
    up = zeros(_EXPERTS, both, _WIDTH).permute(1, 2, 0)
    down = zeros(_EXPERTS, _WIDTH, _EXPERT_WIDTH).permute(1, 2, 0)
    hidden, act, score = zeros(rows, both), zeros(rows, _EXPERT_WIDTH), zeros(rows, dtype=torch.float32)
    offset, index = zeros(_EXPERTS + 1, dtype=torch.int32), zeros(rows, dtype=torch.int32)
    _take_cpu_tensors()
    with patch.multiple(quack, **{f"{name}_tuned": recorder(getattr(quack, f"{name}_tuned")) for name in _OPERATORS}):
        forward._up_projection_forward(x, up, hidden, act, None, offset, index, "swiglu", False, concatenated)
        forward._down_projection_forward(down, act, y, None, offset)
        backward._down_projection_backward_act(
            dy, hidden, down, torch.empty_like(hidden), torch.empty_like(score), None, None, torch.empty_like(act),
            score, offset, index, index, "swiglu",
        )  # fmt: skip
        backward._down_projection_backward_weight(dy, act, torch.empty_like(down), offset, index)
        backward._up_projection_backward_act(up, dx_rows, hidden, None, offset, True, concatenated)
        backward._up_projection_backward_weight(x, torch.empty_like(up), hidden, offset, index, True, concatenated)
    return found


@cache
def _take_cpu_tensors() -> None:
    """Open its operators to tensors of the CPU. Object files are named by what arrives behind torch's operators (an
    enum as its number, or as it was, if it stands at its default), so a product is described through them."""
    from quack import gemm_interface as quack

    for name in _OPERATORS:
        operator = getattr(quack, f"{name}_out")
        operator.register_kernel("cpu")(operator._init_fn)


def compile_all(actives: Sequence[int], tokens: int, width: int, *, processes: int, seconds: float) -> None:
    """Compile whatever is not compiled yet: all products' tilings, and the gather-sums of such layers.

    After ``seconds`` what is left is for the tuner to compile, one by one.
    """
    numbers = [str(number) for number in (tokens, width, *sorted(set(actives)))]
    shares = [
        subprocess.Popen(
            [sys.executable, "-m", _MODULE, str(share), str(processes), *numbers],
            env={**os.environ, **TARGET, "OMP_NUM_THREADS": "1"}, stdout=sys.stderr,
        )
        for share in range(processes)
    ]  # fmt: skip
    until = time.monotonic() + seconds
    for share in shares:
        try:
            share.wait(max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            share.kill()
            share.wait()


def all_tilings() -> None:
    """Let its tuners choose among all of their tilings at each new shape, and time each for longer than they do.

    They would take two launches of each; products of ten milliseconds differ by less than such a timing.
    """
    import triton
    from sonicmoe.functional import reduction_over_k_gather as gather

    os.environ["QUACK_COMPILE_WORKERS"] = "1"  # `compile_all` has done it
    for tuner, configs in zip(_tuners(), _known_configs(), strict=True):
        tuner.configs = list(configs)
        tuner.cache.clear()
        tuner._do_bench = partial(triton.testing.do_bench, warmup=10, rep=60)
    gather.token_gather_sum_kernel.configs = gather._get_triton_autotune_configs()
    gather.token_gather_sum_kernel._do_bench = partial(triton.testing.do_bench, warmup=2, rep=10)


def chosen() -> str:
    """The tilings chosen since `all_tilings`: rows x columns, p for ping-pong, the cluster."""
    names = (("down", "ddown", "dx", "dup"), ("up",), ("dhidden",))
    return ", ".join(
        f"{name} {_words(config.kwargs['config'])}"
        for of_tuner, tuner in zip(names, _tuners(), strict=True)
        for name, config in zip(of_tuner, tuner.cache.values(), strict=False)
    )


def _words(config: Any) -> str:
    kind = "p" if config.pingpong else ""
    return f"{config.tile_m}x{config.tile_n}{kind} {config.cluster_m}x{config.cluster_n}"


def _tuners() -> tuple[Any, ...]:
    from quack import gemm_interface as quack

    return tuple(getattr(quack, f"{name}_tuned") for name in _OPERATORS)


@cache
def _known_configs() -> tuple[tuple[Any, ...], ...]:
    from quack.autotuner import AutotuneConfig
    from quack.gemm_config import get_all_configs

    kinds = (None, "gated", "dgated")
    return tuple(tuple(AutotuneConfig(config=c) for c in get_all_configs(kind)) for kind in kinds)


# -- one share of the compiling -----------------------------------------------------------------------------


def _work() -> Iterator[tuple[Product, Any]]:
    """Every tiling in SonicMoE's own order of weights; in ours its default alone, which is all that tests take."""
    from complete_mue.lab.kernels.sonic import is_default

    for product in products(concatenated=False):
        yield from ((product, config) for config in product.configs())
    for product in products(concatenated=True):
        yield from ((product, config) for config in product.configs() if is_default(config.kwargs["config"]))


def _gather_sums(tokens: int, width: int, actives: Sequence[int]) -> Iterator[partial[Any]]:
    from sonicmoe.functional.reduction_over_k_gather import token_gather_sum_kernel as kernel

    for active in actives:
        shape = {"T": tokens, "H": width, "MAX_K": active, "stride_xM": width, "stride_xH": 1}
        shape |= {"stride_outT": width, "stride_outH": 1, "is_varlen_K": False}
        kernel.nargs = {}
        for config in kernel.prune_configs(shape):
            for score in (torch.float32, None):
                yield partial(
                    kernel.fn.warmup, torch.bfloat16, score, torch.int32, None, torch.bfloat16,
                    **shape, w_is_None=score is None, **config.all_kwargs(), grid=(tokens,),
                )  # fmt: skip


def _share(share: int, of: int, tokens: int = 0, width: int = 0, *actives: int) -> None:
    import quack.cache_utils
    from cutlass.base_dsl.compiler import Compiler

    quack.cache_utils.COMPILE_ONLY = True
    Compiler._check_cuda_dependencies_once = lambda *_: None  # it would look for a driver; nothing is launched
    tasks: list[partial[Any]] = [partial(product.compile, config) for product, config in _work()]
    if torch.cuda.is_available():
        tasks += _gather_sums(tokens, width, actives)
    for task in tasks[share::of]:
        try:
            task()
        except Exception as problem:
            print(f"{task.args}: {problem}"[:300], file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.environ |= TARGET
    _share(*(int(word) for word in sys.argv[1:]))
