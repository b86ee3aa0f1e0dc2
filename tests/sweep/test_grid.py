"""A sweep as data: stable ids, shared points, groups that can be fused, files and named figures."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

import complete_mue as mue
from quick import quick

pytest.importorskip("torch")

from complete_mue.lab.recipes import recipe
from complete_mue.lab.records import read_sweep
from complete_mue.lab.sweep.figures import FIGURES, SCALES, TASKS, base_config, figure, octaves
from complete_mue.lab.sweep.grid import Scan, Sweep, Target, fusible
from complete_mue.lab.sweep.request import SweepRequest
from complete_mue.lab.sweep.run import enter
from complete_mue.lab.sweep.sweep_toml import read_sweep_file
from complete_mue.lab.train.config import override
from complete_mue.layout.axes import AXES


def small(*scans: Scan, **more: object) -> Sweep:
    config = recipe("lm_tiny")
    targets = (Target("dense", None, config), Target("16e4a", 4, override(config, "shape.feed_forward=16e4a@16")))
    return Sweep("t", "T", "axis", "tiny", targets, scans or (Scan("lr", (1e-3, 2e-3)),), **more)  # type: ignore[arg-type]


def test_ids_are_stable_and_say_what_matters() -> None:
    points = small().points
    assert len({point.id for point in points}) == 4
    more = small(Scan("lr", (2e-3, 4e-3, 1e-3)), seeds=(1, 0)).points
    assert {point.id for point in points} < {point.id for point in more}
    assert points[0].label == "dense, lr 0.001"
    quiet = dataclasses.replace(points[0].config, log_every=3, name="other")
    assert quiet.fingerprint == points[0].id  # neither logging nor a name changes a number


def test_runs_on_record_are_points_of_today() -> None:
    """A new key of a run's config must not give finished runs new ids: nothing could go on from them."""
    results = Path(__file__).parents[2] / "docs/results"
    asked = SweepRequest(
        "granularity", "dit", "small", results / "dit-reference.toml", ["complete_mue"], span=(-1.5, 1), per_octave=2,
        overrides=["task.source=scenes"],
    )  # fmt: skip
    with (results / "transfer/dit-granularity.jsonl").open(encoding="utf-8") as file:
        recorded = json.loads(file.readline())["points"]
    points = asked.sweep().points
    assert {point.id for point in points} == {point["id"] for point in recorded}
    for change in ("router.logit_bias=true", "duration=fixed"):
        assert override(points[0].config, change).fingerprint != points[0].id


def test_the_reference_runs_once_whatever_the_rules() -> None:
    points = small(rules=("complete_mue", "sp", "mup")).points
    assert [(p.target, p.rules) for p in points].count(("dense", "complete_mue")) == 2
    assert {p.rules for p in points if p.target == "dense"} == {"complete_mue"}
    assert {p.rules for p in points if p.target == "16e4a"} == {"complete_mue", "sp", "mup"}


def test_scans_share_the_tuned_point() -> None:
    hyper = recipe("lm_tiny").reference.hyper
    sweep = small(Scan("lr", octaves(hyper.lr, 1)), Scan("weight_decay", octaves(hyper.weight_decay, 1)))
    points = sweep.points
    assert len(points) == 2 * 5
    assert [p.hypers for p in points if len(p.hypers) > 1] == [(("lr", 0.008), ("weight_decay", 0.1))] * 2
    listed = sweep.to_plan("mue sweep", {}).points
    assert len(listed) == 12
    assert len({point.id for point in listed}) == 10


def test_mistakes() -> None:
    config = recipe("lm_tiny")
    with pytest.raises(mue.MueError, match="each once"):
        Scan("lr", (1e-3, 1e-3))
    with pytest.raises(mue.MueError, match="'weight_decay'"):
        Scan("weight_decya", (0.1,))
    twice = (Target("a", 1, config), Target("b", 2, config))
    with pytest.raises(mue.MueError, match="same run"):
        _ = Sweep("t", "T", "a", "tiny", twice, (Scan("lr", (1e-3,)),), ("complete_mue",)).points
    with pytest.raises(mue.MueError, match="'capacity'"):
        figure("capacty", base_config("lm", "tiny"), "tiny")
    with pytest.raises(mue.MueError, match="tiny, small, medium, paper"):
        base_config("lm", "huge")


def test_what_can_be_fused() -> None:
    points = small(rules=("complete_mue", "sp"), seeds=(0, 1)).points
    groups = list(fusible(points))
    assert [len(group) for group in groups] == [4, 8]
    assert {point for group in groups for point in group} == set(points)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("scale", quick(SCALES, "tiny"))
