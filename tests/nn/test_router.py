"""Token choice: which experts, with what weight, and how evenly."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from complete_mue.errors import MueError, ShapeError
from complete_mue.lab.nn.router import (
    GroupRun,
    Routing,
    group_runs,
    route,
    router_logits,
    select,
    update_bias,
)
from complete_mue.lab.nn.router_config import DEFAULT_ROUTER, RouterConfig
from complete_mue.layout import FeedForward, RoutedGroup

pytestmark = pytest.mark.draws

SCORES = ("sigmoid", "softmax")


def make(notation: str, tokens: int = 64, width: int = 16, seed: int = 0, **config: object) -> Routing:
    g = torch.Generator().manual_seed(seed)
    groups = FeedForward.parse(notation, 8).groups
    experts = sum(group.experts for group in groups)
    x, w = torch.randn(tokens, width, generator=g), torch.randn(experts, width, generator=g) * width**-0.5
    return route(x, w, group_runs(groups), RouterConfig(**config))  # type: ignore[arg-type]


def routing_of(index: torch.Tensor, experts: int, active: int, groups: int = 1) -> Routing:
    weight = torch.full(index.shape, 1 / index.shape[-1])
    logits = torch.zeros(*index.shape[:-1], experts)
    return Routing(index, weight, logits, (GroupRun(groups, experts // groups, active // groups),), DEFAULT_ROUTER)


def test_runs_of_equal_groups() -> None:
    groups = [RoutedGroup(8, 2, 16), RoutedGroup(8, 2, 4), RoutedGroup(4, 1, 4), RoutedGroup(8, 2, 16)]
    assert group_runs(groups) == (GroupRun(2, 8, 2), GroupRun(1, 4, 1), GroupRun(1, 8, 2))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("notation", ["8e1a", "8e3a", "16e4a2g", "8e8a", "8e2a@8+4e1a@4+6e3a@8"])
def test_weights_are_normalized_scores_over_all_groups_together(notation: str, score: str) -> None:
    routing = make(notation, score=score)
    scores = routing.logits.sigmoid() if score == "sigmoid" else routing.logits.softmax(-1)
    chosen = scores.gather(-1, routing.index)
    torch.testing.assert_close(routing.weight, chosen / chosen.sum(-1, keepdim=True))
    torch.testing.assert_close(routing.weight.sum(-1), torch.ones(64))


@pytest.mark.parametrize("notation", ["8e3a", "16e4a2g", "8e2a@8+4e1a@4"])
def test_shuffled_gives_each_token_the_routing_of_another(notation: str) -> None:
    plain, shuffled = make(notation, score="sigmoid"), make(notation, score="shuffled")
    assert torch.equal(shuffled.index, plain.index.roll(32, dims=0))
    assert torch.equal(shuffled.weight, plain.weight.roll(32, dims=0))
    assert torch.equal(shuffled.load, plain.load)
    assert not torch.equal(shuffled.index, plain.index)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4),
    st.sampled_from(SCORES),
    st.booleans(),
    st.integers(0, 100),
)
def test_each_group_gives_exactly_its_best(sizes: list[tuple[int, int]], score: str, biased: bool, seed: int) -> None:
    groups = [RoutedGroup(max(pair), min(pair), 4) for pair in sizes]
    g = torch.Generator().manual_seed(seed)
    experts = sum(group.experts for group in groups)
    logits = torch.randn(13, experts, generator=g)
    bias = torch.randn(experts, generator=g) if biased else None
    index = select(logits, group_runs(groups), score, bias)
    ranked = logits.sigmoid() if score == "sigmoid" else logits.softmax(-1)
    ranked = ranked + bias if bias is not None else logits
    expert = slot = 0
    for group in groups:
        mine = index[:, slot : slot + group.active]
        assert ((mine >= expert) & (mine < expert + group.experts)).all()
        best = ranked[:, expert : expert + group.experts].topk(group.active).values
        torch.testing.assert_close(ranked.gather(-1, mine), best)
        expert, slot = expert + group.experts, slot + group.active
    assert index.shape == (13, slot)
    assert all(len(set(row)) == slot for row in index.tolist())


@pytest.mark.parametrize("score", SCORES)
def test_ties_still_choose_different_experts(score: str) -> None:
    index = select(torch.zeros(5, 12), (GroupRun(3, 4, 2),), score)
    assert all(len(set(row)) == 6 for row in index.tolist())


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("size", [-1e4, -200.0, 200.0, 1e4])
def test_extreme_logits_give_finite_weights_and_gradients(score: str, size: float) -> None:
    x = torch.ones(3, 4)
    w = (torch.full((6, 4), size) + torch.arange(6)[:, None]).requires_grad_()
    routing = route(x, w, (GroupRun(1, 6, 2),), RouterConfig(score=score))
    torch.testing.assert_close(routing.weight.sum(-1), torch.ones(3))
    (routing.weight[:, 0].sum() + routing.balance_loss).backward()
    assert torch.isfinite(w.grad).all()


@pytest.mark.parametrize("score", SCORES)
def test_bias_changes_selection_and_never_a_weight(score: str) -> None:
    g = torch.Generator().manual_seed(1)
    x, w = (torch.randn(n, 8, generator=g, dtype=torch.float64) for n in (50, 6))
    w *= 0.3
    config, runs = RouterConfig(score=score), (GroupRun(1, 6, 2),)
    plain = route(x, w, runs, config)
    pushed = route(x, w, runs, config, bias=torch.tensor([10.0, 0, 0, 0, 0, 0], dtype=torch.float64))
    assert (pushed.index == 0).any(-1).all()
    assert not (plain.index == 0).any(-1).all()
    scores = (pushed.logits.sigmoid() if score == "sigmoid" else pushed.logits.softmax(-1)).gather(-1, pushed.index)
    torch.testing.assert_close(pushed.weight, scores / scores.sum(-1, keepdim=True))
    # In float64 the bias costs a score 4e-16: no order of two scores drawn here is as close.
    even = route(x, w, runs, config, bias=torch.full((6,), 3.0, dtype=torch.float64))
    assert torch.equal(even.index.sort(-1).values, plain.index.sort(-1).values)


@pytest.mark.parametrize("score", SCORES)
def test_logit_bias_is_a_column_of_ones_in_the_input(score: str) -> None:
    """It changes choice and weights as another input would, and has that input's gradient."""
    g = torch.Generator().manual_seed(2)
    x, w, bias = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((32, 8), (12, 8), (12,)))
    runs, config = (GroupRun(2, 6, 2),), RouterConfig(score=score, logit_bias=True)
    bias.requires_grad_()
    column = bias.detach()[:, None].clone().requires_grad_()
    ours = route(x, w, runs, config, logit_bias=bias)
    wider = route(torch.cat([x, torch.ones(32, 1, dtype=x.dtype)], -1), torch.cat([w, column], -1), runs, config)
    assert torch.equal(ours.index, wider.index)
    assert not torch.equal(ours.index, route(x, w, runs, config).index)
    torch.testing.assert_close(ours.weight, wider.weight)
    weight = torch.randn(ours.weight.shape, generator=g, dtype=torch.float64)
    (ours.weight * weight).sum().backward()
    (wider.weight * weight).sum().backward()
    assert column.grad is not None
    torch.testing.assert_close(bias.grad, column.grad[:, 0])


