"""How the tests themselves run: with other draws, as other machines compute, and with a word on what was left out."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import not_run  # noqa: E402
import portable  # noqa: E402

pytest_plugins = ["pytester"]

DRAWS = """
import pytest
import torch

def note(name, text=""):
    with open(name, "a") as file:
        print(text, file=file)

@pytest.mark.parametrize("size", [3])
def test_other_numbers(size):
    drawn = torch.randn(size)
    assert torch.equal(drawn, torch.randn(size, generator=torch.Generator().manual_seed(0)))
    note("drawn", drawn.tolist())

@pytest.mark.numeric
def test_once():
    note("once")

def test_right_by_luck():
    assert torch.equal(torch.randn(3), torch.randn(3, generator=torch.default_generator.clone_state().manual_seed(0)))
"""


@pytest.fixture
def drawing(pytester: pytest.Pytester, root: Path) -> pytest.Pytester:
    pytester.makeini("[pytest]\nmarkers =\n numeric: once\n gpu: there\n tools: there")
    pytester.makeconftest((root / "tests" / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(DRAWS)
    return pytester


def test_draws_differ_where_equal_seeds_stay_equal(drawing: pytest.Pytester) -> None:
    result = drawing.runpytest("--seeds", "4", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=4 + 1 + 1, failed=3)  # what holds for the first draw alone fails for the others
    assert len(set((drawing.path / "drawn").read_text().splitlines())) == 4
    assert len((drawing.path / "once").read_text().splitlines()) == 1


def test_without_seeds_there_is_one_draw(drawing: pytest.Pytester) -> None:
    drawing.runpytest("-p", "no:cacheprovider").assert_outcomes(passed=3)
    torch.manual_seed(0)
    assert (drawing.path / "drawn").read_text().split("\n") == [str(torch.randn(3).tolist()), ""]


@pytest.mark.parametrize("there", [True, False])
def test_what_needs_a_gpu_runs_where_there_is_one(
    drawing: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    drawing.makepyfile("import pytest\n@pytest.mark.gpu\ndef test_there(): pass\ndef test_anywhere(): pass")
    drawing.runpytest("-p", "no:cacheprovider").assert_outcomes(passed=1 + there, skipped=1 - there)


LACKING = """
import pytest

@pytest.mark.tools
def test_marked():
    pytest.importorskip("no_such_module", reason="needs lm-evaluation-harness")

def test_not_marked():
    pytest.importorskip("no_such_module", reason="needs lm-evaluation-harness")

def test_something_else():
    pytest.importorskip("no_such_module", reason="something else")
"""


def test_what_lacks_a_tool_is_marked_and_lacks_none_where_they_are(drawing: pytest.Pytester) -> None:
    drawing.makepyfile(LACKING)
    drawing.runpytest("-p", "no:cacheprovider").assert_outcomes(failed=1, skipped=2)
    drawing.runpytest("-p", "no:cacheprovider", "--with-tools").assert_outcomes(failed=2, skipped=1)


def test_what_did_not_run_is_counted_and_says_what_would_run_it() -> None:
    gpu, other = "Skipped: needs an NVIDIA GPU", "Skipped: for no known reason"
    first, second = not_run.lines([other, gpu, gpu])
    assert first.split()[0] == "2"
    assert "-> pytest -m gpu" in first
    assert second.split() == ["1", *other.removeprefix("Skipped: ").split()]


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        ("needs lm-evaluation-harness", "make test-tools"),
        ("tests marked slow", "make test-slow"),
        ("needs chromium", "chromium"),
        ("could not import 'ray'", "pip install ray"),
    ],
)
def test_every_kind_of_reason_has_its_command(reason: str, command: str) -> None:
    (line,) = not_run.lines([reason])
    assert command in line.partition("->")[2]


def test_other_machines_are_those_this_one_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for capability in ("AVX512", "DEFAULT"):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda capability=capability: capability)
        found[capability] = portable.runs()
    names = {kind: {run.environment.get("ATEN_CPU_CAPABILITY") for run in runs} for kind, runs in found.items()}
    assert names == {"AVX512": {"default", "avx2", None}, "DEFAULT": {"default", None}}
    for runs in found.values():
        assert all({"tests/models/test_lm.py", "tests/train/test_huggingface.py"} <= set(run.files) for run in runs)
        assert all("draws" in run.options[1] for run in runs)
        assert any("numeric" in run.options[1] for run in runs)
        assert {run.environment["OMP_NUM_THREADS"] for run in runs} == {"1", "2"}
        assert any("--without-onednn" in run.options for run in runs)
        assert any(run.options[-2:] == ("--seeds", str(portable.SEEDS)) for run in runs)


@pytest.mark.slow
def test_one_failure_fails_and_is_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "test_machine.py"
    path.write_text("import os\ndef test_it():\n    assert os.environ['KIND'] == 'best'\n")
    runs = [portable.Run(kind, (str(path),), {"KIND": kind}, workers=0) for kind in ("best", "old")]
    monkeypatch.setattr(portable, "runs", lambda: runs)
    assert portable.main() == 1
    told = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("==")]
    assert told == ["failed: old", f"  KIND=old pytest {path}"]
    monkeypatch.setattr(portable, "runs", list)
    assert portable.main() == 0
