"""Tables, pictures and files of a report, and the command that writes them."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from complete_mue import chart_svg
from complete_mue.chart import LOOKS, Axis, round_numbers
from complete_mue.cli import app
from complete_mue.errors import FileError
from complete_mue.lab.report import html_page, summarize
from complete_mue.lab.report.html_page import report_html
from complete_mue.lab.report.pictures import pictures
from complete_mue.lab.report.tables import csv_text, markdown, tables
from complete_mue.lab.report.write import report_markdown
from in_process import mue

Write = Callable[..., Path]


@pytest.fixture
def parent(sweep_folder: Write, tmp_path: Path) -> Path:
    """Three synthetic sweeps in one folder: complete, unfinished with an open edge, and scaling."""
    sweep_folder("a", other_drifts={"sp": {"8e2a": 1.0, "16e4a": 2.0, "64e16a": 2.8}}, hypers=("lr", "weight_decay"))
    sweep_folder("b", name="b", missing=lambda t, r, v: t == "64e16a" and v > 0.01, seeds=1)
    sweep_folder("c", name="c", grid=(0.008,))
    return tmp_path


def test_the_command_writes_a_report(parent: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(parent)], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    assert "all 3 layouts" in result.output
    assert "3 of 28 runs are missing" in result.output
    names = {path.name for path in parent.glob("report*")}
    assert {"report.html", "report.json", "report.csv", "report.md"} <= names
    assert {"report-synthetic-lr.svg", "report-synthetic-speedup.svg", "report-c-scaling.svg"} <= names
    for path in parent.glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    report = json.loads((parent / "report.json").read_text())
    assert [sweep["name"] for sweep in report["sweeps"]] == ["synthetic", "b", "c"]
    assert report["goals"] == {"drift": 0.5, "regret": 0.01}


def test_json_on_stdout_is_the_file(parent: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = mue("report", parent / "b", parent / "c", "--json", "--out", out, cwd=tmp_path)
    assert json.loads(done.stdout) == json.loads((out / "report.json").read_text())
    assert "wrote" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "no such folder"),
        (["a", "b"], "--out"),
        (["a/ledger"], "no sweep.json"),
    ],
)
def test_errors_are_one_line(parent: Path, arguments: list[str], says: str) -> None:
    done = mue("report", *(parent / name for name in arguments), cwd=parent)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_an_out_folder_that_cannot_be_is_refused(parent: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(parent / "a"), "--out", str(parent / "a" / "sweep.json" / "x")])
    assert isinstance(result.exception, FileError)


def test_torch_is_not_imported(parent: Path) -> None:
    code = (
        "import sys; from complete_mue.lab.report import summarize;"
        "from complete_mue.lab.report.html_page import report_html;"
        f"report_html([summarize({str(parent / 'a')!r})]);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_page_and_pictures_have_the_same_colours() -> None:
    page = (Path(html_page.__file__).parent / "report.css").read_text(encoding="utf-8")
    for number, look in enumerate(LOOKS):
        assert re.search(rf"--c{number}:(#\w+)", page)[1] == look.colour


def _near(value: float | None, text: str) -> bool:
    """Whether a number in a table is that value, rounded; nothing is a dash."""
    shown = text.lstrip("≥≤ ").partition(" ± ")[0]
    scale = {"k": 1e3, "M": 1e6, "B": 1e9}.get(shown[-1], 1.0)
    return shown == "–" if value is None else float(shown.rstrip("kMB")) * scale == pytest.approx(value, 0.01, 0.006)


def test_tables_show_what_the_json_holds(parent: Path) -> None:
    for name in "abc":
        summary = summarize(parent / name)
        data = summary.to_dict()
        *scans, runs = tables(summary)
        for table, scan in zip(scans, data["scans"], strict=True):
            for row, curve in zip(table.rows, scan["curves"], strict=True):
                best = curve["optimum"] and curve["optimum"]["value"]
                values = best, curve["drift"], curve["regret"], None, curve["spread"]
                assert all(_near(v, row.cells[i]) for i, v in enumerate(values, start=2) if i != 5), row
        for row, run in zip(runs.rows, data["runs"], strict=True):
            values = run["seeds"], run["speedup_median"], run["load_variation"]
            assert all(_near(value, text) for value, text in zip(values, row.cells[5:], strict=True)), row
            assert run["diverged"] or _near(run["loss"], row.cells[4])


def test_markdown_and_csv_hold_the_tables(parent: Path) -> None:
    summary = summarize(parent / "a")
    text = report_markdown([summary])
    for table in tables(summary):
        assert markdown(table) in text
        body = markdown(table).splitlines()[2:]
        assert {line.count("|") for line in body if line} == {len(table.headings) + 1}
    rows = list(csv.DictReader(io.StringIO(csv_text((summary, summarize(parent / "c"))))))
    curves = [curve for scan in summary.scans for curve in scan.curves]
    scanned = [row for row in rows if row["hyper"] and row["sweep"] == "synthetic"]
    assert len(scanned) == len(curves)
    assert [float(row["regret"]) for row in scanned] == [curve.regret for curve in curves]


def test_an_open_edge_shows_as_a_bound(sweep_folder: Write) -> None:
    summary = summarize(sweep_folder(drifts={"64e16a": 5.0}))
    row = tables(summary)[0].rows[1]
    assert row.cells[2].startswith("≥ ")
    assert row.cells[3].startswith("≥ +")
    assert row.cells[4].startswith("≥ ")


def test_pictures_hold_what_was_measured(sweep_folder: Write) -> None:
    folder = sweep_folder(diverged=lambda t, r, v: t == "8e2a" and v > 0.06, other_drifts={"sp": {"8e2a": 1.0}})
    found = {picture.key: picture for picture in pictures(summarize(folder))}
    assert set(found) == {"lr", "speedup", "first-steps"}
    panels = found["lr"].panels
    assert [panel.title for panel in panels] == ["complete_mue", "sp"]
    for panel in panels:
        assert panel.lines[0].name == "dense"  # the reference stands in every panel
        assert panel.guide == (0.008, "0.008")
        low, high = panel.x.low, panel.x.high
        for line in panel.lines:
            assert all(low < dot.x < high for dot in (*line.dots, *line.diverged))
            assert line.minimum is not None
            assert found["lr"].y.low < line.minimum.y < found["lr"].y.high
    assert [dot.x for dot in panels[0].lines[1].diverged] == [0.064]
    assert len(panels[0].lines[1].dots) == 6
    assert len({line.style for line in panels[0].lines}) == len(panels[0].lines)


def test_a_picture_stands_alone(sweep_folder: Write) -> None:
    """It names axis, model and scale, and its legend every sign in it."""
    folder = sweep_folder(title="Costs $x", diverged=lambda t, r, v: t == "8e2a" and v > 0.06)
    found = {picture.key: picture for picture in pictures(summarize(folder))}
    assert all(re.match(r"Costs \$x, language model, scale \w+", picture.where) for picture in found.values())
    for key, signs in {"lr": {"transferred value", "fitted minimum", "diverged"}, "speedup": set()}.items():
        drawn = ElementTree.parse(chart_svg.write_svg(found[key], folder / "drawn.svg")).getroot()
        texts = set(drawn.itertext())
        assert texts & {"transferred value", "fitted minimum", "diverged"} == signs
        assert {"Costs $x, language model, scale tiny", "8e2a", "16e4a"} <= texts
        assert not drawn.findall(".//*[@aria-label]")


def test_axis_places() -> None:
    assert Axis("", 1, 16, (), log=True).place(4) == pytest.approx(0.5)
    assert Axis("", 1, 16, ()).place(8.5) == pytest.approx(0.5)


def test_a_rule_set_of_the_reference_alone_has_no_panel(sweep_folder: Write) -> None:
    """Rule sets agree on the reference; it stands beside the layouts, in the panels of theirs."""
    folder = sweep_folder(other_drifts={"complete_mue_sparse": {"8e2a": 0.1}})
    plan = json.loads((folder / "sweep.json").read_text())
    plan["points"] = [p for p in plan["points"] if p["target"] == "dense" or p["rules"] == "complete_mue_sparse"]
    (folder / "sweep.json").write_text(json.dumps(plan))
    drawn = {picture.key: picture.panels for picture in pictures(summarize(folder))}
    for key in ("lr", "first-steps"):
        assert [panel.title for panel in drawn[key]] == ["complete_mue_sparse"]
        assert "dense" in [line.name for line in drawn[key][0].lines]


def test_many_panels_stand_in_three_columns(sweep_folder: Write, tmp_path: Path) -> None:
    picture = pictures(summarize(sweep_folder()))[0]
    for count, columns in ((12, 2), (13, 3)):
        many = dataclasses.replace(picture, panels=picture.panels[:1] * count)
        drawn = ElementTree.parse(chart_svg.write_svg(many, tmp_path / "many.svg", columns=2)).getroot()
        assert float(drawn.attrib["width"]) / columns == pytest.approx(444)


def test_text_is_escaped(sweep_folder: Write) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
    folder = sweep_folder(title=evil, drifts={"8e2a": 0.1})
    sweep = (folder / "sweep.json").read_text().replace('"name": "8e2a"', '"name": "<b>8e2a"')
    (folder / "sweep.json").write_text(sweep.replace('"target": "8e2a"', '"target": "<b>8e2a"'))
    page = report_html([summarize(folder)])
    assert "<b>8e2a" not in page
    assert "<img" not in page
    assert page.count("<script") == 2
    embedded = re.search(r'<script type="application/json" id="report">(.*?)</script>', page, re.DOTALL)
    assert embedded is not None
    assert json.loads(embedded[1])["sweeps"][0]["title"] == evil


def test_the_page_names_no_other_file() -> None:
    from complete_mue.lab.report.html_page import SCRIPT, STYLE

    assert not re.search(r"https?:|url\(|@import|fetch|XMLHttp", STYLE + SCRIPT)


def test_a_sweep_without_results_still_has_a_report(sweep_folder: Write, tmp_path: Path) -> None:
    folder = sweep_folder(missing=lambda *_: True)
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert result.exit_code == 0, result.output
    assert "84 of 84 runs are missing" in " ".join(result.output.split())


@pytest.mark.parametrize(("tuned", "drawn"), [(0.3, True), (0.0, False)])
def test_a_transferred_value_off_the_grid_or_zero(sweep_folder: Write, tuned: float, drawn: bool) -> None:
    folder = sweep_folder(drifts={"8e2a": 0.0})
    sweep = json.loads((folder / "sweep.json").read_text())
    sweep["reference"]["hyper"]["lr"] = tuned
    (folder / "sweep.json").write_text(json.dumps(sweep))
    summary = summarize(folder)
    assert summary.scans[0].curves[1].says == "no result at the transferred value"
    panel = pictures(summary)[0].panels[0]
    assert (panel.guide is not None) == drawn
    assert panel.guide is None or panel.x.low < panel.guide[0] < panel.x.high
    assert "<svg" in report_html([summary])


@pytest.mark.parametrize(
    ("values", "ticks"),
    [([83.0, 9.6, 19.3], [10, 20, 50]), ([0.003, 0.4], [0.005, 0.01, 0.02, 0.05, 0.1, 0.2]), ([3.0, 4.0], [3, 4])],
)
def test_round_numbers(values: list[float], ticks: list[float]) -> None:
    assert round_numbers(values) == pytest.approx(ticks)
