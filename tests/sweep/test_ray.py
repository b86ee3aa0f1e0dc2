"""A sweep on Ray: workers and a node are lost in the middle; every point is finished, each once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import complete_mue as mue

pytest.importorskip("torch")
ray = pytest.importorskip("ray")

from complete_mue.lab.records import Ledger  # noqa: E402
from complete_mue.lab.sweep.executor import Here  # noqa: E402
from complete_mue.lab.sweep.ray_cluster import RayCluster  # noqa: E402
from complete_mue.lab.sweep.run import Status, run  # noqa: E402
from small_sweeps import losses, sweep_of  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    from ray.cluster_utils import Cluster

    # Workers find this package and the tests as this process does.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(mue.__file__).parents[1]), str(Path(__file__).parent)]))
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "0")
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100 * 2**20})
    extra = [nodes.add_node(num_cpus=1, object_store_memory=100 * 2**20) for _ in range(2)]
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield nodes, extra
    finally:
        ray.shutdown()
        nodes.shutdown()


def _task_pids() -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "cmdline").read_bytes().startswith(b"ray::_perform"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def test_a_worker_and_a_node_are_lost_and_every_point_is_finished_once(tmp_path: Path, cluster: tuple) -> None:
    nodes, extra = cluster
    sweep = sweep_of(*(1e-3 * 1.1**k for k in range(10)), seeds=(0, 1, 2))
    seen: dict[str, int] = {}
    lost: list[str] = []

    def disturb(status: Status) -> None:
        for path in (tmp_path / "ledger").glob("[!.]*.json"):
            assert seen.setdefault(path.name, path.stat().st_ino) == path.stat().st_ino, "a point was written twice"
        if not lost and status.done >= 10 and (pids := _task_pids()):
            lost.append("worker")
            os.kill(pids[0], signal.SIGKILL)
        elif len(lost) == 1 and status.done >= 25:
            lost.append("node")
            nodes.remove_node(extra[0], allow_graceful=False)

    status = run(sweep, tmp_path, RayCluster(), replicas=lambda point: 2, show=disturb)
    assert lost == ["worker", "node"]
    assert (status.done, status.failed) == (60, 0)
    assert len(Ledger(tmp_path).done()) == 60
    run(sweep_of(1e-3, seeds=(0,)), tmp_path / "here", Here(), replicas=lambda point: 2)
    for point, loss in losses(tmp_path / "here").items():
        assert losses(tmp_path)[point] == pytest.approx(loss, rel=1e-5)
