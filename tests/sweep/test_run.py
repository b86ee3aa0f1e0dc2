"""Running a sweep: every point once, whoever is killed; the second start does nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import complete_mue as mue

pytest.importorskip("torch")

from complete_mue.lab.records import Ledger, Outcome, read_sweep
from complete_mue.lab.records.pack import pack_sweeps
from complete_mue.lab.report.summary import summarize
from complete_mue.lab.sweep.executor import Advanced, Event, Executor, Finished, Here, Job, Processes
from complete_mue.lab.sweep.grid import Scan, Sweep, Target
from complete_mue.lab.sweep.known import Known
from complete_mue.lab.sweep.run import Status, run
from in_process import mue as mue_here
from small_sweeps import TINY, base, losses, sweep_of


class _Nowhere(Here):
    """Takes no job."""

    def start(self, job: Job) -> None:
        raise AssertionError(f"{len(job.configs)} runs that were known are trained again")


def go(sweep: Sweep, folder: Path, executor: Executor, **options: object) -> object:
    return run(sweep, folder, executor, replicas=lambda point: 2, **options)  # type: ignore[arg-type]


class _Scripted(Here):
    """Trains nothing: every second one more of these steps is reported."""

    def __init__(self, clock: list[float], steps: list[int]) -> None:
        super().__init__()
        self.clock, self.steps, self.number = clock, steps, 0

    def start(self, job: Job) -> None:
        self.number, self._running, self.configs = job.number, 1, job.configs

    def events(self, timeout: float) -> list[Event]:
        self.clock[0] += 1
        if self.steps:
            return [Advanced(self.number, self.steps.pop(0), [1.0] * len(self.configs))]
        self._running = 0
        return [Finished(self.number, tuple(Outcome("finished", loss=1.0) for _ in self.configs))]


def test_the_time_left_goes_by_the_pace_once_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("complete_mue.lab.sweep.run.time.monotonic", lambda: clock[0])
    sweep = dataclasses.replace(sweep_of(), targets=sweep_of().targets[:1])
    steps = sweep.reference.config.budget.steps
    ticks = [0, *range(steps // 2, steps)]  # compiled; then a long wait for its turn; then a step a second
    seen: list[tuple[float | None, float | None]] = []

    def show(status: Status) -> None:
        seen.append((status.seconds_left, status.running[0].seconds_left if status.running else None))

    run(sweep, tmp_path, _Scripted(clock, [*ticks]), replicas=lambda point: 9, show=show)
    assert seen[:2] == [(None, None)] * 2, "a first step says nothing about the pace"
    assert seen[2 : len(ticks)] == [(pytest.approx(left), left) for left in range(steps - steps // 2 - 2, -1, -1)]


def test_nothing_runs_twice(tmp_path: Path) -> None:
    sweep = sweep_of()
    here = go(sweep, tmp_path / "here", Here())
    assert (here.done, here.total, here.failed) == (6, 6, 0)  # type: ignore[attr-defined]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "here" / "ledger").iterdir()}
    go(sweep, tmp_path / "here", Here())
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "here" / "ledger").iterdir()} == before
    summary = summarize(tmp_path / "here")
    assert summary.progress.missing == 0
    go(sweep_of(1e-3, 4e-3, 1.6e-2, 6.4e-2), tmp_path / "here", Here())  # a wider grid: the new points alone
    kept = {path: path.stat().st_mtime_ns for path in before}
    assert kept == before
    assert len(losses(tmp_path / "here")) == 8
    go(sweep_of(4e-3, rules=("sp",)), tmp_path / "here", Here())  # and another rule set: what was there stays
    summary = summarize(tmp_path / "here")
    assert (summary.progress.runs, summary.progress.finished) == (9, 9)
    assert [len(curve.points) for curve in summary.scans[0].curves] == [4, 4, 1]


def test_points_that_another_sweep_has_finished_are_copied(tmp_path: Path) -> None:
    go(sweep_of(4e-3), tmp_path / "one", Here())
    before = losses(tmp_path / "one")
    record = next((tmp_path / "one" / "ledger").glob("*.json"))
    (tmp_path / "one" / "ledger" / record.name).write_text(
        record.read_text().replace('"seconds"', '"copied": 1, "seconds"')
    )
    go(sweep_of(4e-3, 1.6e-2), tmp_path / "two", Here(), known=Known([tmp_path / "one"]))
    assert "copied" in (tmp_path / "two" / "ledger" / record.name).read_text()
    assert before.items() < losses(tmp_path / "two").items()
    pack_sweeps([tmp_path / "two"], tmp_path / "packed")  # what is kept in git is enough to go on from
    shutil.rmtree(tmp_path / "two")
    go(sweep_of(4e-3, 1.6e-2), tmp_path / "three", _Nowhere(), known=Known([tmp_path / "packed"]))
    assert "copied" in (tmp_path / "three" / "ledger" / record.name).read_text()
    assert before.items() < losses(tmp_path / "three").items()
    with pytest.raises(mue.MueError, match="no such folder"):
        go(sweep_of(4e-3), tmp_path / "four", Here(), known=Known([tmp_path / "none"]))


def test_what_failed_here_and_is_known_elsewhere_is_copied_if_retried(tmp_path: Path) -> None:
    sweep = sweep_of(4e-3)
    go(sweep, tmp_path / "one", Here())
    known, ledger = Known([tmp_path / "one"]), Ledger(tmp_path / "two")
    for point in sweep.points:
        ledger.write(point.id, Outcome("failed", error="out of memory"))
    go(sweep, tmp_path / "two", _Nowhere(), known=known)
    assert len(ledger.failures(ledger.done())) == 2
    go(sweep, tmp_path / "two", _Nowhere(), known=known, retry_failed=True)
    assert losses(tmp_path / "two") == losses(tmp_path / "one")


def test_points_that_another_sweep_finishes_meanwhile_are_copied_too(tmp_path: Path) -> None:
    go(sweep_of(4e-3), tmp_path / "whole", Here())
    whole, growing = Ledger(tmp_path / "whole"), Ledger(tmp_path / "growing")
    shutil.copy(tmp_path / "whole" / "sweep.json", tmp_path / "growing")

    def finish_elsewhere(status: object) -> None:  # after the first group: all of it
        for point in whole.done() - growing.done():
            growing.write(point, dataclasses.replace(whole.read(point), data="copied"))

    status = go(sweep_of(4e-3), tmp_path / "two", Here(), known=Known([tmp_path / "growing"]), show=finish_elsewhere)
    found = [record.data == "copied" for record in read_sweep(tmp_path / "two").outcomes.values()]
    assert sorted(found) == [False, True]  # one group was under way, the other was taken over
    assert (status.done, status.total) == (2, 2)  # type: ignore[attr-defined]


def test_one_bad_point_fails_alone_and_can_be_retried(tmp_path: Path) -> None:
    bad = base("task.source=missing-folder")
    sweep = Sweep(
        "test", "T", "a", "tiny", (Target("dense", None, base()), Target("bad", 1, bad)), (Scan("lr", (1e-3, 2e-3)),)
    )
    status = go(sweep, tmp_path, Processes(1))
    assert (status.done, status.failed) == (4, 2)  # type: ignore[attr-defined]
    records = read_sweep(tmp_path).outcomes.values()
    assert sorted(record.status for record in records) == ["failed", "failed", "finished", "finished"]
    assert all("missing-folder" in str(record.error) for record in records if record.status == "failed")
    assert summarize(tmp_path).progress.failed == 2
    again = go(sweep, tmp_path, Here())
    assert again.failed == 0  # type: ignore[attr-defined]  # not tried
    assert go(sweep, tmp_path, Here(), retry_failed=True).failed == 2  # type: ignore[attr-defined]


def test_a_diverging_point_is_recorded_and_leaves_the_sweep_alone(tmp_path: Path) -> None:
    go(sweep_of(1e-3, 1e30), tmp_path, Here())
    by_value = {record.status for record in read_sweep(tmp_path).outcomes.values()}
    assert by_value == {"finished", "diverged"}
    record = next(r for r in read_sweep(tmp_path).outcomes.values() if r.status == "diverged")
    assert record.loss is None
    assert (record.diverged or 0) >= 1
    json.dumps(record.to_dict(), allow_nan=False)


@pytest.mark.slow
def test_a_killed_worker_costs_its_unfinished_work_alone(tmp_path: Path) -> None:
    """And what processes find is what one finds."""
    executor, kills = Processes(2), []

    def kill_one(status: object) -> None:
        if not kills and executor.pids() and status.done >= 2:  # type: ignore[attr-defined]
            kills.append(executor.pids()[-1])
            os.kill(kills[-1], signal.SIGKILL)

    go(sweep_of(1e-3, 2e-3, 4e-3, 8e-3), tmp_path, executor, show=kill_one)
    assert kills
    go(sweep_of(1e-3, 2e-3, 4e-3, 8e-3), tmp_path / "calm", Here())
    assert losses(tmp_path) == losses(tmp_path / "calm")


def test_a_point_whose_worker_always_dies_is_entered_as_failed(tmp_path: Path) -> None:
    executor = Processes(1)
    sweep = Sweep("test", "T", "a", "tiny", (Target("dense", None, base("budget.steps=2000")),), (Scan("lr", (1e-3,)),))

    def kill(status: object) -> None:
        for pid in executor.pids():
            os.kill(pid, signal.SIGKILL)

    go(sweep, tmp_path, executor, show=kill)
    (record,) = read_sweep(tmp_path).outcomes.values()
    assert record.status == "failed"
    assert "died 5 times" in str(record.error)


GRID = """
recipe = "lm_tiny"
overrides = [{overrides}]
seeds = {seeds}
[scan]
lr = [{values}]
[targets]
"8e2a" = ["shape.feed_forward=8e2a@8"]
"""


def write_grid(path: Path, values: int, seeds: int, *more: str) -> Path:
    overrides = ", ".join(f'"{text}"' for text in (*TINY, *more))
    path.write_text(
        GRID.format(overrides=overrides, seeds=seeds, values=", ".join(f"{1e-3 * 1.1**k}" for k in range(values)))
    )
    return path


def mue_command(*arguments: object, **environment: str) -> list[str]:
    return [sys.executable, "-m", "complete_mue", *map(str, arguments)]


def test_the_second_start_of_20_points_does_nothing_without_loading_torch(tmp_path: Path) -> None:
    grid = write_grid(tmp_path / "grid.toml", 5, 2, "budget.steps=2")
    words = ("sweep", grid, "--out", tmp_path / "out", "-k", 5, "--executor", "here")
    assert mue_here(*words, cwd=tmp_path).returncode == 0
    assert len(Ledger(tmp_path / "out").done()) == 20
    trap = tmp_path / "trap" / "torch"
    trap.mkdir(parents=True)
    (trap / "__init__.py").write_text("raise RuntimeError('torch was loaded')")
    second = subprocess.run(
        mue_command(*words),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(trap.parent), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == 0, second.stderr
    assert "all 20 points" in second.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("width", "--scale", "huge"), "huge"),
        (("roles", "--target", "8e2a", "--role", "dense_up"), "dense_up"),
        (("roles", "--target", "8e2a", "--executor", "cloud"), "cloud"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_torch_or_a_worker(
    words: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _REFUSED, "sweep", *words], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert says in done.stderr
    assert done.stdout == "False 0\n"


_REFUSED = """
import multiprocessing, sys
from complete_mue.cli import main
try:
    main()
