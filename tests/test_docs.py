"""The README and the docs are executed: snippets run, commands work, the table of rules equals the code's."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import MISSING, fields
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from complete_mue.lab.nn.router_config import RouterConfig
from complete_mue.lab.recipes import recipe
from complete_mue.lab.train.config import PictureTask, RunConfig, TextTask
from complete_mue.layout import Budget, ModelShape
from complete_mue.layout.tensors import VECTOR_ROLES, Role
from complete_mue.rules.layer_table import COLUMNS, COMPLETE_MUE
from in_process import mue
from quick import quick

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def fenced(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


WITH_SNIPPETS = [page for page in PAGES if fenced(page, "python")]


@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=lambda page: page.name)
def test_python_snippets_run(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for snippet in fenced(page, "python"):
        exec(compile(snippet, page.name, "exec"), {"__name__": "__main__"})


def test_what_contributing_adds_can_be_added() -> None:
    """In a process of its own: what is registered there stays there."""
    code = "\n".join(fenced(ROOT / "CONTRIBUTING.md", "python"))
    assert code.count("register") >= 2
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=ROOT, capture_output=True)


@pytest.mark.slow
def test_python_snippets_of_the_readme_run_alone() -> None:
    """Nothing that another import brought in helps them, and nothing warns from the first line on."""
    for snippet in fenced(ROOT / "README.md", "python"):
        subprocess.run([sys.executable, "-W", "error", "-c", snippet], check=True, cwd=ROOT, capture_output=True)


def commands() -> list[str]:
    lines = [line for page in PAGES for block in fenced(page, "bash") for line in block.splitlines()]
    return [line.split(" #")[0].strip() for line in lines if line.strip()]


def command_cases() -> list[Any]:
    """Each `mue` command of the pages once; a check trains models, which takes longer."""
    found = [command for command in dict.fromkeys(commands()) if command.startswith("mue ")]
    return quick(found, *(command for command in found if not command.startswith("mue check")))


@pytest.mark.parametrize("command", command_cases())
def test_mue_commands_work(command: str) -> None:
    words = shlex.split(command)[1:]
    done = mue(*words, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_make_targets_exist() -> None:
    targets = [c.split()[1] for c in commands() if c.startswith("make ")]
    assert {"quickstart", "test"} <= set(targets)
    makefile = (ROOT / "Makefile").read_text()
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    assert "make test" in (ROOT / ".ci/run").read_text()


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_no_two_headings_of_a_page_are_alike() -> None:
    """Where they are, the places that browsers find for links differ from one renderer to the next."""
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
        assert len(headings) == len({heading.lower() for heading in headings}), page.name


def test_rule_table_equals_the_code() -> None:
    text = (ROOT / "docs/rules.md").read_text(encoding="utf-8").split("<!-- table: complete_mue -->")[1]
    rows = [line for line in text.split("\n\n")[0].splitlines() if line.startswith("|")][2:]
    seen = set()
    for row in rows:
        names, *cells = [cell.strip() for cell in row.strip("|").split("|")]
        for name in names.split(", "):
            role = Role(name)
            seen.add(role)
            for column, cell in zip(COLUMNS, cells, strict=True):
                if role in VECTOR_ROLES and column in ("init_std", "weight_decay"):
                    assert cell == "–"
                else:
                    assert cell == str(getattr(COMPLETE_MUE[role], column)), f"{name} {column}"
    assert seen == set(Role)


def test_every_setting_is_in_the_table_with_its_default() -> None:
    text = (ROOT / "docs/train.md").read_text(encoding="utf-8").split("<!-- table: settings -->")[1]
    listed: dict[str, str] = {}
    for row in text.split("\n\n")[0].strip().splitlines()[2:]:
        names, values, _ = (cell.strip() for cell in row.strip("|").split("|", 2))
        if keys := re.findall(r"`([\w.]+)`", names):
            listed |= dict(zip_longest(keys, values.split(", "), fillvalue=""))
    parts = {"": RunConfig, "shape.": ModelShape, "budget.": Budget, "router.": RouterConfig}
    known = {f"{prefix}{entry.name}": entry.default for prefix, kind in parts.items() for entry in fields(kind)}
    known |= {f"task.{entry.name}": entry.default for kind in (PictureTask, TextTask) for entry in fields(kind)}
    known["router.selection_bias"] = recipe("lm_tiny").router.selection_bias
    for whole in ("shape", "budget", "router", "task", "reference"):
        del known[whole]
    assert set(listed) == set(known)
    words = {True: "true", False: "false", None: "none", MISSING: ""}
    for key, shown in listed.items():
        default = known[key]
        number = isinstance(default, int | float) and not isinstance(default, bool)
        assert shown == (f"{default:g}" if number else words.get(default, default)), key