def test_every_figure_at_every_scale_is_a_sweep_that_the_report_reads(tmp_path: Path, task: str, scale: str) -> None:
    base = base_config(task, scale)
    for name in FIGURES:
        sweep = figure(name, base, scale, rules=("complete_mue", "sp"))
        assert sweep.reference.config == base
        enter(sweep, tmp_path / name, "mue sweep", {})
        read = read_sweep(tmp_path / name).plan
        assert [target.name for target in read.targets] == [target.name for target in sweep.targets]
        assert len(read.points) >= len(sweep.points)


@pytest.mark.parametrize(("scale", "lr", "decay"), [("tiny", 1, 1), ("small", 0.5, 1), ("medium", 0.5, 1)])
def test_the_learning_rate_is_scanned_in_half_octaves_from_scale_small_up(scale: str, lr: float, decay: float) -> None:
    base = base_config("lm", scale)
    sweep = figure("activated", base, scale, hypers=("lr", "weight_decay"))
    steps = [math.log2(scan.values[1] / scan.values[0]) for scan in sweep.scans]
    assert steps == pytest.approx([lr, decay])
    coarse = {point.id for point in figure("activated", base, scale, per_octave=1, hypers=("lr",)).points}
    assert coarse <= {point.id for point in sweep.points}


def test_an_axis_of_a_check_is_a_figure_by_the_same_name() -> None:
    assert {name: (axis.title, axis.counts) for name, axis in AXES.items()} == {
        name: (figure.title, figure.axis) for name, figure in FIGURES.items() if name in AXES
    }


def test_a_layout_has_a_place_on_every_axis_of_scaling_that_it_is_on() -> None:
    sweep = figure("scaling", base_config("lm", "small"), "small")
    places = {target.name: {(p.title, p.label, p.x) for p in target.places} for target in sweep.targets}
    assert places["64e8a"] == {
        ("Activated experts", "activated experts", 8.0),
        ("Capacity", "experts", 64.0),
        ("Granularity", "activated experts", 8.0),
        ("Depth, on an MoE", "layers", 4.0),
    }
    assert places["32e8a"] == {("Capacity", "experts", 32.0)}
    assert places["dense"] == places["128e8a4g1s"] == set()


def test_shared_experts_in_place_of_active_ones_keep_the_active_width() -> None:
    targets = figure("shared_instead", base_config("lm", "small"), "small").targets
    assert [target.name for target in targets] == ["dense", "64e8a", "64e7a1s", "64e6a2s", "64e4a4s"]
    assert len({target.config.shape.active_width for target in targets}) == 1


def test_the_medium_scale_has_its_own_selection() -> None:
    sweep = figure("selected", base_config("lm", "medium"), "medium")
    assert [t.name for t in sweep.targets] == ["dense", "64e4a", "64e8a", "128e8a4g1s", "64e8a, width x2"]
    assert {target.config.budget.tokens for target in sweep.targets} == {131_072_000}
    assert [target.config.shape.width for target in sweep.targets] == [256, 256, 256, 256, 512]
    assert {target.config.task.sequence for target in sweep.targets} == {512}


def test_durations_keep_the_batch() -> None:
    budgets = [target.config.budget for target in figure("duration", base_config("lm", "small"), "small").targets]
    assert {budget.batch_tokens for budget in budgets} == {16384}
    assert [budget.steps for budget in budgets] == [2000, 500, 1000, 4000, 8000]


def test_a_tuned_reference_brings_its_shape_and_values() -> None:
    given = base_config("lm", "tiny").reference
    tuned = dataclasses.replace(given, hyper=dataclasses.replace(given.hyper, lr=3e-3))
    base = base_config("lm", "small", tuned)
    assert (base.shape, base.budget, base.reference.hyper.lr) == (given.shape, given.budget, 3e-3)
    assert figure("activated", base, "tiny").scans[0].values == octaves(3e-3, 2)
    free = dataclasses.replace(given, hyper=dataclasses.replace(given.hyper, weight_decay=0.0))
    with pytest.raises(mue.MueError, match=r"weight_decay: "):
        figure("activated", base_config("lm", "tiny", free), "tiny", hypers=["weight_decay"])


FILE = """
name = "mine"
recipe = "lm_tiny"
overrides = ["budget.steps=20"]
rules = ["complete_mue", "sp"]
seeds = 2
[scan]
lr = [2e-3, 4e-3]
[targets]
"16e4a" = ["shape.feed_forward=16e4a@16"]
wide = ["shape.width=128"]
"""


