from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import complete_mue as mue
from complete_mue.lab.records import Ledger, Outcome


def test_records_and_claims(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.open_points(["a", "b"]) == ["a", "b"]
    with ledger.claim(["a", "b"]) as mine, Ledger(tmp_path).claim(["a", "c"]) as others:
        assert mine == ["a", "b"]
        assert others == ["c"]
        ledger.write("a", Outcome("finished", 1.5))
        ledger.write("b", Outcome("failed"))
    with ledger.claim(["a", "b", "c"]) as mine:
        assert mine == ["c"]
    with ledger.claim(["a", "b", "c"], retry_failed=True) as mine:
        assert mine == ["b", "c"]
    assert ledger.open_points(["a", "b", "c"], retry_failed=True) == ["b", "c"]
    assert sorted(ledger.done()) == ["a", "b"]
    (tmp_path / "ledger" / "a.json").write_text("{")
    with pytest.raises(mue.MueError, match=r"a\.json"):
        ledger.read("a")
    (tmp_path / "ledger" / "b.json").write_text(json.dumps({"format": 1, "id": "x"}))
    with pytest.raises(mue.MueError, match="delete it"):
        ledger.read("b")


WORKER = """
import os, sys, time
from complete_mue.lab.records import Ledger, Outcome
ledger, points = Ledger(sys.argv[1]), [f"p{i}" for i in range(40)]
for point in points:
    with ledger.claim([point]) as mine:
        for name in mine:
            with open(os.path.join(sys.argv[1], f"ran-{name}"), "a") as file:
                file.write("x")
            time.sleep(0.01)
            ledger.write(name, Outcome("finished", 1.0))
"""


def test_killed_workers_lose_and_repeat_nothing_that_was_finished(tmp_path: Path) -> None:
    dice, ledger = random.Random(0), Ledger(tmp_path)

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path)])

    finished: set[str] = set()
    for _ in range(4):
        workers = [start(), start()]
        deadline = time.monotonic() + 30
        while ledger.done() == finished and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(dice.uniform(0, 0.1))
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
        now = ledger.done()
        assert finished <= now
        finished = now
        ran = {point: os.path.getsize(tmp_path / f"ran-{point}") for point in finished}
        for point in finished:
            assert ledger.read(point).loss == 1.0
    assert start().wait() == 0
    assert ledger.done() == {f"p{i}" for i in range(40)}
    assert {
        point: os.path.getsize(tmp_path / f"ran-{point}") for point in ran
    } == ran  # finished points never ran again


def test_two_processes_never_do_the_same_point(tmp_path: Path) -> None:
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path)]) for _ in range(2)]
    assert [worker.wait() for worker in workers] == [0, 0]
    assert all((tmp_path / f"ran-p{i}").read_text() == "x" for i in range(40))
