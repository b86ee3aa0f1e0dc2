"""The form's parameters: files that read as the command line reads them, presets, snippets and pictures."""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import complete_mue as mue
from complete_mue.cli import main
from complete_mue.cli.files import target_of
from complete_mue.web.answer import plan_answer
from complete_mue.web.fields import MOST_LAYERS, FieldError, read, toml_file
from complete_mue.web.picture import block_svg

PRESETS = json.loads(files("complete_mue.web").joinpath("static", "presets.json").read_text(encoding="utf-8"))
REFERENCES, TARGETS = PRESETS["reference"], PRESETS["target"]
LM = {f"r.{k}": v for k, v in REFERENCES[0]["fields"].items()} | {f"t.{k}": v for k, v in TARGETS[0]["fields"].items()}


@pytest.mark.parametrize(("preset", "name"), [*zip(REFERENCES, ("lm_reference", "dit_reference"), strict=True)])
def test_reference_presets_are_the_examples(root: Path, preset: dict[str, Any], name: str) -> None:
    specs = read({**LM, **{f"r.{key}": value for key, value in preset["fields"].items()}})
    assert specs.reference == mue.read_reference(root / f"examples/{name}.toml")


@pytest.mark.parametrize(("preset", "name"), [*zip(TARGETS[:2], ("lm_large", "dit_large"), strict=True)])
def test_target_presets_are_the_examples(root: Path, preset: dict[str, Any], name: str) -> None:
    specs = read({**LM, **{f"t.{key}": value for key, value in preset["fields"].items()}})
    assert (specs.shape, specs.budget) == mue.read_target(root / f"examples/{name}.toml")


