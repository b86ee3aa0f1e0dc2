from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import complete_mue as mue
from complete_mue.cli import app
from in_process import mue as run

FILES = ("examples/lm_reference.toml", "examples/lm_large.toml")


def test_plan_json_has_the_worked_numbers(root: Path, lm_plan: mue.Plan) -> None:
    done = run("plan", *FILES, "--format", "json", cwd=root)
    assert done.returncode == 0, done.stderr
    assert mue.Plan.from_json(done.stdout) == lm_plan
    data = json.loads(done.stdout)
    rows = {row["role"]: row for row in data["rows"]}
    assert data["global"]["lr"] == pytest.approx(5e-4, rel=1e-6)
    assert data["global"]["weight_decay"] == pytest.approx(0.05, rel=1e-6)
    assert rows["expert_down"]["multiplier"] == pytest.approx(8 / 4.5, rel=1e-6)
    assert rows["expert_down"]["init_std"] == pytest.approx(0.0075, rel=1e-6)
    assert rows["expert_up"]["init_std"] == pytest.approx(0.0035355339, rel=1e-6)
    assert rows["expert_down"]["lr"] == pytest.approx(6.25e-5, rel=1e-6)
    assert rows["expert_down"]["weight_decay"] == pytest.approx(0.4, rel=1e-6)
    assert data["ratios"]["active_width"] == 4.5


def test_every_format(root: Path, lm_plan: mue.Plan) -> None:
    assert run("plan", *FILES, cwd=root).stdout.rstrip() == str(lm_plan)
    assert run("plan", *FILES, "--json", cwd=root).stdout == run("plan", *FILES, "--format", "json", cwd=root).stdout
    assert run("plan", *FILES, "--format", "markdown", cwd=root).stdout.rstrip() == lm_plan.to_markdown()
    assert run("plan", *FILES, "--format", "md", cwd=root).stdout.rstrip() == lm_plan.to_markdown()
    assert run("plan", *FILES, "--format", "csv", "--fold", cwd=root).stdout == lm_plan.fold().to_csv()
    explained = run("plan", *FILES, "--explain", "--role", "router", cwd=root).stdout
    assert explained.rstrip() == lm_plan.explain("router")
    assert "mup" in run("plan", *FILES, "--rules", "mup", cwd=root).stdout


def test_readings_of_the_rules(root: Path, lm_plan: mue.Plan) -> None:
    given = ("--eps", "fixed", "--weight-decay", "fixed", "--duration", "fixed", "--forward-factor", "4")
    done = run("plan", *FILES, *given, "--json", cwd=root)
    rules = mue.Rules(eps="fixed", weight_decay="fixed", duration="fixed", forward_factor=4)
    plan = mue.transfer(lm_plan.reference, lm_plan.shape, lm_plan.budget, rules=rules)
    assert mue.Plan.from_json(done.stdout) == plan
    assert plan.row("expert_down").route_scale == lm_plan.row("expert_down").route_scale / 2
    for option in (("--eps", "free"), ("--forward-factor", "0"), ("--weight-decay", "0.1"), ("--duration", "8")):
        assert run("plan", *FILES, *option, cwd=root).returncode == 2


def test_what_a_target_or_a_rule_set_does_not_read_is_said(root: Path) -> None:
    done = run("plan", FILES[0], FILES[0], cwd=root)
    assert "[hyper] of a target is not read" in done.stderr
    done = run("plan", *FILES, "--rules", "sp", "--duration", "fixed", "--eps", "groups", cwd=root)
    assert "--duration fixed changes nothing by the rule set sp" in done.stderr
    assert "eps" not in done.stderr
    assert "duration" not in done.stdout
    done = run("plan", *FILES, "--rules", "complete_mue", "--duration", "fixed", "--eps", "fixed", cwd=root)
    assert done.stderr == ""
    assert "complete_mue, eps fixed, duration fixed" in done.stdout


@pytest.mark.parametrize("text", ["{0}", "[{1}]", "{2}"])
def test_measured_loads(root: Path, tmp_path: Path, lm_plan: mue.Plan, text: str) -> None:
    tokens = [100 + n for n in range(127)] + [0]
    forms = ["\n".join(map(str, tokens)), ", ".join(map(str, tokens)), " ".join(str(n / 1e4) for n in tokens)]
    (tmp_path / "load").write_text(text.format(*forms))
    data = json.loads(run("plan", *FILES, "--json", "--load", tmp_path / "load", cwd=root).stdout)
    expected = lm_plan.sde_with_load([8 * n / sum(tokens) for n in tokens])
    assert data["load"]["median"] == pytest.approx(expected.median)
    assert data["load"]["sigma0"][:-1] == pytest.approx(expected.sigma0[:-1])
    assert data["load"]["maximum"] is None  # an expert without tokens
    assert f"{expected.median:.4g}" in run("plan", *FILES, "--load", tmp_path / "load", cwd=root).stdout


def test_a_load_with_most_experts_idle(root: Path, tmp_path: Path) -> None:
    (tmp_path / "load").write_text(json.dumps([0] * 127 + [5]))
    load = json.loads(run("plan", *FILES, "--json", "--load", tmp_path / "load", cwd=root).stdout)["load"]
    assert load["sigma0"] == [None] * 127 + [pytest.approx(load["minimum"])]
    assert load["median"] is load["maximum"] is None


def test_loads_that_cannot_be_read(root: Path, tmp_path: Path) -> None:
    for text, says in (
        ("1 2 3", "3 entries for 128"), ("", "all is no load"), ("words", "words"), ("0 " * 128, "all is no load"),
        ("1 " * 127 + "-3", "load: -3 is no load"), ("1 " * 127 + "inf", "load: inf is no load"),
    ):  # fmt: skip
        (tmp_path / "load").write_text(text)
        done = run("plan", *FILES, "--load", tmp_path / "load", cwd=root)
        assert (done.returncode, done.stdout) == (2, "")
        assert says in done.stderr
    done = run("plan", *FILES, "--load", tmp_path / "none", cwd=root)
    assert (done.returncode, "none: No such file" in done.stderr) == (2, True)
    done = run("plan", FILES[0], FILES[0], "--load", tmp_path / "load", cwd=root)
    assert (done.returncode, "the target has none" in done.stderr) == (2, True)
    assert run("plan", *FILES, "--load", tmp_path / "load", "--explain", cwd=root).returncode == 2


def test_options_that_would_be_ignored_are_refused(root: Path, tmp_path: Path) -> None:
    for words, said in (
        (("plan", *FILES, "--json", "--format", "csv"), "--json and --format csv: give one"),
        (("plan", *FILES, "--export", "hf", "--explain"), "--export and --explain"),
        (("plan", *FILES, "--export", "hf", "--role", "router"), "--export and --explain"),
        (("eval", tmp_path, "--held-out", "--tasks", "copa", "--limit", 1), "leave out --tasks, --limit"),
        (("eval", tmp_path, "--held-out", "--shots", 3), "leave out --shots"),
        (("eval", tmp_path, "--answers", "a", "--limit", 3), "leave out RUN, --limit"),
        (("eval", tmp_path, "--requests", "q", "--json"), "leave out --json"),
        (("eval", "hf:X", "--held-out"), "only our runs"),
        (("sweep", "scaling", "--octaves=-2:2"), "leave out --hyper, --span"),
        (("sweep", "scaling", "--hyper", "lr"), "at the reference's own values"),
        (("cluster", "lm_large", "--link", "-1"), "--link = -1.0: give a finite number above 0"),
    ):
        done = run(*words, cwd=root)
        assert done.returncode == 2
        assert said in done.stderr
    assert run("plan", *FILES, "--json", "--format", "json", cwd=root).returncode == 0


