"""The effect of an update: worked out by hand on small models, whatever computes the products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import complete_mue as mue

torch = pytest.importorskip("torch")

from complete_mue.apply.effect import Effect, update_effect  # noqa: E402
from complete_mue.lab.models import LanguageModel  # noqa: E402
from complete_mue.layout import Role  # noqa: E402
from complete_mue.layout.axes import axis_points, small_reference  # noqa: E402

VOCAB = 64


def plan_of(layout: str = "8e2a1s") -> mue.Plan:
    point = axis_points("batch_steps", layout)[0]
    return mue.transfer(small_reference(), point.shape, point.budget, betas="hold")


def our_model(plan: mue.Plan) -> Any:
    model = LanguageModel(plan.shape, VOCAB, plan, kernel="reference")
    return mue.initialize(model, plan)


def text(seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCAB, (4, 16), generator=torch.Generator().manual_seed(seed))


def state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def moved(before: dict[str, torch.Tensor], size: float = 0.01) -> dict[str, torch.Tensor]:
    draws = torch.Generator().manual_seed(1)
    return {name: w + size * torch.randn(w.shape, generator=draws) for name, w in before.items()}


def test_a_readout_by_hand() -> None:
    plan = plan_of()
    model = our_model(plan)
    before = state(model)
    after = moved(before)
    inputs: list[torch.Tensor] = []
    handle = model.final_norm.register_forward_hook(lambda module, given, output: inputs.append(output.detach()))
    with torch.no_grad():
        model(text())
    handle.remove()
    x, w, change = inputs[0].flatten(0, 1).double(), before["readout"].double(), (after["readout"] - before["readout"])
    change = change.double()
    effect = update_effect(model, before, after, text())[Role.READOUT]
    expected = (x @ change.T).norm() / (change.norm() * x.norm() / w.shape[-1] ** 0.5)
    assert effect.change == pytest.approx(float((x @ change.T).norm() / (x @ w.T).norm()), rel=1e-4)
    assert effect.alignment == pytest.approx(float(expected), rel=1e-4)
    assert effect.size == pytest.approx(float((x @ w.T).square().mean().sqrt()), rel=1e-4)


def test_an_expert_counts_on_its_own_tokens_and_one_without_tokens_does_not() -> None:
    plan = plan_of("8e2a")
    model = our_model(plan)
    before = state(model)
    after = {key: w.clone() for key, w in before.items()}
    loads: list[torch.Tensor] = []
    handles = []
    for number, layer in enumerate(model.layers):
        # Expert 3 alone moves, along its own weights: half of its output.
        after[f"layers.{number}.feed_forward.expert_up"][3] *= 1.5
        hook = layer.feed_forward.register_forward_pre_hook(lambda module, given: loads.append(given[1].load))
        handles.append(hook)
    with torch.no_grad():
        model(text()[:1, :3])
    for handle in handles:
        handle.remove()
    reached = torch.stack(loads) > 0
    assert 0 < int(reached[:, 3].sum()) < int(reached.sum()) < reached.numel()
    some = update_effect(model, before, after, text()[:1, :3])[Role.EXPERT_UP]
    assert some.change == pytest.approx(float(0.5 * reached[:, 3].sum() / reached.sum()), rel=1e-5)
    many = update_effect(model, before, after, text())[Role.EXPERT_UP]
    assert many.change == pytest.approx(0.5 / 8, rel=1e-5)


def test_chance_has_alignment_one_and_a_change_along_the_inputs_has_more() -> None:
    plan = plan_of()
    model = our_model(plan)
    before = state(model)
    for role, effect in update_effect(model, before, moved(before), text()).items():
        # The norm of a random matrix's product: no other source of spread than its entries, some thousands at least.
        assert effect.alignment == pytest.approx(1, abs=0.25), role
    optimizer = torch.optim.AdamW(mue.param_groups(model, plan))
    for _ in range(2):
        optimizer.zero_grad()
        model(text(2) % 2).logsumexp(-1).mean().backward()
        optimizer.step()
    after = state(model)
    trained = update_effect(model, before, after, text() % 2)  # two tokens alone: whatever comes next is like these
    assert trained[Role.READOUT].alignment > 2
    assert all(torch.equal(after[name], parameter) for name, parameter in model.named_parameters())


def stock(experts: str) -> Any:
    transformers = pytest.importorskip("transformers", reason="stock families need transformers")
    shape = plan_of("8e2a").shape
    config = transformers.MixtralConfig(
        hidden_size=shape.width, num_hidden_layers=shape.depth, vocab_size=VOCAB, num_attention_heads=4,
        num_key_value_heads=4, head_dim=16, intermediate_size=16, num_local_experts=8, num_experts_per_tok=2,
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config)
    model.set_experts_implementation(experts)
    return mue.initialize(model, plan_of("8e2a"))


@pytest.mark.parametrize("experts", ["grouped_mm", "batched_mm"])
def test_a_stock_model_shows_the_same_however_its_experts_are_computed(experts: str) -> None:
    seen: list[dict[Role, Effect]] = []
    for name in ("eager", experts):
        model = stock(name)
        before = state(model)
        seen.append(update_effect(model, before, moved(before), text()))
    assert seen[0].keys() == seen[1].keys() >= {Role.EXPERT_UP, Role.EXPERT_DOWN, Role.ROUTER, Role.EMBEDDING}
    for role, one in seen[0].items():
        other = seen[1][role]
        assert (one.change, one.alignment, one.size) == pytest.approx(
            (other.change, other.alignment, other.size), rel=1e-4
        ), role


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda before: (before, before), "the same weights"),
        (lambda before: ({}, before), "before: 'embedding' is missing"),
        (lambda before: (before, {**before, "embedding": torch.zeros(2)}), r"after: 'embedding' has shape \(2,\)"),
    ],
)
def test_states_that_say_nothing_are_refused(wrong: Callable[[dict[str, Any]], Any], says: str) -> None:
    model = our_model(plan_of())
    with pytest.raises(mue.MueError, match=says):
        update_effect(model, *wrong(state(model)), text())


def test_replicas_are_measured_one_by_one() -> None:
    plan = plan_of("8e2a")
    model = LanguageModel(plan.shape, VOCAB, plan, kernel="reference", replicas=2)
    mue.initialize(model, plan)
    both = state(model)
    with pytest.raises(mue.MueError, match="several replicas"):
        update_effect(model, both, moved(both), text())
    one = our_model(plan)
    effects = update_effect(
        one, {name: w[0] for name, w in both.items()}, {name: w[0] for name, w in moved(both).items()}, text()
    )
    assert effects[Role.EXPERT_UP].change > 0


@pytest.mark.gpu
@pytest.mark.parametrize("experts", ["ours", "eager", "grouped_mm"])
def test_on_gpu_as_on_cpu(experts: str) -> None:
    seen = []
    for device in ("cpu", "cuda"):
        model = (our_model(plan_of("8e2a")) if experts == "ours" else stock(experts)).to(device)
        before = {name: w.cpu() for name, w in state(model).items()}  # states may lie elsewhere
        seen.append(update_effect(model, before, moved(before), text().to(device)))
    for role, one in seen[0].items():
        other = seen[1][role]
        assert (one.change, one.alignment, one.size) == pytest.approx(
            (other.change, other.alignment, other.size), rel=2e-2
        ), role
    assert seen[0].keys() == seen[1].keys()


@pytest.mark.gpu
def test_a_check_on_gpu() -> None:
    def build(plan: mue.Plan) -> mue.Setup:
        model = our_model(plan).cuda()
        return mue.Setup(model, torch.optim.AdamW(mue.param_groups(model, plan)))

    result = mue.check(build, "activated", steps=2, seeds=2, update_effect=True)
    assert result.ok, [str(finding) for finding in result.findings]
