"""What a forward multiplies every branch, the embedding and the logits with.

A layer's output minus its input is fitted as a sum of its branches, by least squares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from complete_mue.apply.observe import floating
from complete_mue.apply.one_forward import COARSE, Capture, branch_modules, owner
from complete_mue.apply.seen_routing import Routing
from complete_mue.layout import Role

_EXACT = 0.05  # relative error beyond which a factor was not seen
_APART = 1e-6  # least eigenvalue of the branches' correlations: below it they cannot be told apart
GATE_AT_START = 0.5  # a sigmoid gate's mean while its weights are small and random


def layer_factors(capture: Capture, layer: int, routing: Routing) -> dict[str, tuple[float, float]]:
    """What a layer multiplies its branches with, and how exact that is."""
    branches = branch_modules(capture.model, capture.specs, layer)
    roles = {spec.name: spec.role for spec in capture.specs if spec.layer == layer}
    gate = _gate(capture, layer)
    outputs: dict[str, Tensor] = {}
    for name, module in branches.items():
        output = capture.outputs.get(module)
        if output is None:
            continue
        if roles[name] is Role.SHARED_DOWN and gate is not None:
            output = (output.reshape(len(gate), -1) * gate.sigmoid()).reshape(output.shape)
        outputs[name] = output
    seen = {name: branches[name] for name in outputs}
    found = _summed(capture, layer, outputs) or _carried(capture, layer, seen)
    result = {}
    for name, (factor, error) in found.items():
        if roles[name] is Role.SHARED_DOWN and gate is not None:
            factor *= GATE_AT_START
        if roles[name] is Role.EXPERT_DOWN:
            if not routing.normalized or routing.sums is None:
                continue
            factor *= sum(routing.sums) / 2
        if error < _EXACT:
            result[name] = factor, error
    return result


def _summed(capture: Capture, layer: int, branches: Mapping[str, Tensor]) -> dict[str, tuple[float, float]]:
    """output = input + sum of factor times branch; empty where that does not hold."""
    top = capture.layers[layer]
    before, after = capture.outputs.get(f"{top} input"), capture.outputs.get(top)
    if before is None or after is None or before.shape != after.shape or not branches:
        return {}
    if any(branch.numel() != after.numel() for branch in branches.values()):
        return {}
    found = _fit([*branches.values()], after.double() - before.double(), _noise(after))
    return dict(zip(branches, found, strict=True)) if all(error < math.inf for _, error in found) else {}


def _carried(capture: Capture, layer: int, branches: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """What comes next = one factor times a branch's input + another times its output, as where a norm is carried on."""
    norms = [s for s in capture.specs if s.layer == layer and s.role is Role.NORM and s.axes == ("width",)]
    nexts = [x for s in norms for x in capture.inputs.get(owner(s), ()) if isinstance(x, Tensor)]
    if (after := capture.outputs.get(capture.layers[layer])) is not None:
        nexts.append(after)
    found: dict[str, tuple[float, float]] = {}
    for name, module in branches.items():
        columns = [*floating(capture.inputs.get(module, ()))[:1], capture.outputs[module]]
        for after in nexts:
            if len(columns) < 2 or any(column.numel() != after.numel() for column in columns):
                continue
            if after.dtype in COARSE:  # several sums hold within its rounding
                continue
            fit = _fit(columns, after, _noise(after))[1]
            if fit[1] < found.get(name, (0.0, _EXACT))[1]:
                found[name] = fit
    return found


def _noise(x: Tensor) -> float:
    return 4 * float(torch.finfo(x.dtype).eps) * float(x.double().square().mean().sqrt())


def _gate(capture: Capture, layer: int) -> Tensor | None:
    """The scores of a gate with one output per token, such as a shared expert's."""
    for spec in capture.specs:
        if spec.layer == layer and spec.role is Role.ROUTER and spec.axes[0] == "one":
            scores = capture.outputs.get(owner(spec))
            return None if scores is None else scores.reshape(-1, 1)
    return None


def _fit(columns: Sequence[Tensor], y: Tensor, noise: float) -> list[tuple[float, float]]:
    """Least squares: every column's factor, and its error relative to it; infinite where the sum does not hold.

    ``noise`` is the rms error of one entry of ``y``; columns that are nearly alike cannot be told apart.
    """
    x, y = torch.stack([column.double().reshape(-1) for column in columns], 1), y.double().reshape(-1)
    nothing = [(math.nan, math.inf)] * len(columns)
    if not bool(torch.isfinite(x).all() and torch.isfinite(y).all()) or bool((x.square().sum(0) == 0).any()):
        return nothing
    size = x.square().sum(0).sqrt()
    x = x / size
    gram = x.T @ x
    if float(torch.linalg.eigvalsh(gram)[0]) < _APART:
        return nothing
    factors: Tensor = torch.linalg.solve(gram, x.T @ y)
    left = float((y - x @ factors).square().mean().sqrt())
    if left > max(1e-4 * float(y.square().mean().sqrt()), 4 * noise):
        return nothing
    spread = torch.linalg.inv(gram).diagonal().sqrt() * max(left, noise) * math.sqrt(len(gram))
    return [(float(f / s), float(e / abs(f)) if f else math.inf) for f, e, s in zip(factors, spread, size, strict=True)]


def end_factors(
    capture: Capture, parameters: Mapping[str, nn.Parameter], tokens: Tensor, logits: Tensor | None
) -> dict[str, tuple[float, float]]:
    """What the embedding's rows and the readout's product are multiplied with."""
    found = {}
    tables = [spec for spec in capture.specs if spec.role is Role.EMBEDDING]
    first = capture.outputs.get(f"{capture.layers[min(capture.layers)]} input") if capture.layers else None
    if len(tables) == 1 and first is not None:
        rows = parameters[tables[0].name].detach()[tokens]
        found[tables[0].name] = _ratio(rows, first)
    heads = [spec for spec in capture.specs if spec.role is Role.READOUT]
    norms = [capture.outputs.get(owner(spec)) for spec in capture.specs if spec.role is Role.FINAL_NORM]
    has_bias = any(spec.axes == ("vocab",) for spec in capture.specs)
    if len(heads) == 1 and norms and norms[0] is not None and logits is not None and not has_bias:
        head = parameters[heads[0].name].detach()
        found[heads[0].name] = _ratio(norms[0].double() @ head.double().T, logits)
    return {name: (factor, error) for name, (factor, error) in found.items() if error < _EXACT}


def _ratio(x: Tensor, y: Tensor) -> tuple[float, float]:
    if x.shape != y.shape:
        return math.nan, math.inf
    return _fit([x], y, 4 * _noise(y))[0]
