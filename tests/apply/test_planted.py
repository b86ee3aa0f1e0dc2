"""Mistakes that do not stop a run, planted one by one: the check must catch each and name a tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

import complete_mue as mue
from quick import quick

torch = pytest.importorskip("torch")

from complete_mue.apply.bind import bind  # noqa: E402
from complete_mue.apply.check_report import tables, verdict  # noqa: E402
from complete_mue.lab.kernels.dispatch import routed_experts  # noqa: E402
from complete_mue.lab.models.check_setup import language_model_setup  # noqa: E402
from complete_mue.layout.axes import Point, small_reference  # noqa: E402
from stock_setups import stock_model  # noqa: E402

BUDGET = mue.Budget(256, 100)
Build = Callable[[mue.Plan], mue.Setup]


def _line(layouts: dict[int, str], *, width: int = 64, hidden: int = 16, depth: int = 2) -> list[Point]:
    return [
        Point(x, mue.ModelShape(width, depth, mue.FeedForward.parse(text, hidden), head_dim=16), BUDGET)
        for x, text in layouts.items()
    ]


LINES = {
    "width": [
        Point(w, mue.ModelShape(w, 2, mue.FeedForward.parse("8e2a", w // 4), head_dim=16), BUDGET) for w in (64, 128)
    ],
    "depth": [Point(d, mue.ModelShape(64, d, mue.FeedForward.parse("8e2a", 16), head_dim=16), BUDGET) for d in (2, 8)],
    "active": _line({2: "16e2a", 8: "16e8a"}),
    "one": _line({8: "8e1a", 16: "16e1a"}, hidden=32),
    "experts": _line({8: "8e2a", 16: "16e2a"}, hidden=32),
}


def our(change: Callable[[mue.Plan, mue.Setup], mue.Setup | None]) -> Build:
    """Our language model, with a mistake."""

    def build(plan: mue.Plan) -> mue.Setup:
        setup = language_model_setup(plan)
        return change(plan, setup) or setup

    return build


def stock(change: Callable[[mue.Plan, Any], Any], name: str = "mixtral", **fields: Any) -> Build:
    """A stock model with a mistake; ``change`` may return other fields of the setup."""

    def build(plan: mue.Plan) -> mue.Setup:
        pytest.importorskip("transformers", reason="stock families need transformers")
        model = stock_model(name, plan, **fields)
        more = change(plan, model) or {}
        return mue.Setup(model, torch.optim.AdamW(mue.param_groups(model, plan)), **more)

    return build


# -- forward ---------------------------------------------------------------------------------------------------------


def _with(block: torch.nn.Module, **attributes: float) -> None:
    """The block's forward with other multipliers than those it declares."""
    forward = type(block).forward

    def wrong(*arguments: object, **options: object) -> torch.Tensor:
        kept = {name: getattr(block, name) for name in attributes}
        for name, value in attributes.items():
            setattr(block, name, value)
        try:
            return forward(block, *arguments, **options)
        finally:
            for name, value in kept.items():
                setattr(block, name, value)

    block.forward = wrong


def no_route_scale(plan: mue.Plan, setup: mue.Setup) -> None:
    for layer in setup.model.layers:
        _with(layer.feed_forward, route_scale=1.0)


def no_output_multiplier(plan: mue.Plan, setup: mue.Setup) -> None:
    for layer in setup.model.layers:
        _with(layer.feed_forward, output=1.0)


def no_residual_multiplier(plan: mue.Plan, setup: mue.Setup) -> None:
    for layer in setup.model.layers:
        _with(layer.attention, output=1.0)


def no_readout_multiplier(plan: mue.Plan, setup: mue.Setup) -> None:
    _with(setup.model, readout_output=1.0)


def embedding_times_root_of_width(plan: mue.Plan, setup: mue.Setup) -> None:
    _with(setup.model, embedding_output=plan.shape.width**0.5)


def experts_counted_twice(plan: mue.Plan, setup: mue.Setup) -> None:
    for layer in setup.model.layers:
        layer.feed_forward.register_forward_hook(lambda module, inputs, output: output * plan.shape.main.active)


def zero_centred_norms(plan: mue.Plan, setup: mue.Setup) -> None:
    for layer in setup.model.layers:
        layer.attention_norm.register_forward_hook(lambda norm, inputs, output: output + output / norm.gain)


