"""The examples run as they are, say what they show, and stay short."""

from __future__ import annotations

import importlib.util
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
    here = sorted(p.relative_to(EXAMPLES).as_posix() for p in EXAMPLES.rglob("*") if p.suffix in (".py", ".toml"))
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
