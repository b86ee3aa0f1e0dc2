"""One feed-forward block for every layout: dense, Dense MoE, sparse, shared, grouped and hybrid.

    y = output * ( sum over always-active branches m of o_m(x)  +  route_scale * sum over selected e of pi_e(x) o_e(x) )

(Eq. hybrid-general). Every o is a SwiGLU, o(x) = down (silu(gate x) * value x), without biases. Always-active branches
are kept as one SwiGLU of the summed width: their sum is that SwiGLU, whatever their widths.

Axes: replica (optional, first), tokens, width (residual), expert, expert_width, gate_value (gate rows, then value).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from complete_mue.errors import ShapeError
from complete_mue.lab.kernels import exchange
from complete_mue.lab.kernels.dispatch import routed_experts
from complete_mue.lab.nn.linear import times
from complete_mue.lab.nn.router import Routing, group_runs, route, update_bias
from complete_mue.lab.nn.router_config import DEFAULT_ROUTER, RouterConfig
from complete_mue.layout import FeedForward as FeedForwardSpec
from complete_mue.layout import Role, TensorSpec
from complete_mue.layout.numbers import count, real


class FeedForward(nn.Module):
    """A block of the layout ``spec`` at residual width ``width``.

    Parameters: ``dense_up`` [2 H, width], ``dense_down`` [width, H] without routed groups; with them ``router``
    [N, width], ``expert_up`` [N, 2 h, width], ``expert_down`` [N, width, h]; ``router_bias`` [N] if the router has a
    logit bias; ``shared_up``, ``shared_down`` for branches beside the experts. Experts of several widths have one pair
    per width, ``expert_up_0``, ``expert_up_1``, ….
    ``replicas=K`` puts an axis of K in front of every parameter: K models of one shape in one program.
    Where experts are spread over ranks, ``expert_ranks`` is their process group and the block's weights are DTensors.
    ``totals`` are float32 gradients of experts by name: a kernel that can adds to them, and the weights get none.
    """

    router: Tensor
    router_bias: Tensor
    selection_bias: Tensor | None
    expert_ranks: Any = None
    totals: dict[str, Tensor] | None = None

    def __init__(
        self,
        spec: FeedForwardSpec,
        width: int,
        *,
        output: float = 1.0,
        route_scale: float | None = None,
        router: RouterConfig = DEFAULT_ROUTER,
        kernel: str | None = None,
        replicas: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.width = count("width", width)
        self.output = real("output", output)
        self.route_scale = real("route_scale", spec.route_scale if route_scale is None else route_scale)
        self.router_config = router
        self.kernel = kernel
        self.replicas = None if replicas is None else count("replicas", replicas)

        lead = () if replicas is None else (replicas,)
        self._branch = None if not spec.branches else "dense" if spec.is_dense else "shared"
        self._groups = group_runs(spec.groups)
        self._stacks = _stacks(spec)
        self._layout = _layout(spec, width, self._stacks, lead, router)
        for tensor, shape in self._layout:
            parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            self.register_parameter(tensor.name, parameter)
        bias = torch.zeros(*lead, spec.experts, device=device) if router.selection_bias and spec.groups else None
        self.register_buffer("selection_bias", bias)
        self.reset_parameters()

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every parameter: its name, its role, its axes by name, and the axis it sums over."""
        return tuple(tensor for tensor, _ in self._layout)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """A plain default, normal with std 1/sqrt(fan-in), biases 0; a plan brings its own."""
        for tensor, shape in self._layout:
            parameter = self.get_parameter(tensor.name)
            if parameter.is_meta:
                continue
            if tensor.fan_in is None:
                parameter.zero_()
            else:
                parameter.normal_(std=shape[tensor.axes.index(tensor.fan_in)] ** -0.5, generator=generator)

    def reset_buffers(self) -> None:
        """The selection bias as it starts, after the block came from the meta device."""
        if self.selection_bias is not None:
            self.selection_bias.zero_()

    def route(self, x: Tensor) -> Routing | None:
        """Where ``forward(x)`` sends each token, with all token axes flattened to one; None for a dense block."""
        return self._route(self._tokens(x)) if len(self._stacks) else None

    def forward(self, x: Tensor, routing: Routing | None = None) -> Tensor:
        """x [..., width] -> [..., width]. ``routing``, from ``route(x)``, saves computing it again or replaces it.

        With replicas, x is [replicas, ..., width] or, for all of them, [tokens, width]; y is [replicas, ..., width].
        """
        tokens = self._tokens(x)
        if len(self._stacks):
            y = self._routed(tokens, self._route(tokens) if routing is None else routing)
            if self._branch is not None:
                y = y + self.output * self._always_active(tokens)  # not torch.add(alpha=): inductor drops it
        else:
            y = times(self.output, self._always_active(tokens))
        shared = self.replicas is not None and x.ndim == 2
        return y if shared else y.reshape(x.shape)

    def update_bias(self, load: Tensor, rate: float) -> None:
        """One step of loss-free balancing from ``routing.load`` (summed over data-parallel ranks, if any)."""
        if self.selection_bias is None:
            raise ShapeError("this block has no selection bias: build it with router=RouterConfig(selection_bias=True)")
        update_bias(self.selection_bias, load, self._groups, rate)

    def extra_repr(self) -> str:
        """The layout and every multiplier, in one line."""
        parts = [f"{str(self.spec)!r}", f"width={self.width}", f"active_width={self.spec.active_width}"]
        parts += [f"output={self.output:g}", f"route_scale={self.route_scale:g}"]
        parts += [f"replicas={self.replicas}"] if self.replicas is not None else []
        return ", ".join(parts)

    def _tokens(self, x: Tensor) -> Tensor:
        """[..., width] -> [tokens, width], with replicas [replicas, tokens, width] (or [tokens, width], shared)."""
        if x.shape[-1] != self.width or x.ndim < 2:
            raise ShapeError(f"x has shape {tuple(x.shape)}: give [..., tokens, {self.width}], the block's width last")
        if self.replicas is None:
            return x.flatten(0, -2)
        if x.ndim > 2 and x.shape[0] != self.replicas:
            raise ShapeError(
                f"x has shape {tuple(x.shape)}: a block of {self.replicas} replicas takes [{self.replicas}, ..., "
                f"tokens, {self.width}], or [tokens, {self.width}] shared by all"
            )
        return x if x.ndim == 2 else x.flatten(1, -2)

    def _route(self, tokens: Tensor) -> Routing:
        logit_bias = self.router_bias if self.router_config.logit_bias else None
        return route(tokens, self.router, self._groups, self.router_config, self.selection_bias, logit_bias)

    def _always_active(self, tokens: Tensor) -> Tensor:
        return _swiglu(tokens, self._weight(f"{self._branch}_up"), self._weight(f"{self._branch}_down"))

    def _weight(self, name: str) -> Tensor:
        """A weight, or what this rank holds of it."""
        weight: Any = getattr(self, name)
        return weight if self.expert_ranks is None else weight.to_local()

    def _routed(self, tokens: Tensor, routing: Routing) -> Tensor:
        weight = routing.weight * (self.output * self.route_scale)
        parts = []
        for stack in self._stacks:
            up, down = self._weight(stack.up), self._weight(stack.down)
            index, share = stack.take(routing.index, weight, len(self._stacks))
            if self.expert_ranks is None:
                totals = (self.totals[stack.up], self.totals[stack.down]) if self.totals else None
                y = routed_experts(tokens, up, down, index, share, kernel=self.kernel, totals=totals)
            else:
                y = exchange.routed_experts(tokens, up, down, index, share, group=self.expert_ranks, kernel=self.kernel)
            parts.append(y)
        return sum(parts[1:], parts[0])