finally:
    print("torch" in sys.modules, len(multiprocessing.active_children()))
"""


def test_a_worker_ends_with_its_sweep_also_in_the_middle_of_a_job(tmp_path: Path) -> None:
    script = tmp_path / "sweep.py"
    script.write_text("""
import time
from complete_mue.lab.sweep import executor

def busy(pipe, ahead):
    executor._perform = lambda job, threads, tell: (print("busy", flush=True), time.sleep(60))
    executor._serve(pipe, ahead)

if __name__ == "__main__":
    executor._serve = busy
    workers = executor.Processes(1)
    workers.start(executor.Job(0, ()))
    print(workers.pids()[0], flush=True)
    time.sleep(60)
""")
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as sweep:
        assert sweep.stdout is not None
        worker = Path("/proc", sweep.stdout.readline().strip())
        assert sweep.stdout.readline() == "busy\n"
        sweep.kill()
    deadline = time.monotonic() + 20
    while worker.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not worker.exists()


def test_ctrl_c_ends_a_sweep_and_the_next_start_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = write_grid(tmp_path / "grid.toml", 2, 1, "budget.steps=2")
    words = ("sweep", grid, "--executor", "here", "-k", 1, "--out")
    start, started = Here.start, []

    def interrupted(here: Here, job: Job) -> None:
        started.append(job)
        if len(started) == 3:
            raise KeyboardInterrupt
        start(here, job)

    with monkeypatch.context() as patch:
        patch.setattr(Here, "start", interrupted)
        assert mue_here(*words, tmp_path / "cut", cwd=tmp_path).returncode == 130
    assert len(Ledger(tmp_path / "cut").done()) == 2
    early = {path: path.stat().st_mtime_ns for path in (tmp_path / "cut" / "ledger").glob("[!.]*.json")}
    for folder in ("cut", "whole"):
        assert mue_here(*words, tmp_path / folder, cwd=tmp_path).returncode == 0
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert {path: path.stat().st_mtime_ns for path in early} == early


@pytest.mark.parametrize(("every", "wait"), [(1, 30), (1000, 0.1)])
def test_ctrl_c_within_a_step_is_no_crash(tmp_path: Path, every: int, wait: float) -> None:
    """The thread that trains ends at its next report; one that does not report soon ends with the process."""
    code = """
