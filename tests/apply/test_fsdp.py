"""Two processes with FSDP2 start from the same bits as one process, and train alike, clipping included."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="the model is a stock one")

from fsdp_rank import MAX_NORM, train  # noqa: E402
from ranks import connected  # noqa: E402

pytestmark = pytest.mark.numeric


@pytest.mark.slow
def test_two_processes_are_one_run(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    train(1, str(tmp_path))
    torch.set_num_threads(threads)
    connected(train, 2, 2, str(tmp_path))
    one, two = (torch.load(tmp_path / f"{world}.pt") for world in (1, 2))
    for name, weight in one[0].items():
        assert torch.equal(weight, two[0][name]), name
    # Half a batch on each rank sums in another order. In float64 that tips no choice of experts; the model's norms and
    # router, which round to float32 within, can turn it into a rounding of 6e-8 here and there.
    assert two[2] == pytest.approx(one[2], rel=1e-5)
    assert min(one[3]) > MAX_NORM, "clipping was not active"
    assert two[3] == pytest.approx(one[3], rel=1e-5)
    for name, weight in one[1].items():
        torch.testing.assert_close(two[1][name], weight, rtol=1e-3, atol=1e-5, msg=name)
    assert one[2][-1] < one[2][0]