@dataclass(frozen=True)
class _Stack:
    """All experts of one width, in one pair of tensors. ``slots`` are of each of its groups: the first column in a
    routing, the one past the last, and what turns its experts' numbers in the block into those in the stack.
    """

    up: str
    down: str
    experts: int
    expert_width: int
    slots: tuple[tuple[int, int, int], ...]

    def take(self, index: Tensor, weight: Tensor, stacks: int) -> tuple[Tensor, Tensor]:
        """This stack's columns of a block's routing."""
        if stacks == 1:
            return index, weight
        indices = [index[..., first:last] + shift for first, last, shift in self.slots]
        weights = [weight[..., first:last] for first, last, _ in self.slots]
        return torch.cat(indices, dim=-1), torch.cat(weights, dim=-1)


def _stacks(spec: FeedForwardSpec) -> tuple[_Stack, ...]:
    widths = list(dict.fromkeys(group.expert_width for group in spec.groups))
    stacks = []
    for number, width in enumerate(widths):
        slots, expert, slot, stacked = [], 0, 0, 0
        for group in spec.groups:
            if group.expert_width == width:
                slots.append((slot, slot + group.active, stacked - expert))
                stacked += group.experts
            expert += group.experts
            slot += group.active
        suffix = f"_{number}" if len(widths) > 1 else ""
        stacks.append(_Stack(f"expert_up{suffix}", f"expert_down{suffix}", stacked, width, tuple(slots)))
    return tuple(stacks)


def _layout(
    spec: FeedForwardSpec, width: int, stacks: tuple[_Stack, ...], lead: tuple[int, ...], router: RouterConfig
) -> tuple[tuple[TensorSpec, tuple[int, ...]], ...]:
    """Every parameter with its shape."""
    rows: list[tuple[str, Role, dict[str, int], str | None]] = []
    if spec.branches:
        kind, hidden = ("dense" if spec.is_dense else "shared"), sum(spec.branches)
        rows.append((f"{kind}_up", Role(f"{kind}_up"), {"gate_value": 2 * hidden, "width": width}, "width"))
        rows.append((f"{kind}_down", Role(f"{kind}_down"), {"width": width, "hidden": hidden}, "hidden"))
    if spec.groups:
        rows.append(("router", Role.ROUTER, {"expert": spec.experts, "width": width}, "width"))
        if router.logit_bias:
            rows.append(("router_bias", Role.BIAS, {"expert": spec.experts}, None))
    for stack in stacks:
        up = {"expert": stack.experts, "gate_value": 2 * stack.expert_width, "width": width}
        down = {"expert": stack.experts, "width": width, "expert_width": stack.expert_width}
        rows.append((stack.up, Role.EXPERT_UP, up, "width"))
        rows.append((stack.down, Role.EXPERT_DOWN, down, "expert_width"))
    front = ("replica",) if lead else ()
    return tuple(
        (TensorSpec(name, role, (*front, *axes), fan_in), (*lead, *axes.values())) for name, role, axes, fan_in in rows
    )


def _swiglu(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """down (silu(gate) * value), [gate; value] = up x; a leading replica axis on the weights maps over replicas."""
    if up.ndim == 2:
        gate, value = F.linear(x, up).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * value, down)
    gate, value = (x @ up.mT).chunk(2, dim=-1)
    return (F.silu(gate) * value) @ down.mT
