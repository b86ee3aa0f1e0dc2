"""Nothing is written elsewhere, and writers do not get into each other's way: links that lie in a folder are never
followed, temporary files are one writer's own, and what a killed one left goes without harm to those that live.
"""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from complete_mue.errors import MueError
from complete_mue.lab.records import Ledger, Outcome
from complete_mue.storage import exclusive, inner_folder, read_json, remove_parts, sha256, whole, write_json


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user's that nothing here has any business with."""
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


def untouched(victim: Path) -> bool:
    return victim.read_text() == "precious" and not victim.is_symlink()


@pytest.mark.parametrize("write", [lambda path: write_json(path, {}), lambda path: _write(path, b"{}")])
def test_a_link_under_a_temporary_name_is_not_followed(
    tmp_path: Path, victim: Path, write: Callable[[Path], None]
) -> None:
    (tmp_path / ".report.csv.part").symlink_to(victim)
    write(tmp_path / "report.csv")
    assert untouched(victim)
    assert (tmp_path / "report.csv").read_text().strip() == "{}"


def _write(path: Path, content: bytes) -> None:
    with whole(path) as file:
        file.write(content)


def test_a_link_under_the_final_name_is_replaced(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "result.json").symlink_to(victim)
    write_json(tmp_path / "result.json", {"a": 1})
    assert untouched(victim)
    assert not (tmp_path / "result.json").is_symlink()


def test_records_do_not_follow_links(tmp_path: Path, victim: Path) -> None:
    ledger = Ledger(tmp_path / "sweep")
    (tmp_path / "sweep" / "ledger" / ".a.json.part").symlink_to(victim)
    ledger.write("a", Outcome("finished", 1.5))
    assert untouched(victim)
    assert ledger.read("a").status == "finished"


@pytest.mark.parametrize("dangling", [False, True])
def test_linked_locks_are_refused(tmp_path: Path, victim: Path, dangling: bool) -> None:
    behind = tmp_path / "not there" if dangling else victim
    run, sweep = tmp_path / "run", tmp_path / "sweep"
    run.mkdir()
    (run / ".lock").symlink_to(behind)
    with pytest.raises(MueError, match=r"\.lock: is a link"), exclusive(run, "the run"):
        pass
    ledger = Ledger(sweep)
    (sweep / "claims" / "a").symlink_to(behind)
    with pytest.raises(MueError, match="claims/a: is a link"), ledger.claim(["a"]):
        pass
    assert untouched(victim)
    assert not (tmp_path / "not there").exists()


def test_a_lock_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(MueError, match=r"\.lock: not a plain file"), exclusive(tmp_path, "the run"):
        pass


@pytest.mark.parametrize("read", [lambda path: read_json(path, "record"), sha256])
def test_reading_a_pipe_does_not_wait(tmp_path: Path, read: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(MueError, match="pipe"):
        read(tmp_path / "pipe")


@pytest.mark.parametrize("call", ["pwrite", "ftruncate"])
def test_a_full_disk_at_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(MueError, match="No space left"), exclusive(tmp_path, "the preparation"):
        pass


@pytest.mark.parametrize("name", ["ledger", "claims"])
def test_linked_insides_of_a_sweep_are_refused(tmp_path: Path, name: str) -> None:
    elsewhere, sweep = tmp_path / "elsewhere", tmp_path / "sweep"
    elsewhere.mkdir()
    sweep.mkdir()
    (sweep / name).symlink_to(elsewhere)
    with pytest.raises(MueError, match=f"{name}: is a link"):
        Ledger(sweep)
    assert not list(elsewhere.iterdir())


def test_a_linked_folder_as_such_is_fine(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    with exclusive(tmp_path / "run", "the run"):
        write_json(inner_folder(tmp_path / "run" / "checkpoints") / "a.json", {})
    assert (tmp_path / "disk" / "checkpoints" / "a.json").exists()


def test_two_writers_of_one_file_both_end_well(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    with whole(path) as first:
        first.write(b"first")
        with whole(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
        remove_parts(tmp_path)  # as a third one does that begins now
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_block_that_failed_wrote_goes(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), whole(tmp_path / "a") as file:
        file.write(b"half" * (1 // 0))
    assert not list(tmp_path.iterdir())


KILLED = """
import os, sys
from pathlib import Path
from complete_mue.storage import whole
with whole(Path(sys.argv[1]) / "a.json") as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), 9)
"""


def test_what_a_killed_writer_left_goes(tmp_path: Path) -> None:
    records = tmp_path / "ledger"
    records.mkdir()
    subprocess.run([sys.executable, "-c", KILLED, str(records)], check=False)
    assert len(list(records.iterdir())) == 1
    assert Ledger(tmp_path).done() == set()
    assert not list(records.iterdir())


def test_files_have_the_rights_that_the_user_asked_for(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o640
