"""The flow loss on pictures that a run has not trained on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from complete_mue.lab.data import Shapes  # noqa: E402
from complete_mue.lab.evals import held_out  # noqa: E402
from complete_mue.lab.models.dit import DiffusionTransformer  # noqa: E402
from in_process import mue  # noqa: E402

SIZE, COUNT = 8, 70
SMALL = (
    "shape.width=16", "shape.depth=1", "shape.head_dim=8", "betas=hold", "budget.batch_tokens=64", f"task.size={SIZE}",
)  # fmt: skip


def pictures(path: Path, seed: int) -> str:
    """A collection of drawings, all different from those of another seed."""
    drawn = Shapes(size=SIZE, rows=COUNT, seed=seed)
    images = ((drawn.batch(0).images + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()
    np.savez(path, images=images)
    path.with_suffix(".json").write_text(json.dumps(drawn.captions(drawn.indices(0))))
    return str(path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    source = pictures(tmp_path / "seen.npz", 0)
    done = mue("train", "dit_tiny", *SMALL, f"task.source={source}", "budget.steps=2", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path / "run"


def test_of_a_model_that_says_nothing_it_is_what_pictures_and_noise_hold(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E (data - noise)^2 = E data^2 + 1, to which 70 x 8 x 192 normal numbers come within 0.03 (four errors)."""
    monkeypatch.setattr(DiffusionTransformer, "forward", lambda self, x, t, text: torch.zeros_like(x))
    unseen = pictures(tmp_path / "unseen.npz", 1)
    done = mue("eval", run, "--held-out", "--source", unseen, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    square = float(Shapes(size=SIZE, rows=COUNT, seed=1).batch(0).images.double().square().mean())
    assert found["loss"] == pytest.approx(square + 1, abs=0.03)
    assert (found["pictures"], found["step"], found["source"]) == (COUNT, 2, unseen)
    assert json.loads((run / "eval" / "held_out.json").read_text())["loss"] == found["loss"]


def test_two_runs_alike_get_the_same_loss_on_new_drawings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "PICTURES", 80)  # two batches
    said = []
    for name in ("one", "other"):
        mue("train", "dit_tiny", *SMALL, "budget.steps=2", "--out", name, cwd=tmp_path)
        said.append(mue("eval", name, "--held-out", cwd=tmp_path).stdout)
    assert said[0] == said[1]
    assert "(80 pictures of shapes, 8 times each) at step 2" in said[0]


def test_what_was_seen_or_would_be_ignored_is_refused(run: Path, tmp_path: Path) -> None:
    for words, message in (
        ((), "seen.npz: the run trained on it; give --source with pictures that it has not seen"),
        (("--source", str(tmp_path / "seen.npz")), "the run trained on it"),
        (("--precision", "float32"), "leave out --precision, --batch-tokens"),
        (("--source", "nothing"), "nothing"),
    ):
        done = mue("eval", run, "--held-out", *words, cwd=tmp_path)
        assert done.returncode == 2
        assert message in done.stderr
    assert "--source is for --held-out" in mue("eval", run, "--source", "shapes", cwd=tmp_path).stderr