import sys, time
from complete_mue.cli import main
from complete_mue.lab.sweep import executor

def interrupted(here, timeout):
    time.sleep(2)
    raise KeyboardInterrupt

executor.Here.events = interrupted
executor._LEAVE = float(sys.argv.pop())
main()
"""
    words = ("sweep", "activated", "--executor", "here", "--set", f"log_every={every}", "--out", str(tmp_path / "out"))
    done = subprocess.run(
        [sys.executable, "-c", code, *words, str(wait)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr == ""


@pytest.mark.slow
def test_kill_9_three_times_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Drivers and workers are killed at random moments; two sweeps share the folder half of the time."""
    dice = random.Random(0)
    grid = write_grid(tmp_path / "grid.toml", 6, 2, "budget.steps=40")
    folder = tmp_path / "out"
    command = mue_command("sweep", grid, "--out", folder, "--executor", "processes", "--workers", "2", "-k", "2")
    seen: dict[Path, tuple[int, bytes]] = {}

    def check() -> None:
        for path, (inode, content) in seen.items():
            assert (path.stat().st_ino, path.read_bytes()) == (inode, content), f"{path.name} was lost or written again"
        for path in (folder / "ledger").glob("[!.]*.json") if (folder / "ledger").exists() else ():
            seen[path] = (path.stat().st_ino, path.read_bytes())

    kills = 0
    while kills < 3:
        drivers = [
            subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            for _ in range(dice.choice((1, 2)))
        ]
        time.sleep(dice.uniform(1, 7))
        for driver in drivers:
            victims = [driver.pid, *_children(driver.pid)]
            victim = dice.choice(victims)
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue
            kills += 1
            if victim != driver.pid:
                time.sleep(dice.uniform(0, 2))
                driver.kill()
        for driver in drivers:
            driver.wait()
        check()
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    check()
    assert len(seen) == 2 * 6 * 2
    assert all(json.loads(content)["status"] == "finished" for _, content in seen.values())


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []
