"""The examples run as they are, say what they show, and stay short."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from complete_mue.rules import CATALOG

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str) -> Any:
    """What the script's ``main`` returns."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main()


def test_all_are_short_and_listed() -> None:
    listed = re.findall(r"\.\./examples/([\w/]+\.\w+)", (EXAMPLES.parent / "docs/examples.md").read_text())
    here = sorted(
        p.relative_to(EXAMPLES).as_posix() for p in EXAMPLES.rglob("*") if p.suffix in (".py", ".toml", ".ipynb")
    )
    assert sorted(listed) == here
    assert len(list(EXAMPLES.glob("*.py"))) == 6
    for script in EXAMPLES.glob("*.py"):
        assert len(script.read_text().splitlines()) < 60, script.name


def test_plan_a_moe(lm_plan: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan_a_moe") == lm_plan
    out = capsys.readouterr().out
    assert str(lm_plan) in out
    assert lm_plan.explain("expert_down") in out


def test_compare_rule_sets() -> None:
    rows = run("compare_rule_sets")
    assert len(rows) == 3 * len(CATALOG)
    # Only ours sees the layout; the folded lr of ours is the reference's lr * (d*/d) * r / (rho_H rho_L).
    assert rows["8e1a", "sp"].numbers == rows["64e8a", "sp"].numbers
    assert rows["64e8a1s", "complete_mue"].lr == pytest.approx(2e-3 / 4 * 8 / 1.125 / 2)


def test_fold_and_unfold(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert run("fold_and_unfold") < 1e-12
    assert len(set(re.findall(r"folded (\S+)", capsys.readouterr().out))) == 12  # it does train


def test_apply_to_stock_model() -> None:
    pytest.importorskip("transformers")
    losses = run("apply_to_stock_model")
    assert losses[-1] < losses[0] - 1


def test_train_tiny(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    results = run("train_tiny")
    assert {result.status for result in results.values()} == {"finished"}
    assert all(result.loss is not None and result.loss < 4 for result in results.values())
    assert "metrics.jsonl" in capsys.readouterr().out


def test_sweep_tiny() -> None:
    pytest.importorskip("torch")
    summary = run("sweep_tiny")
    assert summary.progress.finished == 6
    assert [curve.target for curve in summary.scans[0].curves] == ["dense", "16e4a"]


@pytest.mark.slow
def test_the_notebook_runs_and_its_outputs_are_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What does not depend on the machine's rounding equals what is stored."""
    pytest.importorskip("transformers")
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(EXAMPLES)
    cells = json.loads((EXAMPLES / "first_steps.ipynb").read_text(encoding="utf-8"))["cells"]
    coded = [cell for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for cell in coded:
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
        printed.append(capsys.readouterr().out)
    for cell, out in zip(coded[:2], printed, strict=False):  # the plan, and why
        assert "".join(cell["outputs"][0]["text"]) == out
    assert [cell["execution_count"] for cell in coded] == list(range(1, len(coded) + 1))
    kinds = {
        kind
        for cell in coded
        for output in cell["outputs"]
        for kind in (output["output_type"], *output.get("data", ()))
    }
    assert "image/png" in kinds
    assert "error" not in kinds
    assert names["losses"][-1] < names["losses"][0] - 1
    assert names["result"].ok
    assert names["summary"].progress.finished == 12
    ours, other = (
        next(c for c in names["found_by"](names["summary"]) if c.target != "dense" and c.rules == rules)
        for rules in names["sweep"].rules
    )
    assert abs(ours.drift) < abs(other.drift)
