"""The trainer examples are run: losses fall, and every group keeps its ratio to the plan."""

from __future__ import annotations

import importlib.util
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quick import quick

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="the examples train stock models")

EXAMPLES = Path(__file__).parents[2] / "examples" / "trainers"
NEEDS = {
    "plain_loop": "transformers",
    "hf_trainer": "accelerate",
    "hf_trainer_factory": "accelerate",
    "accelerate_loop": "accelerate",
    "lightning_module": "lightning",
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small only wait for a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_all_examples_are_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*NEEDS, "fsdp2"}
    assert all(len(path.read_text().splitlines()) < 60 for path in EXAMPLES.glob("*.py"))


# Lightning's own: a torch name it still uses, and advice on data loaders.
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize("name", quick(NEEDS, "plain_loop", "hf_trainer"))
def test_losses_fall_and_ratios_hold(name: str) -> None:
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{name} needs {NEEDS[name]}")
    losses, optimizer = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()
    assert len(losses) == 40
    assert sum(losses[-5:]) < 0.75 * sum(losses[:5])
    groups = optimizer.param_groups
    assert len({group["planned_lr"] for group in groups}) > 2
    factors = [group["lr"] / group["planned_lr"] for group in groups]
    assert factors == pytest.approx([factors[0]] * len(factors), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [[], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]])
def test_fsdp2_runs_alone_and_on_two_processes(launcher: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *launcher, str(EXAMPLES / "fsdp2.py")],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("losses")]
    losses = [float(word) for word in line.split()[1:]]
    assert len(losses) == 20
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