def test_bias_update_moves_towards_balance_group_by_group() -> None:
    bias = torch.zeros(6)
    load = torch.tensor([10, 0, 5, 100, 100, 100])
    update_bias(bias, load, (GroupRun(2, 3, 1),), rate=0.1)
    torch.testing.assert_close(bias, torch.tensor([-0.1, 0.1, 0.0, 0.0, 0.0, 0.0]))


def test_bias_updates_even_out_a_skewed_load() -> None:
    g = torch.Generator().manual_seed(2)
    x, w = torch.randn(512, 8, generator=g) + 1.0, torch.randn(8, 8, generator=g)
    bias, runs = torch.zeros(8), (GroupRun(1, 8, 2),)
    before = route(x, w, runs, bias=bias).load_variation
    for _ in range(200):
        update_bias(bias, route(x, w, runs, bias=bias).load, runs, rate=0.01)
    assert route(x, w, runs, bias=bias).load_variation < 0.5 * before


def test_load_counts_tokens_per_expert() -> None:
    routing = make("16e4a2g")
    assert routing.load.sum() == 64 * 4
    assert routing.load[:8].sum() == 64 * 2
    assert torch.equal(routing.load, torch.bincount(routing.index.flatten(), minlength=16))


def test_statistics_at_balance_and_off_it() -> None:
    even = routing_of(torch.tensor([[0, 1], [2, 3]]), experts=4, active=2)
    assert even.load_variation == 0
    skewed = routing_of(torch.tensor([[0, 1], [0, 2]]), experts=4, active=2)
    assert skewed.load.tolist() == [2, 1, 1, 0]
    assert skewed.load_variation.item() == pytest.approx(math.sqrt((1 + 0 + 0 + 1) / 4))


