"""What a plan looks like: 80 columns, four digits, nothing that says nothing; and CSV that agrees with itself."""

from __future__ import annotations

import csv
import dataclasses
import io
import re

import pytest

import complete_mue as mue
from complete_mue.plan.render import beta
from complete_mue.rules.monomial import SYMBOLS, Monomial
from complete_mue.rules.ratios import symbols


@pytest.fixture
def deep(lm_plan: mue.Plan) -> mue.Plan:
    shape = mue.ModelShape(1000, 77, mue.FeedForward.parse("dense@77+32e2a@100+99e7a@33"), dense_layers=1)
    return mue.transfer(lm_plan.reference, shape, mue.Budget(777, 7777), betas="hold")


def columns(plan: mue.Plan) -> list[str]:
    return next(line for line in str(plan).splitlines() if line.lstrip().startswith("role")).split()


def body(plan: mue.Plan) -> list[str]:
    """The table's rows."""
    lines = str(plan).splitlines()
    start = next(n for n, line in enumerate(lines) if "───" in line) + 1
    return lines[start : lines.index("", start) if "" in lines[start:] else None]


def test_it_fits_80_columns_and_breaks_no_word(lm_plan: mue.Plan, deep: mue.Plan) -> None:
    blocks = (mue.FeedForward.dense(512), mue.FeedForward.parse("dense@28+4e2a@20"), mue.FeedForward.parse("8e2a", 256))
    mixed = mue.transfer(lm_plan.reference, mue.ModelShape(256, 3, blocks))
    for plan in (lm_plan, lm_plan.fold(), deep, deep.fold(), mixed):
        lines = str(plan).splitlines()
        assert max(map(len, lines)) <= 80
        words = set(re.split(r"[ ,():]+", str(plan)))
        assert {row.role.value for row in plan.rows} <= words
        assert all(str(kind) in str(plan) for kind in plan.shape.kinds if len(plan.shape.kinds) > 2)


def test_a_plan_without_rows_is_printed_too(lm_plan: mue.Plan) -> None:
    assert "128e8a4g1s" in str(dataclasses.replace(lm_plan, rows=()))


def test_numbers_have_four_digits(lm_plan: mue.Plan) -> None:
    (line,) = (line for line in body(lm_plan) if line.split()[0] == "expert_down")
    assert line.split() == ["expert_down", "1.778", "0.0075", "6.25e-05", "0.4", "2.5e-09"]
    (line,) = (line for line in body(lm_plan) if line.split()[0] == "router")
    assert line.split()[2] == "0.003536"


@pytest.mark.parametrize(("value", "text"), [(0.95, "0.95"), (0.9875, "0.9875"), (0.999985, "0.999985"), (0.5, "0.5")])
def test_betas_near_one_keep_their_digits(value: float, text: str) -> None:
    assert beta(value) == text


def test_what_is_the_same_throughout_has_no_column(lm_plan: mue.Plan) -> None:
    assert columns(lm_plan) == ["role", "multiplier", "init", "std", "lr", "weight", "decay", "eps"]
    assert "multiplier" not in columns(lm_plan.fold())
    same = mue.transfer(lm_plan.reference, lm_plan.reference.shape)
    assert columns(same) == ["role", "weight", "decay"]
    assert "init std 0.01" in str(same)
    assert "lr 0.001" in str(same)


def test_a_role_with_settings_of_another_has_no_row(lm_plan: mue.Plan) -> None:
    assert not {"modulation", "bias"} & {line.split()[0] for line in body(lm_plan)}
    tuned = mue.Reference(
        lm_plan.reference.shape, lm_plan.reference.budget, lm_plan.reference.hyper,
        tuned={"modulation": mue.Tuned(lr=0.5)},  # type: ignore[dict-item]
    )  # fmt: skip
    plan = mue.transfer(tuned, lm_plan.shape)
    assert "modulation" in {line.split()[0] for line in body(plan)}
    assert [row.role for row in lm_plan.rows].count(mue.Role.MODULATION) == 1  # data has every role


