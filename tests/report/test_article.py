"""One Markdown page for many sweeps: verdict, overview, sections, pictures; words of one's own stay."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from complete_mue.cli import app
from complete_mue.errors import FileError
from complete_mue.lab.report import summarize
from complete_mue.lab.report.across_sweeps import overview_lines, tallies, worst_drift, worst_regret
from complete_mue.lab.report.markdown_page import generated
from complete_mue.lab.report.tables import drift, regret
from in_process import mue

Write = Callable[..., Path]
SP = {"8e2a": 1.0, "16e4a": 2.0, "64e16a": 2.8}
SP_AT_BEST = {"sp": dict.fromkeys(SP, 0.0)}


@pytest.fixture
def runs(sweep_folder: Write, tmp_path: Path) -> Path:
    """Two axes and a scaling figure in language, one axis in diffusion."""
    activated = {"name": "activated", "title": "Activated experts"}
    sweep_folder("runs/a", **activated, other_drifts={"sp": SP}, hypers=("lr", "weight_decay"))
    sweep_folder("runs/b", name="width", title="Width", drifts={"8e2a": 0.1, "16e4a": 5.0}, prefix="width-")
    sweep_folder("runs/c", name="scaling", title="Scaling", grid=(0.008,))
    sweep_folder("runs/d", **activated, task="dit", run_noise=0.05, curvature=0.01)
    return tmp_path / "runs"


def write_page(*arguments: object) -> None:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def test_the_page_has_everything(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_page("runs", "--pack", "docs/transfer", "--page", "docs/transfer.md")
    page = tmp_path / "docs" / "transfer.md"
    text = page.read_text()
    assert text.startswith(
        "# Transfer\n\n<!-- generated: transfer -->\nMade by `mue report docs/transfer --page docs/transfer.md`"
    )
    assert not list(tmp_path.rglob("report.html"))
    headings = re.findall(r"^#+ .*", text, flags=re.MULTILINE)
    assert headings == [
        "# Transfer", "## In short", "## Axis by axis", "## Language model", "### Activated experts", "### Width",
        "### Scaling", "## Diffusion transformer", "### Activated experts, diffusion",
    ]  # fmt: skip
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    for section in sections:  # the words stay, pictures and tables fold
        words, folded = section.partition("<details")[::2]
        assert "\n- " in words
        assert "|" not in words.partition("\n- ")[2]
        assert "| --- |" in folded.partition("</details>")[0]
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert all((page.parent / link).is_file() for link in links)
    pictures = {link for link in links if link.endswith(".svg")}
    assert pictures == {
        f"transfer/{name}.svg"
        for name in (
            "lm-activated-lr", "lm-activated-weight_decay", "lm-activated-first-steps", "lm-width-lr",
            "lm-scaling-scaling", "lm-scaling-speedup", "dit-activated-lr", "dit-activated-first-steps",
        )
    }  # fmt: skip
    assert all((page.parent / link).stat().st_size < 100_000 for link in pictures)
    assert "transfer/lm-activated.jsonl" in links
    assert re.search(r"over the first 100 steps the 3 layouts lie within 0\.0\d\d nats of each other on", text)
    assert re.search(r"dense takes 2\.\d\d \(\w+\) to 2\.\d\d \(\w+\) times the steps", text)
    for line in text.splitlines():
        assert not line.startswith("|") or line.count("|") in (9, 11)


def test_the_verdict_on_everything(runs: Path) -> None:
    found = [summarize(runs / name) for name in "abd"]
    rows = tallies(found)
    assert [(t.summary.title, t.hyper, t.rules, t.main) for t in rows[:5]] == [
        ("Activated experts", "lr", "complete_mue", True),
        ("Activated experts", "lr", "sp", False),
        ("Activated experts", "weight_decay", "complete_mue", True),
        ("Activated experts", "weight_decay", "sp", False),
        ("Width", "lr", "complete_mue", True),
    ]
    lines = [line.text for line in overview_lines(rows)]
    first = lines[0]
    width = next(curve for curve in found[1].scans[0].curves if curve.target == "16e4a")
    assert first.startswith("Language model")
    assert re.search("2 axes.*4 of 5 layouts", first)
    assert f"{drift(width)} octaves (16e4a, Width)" in first
    assert f"{regret(width)} nats (16e4a, Width)" in first
    assert any(line.startswith("Missed: 16e4a (Width: regret at least") for line in lines)
    sp = next(line for line in lines if line.startswith("sp held"))
    assert "higher than" in sp
    assert "complete_mue held on all 3 layouts" in sp
    assert any(line.startswith("Diffusion transformer, learning rate") for line in lines)
    assert any(line.startswith(("Unclear, ", "Open, ")) for line in lines[-3:])


def test_a_layout_that_axes_share_counts_once(sweep_folder: Write) -> None:
    shared = {"drifts": {"8e2a": 0.1, "16e4a": 2.5}, "other_drifts": {"sp": {"8e2a": 2.0, "16e4a": 2.9}}}
    found = [summarize(sweep_folder(name, name=name, title=name.capitalize(), **shared)) for name in ("depth", "width")]
    found.append(summarize(sweep_folder("more", title="More", drifts={"8e2a": 0.2}, prefix="more-")))
    lines = [line.text for line in overview_lines(tallies(found))]
    assert re.search("3 axes.*2 of 3 layouts", lines[0])
    assert lines[1].startswith("Missed: 16e4a (Depth, Width: ")
    assert lines[1].count("16e4a") == 1
    assert "none of 2 layouts" in lines[2]


def test_rule_sets_are_compared_within_their_sweep(sweep_folder: Write) -> None:
    """Not with another sweep's of the same title, whose models may be of another size."""
    found = [
        summarize(sweep_folder(name, drifts=dict.fromkeys(SP, drift), other_drifts=SP_AT_BEST, prefix=name))
        for name, drift in (("a", 0.6), ("b", 0.0))
    ]
    for pair in (found, found[::-1]):
        both = next(line.text for line in overview_lines(tallies(pair)) if line.text.startswith("sp held"))
        assert re.search(r"0\.006 .*lower than by complete_mue", both)  # 0.011 in one, none in the other


