"""Work of fixed shapes on a GPU, recorded once as a CUDA graph and replayed.

A training step is thousands of kernels, which the host starts one by one: of small models, and of experts, not as fast
as the GPU runs them. Shapes are fixed and nothing in a step waits for the host, so it can be one graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

WARM_UP = 3  # calls taken the plain way: they compile, choose algorithms and allocate


class Recorded:
    """``advance(*tensors)``, from the fourth call on as a replay; what it returns is overwritten by the next.

    What cannot be recorded (a kernel that waits for the host) is taken the plain way, with a warning.
    """

    def __init__(self, advance: Callable[..., Any]) -> None:
        self._advance = advance
        self._inputs: tuple[Tensor, ...] = ()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Any = None
        self._stream = torch.cuda.Stream()  # not the default one, whose work must not get into the graph
        self._taken = 0
        self._plain = False

    def __call__(self, *tensors: Tensor) -> Any:
        """One call."""
        if not self._inputs:
            self._inputs = tuple(tensor.clone() for tensor in tensors)
        for held, given in zip(self._inputs, tensors, strict=True):
            held.copy_(given, non_blocking=True)
        self._taken += 1
        if self._graph is None and self._taken > WARM_UP and not self._plain:
            self._record()
        if self._graph is not None:
            self._graph.replay()
            return self._result
        return self._aside()

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                self._result = self._advance(*self._inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as problem:
            self._plain = True
            warnings.warn(f"not recorded as a CUDA graph: {str(problem).splitlines()[0]}", stacklevel=3)
        else:
            self._graph = graph

    def _aside(self) -> Any:
        """On the stream of the recording, so that what autograd keeps for the weights belongs to it."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = self._advance(*self._inputs)
        current.wait_stream(self._stream)
        return result