def test_trust_says_how_far_and_warns_outside(lm_plan: mue.Plan) -> None:
    reference = lm_plan.reference
    assert [text.split(" ×")[0] for text in lm_plan.trust.outside] == ["width", "active width"]
    warning = " ".join(str(lm_plan).partition("WARNING")[2].split())
    assert all(text in warning for text in lm_plan.trust.outside)
    assert "8x width" in lm_plan.trust.line
    near = mue.transfer(reference, mue.ModelShape(512, 32, mue.FeedForward.parse("64e8a", 64)))
    assert near.trust.outside == ()
    assert "WARNING" not in str(near)
    steps = reference.budget.steps
    fewer, longer = (
        mue.transfer(reference, near.shape, mue.Budget(reference.budget.batch_tokens, n), betas="hold")
        for n in (steps // 4, 4 * steps)
    )
    assert "all lr ×0.5" in " ".join(str(fewer).partition("WARNING fewer")[2].split())
    assert fewer.hyper.lr * 0.5 == pytest.approx(reference.hyper.lr)
    assert longer.trust.advice == ""
    fixed = mue.transfer(reference, fewer.shape, fewer.budget, rules=mue.Rules(duration="fixed"))
    assert fixed.trust.advice == ""
    assert "duration fixed" in str(fixed)
    many = mue.transfer(reference, mue.ModelShape(128, 32, mue.FeedForward.parse("512e8a", 16)))
    assert {text.split()[0] for text in many.trust.outside} == {"512", "64"}
    assert lm_plan.to_dict()["trust"]["outside"] == lm_plan.trust.outside
    assert mue.transfer(reference, near.shape, rules="sp").trust.outside == ()


def test_trust_looks_at_every_kind_of_block(lm_plan: mue.Plan) -> None:
    few, many = (mue.FeedForward.parse(layout, 16) for layout in ("8e4a", "512e4a"))
    mixed, uniform = (
        mue.transfer(lm_plan.reference, mue.ModelShape(128, 8, tuple(blocks)))
        for blocks in ([many] * 7 + [few], [many] * 8)
    )
    assert {"512 experts (to 256)", "128 experts per active one (to 32)"} <= set(mixed.trust.outside)
    assert set(mixed.trust.outside) == set(uniform.trust.outside)
    assert "8e4a and 1 other (d=128" in str(mixed)


def test_another_attention_scale_is_named(lm_plan: mue.Plan) -> None:
    shape = mue.FeedForward.dense(128)
    reference = mue.Reference(
        mue.ModelShape(128, 4, shape, head_dim=64), lm_plan.reference.budget, lm_plan.reference.hyper
    )
    wider, same = (str(mue.transfer(reference, mue.ModelShape(256, 4, shape, head_dim=size))) for size in (128, 64))
    assert "attention logits × 0.0625, not 1/√head_dim = 0.08839" in " ".join(wider.split())
    assert "attention logits" not in same


def test_markdown_and_csv(lm_plan: mue.Plan) -> None:
    rows = list(csv.DictReader(io.StringIO(lm_plan.to_csv())))
    assert [row["role"] for row in rows] == [row.role.value for row in lm_plan.rows]
    assert float(rows[8]["init_std"]) == lm_plan.row("expert_down").init_std
    table = [line for line in lm_plan.to_markdown().splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert len(table) == len(body(lm_plan)) + 2


COLUMN = {"std": "init_std", "lr": "lr", "wd": "weight_decay", "eps": "eps", "A": "output"}
COLUMN |= {"route scale": "route_scale", "residual": "residual"}


@pytest.mark.parametrize("folded", [False, True])
def test_because_agrees_with_the_numbers_beside_it(deep: mue.Plan, folded: bool) -> None:
    """Read back as algebra, the reason of every cell gives the cell."""
    plan = deep.fold() if folded else deep
    letters = {shown: letter for letter, shown in SYMBOLS.items()}
    for line, row in zip(csv.DictReader(io.StringIO(plan.to_csv())), plan.rows, strict=True):
        kind = next((k for k in plan.shape.kinds if plan.shape.label(k) == row.block), plan.shape.main)
        values = symbols(plan.reference, plan.shape, plan.ratios, kind, row.role)
        base = plan.reference.base(row.role)
        said = dict(part.split(" × ") for part in line["because"].split(" [")[0].split(", "))
        for name, column in COLUMN.items():
            cell = said.get(name, "1").split()
            factor = Monomial.parse(" ".join(letters.get(x.split("^")[0], x) + x[len(x.split("^")[0]) :] for x in cell))
            if line[column]:
                assert float(line[column]) == pytest.approx(getattr(base, column) * factor.evaluate(values)), (
                    row,
                    name,
                )


def test_folding_there_and_back_gives_the_same_reasons(deep: mue.Plan) -> None:
    assert [row.because for row in deep.fold().unfold().rows] == [row.because for row in deep.rows]
    assert deep.fold().to_dict()["folded"] == deep.to_dict()["folded"]
