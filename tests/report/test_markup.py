"""What others named a target, a sweep or a file stays a name: nothing of it is live where Markdown is rendered."""

from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from complete_mue.cli import app
from complete_mue.lab.evals.results import Report, Score
from complete_mue.lab.report.labels import code
from complete_mue.lab.report.markdown_page import END, begin
from complete_mue.tabular import escaped

Write = Callable[..., Path]

EVIL = (
    '8e2a"><script>alert(1)</script>',
    "x](javascript:alert(1))",
    "![x](http://elsewhere/pixel.png)",
    "`<img src=x onerror=alert(1)>`",
    "\\`<script>alert(1)</script>\\`",
    "a\n\n<script>alert(1)</script>\n\n# b",
    "a | <iframe src=x> | b",
    f"{END} <script>alert(1)</script>",
    '--8<-- "README.md"',
    "<http://elsewhere>",
)
LIVE = {"script", "img", "a", "iframe", "h1"}


class Tags(HTMLParser):
    """All elements of a page with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


def live(text: str) -> list[str]:
    """Elements that a name may not make, in the text as the site renders it."""
    markdown = pytest.importorskip("markdown")
    pytest.importorskip("pymdownx")
    extensions = ["admonition", "tables", "pymdownx.superfences", "pymdownx.snippets"]
    return [tag for tag, _ in Tags(markdown.markdown(text, extensions=extensions)).found if tag in LIVE]


@pytest.fixture
def evil_sweep(sweep_folder: Write) -> Path:
    """A sweep of another's, in which every name is markup."""
    names = {f"t{number}": name for number, name in enumerate(EVIL) if "\n" not in name}
    folder = sweep_folder(drifts=dict.fromkeys(names, 0.1), grid=(0.004, 0.008, 0.016), seeds=1)
    names["dense"] = f"dense {EVIL[0]}"
    sweep = json.loads((folder / "sweep.json").read_text())
    sweep |= dict.fromkeys(("title", "scale"), " ".join(names.values()))
    sweep["command"] = " && ".join(names.values())
    for entry, key in (
        *((target, "name") for target in sweep["targets"]),
        *((point, "target") for point in (*sweep["points"], sweep["reference"])),
    ):
        entry[key] = names[entry[key]]
    (folder / "sweep.json").write_text(json.dumps(sweep))
    return folder


def test_no_name_is_live_in_a_report(evil_sweep: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(evil_sweep), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    text = (tmp_path / "out" / "report.md").read_text()
    assert escaped(EVIL[0]) in text
    assert live(text) == []


def test_no_name_is_live_on_a_page_nor_moves_its_end(evil_sweep: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"own words\n\n{begin(page)}\n{END}\n\nmore of them\n")
    for _ in range(2):
        result = CliRunner().invoke(app, ["report", str(evil_sweep), "--page", str(page)])
        assert result.exit_code == 0, result.output
    text = page.read_text()
    assert text.endswith(f"{END}\n\nmore of them\n")
    assert text.count(END) == 1
    without_pictures = "\n".join(line for line in text.splitlines() if not line.startswith("!["))
    assert live(without_pictures) == []


def test_a_file_name_is_not_a_link_elsewhere(sweep_folder: Write, tmp_path: Path) -> None:
    folder = sweep_folder(drifts={"8e2a": 0.1}, grid=(0.004, 0.008, 0.016), seeds=1)
    assert CliRunner().invoke(app, ["report", str(folder), "--pack", str(tmp_path / "packed")]).exit_code == 0
    (packed,) = (tmp_path / "packed").iterdir()
    packed.rename(packed.with_name("x](javascript:alert(1)) [y.jsonl"))
    page = tmp_path / "page.md"
    assert CliRunner().invoke(app, ["report", str(tmp_path / "packed"), "--page", str(page)]).exit_code == 0
    (origin,) = [line for line in page.read_text().splitlines() if line.startswith("Every run is in")]
    markdown = pytest.importorskip("markdown")
    links = [attributes["href"] for tag, attributes in Tags(markdown.markdown(origin)).found if tag == "a"]
    assert links == ["packed/x%5D%28javascript%3Aalert%281%29%29%20%5By.jsonl"]


@pytest.mark.parametrize("name", EVIL)
def test_no_name_is_live_in_scores(name: str) -> None:
    report = Report(name, (Score("piqa", name, 0.5, 0.1, 10, 0),), {})
    assert live("\n".join(report.to_markdown().splitlines()[1:])) == []
    assert live(report.to_markdown()) == ["h1"]


@pytest.mark.parametrize("name", EVIL)
def test_text_and_commands_are_escaped_in_one_line(name: str) -> None:
    for text in (escaped(name), code(name)):
        assert "\n" not in text
        assert live(text) == []


def test_ordinary_names_and_commands_stay_as_they_are() -> None:
    assert escaped("64e8a at lr 0.002 (± 0.1), >= 2_000 steps") == "64e8a at lr 0.002 (± 0.1), >= 2_000 steps"
    assert code("mue sweep activated --set 'a|b=[1]'") == "`mue sweep activated --set 'a|b=[1]'`"
