"""Packed sweeps: one file each, the same report, parts joined, nothing lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from complete_mue.cli import app
from complete_mue.errors import FileError, RunError
from complete_mue.lab.records.pack import pack_sweeps, portable
from complete_mue.lab.records.store import read_sweep
from complete_mue.lab.report import find_sweeps, summarize
from in_process import mue

Write = Callable[..., Path]
TWO = {"8e2a": 0.1, "16e4a": -0.2}


def mue_report(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_packed_sweep_gives_the_same_report(sweep_folder: Write, tmp_path: Path) -> None:
    folder = sweep_folder(
        drifts=TWO,
        other_drifts={"sp": {"8e2a": 1.0}},
        diverged=lambda t, r, v: t == "8e2a" and v > 0.06,
        missing=lambda t, r, v: t == "16e4a" and v < 0.002,
    )
    (path,) = pack_sweeps([folder], tmp_path / "kept")
    assert path == tmp_path / "kept" / "lm-synthetic.jsonl"
    assert summarize(path).to_dict() == summarize(folder).to_dict()
    records = path.read_text().splitlines()[1:]
    assert [json.loads(line)["id"] for line in records] == sorted(p.stem for p in (folder / "ledger").iterdir())
    out = tmp_path / "out"
    mue_report(folder, "--out", out / "a")
    mue_report(path, "--out", out / "b")
    for name in ("report.html", "report.json", "report.csv", "report.md", "report-synthetic-lr.svg"):
        assert (out / "a" / name).read_bytes() == (out / "b" / name).read_bytes()


def test_packing_again_changes_no_byte(sweep_folder: Write, tmp_path: Path) -> None:
    folder = sweep_folder()
    (path,) = pack_sweeps([folder], tmp_path / "kept")
    first = path.read_bytes()
    assert pack_sweeps([path], tmp_path / "kept") == [path]
    assert path.read_bytes() == first
    assert pack_sweeps([folder], tmp_path / "again")[0].read_bytes() == first


def test_only_line_feeds_end_a_line(sweep_folder: Write, tmp_path: Path) -> None:
    folder = sweep_folder()
    record = next(iter(sorted((folder / "ledger").iterdir())))
    said = "no room\u2028on\x85the GPU"
    record.write_text(json.dumps({**json.loads(record.read_text()), "status": "failed", "loss": None, "error": said}))
    (path,) = pack_sweeps([folder], tmp_path / "kept")
    assert read_sweep(path).outcomes[record.stem].error == said


def test_a_point_takes_little_room(sweep_folder: Write, tmp_path: Path) -> None:
    folder = sweep_folder()
    for path in (folder / "ledger").iterdir():  # five decimals, as the sweep writes them
        path.write_text(json.dumps(json.loads(path.read_text(), parse_float=lambda text: round(float(text), 5))))
    (packed,) = pack_sweeps([folder], tmp_path / "kept")
    assert packed.stat().st_size / 84 < 3000


def test_language_and_diffusion_do_not_collide(sweep_folder: Write, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    paths = pack_sweeps([sweep_folder("a"), sweep_folder("b", task="dit")], kept)
    assert [path.name for path in paths] == ["lm-synthetic.jsonl", "dit-synthetic.jsonl"]
    (kept / "metrics.jsonl").write_text('{"step": 1}\n')  # no sweep
    assert find_sweeps(kept) == (kept / "dit-synthetic.jsonl", kept / "lm-synthetic.jsonl")
    assert find_sweeps(paths[0]) == (paths[0],)


def test_parts_of_one_sweep_become_one(sweep_folder: Write, tmp_path: Path) -> None:
    """Another rule set, more seeds and a wider grid, each in its own folder."""
    narrow, wide = tuple(0.008 * 2.0**k for k in (-1, 0, 1)), tuple(0.008 * 2.0**k for k in range(-3, 4))
    whole = sweep_folder("whole", drifts=TWO, other_drifts={"sp": TWO}, seeds=2, grid=wide)
    parts = [
        sweep_folder("a", drifts=TWO, seeds=1, grid=narrow),
        sweep_folder("b", drifts=TWO, other_drifts={"sp": TWO}, seeds=2, grid=narrow),
        sweep_folder("c", drifts=TWO, other_drifts={"sp": TWO}, seeds=2, grid=wide),
    ]
    (together,) = pack_sweeps(parts, tmp_path / "kept")
    (alone,) = pack_sweeps([whole], tmp_path / "whole_kept")
    assert summarize(together).to_dict() == summarize(alone).to_dict()


def test_a_failed_run_gives_way_to_its_repetition(sweep_folder: Write, tmp_path: Path) -> None:
    bad, good = sweep_folder("bad", drifts=TWO), sweep_folder("good", drifts=TWO)
    path = bad / "ledger" / "8e2a-complete_mue-tuned-0.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": "failed", "loss": None, "error": "memory"}))
    (packed,) = pack_sweeps([bad, good], tmp_path / "kept")
    assert summarize(packed).progress.failed == 0


def test_sweeps_that_do_not_belong_together_are_refused(sweep_folder: Write, tmp_path: Path) -> None:
    one, other = sweep_folder("one", drifts=TWO), sweep_folder("other", drifts=TWO)
    original = json.loads((other / "sweep.json").read_text())

    shorter = [{**t, "steps": 10} if t["name"] == "8e2a" else t for t in original["targets"]]
    for says, keys in (
        ("its scale is 'tiny', not 'small'", {"scale": "small"}),
        ("its reference is", {"reference": {"target": "dense", "hyper": {"lr": 0.004}}}),
        ("steps of target '8e2a' is 400, not 10", {"targets": shorter}),
        ("the config of", {"points": [{**p, "id": f"{p['id']}x"} for p in original["points"]]}),
    ):
        (other / "sweep.json").write_text(json.dumps({**original, **keys}))
        with pytest.raises(RunError, match="holds another sweep") as problem:
            pack_sweeps([one, other], tmp_path / "kept")
        assert says in str(problem.value)
        assert str(one) in str(problem.value)
    assert not (tmp_path / "kept").exists()


def test_a_packed_file_never_loses_points(sweep_folder: Write, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    large, small = sweep_folder("large", drifts=TWO, seeds=2), sweep_folder("small", drifts=TWO, seeds=1)
    (path,) = pack_sweeps([large], kept)
    before = path.read_bytes()
    with pytest.raises(FileError, match=r"21 .*small"):
        pack_sweeps([small], kept)
    assert path.read_bytes() == before
    assert pack_sweeps([path, small], kept) == [path]
    assert path.read_bytes() == before


def test_a_packed_file_never_loses_results(sweep_folder: Write, tmp_path: Path) -> None:
    """A sweep that was begun anew plans the same points, but has run few of them."""
    kept = tmp_path / "kept"
    done, begun = sweep_folder("done", drifts=TWO), sweep_folder("begun", drifts=TWO, missing=lambda t, r, v: v > 0.02)
    failed = sweep_folder("failed", drifts=TWO)
    for path in (failed / "ledger").glob("8e2a-*"):
        record = {**json.loads(path.read_text()), "status": "failed", "loss": None, "error": "memory"}
        path.write_text(json.dumps(record))
    (path,) = pack_sweeps([done], kept)
    before = path.read_bytes()
    for fewer in (begun, failed):
        with pytest.raises(FileError, match=f"holds .* finished points that .*{fewer.name} does not"):
            pack_sweeps([fewer], kept)
    assert path.read_bytes() == before
    assert pack_sweeps([path, begun], kept) == [path]
    assert path.read_bytes() == before
    pack_sweeps([begun], tmp_path / "other")
    assert pack_sweeps([done], tmp_path / "other")[0].read_bytes() == before  # more results take the place of fewer


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda lines: ['{"a": 1}', *lines[1:]], "not a packed sweep"),
        (lambda lines: [*lines[:3], lines[3][:50]], "line 4: "),
        (lambda lines: [*lines[:3], "[]"], "line 4: not a line of a packed sweep (a list, not an object)"),
        (lambda lines: [*lines, lines[-1]], "an earlier line holds"),
        (lambda lines: [lines[0].replace('"lm"', '"lmm"'), *lines[1:]], "did you mean 'lm'"),
        (lambda lines: [lines[0], lines[1].replace('"finished"', '"done"'), *lines[2:]], "line 2: status is 'done'"),
    ],
)
def test_a_damaged_file_is_one_error(
    sweep_folder: Write, tmp_path: Path, damage: Callable[[list[str]], list[str]], says: str
) -> None:
    (path,) = pack_sweeps([sweep_folder(drifts=TWO)], tmp_path / "kept")
    path.write_text("\n".join(damage(path.read_text().splitlines())) + "\n")
    with pytest.raises(FileError) as problem:
        summarize(path)
    assert str(path) in str(problem.value)
    assert says in str(problem.value)


def test_a_report_on_a_packed_sweep_needs_a_place(sweep_folder: Write, tmp_path: Path) -> None:
    (path,) = pack_sweeps([sweep_folder()], tmp_path / "kept")
    result = CliRunner().invoke(app, ["report", str(path)])
    assert isinstance(result.exception, FileError)
    assert "--out" in str(result.exception)


def test_commands_name_no_folder_of_the_machine() -> None:
    given = "mue sweep activated --reference /home/me/x/reference.toml --set task.source=/data/text --out runs/a"
    assert portable(given) == "mue sweep activated --reference reference.toml --set task.source=text --out runs/a"
    assert portable("mue sweep grid/mine.toml && mue sweep '/a/b c/d.toml'") == (
        "mue sweep grid/mine.toml && mue sweep d.toml"
    )
    assert portable("mue sweep a --out '/home/a b/c d/' --set task.source=~/text/") == (
        "mue sweep a --out 'c d' --set task.source=text"
    )


@pytest.mark.parametrize("more", [(), ("--out", "report")])
def test_an_empty_file_is_called_that(tmp_path: Path, more: tuple[str, ...]) -> None:
    (tmp_path / "empty.toml").touch()
    done = mue("report", "empty.toml", *more, cwd=tmp_path)
    assert done.returncode == 2
    assert "empty.toml: an empty file" in done.stderr


def test_a_number_that_json_does_not_have_is_not_packed(sweep_folder: Write, tmp_path: Path) -> None:
    folder = sweep_folder()
    record = sorted((folder / "ledger").iterdir())[0]
    record.write_text(json.dumps({**json.loads(record.read_text()), "first": [1.0, float("nan")]}))
    with pytest.raises(FileError, match=record.stem):
        pack_sweeps([folder], tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir())