def test_a_grid_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    sweep = read_sweep_file(path)
    assert len(sweep.points) == 2 * 2 * (1 + 2 * 2)
    assert sweep.targets[2].config.shape.width == 128
    assert len(read_sweep_file(path, seeds=1).points) == 10
    assert len(read_sweep_file(path, rules=["sp"], overrides=["budget.steps=30"]).points) == 2 * 2 * 3
    assert read_sweep_file(path, overrides=["budget.steps=30"]).targets[1].config.budget.steps == 30
    given = dataclasses.replace(recipe("lm_tiny").reference, hyper=mue.Hyper(3e-3, 0.05, 0.02))
    tuned = read_sweep_file(path, reference=given).targets[1].config
    assert (tuned.reference, tuned.budget) == (given, given.budget)
    for old, new, message in (
        ("recipe =", "recpie =", "did you mean 'recipe'"),
        ('"lm_tiny"', '"lm_tny"', "did you mean 'lm_tiny'"),
        ("lr = [2e-3, 4e-3]", 'lr = ["x"]', "lists of numbers"),
        ("shape.width=128", "shape.widht=128", "did you mean 'width'"),
        ('["shape.width=128"]', '"shape.width=128"', "targets"),
        ("seeds = 2", 'seeds = "two"', "seeds is 'two'"),
        ("[scan]\nlr = [2e-3, 4e-3]", "", "field `scan`"),
        ('name = "mine"', "name = ", "not valid TOML"),
        ('name = "mine"', 'name = "mine"\ntitle = "two\\nlines"', r"mine\.toml: title is"),
    ):
        path.write_text(FILE.replace(old, new))
        with pytest.raises(mue.MueError, match=message):
            read_sweep_file(path)


def test_a_folder_of_another_sweep_is_refused(tmp_path: Path) -> None:
    enter(dataclasses.replace(small(), name="other"), tmp_path, "mue sweep", {})
    with pytest.raises(mue.MueError, match="'other'"):
        enter(small(), tmp_path, "mue sweep", {})
    (tmp_path / "sweep.json").write_text(json.dumps({"format": 1, "name": "other"}))
    with pytest.raises(mue.MueError, match=r"sweep\.json"):
        enter(small(), tmp_path, "mue sweep", {})


def test_a_sweep_grows_in_place(tmp_path: Path) -> None:
    """Other rule sets, another hyperparameter, more seeds and a wider span: the plan is the union, in any order."""
    lr = Scan("lr", (1e-3, 2e-3))
    parts = [
        small(lr),
        small(lr, rules=("sp",)),
        small(Scan("weight_decay", (0.1, 0.2))),
        small(Scan("lr", (5e-4, 1e-3, 2e-3, 4e-3)), seeds=(0, 1)),
    ]
    for number, part in enumerate(parts):
        enter(part, tmp_path, f"mue sweep {number}", {"number": number})
    grown = read_sweep(tmp_path).plan
    assert {point.id for point in grown.points} == {point.id for part in parts for point in part.points}
    assert grown.command == "mue sweep 0 && mue sweep 1 && mue sweep 2 && mue sweep 3"
    enter(parts[0], tmp_path, "mue sweep again", {"number": 4})  # brings nothing new: neither lost nor named
    again = read_sweep(tmp_path).plan
    assert (again.points, again.command) == (grown.points, grown.command)
    assert json.loads((tmp_path / "sweep.json").read_text())["request"] == {"number": 4, "sources": {}}


def test_a_command_that_holds_everything_stands_alone(tmp_path: Path) -> None:
    enter(small(), tmp_path, "mue sweep narrow", {})
    enter(small(Scan("lr", (5e-4, 1e-3, 2e-3, 4e-3))), tmp_path, "mue sweep wide", {})
    assert read_sweep(tmp_path).plan.command == "mue sweep wide"


def _other(sweep: Sweep, **changes: object) -> Sweep:
    dense = dataclasses.replace(sweep.targets[0].config, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(sweep, targets=(Target("dense", None, dense), *sweep.targets[1:]))


def test_what_would_mix_two_sweeps_is_refused(tmp_path: Path) -> None:
    sweep = small()
    enter(sweep, tmp_path, "mue sweep", {})
    before = (tmp_path / "sweep.json").read_bytes()
    reference = sweep.reference.config.reference
    retuned = dataclasses.replace(reference, hyper=dataclasses.replace(reference.hyper, lr=0.5))
    for says, other in (
        ("its scale is 'tiny', not 'small'", dataclasses.replace(sweep, scale="small")),
        ("its reference is", _other(sweep, reference=retuned)),
        ("steps of target 'dense' is", _other(sweep, budget=mue.Budget(2048, 7))),
        ("the config of", _other(sweep, clip=0.123)),
    ):
        with pytest.raises(mue.MueError, match="holds another sweep") as problem:
            enter(other, tmp_path, "mue sweep", {})
        assert says in str(problem.value)
        assert "give another folder" in str(problem.value)
        assert (tmp_path / "sweep.json").read_bytes() == before
    (tmp_path / "sweep.json").write_text(json.dumps({**json.loads(before), "points": [1]}))
    with pytest.raises(mue.MueError, match=r"points\[0\]"):
        enter(sweep, tmp_path, "mue sweep", {})