@pytest.mark.parametrize("preset", [p for p in TARGETS if p["source"] == "stock families"], ids=lambda p: p["name"])
def test_family_presets_are_the_config_classes_defaults(preset: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(preset["name"])
    config.tie_word_embeddings = False
    if hasattr(config, "norm_topk_prob"):
        config.norm_topk_prob = True
    described = mue.describe(config)
    ours = read({**LM, **{f"t.{key}": value for key, value in preset["fields"].items()}}).shape
    assert (ours.width, ours.depth, ours.blocks) == (described.width, described.depth, described.blocks)


MISTAKES = {
    "negative width": {"r.width": "-3"},
    "words for a number": {"r.lr": "fast"},
    "no width": {"t.width": ""},
    "no hyper at all": {"r.lr": "", "r.weight_decay": "", "r.init_std": "", "r.betas": "", "r.eps": ""},
    "unreadable layout": {"t.feed_forward": "128e8x"},
    "more active than experts": {"t.feed_forward": "4e8a"},
    "groups that do not divide": {"t.feed_forward": "128e8a3g"},
    "no expert width": {"t.expert_width": ""},
    "expansion beside experts": {"t.expansion": "4"},
    "expansion to no whole width": {"r.expansion": "1.001"},
    "too many dense layers": {"t.dense_layers": "99"},
    "three betas": {"r.betas": "0.9, 0.95, 0.99"},
    "beta of one": {"r.betas": "0.9, 1"},
    "steps of zero": {"r.steps": "0"},
    "half a step": {"t.steps": "0.5"},
    "infinite lr": {"r.lr": "inf"},
    "huge number": {"r.width": "9" * 30},
    "betas that cannot transfer": {"t.steps": "1000"},
    "unknown rules": {"rules": "mpu"},
    "quotes and newlines": {"t.feed_forward": '"\n[hyper]\nlr = 1'},
    "route scale of a dense one": {"r.route_scale": "2"},
}


@pytest.mark.parametrize("mistake", [*MISTAKES.values()], ids=[*MISTAKES])
def test_mistakes_read_as_on_the_command_line(
    mistake: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    form = {**LM, **mistake}
    with pytest.raises(mue.MueError) as refused:
        plan_answer(form)
    for side, name in (("r", "reference.toml"), ("t", "target.toml")):
        (tmp_path / name).write_text(toml_file(side, form).text)
    monkeypatch.chdir(tmp_path)
    rules = ["--rules", form["rules"]] if "rules" in form else []
    monkeypatch.setattr(sys, "argv", ["mue", "plan", "reference.toml", "target.toml", *rules])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert capsys.readouterr().err == f"mue: error: {refused.value}\n"
    changed = next(iter(mistake))
    if re.match(r"(reference|target)\.toml:\d+:", str(refused.value)) and len(mistake) == 1:
        assert refused.value.field == changed  # type: ignore[attr-defined]


def test_any_text_stays_one_value() -> None:
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(chr(draw.choice((draw.randrange(1, 128), draw.randrange(160, 0xD800)))) for _ in range(12))
        given = dict.fromkeys(("r.width", "r.feed_forward", "r.lr", "r.steps"), text)
        data = tomllib.loads(toml_file("r", given).text)
        assert set(data) == {"shape", "budget", "hyper"}
        if text.strip():
            assert data["shape"]["feed_forward"] == text.strip()


@pytest.mark.parametrize(("typed", "number"), [(".5", 0.5), ("1.", 1.0), ("007", 7), ("1e-3", 1e-3), ("+3", 3)])
def test_numbers_as_people_type_them(typed: str, number: float) -> None:
    assert tomllib.loads(toml_file("r", {"r.lr": typed}).text)["hyper"]["lr"] == number


def test_limits_name_the_command_line() -> None:
    with pytest.raises(FieldError, match=r"1000.*mue plan") as refused:
        read({**LM, "t.depth": str(MOST_LAYERS + 1)})
    assert refused.value.field == "t.depth"
    with pytest.raises(FieldError, match="use `mue plan`"):
        read({**LM, "t.feed_forward": "4096e4096a4096g"})
    with pytest.raises(FieldError, match=r"'r.widht'.*'r.width'"):
        read({**LM, "r.widht": "1"})


VARIANTS = (
    {},
    {"t.feed_forward": "dense@512+32e2a@512+16e2a@256", "t.expert_width": ""},
    {"t.feed_forward": "dense", "t.expert_width": "", "t.expansion": "4", "t.dense_layers": "", "rules": "mup"},
    {"r.feed_forward": "8e2a1s", "r.expert_width": "64", "r.expansion": "", "r.route_scale": "1.5", "betas": "hold"},
    {"t.steps": "10000", "betas": "hold", "duration": "fixed"},
    {"r.head_dim": "32", "t.head_dim": "128", "t.feed_forward": "dense@100+dense@60", "t.expert_width": ""},
)


@pytest.mark.parametrize("change", VARIANTS, ids=[*range(len(VARIANTS))])
def test_the_python_and_the_files_make_the_same_plan(change: dict[str, str], tmp_path: Path) -> None:
    answer = plan_answer({**LM, **change})
    names: dict[str, mue.Plan] = {}
    exec(answer["copy"]["python"].replace("print(plan)", ""), names)
    assert names["plan"].to_dict() == answer["plan"]
    for name in ("reference", "target"):
        (tmp_path / f"{name}.toml").write_text(answer["copy"][name])
    shape, budget = mue.read_target(tmp_path / "target.toml")
    plan = mue.transfer(
        mue.read_reference(tmp_path / "reference.toml"), shape, budget,
        rules=mue.Rules(change.get("rules", "complete_mue_sparse"), duration=change.get("duration", "scaled")),  # type: ignore[arg-type]
        betas=change.get("betas", "transfer"),  # type: ignore[arg-type]
    )  # fmt: skip
    assert plan.to_dict() == answer["plan"]


def test_every_row_is_explained_in_both_forms(lm_plan: mue.Plan) -> None:
    answer = plan_answer(LM)
    assert answer["plan"] == lm_plan.to_dict()
    assert "\n\n".join(answer["explain"]["multiplier"]) == lm_plan.explain()
    assert "\n\n".join(answer["explain"]["folded"]) == lm_plan.fold().explain()


@pytest.mark.parametrize("notation", ["dense@128", "8e2a@64", "128e8a4g1s@512", "256e256a@8", "64e4a@32+8e2a@16"])
def test_the_picture_lights_what_is_active(notation: str) -> None:
    block = mue.FeedForward.parse(notation)
    drawn = block_svg(block, 0.5, block.route_scale, "Target")
    assert drawn.count('class="lit"') == len(block.branches) + block.active
    assert drawn.count('class="idle"') == block.experts - block.active
    assert drawn.count('class="group"') == len(block.groups)
    assert "A = 0.5" in drawn


def test_huge_pictures_stay_small_and_say_so() -> None:
    block = mue.FeedForward.parse("1000000e1000a40g9s", expert_width=1)
    drawn = block_svg(block, 1.0, 1.0, "Target")
    assert len(drawn) < 800_000
    for said in ("256 of 25000 drawn", "and 24 more groups", "(+6 more)"):
        assert said in drawn
    boxes = re.findall(r'x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', drawn)
    height = float(re.search(r'viewBox="0 0 480 ([\d.]+)"', drawn)[1])  # type: ignore[index]
    for x, y, width, tall in (map(float, box) for box in itertools.islice(boxes, 2000)):
        assert 0 <= x <= x + width <= 480
        assert 0 <= y <= y + tall <= height


@pytest.mark.parametrize("side", ["r", "t"])
@pytest.mark.parametrize("depth", ["1001", "1_001", "+1001", "0001001", "1_000_000", "+1000000", "0001000000"])
def test_limits_hold_however_a_number_is_written(side: str, depth: str) -> None:
    with pytest.raises(FieldError, match="1000 layers") as refused:
        read({**LM, f"{side}.depth": depth})
    assert refused.value.field == f"{side}.depth"


def test_many_large_terms_are_refused_at_the_first_too_many() -> None:
    with pytest.raises(FieldError, match="65536"):
        read({**LM, "t.feed_forward": "+".join(["65536e65536a65536g@1"] * 190)})


COUNTS = {
    "4M": 4_000_000, "4m": 4_000_000, "4 M": 4_000_000, "1e6": 10**6, "65_536": 65_536, "2.5k": 2_500, "1.2e3": 1_200,
    "4Mi": 4 * 2**20, "64Ki": 65_536, "1B": 10**9, "3T": 3 * 10**12, "0.5M": 500_000, "1E+5": 100_000,
}  # fmt: skip


@pytest.mark.parametrize(("typed", "number"), [*COUNTS.items()])
def test_counts_as_people_type_them(typed: str, number: int) -> None:
    specs = read({**LM, "r.batch_tokens": typed, "t.batch_tokens": typed, "betas": "hold"})
    assert (specs.reference.budget.batch_tokens, specs.budget.batch_tokens) == (number, number)


@pytest.mark.parametrize("typed", ["4X", "1.5", "1.0005k", "-4M", "1e99", "1e999999999", "M", "4Mb", "4,000"])
def test_what_is_no_count_is_refused_at_its_field(typed: str) -> None:
    with pytest.raises(FieldError) as refused:
        read({**LM, "t.steps": typed})
    assert refused.value.field == "t.steps"


def test_a_rate_has_no_unit() -> None:
    with pytest.raises(FieldError) as refused:
        read({**LM, "r.lr": "1m"})
    assert refused.value.field == "r.lr"


WITHOUT_SHAPE = {name: value for name, value in LM.items() if name[:2] == "r." or name[2:] in ("steps", "batch_tokens")}
QWEN = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "head_dim": 128,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "num_key_value_heads": 4, "norm_topk_prob": True,
}  # fmt: skip
GLM = {
    "model_type": "glm4_moe", "hidden_size": 4096, "num_hidden_layers": 46, "num_attention_heads": 96, "head_dim": 128,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 128, "num_experts_per_tok": 8,
    "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip


@pytest.mark.parametrize("config", [QWEN, GLM], ids=lambda config: config["model_type"])
def test_a_pasted_config_is_what_the_command_line_plans(config: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    answer = plan_answer({**WITHOUT_SHAPE, "t.config": json.dumps(config, indent=2)})
    assert answer["departs"] == ""
    tied = plan_answer({**WITHOUT_SHAPE, "t.config": json.dumps({**config, "tie_word_embeddings": True})})
    assert tied["departs"].startswith("tie_word_embeddings = true: ")
    specs = read(LM)
    shape, budget = target_of(tmp_path / "config.json", specs.budget)
    assert answer["plan"] == mue.transfer(specs.reference, shape, budget).to_dict()
    names: dict[str, mue.Plan] = {}
    exec(answer["copy"]["python"].replace("print(plan)", ""), names)
    assert names["plan"] == mue.Plan.from_dict(answer["plan"])  # but for the weights that grouped queries have not
    (tmp_path / "target").write_text(answer["copy"]["target"])
    if config is QWEN:  # one layout: a TOML file holds it, and so does the form
        assert mue.read_target(tmp_path / "target") == (shape, budget)
        assert read({**WITHOUT_SHAPE, **{f"t.{k}": v for k, v in answer["fields"].items()}}).shape == shape
    else:  # layers differ
        assert answer["fields"] is None
        assert json.loads(answer["copy"]["target"]) == config


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "{}", '{"model_type": 3}', '{"model_type": "no_such_family"}', '{"model_type": "llama"}', "[" * 5000,
        json.dumps({**QWEN, "hidden_size": -1}), json.dumps({**QWEN, "num_hidden_layers": 10**9}),
        json.dumps({**QWEN, "num_experts_per_tok": "many"}), '{"model_type": "llama", "hidden_size": NaN}',
    ],
)  # fmt: skip
def test_what_is_no_config_is_refused_at_its_field(text: str) -> None:
    with pytest.raises(FieldError) as refused:
        read({**WITHOUT_SHAPE, "t.config": text})
    assert refused.value.field == "t.config"


def test_a_shape_is_given_once() -> None:
    with pytest.raises(FieldError) as refused:
        read({**LM, "t.config": json.dumps(QWEN)})
    assert refused.value.field == "t.config"
