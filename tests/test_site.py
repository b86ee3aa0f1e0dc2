"""The documentation site builds without warnings, fetches nothing from elsewhere, and says what was measured."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import complete_mue as mue

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="the site needs the extra docs")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # the theme's notice about its successor
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout == ""
    return out


def html(site: Path) -> list[Path]:
    return [path for path in site.rglob("*.html") if path.name != "404.html"]


def test_every_page_is_built(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        built = site / page.relative_to(ROOT / "docs").with_suffix(".html")
        assert built.is_file(), page.name


def test_links_and_pictures_are_there(site: Path) -> None:
    """Mkdocs checks Markdown links; this checks what came out, anchors and examples included."""
    checked = 0
    for page in html(site):
        for link in re.findall(r'(?:href|src)="([^"]+)"', page.read_text(encoding="utf-8")):
            at = urlsplit(link)
            if at.scheme or at.netloc:
                continue
            target = (page.parent / unquote(at.path)).resolve() if at.path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{page.name}: {link}"
            if at.fragment and target.suffix == ".html":
                assert f'id="{unquote(at.fragment)}"' in target.read_text(encoding="utf-8"), f"{page.name}: {link}"
            checked += 1
    assert checked > 500
    assert (site / "examples/plan_a_moe.py").read_bytes() == (ROOT / "examples/plan_a_moe.py").read_bytes()


def test_folded_parts_are_rendered(site: Path) -> None:
    text = (site / "results/transfer.html").read_text(encoding="utf-8")
    folded = re.findall(r"<details>(.*?)</details>", text, flags=re.DOTALL)
    assert len(folded) > 20
    assert all("<table>" in part and "<img" in part and "|---" not in part for part in folded)


def words(page: Path) -> tuple[str, list[str]]:
    """A page's own text without code, and what it emphasizes."""
    article = page.read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]
    article = re.sub(r"<(code|pre|script|style|svg)\b.*?</\1>", "", article, flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]+>", "", article)), re.findall(r"<em>(.*?)</em>", article, flags=re.DOTALL)


def test_mathematics_comes_out_as_it_was_meant(site: Path) -> None:
    """No star was read as emphasis, none is left over, and no index or exponent stands there raw."""
    for page in html(site):
        text, emphasized = words(page)
        for phrase in emphasized:
            assert re.fullmatch(r"[A-Za-z][\w :-]*", phrase), f"{page.name}: {phrase}"
        raw = re.findall(r"(?<!\w)[^\W\d_]_\w|⋆_|\^|\*", text)
        assert not raw, f"{page.name}: {raw}"
    rules = (site / "rules.html").read_text(encoding="utf-8")
    assert "ρ<sub>d</sub><sup>−1/2</sup>" in rules
    assert rules.count("<blockquote>") >= 4


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in html(site):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r'<(?:script|img|iframe|source)[^>]+src="((?:https?:)?//[^"]+)"', text)
        fetched += re.findall(r'<link[^>]+rel="(?:stylesheet|preconnect|icon)"[^>]+href="((?:https?:)?//[^"]+)"', text)
        assert fetched == [], page.name


def test_the_reference_has_every_public_name(site: Path) -> None:
    text = (site / "api.html").read_text(encoding="utf-8")
    for name in mue.__all__:
        if not name.startswith("__"):
            assert re.search(rf'id="complete_mue[\w.]*\.{name}"', text), name


def test_the_verdict_is_the_measured_one() -> None:
    found = json.loads((ROOT / "docs/results/quickstart/quickstart.json").read_text(encoding="utf-8"))
    said = (ROOT / "docs/results/index.md").read_text(encoding="utf-8").split("<!-- verdict: quickstart -->\n")[1]
    lines = [f"- {part['name']}: {text}" for part in found["parts"][:2] for text in part["says"]]
    assert said.split("\n\n")[0].splitlines() == lines
