"""The soak disturbs runs and sees what it watches for: wrong losses, half-written files, locks, stray processes."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are watched through /proc")
SCRIPT = Path(__file__).with_name("soak.py")


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    sys.path.insert(0, str(SCRIPT.parent))  # as Python does for a script
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPT.parent))
    return module


SOAK = _load()


@pytest.mark.slow
def test_a_round_of_every_command_finds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not here: replaced data, blows to a single rank, moves between numbers of ranks (test_parallel.py has those), and
    a sweep by itself (two of one folder are harder on it; test_run.py kills drivers and workers).
    """
    out, kinds = tmp_path / "soak.json", ["run", "drivers"]
    only = ["--only", ",".join(kinds), "--rounds", str(len(kinds)), "--blows", "1"]
    assert SOAK.main([*only, "--minutes", "1", "--steps", "40", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    assert [this["kind"] for this in record["rounds"]] == kinds
    assert any(this["blows"] for this in record["rounds"])
    assert all(this["difference"] == 0 for this in record["rounds"])
    assert "nothing found" in capsys.readouterr().out


@pytest.mark.slow
def test_ctrl_c_ends_what_is_running() -> None:
    # A shell that started the tests in the background has them ignore Ctrl-C, and their children with them.
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "--only", "ranks"], stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    mark = f"{SOAK.MARK}={process.pid}-".encode()

    def below() -> list[Path]:
        return [path for path in Path("/proc").glob("[0-9]*/environ") if mark in _bytes(path)]

    deadline = time.monotonic() + 60
    while len(below()) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "nothing found" in out
    assert not below()


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def finished(folder: Path, *losses: float) -> Path:
    """What a run of these losses leaves."""
    checkpoint = folder / "checkpoints" / "step-00000003"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    (checkpoint / "state.json").write_text(json.dumps({"sha256": {"model.safetensors": "12"}}))
    lines = [json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in enumerate(losses)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    (folder / "result.json").write_text(json.dumps({"loss": losses[-1], "steps": 3}))
    return folder


@pytest.fixture
def soak(tmp_path: Path) -> object:
    soak = SOAK.Soak(tmp_path, 0, 3, lambda text: None)
    right = SOAK.ending(SOAK.KINDS[0], finished(tmp_path / "right", 3.0, 2.0, 1.0))
    soak.references["run"] = SOAK.Reference(right, 1.0, 0.5, 1.0)
    return soak


@pytest.mark.parametrize(
    ("losses", "found"),
    [((3.0, 2.0, 1.0), ""), ((3.0, 2.0, 1.0000001), "differs by"), ((3.0, 2.0), "4 losses and files, undisturbed 5")],
)
def test_other_losses_are_found(soak, tmp_path: Path, losses: tuple[float, ...], found: str) -> None:  # type: ignore[no-untyped-def]
    run = finished(tmp_path / "mine", *losses)
    soak._compare(SOAK.KINDS[0], run, SOAK.Round("run"), 1)
    assert found in "".join(soak.found)
    assert bool(soak.found) == bool(found)


def test_other_weights_are_found(soak, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run = finished(tmp_path / "mine", 3.0, 2.0, 1.0)
    (run / "checkpoints/step-00000003/state.json").write_text(json.dumps({"sha256": {"model.safetensors": "13"}}))
    soak._compare(SOAK.KINDS[0], run, SOAK.Round("run"), 1)
    assert "last checkpoint differs" in soak.found[0]
    assert "FOUND" in SOAK.table(soak)


def test_strays_locks_and_processes_are_found(soak, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run = finished(tmp_path / "mine" / "run", 1.0)
    temporary = tmp_path / "temporary"
    for folder in (run / "checkpoints" / ".writing-12", temporary / "tmp12", temporary / "torchelastic_12"):
        folder.mkdir(parents=True)
    (run / ".result.json.part").touch()
    assert {path.name for path in SOAK.strays(run, temporary)} == {".writing-12", ".result.json.part", "tmp12"}
    lock = run / ".lock"
    lock.touch()
    assert not list(SOAK.held(run))
    with lock.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert list(SOAK.held(run)) == [lock]
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, SOAK.MARK: soak.mark})
    assert SOAK.marked(soak.mark) == [process.pid]
    assert process.pid in SOAK.tree(os.getpid())
    watched = SOAK.Watched()
    assert watched.look(process.pid, lambda: True) == watched.first
    assert watched.memory[0] > 0
    assert watched.files[0] > 0
    soak.end()
    assert process.wait(timeout=10) == -signal.SIGKILL
    assert SOAK.marked(soak.mark) == []


def test_growth_is_seen() -> None:
    watched = SOAK.Watched(first=5.0)
    for second in range(40):
        watched.times.append(float(second))
        watched.memory.append(100.0 + 10 * second)
        watched.files.append(20 + second)
    memory, files = watched.growth()
    assert 100 < memory < 200
    assert memory == 10 * files


def test_damage_is_done_to_the_newest_checkpoint(tmp_path: Path) -> None:
    draw, seen = random.Random(0), set()
    for number in range(30):
        run = finished(tmp_path / str(number), 1.0)
        before = {path: path.is_file() and path.read_bytes() for path in run.rglob("*")}
        seen.add(SOAK.damage(run, draw))
        after = {path: path.is_file() and path.read_bytes() for path in run.rglob("*")}
        assert before != after
    assert {how.removesuffix(", both") for how in seen} == {
        "cut", "overwritten", "emptied", "removed", "torn metrics", "stray", "copied",
    }  # fmt: skip
    assert SOAK.damage(tmp_path, draw) == ""


@pytest.mark.parametrize("given", [["--minutes", "0"], ["--only", "rnu"], ["--steps", "0"]])
def test_bad_arguments(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        SOAK.main(given)
    assert ended.value.code == 2
    assert "run, ranks, moves, data, sweep, drivers" in capsys.readouterr().err