def test_relative_load_of_uneven_groups_is_relative_to_each_groups_own_mean() -> None:
    runs = (GroupRun(1, 4, 2), GroupRun(1, 2, 1))
    index = torch.tensor([[0, 1, 4], [2, 3, 5]])
    routing = Routing(index, torch.full((2, 3), 1 / 3), torch.zeros(2, 6), runs, DEFAULT_ROUTER)
    assert routing.relative_load.tolist() == [1.0] * 6
    assert routing.load_variation == 0


@pytest.mark.parametrize("groups", [1, 2])
def test_balance_loss_is_one_at_balance_and_more_when_scores_follow_a_skewed_load(groups: int) -> None:
    index = torch.stack([(torch.arange(16) + i) % 4 for i in range(groups)], -1) + torch.arange(groups) * 4
    even = routing_of(index, experts=4 * groups, active=groups, groups=groups)
    assert even.balance_loss.item() == pytest.approx(1.0)
    collapsed = Routing(
        torch.zeros(16, groups, dtype=torch.long) + torch.arange(groups) * 4,
        even.weight,
        torch.tensor([[50.0, -50, -50, -50] * groups] * 16),
        even.groups,
        DEFAULT_ROUTER,
    )
    assert collapsed.balance_loss.item() == pytest.approx(4.0)


def test_balance_loss_pushes_the_busy_expert_down() -> None:
    x = torch.ones(10, 2)
    w = torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]], requires_grad=True)
    route(x, w, (GroupRun(1, 3, 1),)).balance_loss.backward()
    assert (w.grad[0] > 0).all()
    assert (w.grad[1:] < 0).all()


def test_auxiliary_losses_are_off_unless_asked_for() -> None:
    assert make("8e2a").auxiliary_loss() == 0
    both = make("8e2a", balance_loss=0.01, z_loss=0.001)
    torch.testing.assert_close(both.auxiliary_loss(), 0.01 * both.balance_loss + 0.001 * both.z_loss)
    torch.testing.assert_close(both.z_loss, both.logits.logsumexp(-1).square().mean())


def test_logits_are_float32_at_least_also_under_autocast() -> None:
    x, w = torch.randn(5, 8), torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        inside = router_logits(x, w)
    assert torch.equal(inside, router_logits(x, w))
    torch.testing.assert_close(inside, x @ w.T)
    assert router_logits(x.bfloat16(), w.bfloat16()).dtype == torch.float32
    assert router_logits(x.double(), w.double()).dtype == torch.float64


def test_replicas_route_as_they_would_alone() -> None:
    g = torch.Generator().manual_seed(3)
    # Products of all replicas at once sum in another order than a single one's: float64, where it tips no choice.
    x, w = (torch.randn(3, n, 8, generator=g, dtype=torch.float64) for n in (20, 12))
    runs, config = (GroupRun(2, 6, 2),), RouterConfig(balance_loss=1.0)
    together = route(x, w, runs, config)
    for k in range(3):
        solo = route(x[k], w[k], runs, config)
        assert torch.equal(together.index[k], solo.index)
        for name in ("weight", "load", "load_variation", "balance_loss", "z_loss"):
            torch.testing.assert_close(getattr(together, name)[k], getattr(solo, name), msg=name)


def test_no_tokens_give_no_nan() -> None:
    empty = make("8e2a", tokens=0)
    assert empty.load.sum() == 0
    for name in ("load_variation", "balance_loss", "z_loss"):
        assert torch.isfinite(getattr(empty, name)), name


def test_bad_configs_say_what_is_allowed() -> None:
    with pytest.raises(ShapeError, match="'sigmoid'"):
        RouterConfig(score="sigmod")
    with pytest.raises(MueError, match="balance_loss"):
        RouterConfig(balance_loss=-1.0)
    with pytest.raises(MueError, match="logit_bias = 1: give true or false"):
        RouterConfig(logit_bias=1)  # type: ignore[arg-type]
