"""What the page offers of one plan: files to take away, rule sets side by side, curves along an axis."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from importlib.resources import files
from typing import Any
from xml.etree import ElementTree

import pytest

import complete_mue as mue
from complete_mue.export import EXPORTS, export
from complete_mue.web.answer import plan_answer, planned
from complete_mue.web.compare import chosen, compared
from complete_mue.web.fields import FieldError
from complete_mue.web.plot import AXES, COLUMNS, along, keys, plot_answer
from complete_mue.web.texts import NAMES, text_of

PRESETS = json.loads(files("complete_mue.web").joinpath("static", "presets.json").read_text(encoding="utf-8"))
REFERENCES, TARGETS = PRESETS["reference"], PRESETS["target"]
LM = {f"r.{k}": v for k, v in REFERENCES[0]["fields"].items()} | {f"t.{k}": v for k, v in TARGETS[0]["fields"].items()}
LM |= {"rules": "complete_mue"}
UNEQUAL = {"t.feed_forward": "dense@512+32e2a@512+16e2a@256", "t.expert_width": ""}
DENSE = {"t.feed_forward": "dense", "t.expert_width": "", "t.expansion": "4", "t.dense_layers": ""}


# -- files -----------------------------------------------------------------------------------------------------------


def test_every_tool_is_offered_with_its_own_text() -> None:
    specs, plan = planned(LM)
    for tool in EXPORTS:
        assert text_of(tool, specs, plan).text == export(plan, tool)
    assert mue.Plan.from_json(text_of("json", specs, plan).text) == plan
    assert text_of("reference", specs, plan) == specs.files[0]
    assert text_of("target", specs, plan) == specs.files[1]
    names = [text_of(name, specs, plan).name for name in NAMES]
    assert len({*names}) == len(names)
    assert all(re.fullmatch(r"[a-z_]+\.(py|json|csv|toml)", name) for name in names)


@pytest.mark.parametrize("folded", [False, True])
def test_csv_holds_the_form_that_is_shown(folded: bool) -> None:
    specs, plan = planned(LM)
    rows = csv.DictReader(io.StringIO(text_of("csv", specs, plan, folded=folded).text))
    expected = (plan.fold() if folded else plan).rows
    assert [(row["role"], float(row["lr"])) for row in rows] == [(row.role.value, row.lr) for row in expected]


def test_an_unknown_text_is_named() -> None:
    with pytest.raises(FieldError, match="'megatron'"):
        text_of("megatorn", *planned(LM))


# -- rule sets side by side ------------------------------------------------------------------------------------------


def test_rows_that_differ_are_those_that_differ() -> None:
    found = plan_answer({**LM, "compare": "complete_mue_sparse"})["compare"]
    assert found["rules"] == ["complete_mue", "complete_mue_sparse"]
    assert {row["role"]: row["differs"] for row in found["multiplier"] if row["differs"]} == {"expert_up": ["lr"]}


@pytest.mark.parametrize("name", ["mup", "sp", "completep"])
@pytest.mark.parametrize("form", ["multiplier", "folded"])
def test_the_numbers_beside_are_that_rule_sets_own(form: str, name: str) -> None:
    found = plan_answer({**LM, "compare": f"{name}, sp"})["compare"]
    other = planned({**LM, "rules": name})[1]
    for row, expected in zip(found[form], (other.fold() if form == "folded" else other).rows, strict=True):
        assert {column: values[1] for column, values in row["values"].items()} == {
            column: getattr(expected, column) for column in row["values"]
        }
    assert found["betas"][1] == list(other.hyper.betas)


def test_the_other_rule_sets_read_the_duration_as_the_plan_does() -> None:
    found = plan_answer(
        {**LM, "t.steps": "10000", "betas": "hold", "duration": "fixed", "compare": "complete_mue_sparse"}
    )
    row = next(row for row in found["compare"]["multiplier"] if row["role"] == "embedding")
    reference = found["plan"]["reference"]
    batch = found["plan"]["target"]["budget"]["batch_tokens"] / reference["budget"]["batch_tokens"]
    assert row["values"]["lr"] == pytest.approx([reference["hyper"]["lr"] * batch**0.25] * 2)


def test_a_plan_alone_differs_from_nothing() -> None:
    found = plan_answer({**LM, "compare": "complete_mue"})["compare"]
    assert found["rules"] == ["complete_mue"]
    assert not any(row["differs"] for row in found["multiplier"])


def test_a_rule_set_that_makes_no_plan_says_why() -> None:
    """So few steps that the betas would have to be below zero; rules without a schedule do not care."""
    plan = planned({**LM, "t.steps": "10", "rules": "mup"})[1]
    found = compared(plan, ("mup", "complete_mue", "sp"))
    assert found["rules"] == ["mup", "sp"]
    assert [*found["refused"]] == ["complete_mue"]


def test_an_unknown_rule_set_is_refused_at_its_parameter() -> None:
    with pytest.raises(FieldError) as refused:
        chosen({"compare": "mup,mpu"}, planned(LM)[1])
    assert (refused.value.field, refused.value.given) == ("compare", "mpu")


# -- along an axis ---------------------------------------------------------------------------------------------------


def changed(shape: mue.ModelShape, axis: str, x: float) -> mue.ModelShape:
    """The target at x, written apart from what is tested; for one routed layout of equal groups."""
    block, factor = shape.main, x / shape.width
    if axis == "width":
        groups = [replace(g, expert_width=round(g.expert_width * factor)) for g in block.groups]
        branches = tuple(round(b * factor) for b in block.branches)
        return replace(shape, width=int(x), feed_forward=mue.FeedForward(branches, tuple(groups)))
    if axis == "experts":
        groups = [replace(g, experts=int(x) // len(block.groups)) for g in block.groups]
    else:
        groups = [replace(g, active=round(g.experts / x)) for g in block.groups]
    return replace(shape, feed_forward=mue.FeedForward(block.branches, tuple(groups)))


@pytest.mark.parametrize("axis", [*AXES])
@pytest.mark.parametrize("folded", [False, True])
def test_every_point_is_the_plan_of_that_target(axis: str, folded: bool) -> None:
    plan = planned(LM)[1]
    index = keys(plan).index("expert_down")
    names = ("complete_mue", "complete_mue_sparse", "sp")
    for column, lines in along(plan, index, axis, names, folded=folded).items():
        assert tuple(lines) == names
        for rules, points in lines.items():
            assert len(points) >= 4
            for x, value in points:
                shape = changed(plan.shape, axis, x)
                made = mue.transfer(plan.reference, shape, plan.budget, rules=rules)
                assert value == getattr((made.fold() if folded else made).rows[index], column)


def test_the_axes_reach_both_ways_by_factors_of_two() -> None:
    plan = planned(LM)[1]
    reach = {axis: [x for x, _ in along(plan, 7, axis, ("mup",))["lr"]["mup"]] for axis in AXES}
    assert reach == {
        "width": [128, 256, 512, 1024, 2048, 4096],  # from the reference's
        "experts": [8, 16, 32, 64, 128, 256, 512],  # from all active
        "sparsity": [1, 2, 4, 8, 16, 32],  # from all active to one in each group
    }


def ringed(svg: str) -> str:
    """What the ring's label says."""
    dots = [element for element in ElementTree.fromstring(svg).iter() if element.get("class") == "dot"]
    return next(dot.attrib["aria-label"] for dot in dots if any(part.get("class") == "ring" for part in dot))