def test_sweeps_led_by_different_rule_sets_are_told_apart(sweep_folder: Write) -> None:
    for name, moved, rules in (("a", 0.6, "complete_mue"), ("b", 0.0, "complete_mue_sparse")):
        others = SP_AT_BEST if name == "b" else {}
        folder = sweep_folder(name, title=name, drifts=dict.fromkeys(SP, moved), other_drifts=others, prefix=name)
        plan = folder / "sweep.json"
        plan.write_text(plan.read_text().replace('"rules": "complete_mue"', f'"rules": "{rules}"'))
    lines = [line.text for line in overview_lines(tallies([summarize(folder.parent / name) for name in "ab"]))]
    assert re.search("by complete_mue, one axis.*none of 3 layouts", lines[0])
    assert re.search("by complete_mue_sparse, one axis.*all 3 layouts", lines[2])
    assert re.search("sp held on all 3.*as complete_mue_sparse here.*complete_mue_sparse held on all 3", lines[3])


def test_the_worst_is_by_size_in_either_direction(sweep_folder: Write) -> None:
    curves = summarize(sweep_folder(drifts={"8e2a": 0.2, "16e4a": -1.2})).scans[0].curves
    drifted, costly = worst_drift(curves), worst_regret(curves)
    assert drifted is not None
    assert costly is not None
    assert drifted.target == costly.target == "16e4a"
    assert worst_drift([]) is None


def test_the_worst_is_one_that_is_finished(sweep_folder: Write) -> None:
    folder = sweep_folder(
        drifts={"8e2a": 0.2, "16e4a": -1.2}, missing=lambda target, rules, value: target == "16e4a" and value > 1e-3
    )
    curves = summarize(folder).scans[0].curves
    alone = next(curve for curve in curves if curve.target == "16e4a")
    assert (alone.status, alone.drift) == ("unfinished", None)  # a single value is left
    drifted = worst_drift(curves)
    assert drifted is not None
    assert drifted.target == "8e2a"


def test_words_of_ones_own_stay_and_the_rest_is_replaced(sweep_folder: Write, tmp_path: Path) -> None:
    runs, few = tmp_path / "runs", {"drifts": {"8e2a": 0.1}, "seeds": 1}
    sweep_folder("runs/a", title="Activated experts", **few)
    sweep_folder("runs/b", name="width", title="Width", prefix="width-", **few)
    page = tmp_path / "docs" / "transfer.md"
    write_page(runs, "--page", page)
    first = page.read_text()
    assert str(tmp_path) not in first
    page.write_text(f"Before.\n\n{first}\nAfter, <!-- end --> too.\n")
    write_page(runs / "b", "--page", page)
    text = page.read_text()
    assert text.startswith("Before.\n\n# Transfer\n")
    assert text.endswith("<!-- end -->\n\nAfter, <!-- end --> too.\n")
    assert "Activated experts" not in text
    assert [path.name for path in (tmp_path / "docs" / "transfer").glob("*.svg")] == ["lm-width-lr.svg"]
    write_page(runs, "--page", page)
    assert generated(page.read_text(), page) == generated(first, page)


def test_a_page_without_room_is_refused(runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "transfer.md"
    page.write_text("# Mine\n")
    result = CliRunner().invoke(app, ["report", str(runs), "--page", str(page)])
    assert isinstance(result.exception, FileError)
    assert "<!-- generated: transfer -->" in str(result.exception)
    assert page.read_text() == "# Mine\n"
    assert not (tmp_path / "transfer").exists()


def test_one_picture_is_no_pictures(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("complete_mue.lab.report.markdown_page.write_article", lambda found, page: [page, page])
    done = mue("report", "runs/b", "--page", "page.md", cwd=tmp_path)
    assert "wrote page.md and 1 picture next to it" in done.stderr


@pytest.mark.parametrize("name", ["transfer", "transfer.txt"])
def test_a_page_is_a_markdown_file(runs: Path, tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    words = ["report", str(runs), "--page", str(tmp_path / name), "--pack", str(tmp_path / "packed")]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, FileError)
    assert "ends in .md" in str(result.exception)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_name_cannot_become_markup(sweep_folder: Write, tmp_path: Path) -> None:
    folder = sweep_folder(title="<script>[x](y) `z`", drifts={"8e2a": 0.1})
    write_page(folder, "--page", tmp_path / "page.md")
    assert "### &lt;script>\\[x\\](y) \\`z\\`" in (tmp_path / "page.md").read_text()
