"""Links inside of runs and sweeps: what a command writes stays in the folder that it was given."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from complete_mue.errors import MueError  # noqa: E402
from complete_mue.lab.sweep.run import enter  # noqa: E402
from complete_mue.lab.train.loop import train  # noqa: E402
from small_sweeps import base, sweep_of  # noqa: E402


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard", "wandb"])
def test_linked_insides_of_a_run_are_refused(tmp_path: Path, name: str) -> None:
    elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.mkdir()
    run.mkdir()
    (run / name).symlink_to(elsewhere)
    with pytest.raises(MueError, match=f"{name}: is a link"):
        train(base("budget.steps=1"), run)
    assert not list(elsewhere.iterdir())


def test_a_linked_lock_of_a_sweep_is_refused(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "sweep"
    victim.write_text("precious")
    folder.mkdir()
    (folder / ".sweep.lock").symlink_to(victim)
    with pytest.raises(MueError, match=r"\.sweep\.lock: is a link"):
        enter(sweep_of(), folder, "mue sweep", {})
    assert victim.read_text() == "precious"