@pytest.mark.parametrize("axis", [*AXES])
@pytest.mark.parametrize("role", ["expert_up", "readout", "router"])
def test_the_present_point_is_the_plans(axis: str, role: str) -> None:
    plan = planned(LM)[1]
    answer = plot_answer({**LM, "axis": axis, "role": role, "compare": "mup"}, plan)
    here = {"width": 1024, "experts": 128, "sparsity": 16}[axis]
    for column in COLUMNS:
        value = getattr(plan.rows[keys(plan).index(role)], column)
        assert re.findall(r"[\d.e-]+", ringed(answer[column])) == [f"{value:.4g}", f"{here}"]


@pytest.mark.parametrize("change", [{}, UNEQUAL, DENSE, {"t.width": "1", "t.expert_width": "1"}], ids=str)
@pytest.mark.parametrize("axis", [*AXES])
def test_pictures_stay_in_their_frame(axis: str, change: dict[str, str]) -> None:
    given = {**LM, **change, "axis": axis, "compare": "mup,complete_mue_sparse"}
    plan = planned(given)[1]
    for role in keys(plan):
        answer = plot_answer({**given, "role": role}, plan)
        for column in COLUMNS:
            if column not in answer:
                assert not plan.shape.main.groups
                continue
            if not answer[column]:
                assert getattr(plan.rows[keys(plan).index(role)], column) is None
                continue
            root = ElementTree.fromstring(answer[column])
            size = [float(number) for number in root.attrib["viewBox"].split()[2:]]
            for element in root.iter():
                moved = re.fullmatch(r"translate\((\S+) (\S+)\)", element.get("transform", "translate(0 0)"))
                for axis_, most, names in ((1, size[0], ("x", "x1", "x2")), (2, size[1], ("y", "y1", "y2"))):
                    places = [float(element.get(name, 0)) for name in names]
                    assert all(0 <= place <= most for place in (*places, float(moved[axis_]) if moved else 0))


def test_rule_sets_that_coincide_share_a_curve() -> None:
    given = {**LM, "role": "embedding", "compare": "complete_mue_sparse,sp,mup"}
    answer = plot_answer(given, planned(given)[1])
    assert answer["rules"] == [["complete_mue", "complete_mue_sparse"], ["sp", "mup"]]
    assert answer["lr"].count("<polyline") == 2


@pytest.mark.parametrize("axis", [*AXES])
def test_layers_that_differ_change_together(axis: str) -> None:
    plan = planned(LM)[1]
    dense, routed = mue.FeedForward.dense(10_944), mue.FeedForward.parse("128e8a1s", 1408)
    shape = mue.ModelShape(4096, 4, (dense, routed, dense, routed))
    plan = mue.transfer(plan.reference, shape, plan.budget, rules="mup")
    index = keys(plan).index("expert_up")
    points = along(plan, index, axis, ("mup",))["lr"]["mup"]
    assert len(points) >= 4
    here = {"width": 4096, "experts": 128, "sparsity": 16}[axis]
    assert dict(points)[here] == plan.rows[index].lr


def test_roles_and_axes_that_are_not_there() -> None:
    plan = planned({**LM, **DENSE})[1]
    answer: dict[str, Any] = plot_answer({"role": "expert_up"}, plan)
    assert answer["role"] in answer["roles"]
    assert "expert_up" not in answer["roles"]
    assert not {*COLUMNS} & {*plot_answer({"axis": "experts"}, plan)}
    assert plot_answer({"role": "norm"}, plan)["init_std"] == ""
    for given in ({"axis": "depth"}, {"role": "foo"}, {"role": "foo:dense"}):
        with pytest.raises(FieldError) as refused:
            plot_answer(given, plan)
        assert refused.value.field == next(iter(given))
    assert all(role in str(refused.value) for role in keys(plan))
    assert plot_answer({"role": "expert_up:64e8a"}, plan)["role"] in keys(plan)
