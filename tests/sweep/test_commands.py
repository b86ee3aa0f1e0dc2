"""`mue tune`, `mue sweep` and `mue bench sweep` as a user meets them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from complete_mue.layout.toml_files import read_reference
from in_process import mue

pytest.importorskip("torch")

TINY = (
    "shape.width=16", "shape.depth=1", "shape.head_dim=8", "shape.feed_forward=dense@16", "task.sequence=16",
    "budget.batch_tokens=64", "budget.steps=4", "betas=hold", "device=cpu",
)  # fmt: skip


def settings(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def test_tune_then_sweep_then_report(tmp_path: Path) -> None:
    tuned = mue(
        "tune",
        "lm",
        "--hyper",
        "lr",
        "--span",
        1,
        "--executor",
        "here",
        *settings(*TINY),
        "--out",
        "tune",
        cwd=tmp_path,
    )
    assert tuned.returncode == 0, tuned.stderr
    assert "reference.toml" in tuned.stdout
    reference = read_reference(tmp_path / "tune" / "reference.toml")
    assert reference.shape.width == 16
    swept = mue(
        "sweep", "shared", "--reference", "tune/reference.toml", "--span", 1, "--executor", "here", "--rules", "sp",
        *settings(*TINY[4:5], *TINY[-2:]), "--out", "swept", cwd=tmp_path,
    )  # fmt: skip
    assert swept.returncode == 0, swept.stderr
    assert "transferred value" in swept.stdout
    assert (tmp_path / "swept" / "report.html").exists()
    report = mue("report", "swept", "--json", cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    assert json.loads(report.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sweep", "capacty"), "did you mean 'capacity'"),
        (("sweep", "capacity", "--scale", "huge"), "give one of tiny, small, medium, paper"),
        (("sweep", "capacity", "--executor", "cloud"), "give one of processes, here, ray"),
        (("sweep", "capacity", "--rules", "mupp"), "did you mean 'mup'"),
        (("sweep", "missing.toml"), "missing.toml: no such file; give a TOML file with a grid"),
        (("sweep", "mine.toml", "--span", "2"), "[scan]"),
        (("sweep", "mine.toml", "--scale", "small"), "--scale small is for named figures"),
        (("sweep", "mine.toml", "--scale", "tiny"), "--scale tiny is for named figures"),
        (("sweep", "mine.toml", "--task", "dit"), "--task dit is for named figures"),
        (("sweep", "mine.toml", "--task", "lm"), "--task lm is for named figures"),
        (("sweep", "capacity", "--address", "ray://x"), "without --executor ray"),
        (("sweep", "capacity", "--set", "budget.steps=99999"), "the data holds"),
        (("tune", "lm", "--set", "budget.steps=99999"), "the data holds"),
        (("sweep", "capacity", "--set", "task.source=nowhere"), "nowhere"),
        (("tune", "ml"), "give one of lm, dit"),
        (("tune", "lm", "--hyper", "momentum"), "give one of"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = mue(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_what_a_reference_brings_is_not_changed_beside_it(tmp_path: Path, root: Path) -> None:
    reference = str(root / "examples" / "lm_reference.toml")
    done = mue("sweep", "capacity", "--reference", reference, "--set", "budget.steps=50", "--dry-run", cwd=tmp_path)
    assert done.returncode == 2
    assert "--set budget.steps=50" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nosuch",), "large_batch, roles, FILE.toml"),
        (("activated", "--reference", "nosuch.toml"), "no such file; give the path of a TOML file with [shape]"),
    ],
)
def test_what_is_not_there_is_named_with_what_could_be(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = mue("sweep", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr


def test_failed_runs_end_in_an_error_and_run_again_when_asked(tmp_path: Path) -> None:
    grid = tmp_path / "mine.toml"
    changes = ", ".join(f'"{change}"' for change in TINY)
    grid.write_text(f'recipe = "lm_tiny"\noverrides = [{changes}]\n[scan]\nlr = [1e-3]\n[targets]\n')
    done = mue("sweep", "mine.toml", "--executor", "here", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (record,) = (tmp_path / "run" / "ledger").glob("*.json")
    failed = {"format": 1, "id": record.stem, "status": "failed", "loss": None, "error": "OSError: disk full"}
    record.write_text(json.dumps(failed))
    again = mue("sweep", "mine.toml", "--executor", "here", "--out", "run", cwd=tmp_path)
    assert again.returncode == 2
    assert "OSError: disk full" in again.stderr
    mended = mue("sweep", "mine.toml", "--executor", "here", "--out", "run", "--retry-failed", cwd=tmp_path)
    assert mended.returncode == 0, mended.stderr


def test_a_dry_run_counts_what_is_left_and_checks_what_it_was_given(tmp_path: Path) -> None:
    changes = ", ".join(f'"{change}"' for change in TINY)
    for name, values in (("one", "1e-3"), ("two", "1e-3, 2e-3")):
        text = f'recipe = "lm_tiny"\noverrides = [{changes}]\n[scan]\nlr = [{values}]\n[targets]\n'
        (tmp_path / f"{name}.toml").write_text(text)
    assert mue("sweep", "one.toml", "--executor", "here", "--out", "run", cwd=tmp_path).returncode == 0
    plain = mue("sweep", "two.toml", "--out", "new", "--dry-run", cwd=tmp_path)
    assert "are done" not in plain.stdout
    assert not (tmp_path / "new").exists()
    for place in (("--out", "run"), ("--out", "new", "--known", "run")):
        told = mue("sweep", "two.toml", *place, "--dry-run", cwd=tmp_path).stdout
        assert "1 of 2 runs are done: 1 left" in told
    done = mue("sweep", "one.toml", "--out", "run", "--dry-run", cwd=tmp_path).stdout
    assert done.endswith("1 of 1 runs are done: 0 left\n")
    for words, said in ((("--known", "nosuch"), "nosuch: no such folder"), (("--executor", "foo"), "executor = 'foo'")):
        for command in (("sweep", "two.toml"), ("tune", "lm")):
            refused = mue(*command, *words, "--dry-run", cwd=tmp_path)
            assert refused.returncode == 2
            assert said in refused.stderr


def test_bench_sweep(tmp_path: Path) -> None:
    changes = settings("shape.width=16", "shape.depth=1", "shape.head_dim=8", "task.sequence=16")
    done = mue(
        "bench", "sweep", "--device", "cpu", "--layout", "8e2a", "-k", 1, "-k", 2, "--repeats", 1,
        *changes, "--set", "budget.batch_tokens=64", "--profile", "--out", "bench", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "bench" / "sweep.json").read_text())["rows"]
    assert [row["replicas"] for row in rows] == [1, 2]
    assert "8e2a, K = 2" in done.stdout
    assert re.search(r"kernel +ms / step +share", done.stdout)
    assert rows[1]["speedup"] == pytest.approx(rows[1]["tokens_per_second"] / rows[0]["tokens_per_second"])