def test_layout(root: Path) -> None:
    arguments = ("layout", "128e8a4g1s", "--width", "1024", "--expert-width", "512", "--depth", "32")
    facts = json.loads(run(*arguments, "--dense-layers", "2", "--json", cwd=root).stdout)
    assert facts["active_width"] == 4608
    assert facts["multiplier"] == pytest.approx(1 / 4.5)
    assert facts["route_scale"] == 8
    assert facts["parameters"] == {"active": 624689152, "total": 6286999552}
    text = run(*arguments, cwd=root).stdout
    assert "active width H = 4608" in text
    assert "route scale r = 8" in text
    assert "attention counts as 5 d x d matrices" in text
    assert json.loads(run("layout", "dense", "--width", "64", "--json", cwd=root).stdout)["multiplier"] == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("layout", "64e8", "--width", "8"), "cannot read '64e8'"),
        (("layout", "64e8a5g", "--width", "8", "--expert-width", "4"), "must divide"),
        (("layout", "4e8a", "--width", "8", "--expert-width", "4"), "cannot activate more experts"),
        (("layout", "4e2a", "--width", "8"), "expert_width"),
        (("layout", "4e2a", "--width", "-8", "--expert-width", "4"), "width = -8"),
        (("layout", "dense", "--width", "-3"), "error: width = -3: give a whole number from 1"),
        (("layout", "4e2a"), "--width"),
        (("layout", "4e2a@8", "--width", "8", "--expert-width", "4"), "every part has its width; leave it out"),
        (("plan", "none.toml", "none.toml"), "none.toml: no such file"),
        (("plan", FILES[0], "Makefile"), "not valid TOML"),
        (("plan", *FILES, "--rules", "mupp"), "did you mean 'mup'?"),
        (("plan", *FILES, "--explain", "--role", "expertdown"), "did you mean 'expert_down'?"),
        (("plan", *FILES, "--frmat", "json"), "--frmat"),
        (("plann",), "plann"),
        (("plan", FILES[1], FILES[0]), "[hyper]"),
        (("plan", *FILES, "--explain", "--json"), "leave out --format and --json"),
        (("plan", *FILES, "--eps", "no"), "'--eps': 'no' is not one of 'groups', 'fixed'"),
        (("plan", *FILES, "--export", "megatro"), "did you mean 'megatron'?"),
        (("check", "--axis", "widht"), "did you mean 'width'?"),
        (("check", "--model", "json:dumps", "--axis", "grouped"), "build(plan) failed with TypeError"),
        (("check", "--model", "json:nothing"), "give an importable MODULE:FUNCTION"),
        (("check", "--model", ".a:x"), "give an importable MODULE:FUNCTION"),
        (("check", "--model", "sys:maxsize"), "give a function build(plan)"),
        (("bench", "moe", "--device", "tpu"), "give 'cuda' or 'cpu'"),
        (("bench", "moe", "--kernel", "tritn"), "did you mean 'triton'?"),
        (("train", "lm_tiny", "task.sequence=0"), "task.sequence = 0"),
        (("train", "--resume", "--out", "run", "budget.steps=40"), "without a recipe before it"),
        (("train", "lm_tiny", "warmup=0.99"), "warmup = 396 and decay = 80"),
        (("train", "lm_tiny:16e4a", "expert_parallel=2", "--dry-run"), "expert_parallel = 2 with 1 ranks"),
        (("layout", "dense@", "--width", "64", "--expert-width", "32"), "cannot read 'dense@'"),
        (("layout", "8e2a@64", "--width", "64", "--expert-width", "32"), "every part has its width"),
        (("init", "none"), "none: no such file"),
        (("init", "--out", "README.md"), "README.md: a file, or a link to nothing"),
        (("train", "lm_tiny", "device=nope"), "give auto, cpu, cuda or cuda:N"),
        (("train", "lm_tiny", "compile=maybe"), "give true or false"),
        (("train", "lm_tiny", "bias_rate=x"), "bias_rate = 'x'"),
        (("train", "lm_tiny", "reference.tuned=x"), "a table or list"),
        (("train", "dit_tiny", "task.patch=0"), "task.patch = 0"),
        (("sample", "tests"), "config.json"),
        (("data", "show", "tests"), "manifest"),
        (("data", "prepare", "none.txt", "--out", "unused"), "none.txt"),
        (("data", "prepare", "README.md", "--out", "unused", "--separator", "ab\\"), "--separator"),
    ],
)
def test_errors_are_one_line_and_status_2(root: Path, arguments: tuple[str, ...], says: str) -> None:
    done = run(*arguments, cwd=root)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_betas_that_leave_the_range_name_the_remedy(root: Path, tmp_path: Path) -> None:
    short = (root / FILES[1]).read_text().replace("steps = 100000", "steps = 100")
    (tmp_path / "short.toml").write_text(short)
    done = run("plan", FILES[0], str(tmp_path / "short.toml"), cwd=root)
    assert done.returncode == 2
    assert "--betas hold" in done.stderr
    assert run("plan", FILES[0], str(tmp_path / "short.toml"), "--betas", "hold", cwd=root).returncode == 0


