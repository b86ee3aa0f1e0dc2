"""Rule sets from outside: registered by a call, or offered by an installed package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import complete_mue as mue
from complete_mue.errors import TransferError
from complete_mue.rules import CATALOG

LINE = "1 | 1 | 1 | d^-1/2 | H^-1 | 1 | 1"


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CATALOG, "_known", dict(CATALOG._known))


def test_a_registered_set_transfers_and_explains_itself(lm_reference: mue.Reference) -> None:
    rules = mue.register_rules("outside_one", {"expert_up router": LINE}, like="sp")
    assert "outside_one" in CATALOG
    wide = mue.ModelShape(128, 32, mue.FeedForward.parse("8e2a@128"))  # twice the active width
    plan = mue.transfer(lm_reference, wide, rules=rules)
    standard = mue.transfer(lm_reference, wide, rules="sp")
    assert plan.row("expert_up").lr == standard.row("expert_up").lr / 2
    assert plan.row("dense_up" if wide.main.is_dense else "attention_in") == standard.row("attention_in")
    assert "ρ_H^-1" in plan.explain("expert_up")


def test_a_reference_has_one_sparsity_whatever_column_counts_it(lm_reference: mue.Reference) -> None:
    rules = mue.register_rules("outside_sparse", {"expert_up": "1 | 1 | 1 | S^-1/2 | 1 | 1 | 1"}, like="sp")
    shape = mue.ModelShape(128, 2, tuple(map(mue.FeedForward.parse, ("8e2a@64", "16e2a@64"))))
    reference = mue.transfer(lm_reference, shape, rules=rules).as_reference()
    with pytest.raises(TransferError, match="4 and 8 experts per active one"):
        mue.transfer(reference, shape, rules=rules)


@pytest.mark.parametrize(
    ("name", "lines", "like", "carries"),
    [
        ("sp", {"router": LINE}, "sp", "sp"),
        ("outside_two", {"router": LINE}, None, None),
        ("outside_two", {"ruoter": LINE}, "sp", "ruoter"),
        ("outside_two", {"router": "1 | 1"}, "sp", "1 | 1"),
        ("outside_two", {"router": LINE.replace("H", "q")}, "sp", "q^-1"),
        ("outside_two", {"router": LINE}, "ps", "ps"),
    ],
    ids=["known name", "roles missing", "unknown role", "too few cells", "unknown symbol", "unknown base"],
)
def test_mistakes_carry_what_was_given(name: str, lines: dict[str, str], like: str | None, carries: str | None) -> None:
    with pytest.raises(TransferError) as refused:
        mue.register_rules(name, lines, like=like)
    assert refused.value.given == carries
    assert "outside_two" not in CATALOG


def test_commands_know_what_an_installed_package_offers(tmp_path: Path, root: Path) -> None:
    (tmp_path / "their_rules.py").write_text(f'CALM = {{"like": "sp", "lines": {{"router": "{LINE}"}}}}\nBROKEN = 3\n')
    info = tmp_path / "their_rules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their_rules\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[complete_mue.rules]\ncalm = their_rules:CALM\nbroken = their_rules:BROKEN\n"
    )
    script = (
        "import sys, warnings; sys.path.insert(0, sys.argv.pop(1)); warnings.simplefilter('ignore')\n"
        "from complete_mue.cli import main; main()"
    )
    files = [str(root / "examples" / name) for name in ("lm_reference.toml", "lm_large.toml")]
    command = [sys.executable, "-c", script, str(tmp_path), "plan", *files, "--rules"]
    done = subprocess.run([*command, "calm", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert '"calm"' in done.stdout
    done = subprocess.run([*command, "broken"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "calm" in done.stderr
