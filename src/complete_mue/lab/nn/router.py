"""Token choice: which experts a token takes, and with what weight.

    logits = x W^T (+ logit bias)                   in float32 at least, whatever the experts compute in
    selection: the a_g best of each group g         by score, plus a bias that balances the load and nothing else
    pi = score / sum of the selected scores         over all groups together, so that sum pi = 1

The score is ``sigmoid(logit)`` (default) or ``softmax(logits)``. Both weights are one softmax over the selected
experts, of ``logsigmoid(logit)`` and of ``logit``: the same numbers without a division by a sum that underflows.
``shuffled`` is a control: sigmoid scores, but every token takes the experts of another token, half a batch away. Loads
stay, and the tokens of one expert are no longer alike.

Axes: (replicas,) tokens, width, experts (of the whole block, group after group), active (slots, group after group).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from complete_mue.lab.kernels import router_product
from complete_mue.lab.kernels.steps import top_experts
from complete_mue.lab.nn.router_config import DEFAULT_ROUTER, SHUFFLED, RouterConfig
from complete_mue.layout import RoutedGroup


@dataclass(frozen=True)
class GroupRun:
    """Neighbouring groups that are alike, routed as one tensor: ``count`` times the ``active`` best of ``experts``."""

    count: int
    experts: int
    active: int


def group_runs(groups: Sequence[RoutedGroup]) -> tuple[GroupRun, ...]:
    """A layout's groups as the router sees them; expert widths are no concern of its."""
    sizes = groupby((group.experts, group.active) for group in groups)
    return tuple(GroupRun(len(list(same)), experts, active) for (experts, active), same in sizes)


@dataclass(frozen=True)
class Routing:
    """Where each token goes. Statistics and losses are computed when read, as tensors, without a host sync."""

    index: Tensor  # [(replicas,) tokens, active], into the experts of the whole block, slots in group order
    weight: Tensor  # [(replicas,) tokens, active], pi; carries the gradient to the router
    logits: Tensor  # [(replicas,) tokens, experts]
    groups: tuple[GroupRun, ...]
    config: RouterConfig  # required: torch 2.11's compiler cannot trace such a default

    @property
    def load(self) -> Tensor:
        """Tokens per expert, [(replicas,) experts], int64."""
        chosen = self.index.flatten(-2)
        zeros = chosen.new_zeros(*chosen.shape[:-1], self.logits.shape[-1])
        return zeros.scatter_add(-1, chosen, torch.ones_like(chosen))

    @property
    def relative_load(self) -> Tensor:
        """Tokens per expert over what its group's experts would each get in perfect balance."""
        parts = [part * (run.experts / (self._tokens * run.active)) for part, run in _by_group(self.load, self.groups)]
        return torch.cat([part.flatten(-2) for part in parts], dim=-1)

    @property
    def load_variation(self) -> Tensor:
        """Coefficient of variation of the (relative) load: 0 in perfect balance."""
        return (self.relative_load - 1).square().mean(-1).sqrt()

    @property
    def balance_loss(self) -> Tensor:
        """Switch balance loss, N_g * sum over e of f_e P_e averaged over groups: 1 in balance, N_g / a_g at worst.

        f_e is the share of the group's slots that went to e (no gradient), P_e the mean normalized score of e.
        """
        loss = self.logits.new_zeros(self.logits.shape[:-2])
        parts = zip(_by_group(self.load, self.groups), _by_group(self.logits, self.groups), strict=True)
        for (load, run), (logits, _) in parts:
            fraction = load / (self._tokens * run.active)
            mean_score = _normalize(logits, self.config.score).sum(-3) / self._tokens
            loss = loss + run.experts * (fraction * mean_score).sum((-1, -2))
        return loss / sum(run.count for run in self.groups)

    @property
    def z_loss(self) -> Tensor:
        """Mean square of the logits' log-sum-exp, which keeps logits from drifting."""
        return self.logits.logsumexp(-1).square().sum(-1) / self._tokens

    def auxiliary_loss(self) -> Tensor:
        """What the config adds to the training loss: its coefficients times the losses that are on, per replica."""
        loss = self.logits.new_zeros(self.logits.shape[:-2])
        if self.config.balance_loss:
            loss = loss + self.config.balance_loss * self.balance_loss
        if self.config.z_loss:
            loss = loss + self.config.z_loss * self.z_loss
        return loss

    @property
    def _tokens(self) -> int:
        return max(self.index.shape[-2], 1)


def route(
    x: Tensor,
    router: Tensor,
    groups: tuple[GroupRun, ...],
    config: RouterConfig = DEFAULT_ROUTER,
    bias: Tensor | None = None,
    logit_bias: Tensor | None = None,
) -> Routing:
    """Each token's experts and their weights.

    x [(replicas,) tokens, width]; router [(replicas,) experts, width]; bias, of the selection, and logit_bias
    [(replicas,) experts].
    """
    logits = router_logits(x, router)
    if logit_bias is not None:
        logits = logits + logit_bias.unsqueeze(-2)
    if config.score == SHUFFLED:
        logits = logits.roll(max(logits.shape[-2] // 2, 1), dims=-2)
    index = select(logits.detach(), groups, config.score, bias)
    return Routing(index, _normalize(logits.gather(-1, index), config.score), logits, groups, config)


def router_logits(x: Tensor, router: Tensor) -> Tensor:
    """x W^T in float32 at least, also under autocast: selection must not change with a rounding of bfloat16."""
    fast = router_product.logits(x, router)
    if fast is not None:
        return fast
    dtype, device = torch.promote_types(x.dtype, torch.float32), x.device.type
    if not x.is_meta and torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return x.to(dtype) @ router.to(dtype).mT
    return x.to(dtype) @ router.to(dtype).mT


def select(logits: Tensor, groups: tuple[GroupRun, ...], score: str, bias: Tensor | None = None) -> Tensor:
    """The a_g best experts of each group by score + bias, [..., tokens, experts] -> [..., tokens, active]."""
    if bias is not None:
        scores = logits.softmax(-1) if score == "softmax" else logits.sigmoid()
        logits = scores + bias.unsqueeze(-2)
    chosen, first = [], 0
    for part, run in _by_group(logits, groups):
        last = first + run.count * run.experts
        starts = torch.arange(first, last, run.experts, device=logits.device)
        best = top_experts(part, run.active)
        best = part.topk(run.active, dim=-1).indices if best is None else best
        chosen.append((best + starts[:, None]).flatten(-2))
        first = last
    return chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=-1)


@torch.no_grad()
def update_bias(bias: Tensor, load: Tensor, groups: tuple[GroupRun, ...], rate: float) -> None:
    """One step of loss-free balancing, in place: bias += rate * sign(mean load of the group - load)."""
    load = load.to(bias.dtype)
    steps = [(part.mean(-1, keepdim=True) - part).sign().flatten(-2) for part, _ in _by_group(load, groups)]
    bias.add_(torch.cat(steps, dim=-1), alpha=rate)


def _normalize(logits: Tensor, score: str) -> Tensor:
    """Scores over the last axis, divided by their sum."""
    return (logits if score == "softmax" else F.logsigmoid(logits)).softmax(-1)


def _by_group(values: Tensor, groups: tuple[GroupRun, ...]) -> Iterator[tuple[Tensor, GroupRun]]:
    """[..., experts] cut into its runs, each as [..., groups of the run, experts of one group]."""
    first = 0
    for run in groups:
        last = first + run.count * run.experts
        yield values[..., first:last].unflatten(-1, (run.count, run.experts)), run
        first = last
