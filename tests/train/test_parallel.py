"""Many ranks are one run: FSDP2, experts over ranks, and both give the losses of one process; checkpoints fit any
number of ranks; a killed rank costs time and nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402
from complete_mue.errors import RunError  # noqa: E402
from complete_mue.lab.train import checkpoint  # noqa: E402
from complete_mue.lab.train.config import RunConfig, override, read_config  # noqa: E402
from complete_mue.lab.train.loop import train  # noqa: E402
from complete_mue.lab.train.parallel import check_dealing  # noqa: E402
from complete_mue.lab.train.run_folder import read_metrics  # noqa: E402
from complete_mue.lab.train.sample import load_run  # noqa: E402
from complete_mue.lab.train.sharded_tensors import Part, Pieces  # noqa: E402
from device_rank import FULL  # noqa: E402
from in_process import mue  # noqa: E402
from parallel_rank import RUNS, config_of, hang_once, train_all, trained  # noqa: E402

STEPS = 10
NEAR = 1e-4  # float32 losses of 20 steps: sums in another order, and a token here and there that they route elsewhere
pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed"),
]  # CPUs without bfloat16 units say so


def torchrun(ranks: int, *arguments: str) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *arguments,
    ]  # fmt: skip


def started(command: list[str], **more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def finished(command: list[str], **more: str) -> str:
    process = started(command, **more)
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 0, out[-5000:]
    return out


def assert_one_run(number: int, names: list[str], folder: Path) -> None:
    ranks.connected(train_all, number, str(folder / "out.json"), STEPS, *names)
    found: dict[str, Any] = json.loads((folder / "out.json").read_text())
    assert list(found) == names
    for name, many in found.items():
        one = trained(name, STEPS)
        kind = name.partition("@")[0]
        close = 5e-2 if kind == "bfloat16" else 1e-7  # a rounding is 4e-3 there, 1e-16 here
        assert many["losses"] == pytest.approx(one["losses"], rel=close), name
        assert one["losses"][-1] < one["losses"][0] - 0.5
        if kind == "bfloat16":
            continue
        assert many["norms"] == pytest.approx(one["norms"], rel=1e-6), name
        assert many["details"]["update_ratio"] == pytest.approx(one["details"]["update_ratio"], rel=1e-3), name
        assert many["details"].get("load") == one["details"].get("load"), name


@pytest.mark.slow
def test_two_ranks_with_fsdp_and_with_experts_dealt_out(tmp_path: Path) -> None:
    assert_one_run(2, ["dense", "all@2"], tmp_path)


@pytest.mark.slow
def test_two_ranks_in_every_way(tmp_path: Path) -> None:
    """All but those of the test above, and those of which ``all`` is made."""
    cut = ["balanced", "all", "bfloat16", "pictures"]
    dealt = ["sparse@2", "shared@2", "grouped@2", "balanced@2", "bfloat16@2", "pictures@2"]
    assert_one_run(2, [*cut, *dealt], tmp_path)


@pytest.mark.slow
def test_four_ranks_cut_and_dealt_out_over_two_and_four(tmp_path: Path) -> None:
    assert_one_run(4, ["all@2", "shared@4", "grouped@4"], tmp_path)


# -- the command ---------------------------------------------------------------------------------------------------


def words(run: Path, *more: str) -> list[str]:
    return ["train", *RUNS["shared"], "checkpoint_every=5", "device=cpu", *more, "--out", str(run)]


def command(run: Path, *more: str) -> list[str]:
    return ["-m", "complete_mue", *words(run, *more)]


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(run)]


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    train(config_of("shared", "checkpoint_every=5", "device=cpu"), tmp_path / "alone")
    return tmp_path / "alone"


@pytest.mark.slow
def test_a_checkpoint_of_four_ranks_resumes_on_any_number(tmp_path: Path, alone: Path) -> None:
    four = tmp_path / "four"
    assert "20 steps on 4 ranks" in ranks.mue(4, tmp_path / "four.txt", *words(four, "expert_parallel=2"))
    assert losses(four) == pytest.approx(losses(alone), rel=NEAR)
    run = tmp_path / "two"
    shutil.copytree(four, run)
    shutil.rmtree(checkpoint.Checkpoint.listed(run)[0].folder)
    out = ranks.mue(2, tmp_path / "two.txt", *words(run, "expert_parallel=1", "--resume"))
    assert "step 1/20" not in out
    assert losses(run) == pytest.approx(losses(alone), rel=NEAR)
    # And in one process without torchrun: the same tensors, whole.
    run = tmp_path / "plain"
    shutil.copytree(four, run)
    shutil.rmtree(checkpoint.Checkpoint.listed(run)[0].folder)
    train(override(read_config(run / "config.json"), "expert_parallel=1"), run, resume=True)
    assert losses(run) == pytest.approx(losses(alone), rel=NEAR)
    one, many = (load_run(path)[1].state_dict() for path in (alone, four))
    assert one.keys() == many.keys()
    for name, weight in one.items():
        assert (many[name] - weight).norm() <= 1e-2 * weight.norm(), name


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_a_killed_rank_is_restarted_and_nothing_is_lost(tmp_path: Path) -> None:
    longer = ("budget.steps=60", "expert_parallel=2")
    ranks.mue(2, tmp_path / "whole.txt", *words(tmp_path / "whole", *longer))
    run = tmp_path / "killed"
    process = started([*torchrun(2, "--max-restarts", "2"), *command(run, *longer, "--resume")])
    deadline = time.monotonic() + 120
    while not checkpoint.Checkpoint.listed(run) and time.monotonic() < deadline:
        time.sleep(0.02)
    workers = children(process.pid)
    assert len(workers) == 2
    os.kill(workers[-1], signal.SIGKILL)
    out, _ = process.communicate(timeout=400)
    assert process.returncode == 0, out[-5000:]
    assert out.count("step 1/60") == 1, "it began anew instead of going on"
    assert losses(run) == losses(tmp_path / "whole")
    assert json.loads((run / "result.json").read_text())["status"] == "finished"


@pytest.mark.slow
def test_sigterm_stops_all_ranks_at_the_same_step(tmp_path: Path) -> None:
    process = started(torchrun(2, *command(tmp_path, "budget.steps=5000", "checkpoint_every=5000")))
    while not read_metrics(tmp_path) and process.poll() is None:
        time.sleep(0.05)
    os.kill(children(process.pid)[1], signal.SIGTERM)  # one rank alone hears it
    process.communicate(timeout=120)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "interrupted"
    assert checkpoint.Checkpoint.listed(tmp_path)[0].step == result["steps"]


@pytest.mark.slow
def test_a_rank_that_fails_alone_ends_all(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()  # the first rank writes metrics, the other goes on to the first step
    process = started(torchrun(2, *command(tmp_path)))
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 1, out[-5000:]
    assert "step 1/20" not in out


@pytest.mark.slow
def test_a_divergence_is_not_repeated(tmp_path: Path) -> None:
    """It cannot get better: torchrun starts the ranks again, and they leave at once and say so."""
    wild = ("clip=none", "reference.hyper.lr=1e30", "budget.steps=50", "log_every=1")
    process = started([*torchrun(2, "--max-restarts", "1"), *command(tmp_path, *wild)])
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 1, out[-5000:]  # torchrun's word for a failure
    assert out.count("step 1/50") == 1, out[-5000:]
    # Rank 0 or rank 1: torchrun may end the other before it speaks.
    assert f": {tmp_path} diverged at step" in out, out[-5000:]
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "diverged"


def as_rank(patch: pytest.MonkeyPatch, folder: Path, rank: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    patch.setenv("RANK", str(rank))
    patch.setenv("WORLD_SIZE", "8")
    patch.setattr("complete_mue.cli._leave", sys.exit)  # a rank leaves without the interpreter's end: not this process
    return mue("train", "lm_tiny:8e2a", *arguments, cwd=folder)


def test_memory_per_rank_without_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = as_rank(monkeypatch, tmp_path, 0, "expert_parallel=4", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "memory per rank" in done.stdout
    assert "on 8 ranks, experts over 4" in done.stdout


def test_other_ranks_say_nothing_but_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = as_rank(monkeypatch, tmp_path, 3, "expert_parallel=4", "--dry-run")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    refused = as_rank(monkeypatch, tmp_path, 3, "expert_parallel=3", "--out", str(tmp_path))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "rank 3" in refused.stderr
    assert "expert_parallel = 3" in refused.stderr


# -- the path of many GPUs, on one ---------------------------------------------------------------------------------


def assert_the_path_of_many_gpus(kind: str, folder: Path) -> None:
    """All of it in one rank: process group, mesh, FSDP2, experts dealt out, tokens sent; on CUDA bfloat16, compiled."""
    lean = ("precision=bfloat16", "compile=true") if kind == "cuda" else ()
    close = 2e-2 if lean else NEAR
    more = (*FULL, *lean, f"device={kind}", "budget.steps=12")
    caches = {key: str(folder) for key in ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    out = finished(torchrun(1, *command(folder / "run", *more, "--resume")), **caches)
    assert "12 steps on 1 ranks" in out
    script = str(Path(__file__).parents[1] / "device_rank.py")
    finished(torchrun(1, script, str(folder / "out.json"), *more), **caches)
    found: dict[str, Any] = json.loads((folder / "out.json").read_text())
    assert found["device"] == ("cuda:0" if kind == "cuda" else "cpu")
    assert found["backend"] == ("nccl" if kind == "cuda" else "gloo")
    assert found["dealt"] == pytest.approx(found["alone"], rel=close), "experts dealt out"
    assert losses(folder / "run") == pytest.approx(found["alone"], rel=close), "the command, cut with FSDP2"
    assert found["alone"][-1] < found["alone"][0] - 0.3


@pytest.mark.gpu
def test_the_path_of_many_gpus_on_one(tmp_path: Path) -> None:
    assert_the_path_of_many_gpus("cuda", tmp_path)


@pytest.mark.slow
def test_the_path_of_many_gpus_on_a_cpu(tmp_path: Path) -> None:
    assert_the_path_of_many_gpus("cpu", tmp_path)


# -- pieces --------------------------------------------------------------------------------------------------------


def test_pieces_are_put_together_for_any_cut(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    whole = {"a": torch.arange(60.0).view(5, 4, 3), "b": torch.tensor(7.0)}
    files: dict[str, dict[str, list[int]]] = {}
    for number, (rows, columns) in enumerate([(r, c) for r in (slice(0, 2), slice(2, 5)) for c in (0, 2)]):
        name = f"model-{number:05d}.safetensors"
        tensors = {"a": whole["a"][rows, columns : columns + 2].contiguous()} | ({} if number else {"b": whole["b"]})
        save_file(tensors, tmp_path / name)
        files[name] = {"a": [rows.start, columns, 0]} | ({} if number else {"b": []})
    pieces = Pieces(tmp_path, files)
    assert pieces.shapes == {"a": (5, 4, 3), "b": ()}
    for name in pieces.shapes:
        tensor = pieces.read(name, Part.of(whole[name]))
        assert torch.equal(tensor, whole[name])
    assert torch.equal(pieces.read("a", Part((1, 1, 2), (3, 3, 1))), whole["a"][1:4, 1:4, 2:])
    assert pieces.read("a", Part((5, 0, 0), (0, 4, 3))).shape == (0, 4, 3)
    del files["model-00003.safetensors"]
    with pytest.raises(ValueError, match="do not fill"):
        Pieces(tmp_path, files)
    with pytest.raises(ValueError, match="not the name"):
        Pieces(tmp_path, {"../model.safetensors": None})


@pytest.mark.parametrize(
    ("world", "over", "says"),
    [
        (4, 3, "divisor of the number of ranks"),
        (6, 3, "divisor of the number of experts"),
        (24, 4, "larger expert_par"),
    ],
)
def test_experts_that_cannot_be_dealt_out(world: int, over: int, says: str) -> None:
    shape = config_of("sparse").shape
    with pytest.raises(RunError, match=says):
        check_dealing(world, over, shape)


def test_one_process_refuses_experts_over_many(tmp_path: Path) -> None:
    config: RunConfig = config_of("sparse@2")
    with pytest.raises(RunError, match="torchrun"):
        train(config, tmp_path)
    assert config.fingerprint == config_of("sparse").fingerprint


@pytest.mark.slow
def test_leaving_keeps_the_status_the_last_words_and_what_is_due_at_exit() -> None:
    """Alone and as a rank: two forks of one process, since what costs is the import."""
    code = """
import atexit, os, sys
from complete_mue.lab.train.parallel import leave
for rank in ({}, {"RANK": "0"}):
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    else:
        os.environ.update(rank)
        atexit.register(print, "due")
        print("said")
        leave(3)
"""
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["said", "due", "3"] * 2, done.stderr


@pytest.mark.slow
def test_ranks_that_hang_start_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_LONGEST", 20.0)
    ranks.connected(hang_once, 2, str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}