def test_output_that_cannot_hold_greek(root: Path) -> None:
    command = [sys.executable, "-m", "complete_mue", "plan", *FILES]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0
    assert "expert_down" in done.stdout


def test_a_reader_that_leaves_is_no_error(root: Path) -> None:
    text = f"{sys.executable} -m complete_mue plan {FILES[0]} {FILES[1]} --explain | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", text], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_errors_end_the_process_with_one_line_and_status_2(root: Path) -> None:
    command = [sys.executable, "-m", "complete_mue", "layout", "64e8", "--width", "8"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == run(*command[3:], cwd=root).stderr


def test_help_teaches(root: Path) -> None:
    top = run("--help", cwd=root).stdout
    assert run(cwd=root).stdout == top
    for command in ("plan", "layout"):
        assert command in top
        assert "Example" in run(command, "--help", cwd=root).stdout
    assert run("--version", cwd=root).stdout.strip() == mue.__version__


def test_help_fits_the_terminal() -> None:
    """No line is cut or longer than 80 columns, and flags show no type."""

    def walk(command: Any, words: tuple[str, ...] = ()) -> None:
        shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"}).output
        assert max(map(len, shown.splitlines())) <= 80, words
        assert "..." not in shown.partition("Commands:")[2], words
        assert "bool" not in shown, words
        for name, below in getattr(command, "commands", {}).items():
            walk(below, (*words, name))

    walk(get_command(app))


# What the words alone decide; none of it needs torch.
REFUSED = (
    ("train", "nope"),
    ("train", "lm_tiny", "task.sequence=0"),
    ("train", "lm_tiny", "shape.feed_forward=16e"),
    ("train", "lm_tiny", "shape.feed_forward=16e4a"),
    ("train", "lm_tiny", "budget.steps=2"),
    ("train", "lm_tiny", "rules=nope"),
    ("train", "lm_tiny", "--reference", "none.toml"),
    ("train", "lm_tiny", "--resume", "--restart"),
    ("train", "--resume"),
    ("sample", "tests"),
    ("sample", "tests", "--guidance", "nan"),
    ("export", "tests", "--hf", "unused"),
    ("eval", "tests", "--held-out"),
    ("eval", "tests", "--held-out", "--tasks", "copa"),
    ("eval", "hf:tests", "--held-out"),
    ("eval", "tests", "--requests", "none"),
    ("eval", "hf:tests", "--requests", "none"),
    ("sweep", "nope"),
    ("sweep", "activated", "--rules", "nope"),
    ("sweep", "activated", "--scale", "nope"),
    ("sweep", "activated", "--hyper", "nope"),
    ("sweep", "activated", "--set", "nope=1"),
    ("sweep", "activated", "--octaves", "3:1"),
    ("tune", "nope"),
    ("tune", "lm", "--scale", "nope"),
    ("tune", "lm", "--hyper", "nope"),
    ("check", "--layout", "8e"),
    ("check", "--rules", "nope"),
    ("check", "--axis", "nope"),
    ("check", "--axis", "activated", "--layout", "8e2a"),
    ("bench", "moe", "--device", "nope"),
    ("bench", "moe", "--figure", "nope"),
    ("bench", "moe", "--resume"),
    ("cluster", "nope"),
    ("cluster", "lm_large", "--gpus", "x"),
    ("cluster", "lm_large", "--link", "-1"),
    ("data", "show", "tests"),
    ("data", "prepare", "none.txt", "--out", "unused"),
)


def test_what_the_words_decide_is_refused_before_torch_is_loaded(root: Path) -> None:
    """In one process of its own, the others having loaded torch long ago."""
    code = f"""
import sys
from complete_mue.cli import main
for words in {REFUSED!r}:
    sys.argv = ["mue", *words]
    try:
        main()
    except SystemExit as left:
        assert left.code == 2, (words, left.code)
    assert "torch" not in sys.modules, words
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stderr.splitlines()) == len(REFUSED)


def test_a_bare_layout_means_the_same_to_every_command(root: Path, tmp_path: Path) -> None:
    """Experts have no width of their own: neither guesses one. A dense block is as wide as the model."""
    asked = run("layout", "16e4a", "--width", "64", cwd=root)
    trained = run("train", "lm_tiny", "shape.feed_forward=16e4a", "--dry-run", cwd=tmp_path)
    other = run("train", "lm_tiny:16e4a", "shape.feed_forward=32e4a", "--dry-run", cwd=tmp_path)
    assert (asked.returncode, trained.returncode, other.returncode) == (2, 2, 2)
    assert asked.stderr == trained.stderr
    assert "16e4a@WIDTH" in asked.stderr
    pytest.importorskip("torch")
    from complete_mue.lab.recipes import configured

    for words in (["shape.feed_forward=dense", "shape.width=32"], ["shape.width=32", "shape.feed_forward=dense"]):
        assert configured("lm_tiny:16e4a", [*words, "shape.head_dim=8"]).shape.active_width == 32
    assert configured("lm_tiny", ["shape.feed_forward=16e4a@16"]).shape == configured("lm_tiny:16e4a").shape


def test_import_loads_no_torch() -> None:
    code = "import sys, complete_mue, complete_mue.cli; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_run_goes_on_with_its_own_config(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    given = "budget.steps=2", "betas=hold", "task.sequence=16", "budget.batch_tokens=32"
    started = run("train", "lm_tiny", *given, "--out", "run", cwd=tmp_path)
    assert started.returncode == 0, started.stderr
    again = run("train", "--resume", "--out", "run", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "2 steps" in again.stdout
    other = run("train", "lm_tiny", "--out", "run", "--resume", cwd=tmp_path)
    assert other.returncode == 2
    assert "betas = transfer" in other.stderr
    assert "lm_tiny" in run("train", cwd=tmp_path).stderr


def test_a_run_whose_reader_leaves_is_finished(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    given = (
        "shape.width=16 shape.depth=1 task.sequence=16 budget.batch_tokens=32 budget.steps=40 log_every=1 betas=hold"
    )
    command = f"{sys.executable} -m complete_mue train lm_tiny {given} --out {tmp_path / 'run'} 2>&1 | head -n 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "finished" in (tmp_path / "run" / "result.json").read_text()


def test_a_run_is_named_after_what_it_trains() -> None:
    from complete_mue.lab.recipes import configured

    assert configured("lm_tiny", ["shape.feed_forward=16e4a@8"]).name == "lm_tiny-16e4a"
    assert configured("lm_tiny:16e4a", ["shape.feed_forward=dense@64"]).name == "lm_tiny-dense"
    assert configured("dit_large:dense:256px", ["shape.feed_forward=64e8a@64"]).name == "dit_large-64e8a-256px"
    assert configured("lm_tiny", ["shape.feed_forward=16e4a@8", "name=mine"]).name == "mine"
    assert configured("lm_tiny", ["seed=1"]).name == "lm_tiny-dense"
