"""A dense model and an MoE over the learning rate, and whether one value is right for both; `mue sweep` in small."""

import dataclasses
import tempfile
from pathlib import Path

from complete_mue.lab.report import Summary, summarize
from complete_mue.lab.sweep.executor import Here
from complete_mue.lab.sweep.figures import octaves
from complete_mue.lab.sweep.grid import Scan, Sweep, Target
from complete_mue.lab.sweep.quickstart import base
from complete_mue.lab.sweep.run import run
from complete_mue.lab.train.config import override
from complete_mue.layout import FeedForward


def main() -> Summary:
    """Six runs of 20 steps: three learning rates fused in one program per shape. Too short to conclude anything."""
    config = override(base(), "budget.steps=20", "budget.batch_tokens=256")
    reference = dataclasses.replace(config.reference, budget=config.budget)
    dense = dataclasses.replace(config, reference=reference)
    shape = dataclasses.replace(dense.shape, feed_forward=FeedForward.parse("16e4a", expert_width=8))
    sweep = Sweep(
        name="tiny",
        title="A dense model and an MoE",
        axis="layout",
        scale="example",
        targets=(Target("dense", None, dense), Target("16e4a", None, dataclasses.replace(dense, shape=shape))),
        scans=(Scan("lr", octaves(reference.hyper.lr, span=1)),),
    )
    with tempfile.TemporaryDirectory() as folder:
        status = run(sweep, Path(folder), Here(), replicas=lambda point: 3)
        summary = summarize(folder)
    print(f"{status.done} of {status.total} runs done")
    for curve in summary.scans[0].curves:
        losses = ", ".join(f"{point.value:.4g}: {point.loss:.3f}" for point in curve.points)
        print(f"{curve.target:6} loss by lr  {losses}")
    for line in summary.verdict:
        print(line.text)
    return summary


if __name__ == "__main__":
    main()