def _routed(setup: mue.Setup, change: Callable[[Any], tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Other experts and weights than the block's own router gives."""
    for layer in setup.model.layers:
        block = layer.feed_forward

        def route(x: torch.Tensor, block: Any = block) -> Any:
            routing = type(block).route(block, x)
            index, weight = change(routing)
            return replace(routing, index=index, weight=weight)

        block.route = route


def routing_not_normalized(plan: mue.Plan, setup: mue.Setup) -> None:
    _routed(setup, lambda routing: (routing.index, routing.logits.gather(-1, routing.index).sigmoid()))


def too_many_experts(plan: mue.Plan, setup: mue.Setup) -> None:
    def one_more(routing: Any) -> tuple[torch.Tensor, torch.Tensor]:
        best = routing.logits.topk(plan.shape.main.active + 1, dim=-1)
        return best.indices, best.values.softmax(-1)

    _routed(setup, one_more)


# -- initial weights -------------------------------------------------------------------------------------------------


def _each(setup: mue.Setup, role: str) -> list[torch.nn.Parameter]:
    names = dict(setup.model.named_parameters())
    with torch.no_grad():
        return [names[spec.name] for spec in setup.model.tensors() if spec.role.value == role]


def wrong_fan_in(plan: mue.Plan, setup: mue.Setup) -> None:
    for weight in _each(setup, "expert_up"):
        weight.data.mul_((weight.shape[-1] / weight.shape[-2]) ** 0.5)


def one_expert_at_zero(plan: mue.Plan, setup: mue.Setup) -> None:
    _each(setup, "expert_down")[1].data[3].zero_()


def one_expert_too_large(plan: mue.Plan, setup: mue.Setup) -> None:
    _each(setup, "expert_up")[0].data[5].mul_(1.5)


def constant_weights(plan: mue.Plan, setup: mue.Setup) -> None:
    for weight in _each(setup, "router"):
        weight.data.copy_(weight.square().mean().sqrt().expand_as(weight))


def experts_drawn_alike(plan: mue.Plan, setup: mue.Setup) -> None:
    for weight in _each(setup, "expert_up"):
        weight.data.copy_(weight.data[:1].expand_as(weight).clone())


def layers_drawn_alike(plan: mue.Plan, setup: mue.Setup) -> None:
    first, second = _each(setup, "attention_out")[:2]
    second.data.copy_(first.data)


def small_norm_gain(plan: mue.Plan, setup: mue.Setup) -> None:
    setup.model.final_norm.gain.data.fill_(0.5)


def stock_initialization(plan: mue.Plan, model: Any) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, std=0.02, generator=torch.Generator().manual_seed(0))


def tied_embedding(plan: mue.Plan, model: Any) -> None:
    model.lm_head.weight = model.model.embed_tokens.weight


# -- optimizer -------------------------------------------------------------------------------------------------------


def by_hand(plan: mue.Plan, setup: mue.Setup, **settings: Callable[[str, float], float]) -> mue.Setup:
    """An optimizer whose groups were written by hand, one parameter each, with some settings changed by role."""
    groups = []
    for b in bind(setup.model, plan):
        values = {"lr": b.row.lr, "weight_decay": b.row.weight_decay, "eps": b.row.eps}
        for name, wrong in settings.items():
            values[name] = wrong(b.spec.role.value, values[name])
        groups.append({"params": [b.parameter], "betas": plan.hyper.betas, **values})
    return replace(setup, optimizer=torch.optim.AdamW(groups))


def expert_lr_not_scaled(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    return by_hand(plan, setup, lr=lambda role, lr: plan.hyper.lr if role.startswith("expert") else lr)


def one_lr_for_all(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    return by_hand(plan, setup, lr=lambda role, lr: plan.hyper.lr)


def router_left_out(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    routers = {id(weight) for weight in _each(setup, "router")}
    groups = [
        {**group, "params": [p for p in group["params"] if id(p) not in routers]}
        for group in setup.optimizer.param_groups
    ]
    for group in groups:
        group.pop("param_names")
    return replace(setup, optimizer=torch.optim.AdamW([group for group in groups if group["params"]]))


def decay_not_scaled(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    return by_hand(plan, setup, weight_decay=lambda role, wd: plan.hyper.weight_decay if wd else 0.0)


def decay_on_norms(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    return by_hand(plan, setup, weight_decay=lambda role, wd: wd or 0.1)


def eps_not_scaled(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    return by_hand(plan, setup, eps=lambda role, eps: plan.hyper.eps)


def wrong_betas(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    groups = [{**group, "betas": (0.5, 0.999)} for group in setup.optimizer.param_groups]
    return replace(setup, optimizer=torch.optim.AdamW(groups))


def adam_with_decay_in_the_gradient(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    return replace(setup, optimizer=torch.optim.Adam(mue.param_groups(setup.model, plan)))


def one_cycle(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        setup.optimizer, max_lr=plan.hyper.lr, total_steps=100, cycle_momentum=False
    )
    return replace(setup, scheduler=scheduler)


def cosine_with_a_floor(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(setup.optimizer, T_max=100, eta_min=1e-4)
    return replace(setup, scheduler=scheduler)


def plain_clipping(plan: mue.Plan, model: Any) -> dict[str, Any]:
    return {"clip": lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)}


def clipping_each_tensor(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    def clip(model: torch.nn.Module) -> None:
        for parameter in model.parameters():
            torch.nn.utils.clip_grad_norm_([parameter], 1.0)

    return replace(setup, clip=clip)


def clipping_values(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
    return replace(setup, clip=lambda model: torch.nn.utils.clip_grad_value_(model.parameters(), 0.1))


@dataclass(frozen=True)
class Planted:
    """A setup with a mistake, the axis on which it shows, what is complained of, and the tensor that is named."""

    build: Build
    axis: str
    what: str
    tensor: str


FEED_FORWARD = "layers.*.feed_forward"
MISTAKES = {
    "no_route_scale": Planted(our(no_route_scale), "active", "size", f"{FEED_FORWARD}.expert_down"),
    "no_output_multiplier": Planted(our(no_output_multiplier), "active", "size", f"{FEED_FORWARD}.expert_down"),
    "no_residual_multiplier": Planted(our(no_residual_multiplier), "depth", "size", "layers.*.attention."),
    "no_readout_multiplier": Planted(our(no_readout_multiplier), "width", "logits are", "readout"),
    "embedding_factor": Planted(our(embedding_times_root_of_width), "active", "first layer", "embedding"),
    "experts_counted_twice": Planted(our(experts_counted_twice), "active", "size", f"{FEED_FORWARD}.expert_down"),
    "zero_centred_norms": Planted(our(zero_centred_norms), "active", "puts out has size", "0.attention_norm.gain"),
    "routing_not_normalized": Planted(our(routing_not_normalized), "active", "sum to", "0.feed_forward.router"),
    "too_many_experts": Planted(our(too_many_experts), "active", "takes 3 experts", "0.feed_forward.router"),
    "router_without_gradient": Planted(language_model_setup, "one", "no gradient", "0.feed_forward.router"),
    "wrong_fan_in": Planted(our(wrong_fan_in), "width", "init_std", "0.feed_forward.expert_up"),
    "one_expert_at_zero": Planted(our(one_expert_at_zero), "active", "expert 3 has 0", "1.feed_forward.expert_down"),
    "one_expert_too_large": Planted(our(one_expert_too_large), "active", "expert 5 has", "0.feed_forward.expert_up"),
    "constant_weights": Planted(our(constant_weights), "active", "a mean of", "0.feed_forward.router"),
    "experts_drawn_alike": Planted(
        our(experts_drawn_alike), "active", "weights of expert 0", "0.feed_forward.expert_up"
    ),
    "layers_drawn_alike": Planted(
        our(layers_drawn_alike), "active", "the weights of layers.0.attention", "layers.1.attention"
    ),
    "small_norm_gain": Planted(our(small_norm_gain), "active", "it starts at 0.5", "final_norm.gain"),
    "stock_initialization": Planted(stock(stock_initialization), "experts", "init_std", "self_attn.q_proj.weight"),
    "tied_embedding": Planted(stock(tied_embedding), "experts", "own width alone", "lm_head.weight"),
    "expert_lr_not_scaled": Planted(our(expert_lr_not_scaled), "width", "lr of", "0.feed_forward.expert_up"),
    "one_lr_for_all": Planted(our(one_lr_for_all), "width", "lr of", "0.attention.into"),
    "router_left_out": Planted(our(router_left_out), "active", "applies 0,", "0.feed_forward.router"),
    "decay_not_scaled": Planted(our(decay_not_scaled), "width", "weight_decay of", "0.feed_forward.expert_up"),
    "decay_on_norms": Planted(our(decay_on_norms), "active", "weight_decay of", "final_norm.gain"),
    "eps_not_scaled": Planted(our(eps_not_scaled), "width", "eps of", "0.feed_forward.expert_up"),
    "wrong_betas": Planted(our(wrong_betas), "active", "betas of", "embedding"),
    "adam_with_decay_in_the_gradient": Planted(
        our(adam_with_decay_in_the_gradient), "active", "weight_decay of", "0.feed_forward.expert_up"
    ),
    "one_cycle": Planted(our(one_cycle), "width", "breaks the ratios", "layers.0"),
    "cosine_with_a_floor": Planted(our(cosine_with_a_floor), "width", "breaks the ratios", "layers.0"),
    "plain_clipping": Planted(stock(plain_clipping), "active", "alone is clipped", "mlp.experts.down_proj"),
    "clipping_each_tensor": Planted(our(clipping_each_tensor), "active", "factor of its own", "embedding"),
    "clipping_values": Planted(our(clipping_values), "active", "clipped to a norm", "embedding"),
}


def found(result: Any) -> list[str]:
    """Every message that names something wrong."""
    roles = [f"{r.role} ({r.tensor}): {r.why}" for line in result.axes for r in line.roles if not r.ok]
    return roles + [str(finding) for finding in result.findings]


def look(build: Build, axis: str) -> Any:
    return mue.check(build, axis, points=LINES[axis], reference=small_reference(256), steps=1, seeds=1)


QUICK = (
    "no_route_scale", "no_residual_multiplier", "no_readout_multiplier", "routing_not_normalized", "wrong_fan_in",
    "one_expert_at_zero", "stock_initialization", "expert_lr_not_scaled", "router_left_out", "decay_not_scaled",
    "plain_clipping",
)  # fmt: skip


@pytest.mark.parametrize("name", quick(MISTAKES, *QUICK))
def test_a_planted_mistake_is_caught_with_the_tensors_name(name: str) -> None:
    planted = MISTAKES[name]
    result = look(planted.build, planted.axis)
    assert not result.ok
    messages = found(result)
    assert any(planted.what in message and planted.tensor in message for message in messages), messages
    assert verdict(result).startswith("failed")
    printed = [part for part in tables(result) if isinstance(part, str)]
    assert any(planted.tensor in line for line in printed)


def test_there_are_many_kinds() -> None:
    assert len(MISTAKES) >= 25


@pytest.mark.parametrize("axis", quick(sorted(set(LINES) - {"one"}), "active", "width"))
def test_without_a_mistake_the_same_lines_pass(axis: str) -> None:
    """So that what is caught above is caught for its own sake."""
    clip = [our(lambda plan, setup: replace(setup, clip=lambda model: mue.clip_grad_norm_(model, plan, 1.0)))]
    clip += [stock(lambda plan, model: {"clip": lambda model: mue.clip_grad_norm_(model, plan, 1.0)})]
    for build in clip:
        result = look(build, axis)
        assert not result.findings, found(result)
        assert result.ok, found(result)


def test_experts_that_no_product_shows_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "complete_mue.lab.nn.feed_forward.routed_experts",
        lambda x, up, down, *rest, **options: routed_experts(x, up * 1.0, down * 1.0, *rest, **options),
    )
    result = look(language_model_setup, "active")
    assert any("never seen" in message and f"{FEED_FORWARD}.expert_up" in message for message in found(result))


def test_a_tie_that_holds_at_other_widths_is_no_finding() -> None:
    """Granite scales its logits itself: told so, one tensor follows both rules at every width."""

    def build(plan: mue.Plan) -> mue.Setup:
        readout = plan.unfold().row(mue.Role.READOUT).multiplier
        model = stock_model(
            "granitemoe", plan, logits_scaling=1 / readout, attention_multiplier=0.25, tie_word_embeddings=True
        )
        return mue.Setup(model, torch.optim.AdamW(mue.param_groups(model, plan)))

    pytest.importorskip("transformers", reason="stock families need transformers")
    result = look(build, "width")
    assert math.isfinite(result.axes[0].roles[0].size_slope)
    assert not result.findings, found(result)


def test_a_warmup_from_zero_is_no_mistake() -> None:
    def warmed(plan: mue.Plan, setup: mue.Setup) -> mue.Setup:
        scheduler = torch.optim.lr_scheduler.LambdaLR(setup.optimizer, lambda step: min(1.0, step / 10))
        return replace(setup, scheduler=scheduler)

    result = mue.check(our(warmed), "active", points=LINES["active"], reference=small_reference(256), steps=2, seeds=1)
    assert not result.findings, found(result)


def test_update_effect_beside_a_dense_reference() -> None:
    reference = small_reference(256)
    result = mue.check(
        language_model_setup, "active", points=LINES["active"], reference=reference, steps=2, seeds=1,
        update_effect=True,
    )  # fmt: skip
    effects = {effect.role: effect for effect in result.axes[0].effects}
    assert effects["expert_up"].counterpart == "dense_up"
    assert all(ratio is not None and 0.1 < ratio < 10 for ratio in effects["expert_up"].ratios)
    assert effects["attention_in"].counterpart == "attention_in"
    assert effects["router"].ratios == (None, None)  # a dense reference has none
    assert all(effect.alignment > 0.5 for role in effects.values() for effect in role.effects)
    assert result.to_dict()["axes"][0]["effects"][0]["effects"][0]["change"] > 0
    assert any("update effect" in str(getattr(part, "title", "")) for part in tables(result))


def test_update_effect_of_a_model_that_cannot_be_dense_is_against_the_first_point() -> None:
    result = mue.check(
        stock(lambda plan, model: None), "active", points=LINES["active"], reference=small_reference(256), steps=1,
        seeds=1, update_effect=True,
    )  # fmt: skip
    for effect in result.axes[0].effects:
        assert effect.ratios[0] == pytest.approx(1)
