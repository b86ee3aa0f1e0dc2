"""The role probe: what a scan of one role changes, and what it leaves alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from complete_mue.errors import MueError
from complete_mue.lab.report.summary import summarize
from complete_mue.lab.sweep.executor import Here
from complete_mue.lab.sweep.figures import base_config, octaves
from complete_mue.lab.sweep.hypers import Hyper
from complete_mue.lab.sweep.roles import role_sweep, roles_of, target_of
from complete_mue.lab.sweep.run import run
from complete_mue.lab.train.task import build
from complete_mue.layout import Role
from complete_mue.layout.reference import Tuned

SMALL = ("budget.steps=12", "budget.batch_tokens=128", "task.sequence=32", "shape.width=16", "shape.depth=1")


@pytest.fixture(scope="module")
def base():
    return base_config("lm", "tiny", None, (*SMALL, "shape.head_dim=8", "shape.feed_forward=dense@16"))


@pytest.mark.parametrize("hyper", ["lr", "weight_decay", "init_std"])
def test_one_role_alone_is_changed(base, hyper: str) -> None:
    plain = base.plan
    knob = Hyper.parse(f"attention_in.{hyper}")
    reference = knob.put(base.reference, 2 * knob.of(base.reference))
    changed = dataclasses.replace(base, reference=reference).plan
    for before, after in zip(plain.rows, changed.rows, strict=True):
        for column in ("lr", "weight_decay", "init_std", "eps"):
            expected = getattr(before, column)
            if before.role is Role.ATTENTION_IN and column == hyper:
                expected *= 2
            assert getattr(after, column) == expected, (before.role, column)


def test_lr_at_the_same_decay_keeps_what_a_step_decays(base) -> None:
    knob = Hyper.parse("attention_in.lr_same_decay")
    plan = dataclasses.replace(base, reference=knob.put(base.reference, knob.of(base.reference) / 4)).plan
    row, plain = plan.row("attention_in"), base.plan.row("attention_in")
    assert row.lr == plain.lr / 4
    assert row.lr * row.weight_decay == pytest.approx(plain.lr * plain.weight_decay, rel=1e-12)


def test_a_role_that_the_reference_lacks_keeps_what_its_twin_was_given(base) -> None:
    reference = dataclasses.replace(base.reference, tuned={Role.DENSE_UP: Tuned(init_std=0.5)})
    knob = Hyper.parse("expert_up.lr")
    assert knob.put(reference, 1e-4).base(Role.EXPERT_UP).init_std == 0.5
    assert knob.put(reference, 1e-4).base(Role.DENSE_UP).lr == reference.hyper.lr


def test_a_target_is_a_layout_changes_or_both(base) -> None:
    layout, both = target_of(base, "8e2a@4"), target_of(base, "8e2a@4,router.score=softmax")
    assert (layout.x, both.x, both.config.router.score) == (4, 4, "softmax")
    assert both.config.shape == layout.config.shape
    assert target_of(base, "shape.feed_forward=8e2a@4,router.score=softmax").config == both.config
    assert target_of(base, "shape.depth=2").config.shape.main == base.shape.main


def test_the_plans_own_value_is_the_plain_run(base) -> None:
    sweep = role_sweep(base, "tiny", ["4e2a@8"], seeds=(0, 1))
    roles = [scan.hyper.rpartition(".")[0] for scan in sweep.scans]
    assert roles == [
        "embedding", "attention_in", "attention_out", "expert_up", "expert_down", "router", "readout", "norm+final_norm"
    ]  # fmt: skip
    points = sweep.points
    assert len(points) == 2 * (8 * 4 + 1)  # eight roles share the plan's own run
    assert not any(point.target == "dense" for point in points)
    assert {point.target for point in role_sweep(base, "tiny", ["dense", "4e2a@8"]).points} == {"dense", "4e2a@8"}


@pytest.mark.parametrize("change", ["dense", "8e2a", "8e2a1s,router.logit_bias=true", "qk_norm=true"])
@pytest.mark.parametrize("task", ["lm", "dit"])
def test_roles_are_those_of_the_model(task: str, change: str) -> None:
    """As far as they are known without it; for captions as features see tests/train/test_features_run.py."""
    target = target_of(base_config(task, "tiny"), change)
    model = build(target.config, device=torch.device("meta")).model
    assert set(roles_of([target])) == {tensor.role.value for tensor in model.tensors()}


def test_octaves_from_one_to_another_hold_the_centre() -> None:
    assert octaves(8.0, (-2.0, -1.0)) == (2.0, 4.0, 8.0)
    assert octaves(1.0, (-0.5, 0.5), 2) == (2**-0.5, 1.0, 2**0.5)
    assert octaves(1.0, 1) == (0.5, 1.0, 2.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("expert_upp.lr", "expert_up"),
        ("lr_same_decay", "ROLE.lr"),
        ("expert_up.betas", "betas"),
        ("norm.init_std", "norm"),
        ("momentum", "momentum"),
    ],
)
def test_what_cannot_be_scanned_is_refused(text: str, says: str) -> None:
    with pytest.raises(MueError, match=says):
        Hyper.parse(text)


@pytest.mark.parametrize(
    ("targets", "roles", "says"),
    [([], None, "--target"), (["4e2a@8"], ["dense_up"], "dense_up"), (["shape.widht=3"], None, "widht")],
)
def test_probes_that_make_no_sense_are_refused(base, targets: list[str], roles: list[str] | None, says: str) -> None:
    with pytest.raises(MueError, match=says):
        role_sweep(base, "tiny", targets, roles=roles)


def test_a_probe_runs_grows_and_is_reported(base, tmp_path: Path) -> None:
    def go(**options: object) -> None:
        sweep = role_sweep(base, "tiny", ["4e2a@8"], span=1, seeds=(0, 1), **options)  # type: ignore[arg-type]
        run(sweep, tmp_path, Here(), replicas=lambda point: 8)

    go(roles=["expert_up"])
    go(roles=["router"], hypers=["lr_same_decay"])
    summary = summarize(tmp_path)
    assert summary.probe
    assert summary.progress.missing == 0
    assert [scan.hyper for scan in summary.scans] == ["expert_up.lr", "router.lr_same_decay"]
    assert all(curve.status and curve.target == "4e2a@8" for scan in summary.scans for curve in scan.curves)
