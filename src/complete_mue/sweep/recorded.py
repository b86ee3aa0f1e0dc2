"""A training step recorded once as a CUDA graph and replayed.

A step of small models is hundreds of kernels of a few microseconds each, which the host cannot start as fast as the
GPU runs them. Shapes are fixed and nothing in a step waits for the host, so the whole step, forward, backward and
optimizer, is one graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_WARM_UP = 3  # real steps, taken the plain way: they compile, choose algorithms and allocate

Advance = Callable[[tuple[Tensor, ...], Tensor], Any]


class Recorded:
    """``advance(batch, factor)``, from the fourth call on as a replay; what it returns is overwritten by the next."""

    def __init__(self, advance: Advance) -> None:
        self._advance = advance
        self._inputs: tuple[Tensor, ...] = ()
        self._factor: Tensor | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Any = None
        self._stream = torch.cuda.Stream()  # not the default one, whose work must not get into the graph
        self._taken = 0

    def __call__(self, batch: tuple[Tensor, ...], factor: Tensor) -> Any:
        """One step."""
        if self._factor is None:
            self._inputs, self._factor = tuple(part.clone() for part in batch), factor.clone()
        for held, given in zip((*self._inputs, self._factor), (*batch, factor), strict=True):
            held.copy_(given, non_blocking=True)
        self._taken += 1
        if self._taken <= _WARM_UP:
            self._result = self._aside()
        elif self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._result = self._advance(self._inputs, self._factor)
            self._graph.replay()
        else:
            self._graph.replay()
        return self._result

    def _aside(self) -> Any:
        """On the stream of the recording, so that what autograd keeps for the weights belongs to it."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            assert self._factor is not None
            result = self._advance(self._inputs, self._factor)
        current.wait_stream(self._stream)
        return result
