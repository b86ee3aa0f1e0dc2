"""Convergence speedup of two trained runs: the paper's dense steps over MoE steps to the same loss."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from complete_mue.chart import Dot, Drawn, Panel, Picture, linear_axis
from complete_mue.chart_svg import write_svg
from complete_mue.errors import RunError
from complete_mue.lab.report.speedup import Speedup, speedup_curves
from complete_mue.lab.train.config import RunConfig, read_config
from complete_mue.lab.train.run_folder import read_metrics, with_loss

_ROWS = 9


@dataclass(frozen=True)
class Comparison:
    """Two runs and the curve between them."""

    reference: str
    target: str
    curve: Speedup
    median: float  # the middle ratio of steps over the loss levels
    batch_ratio: float  # tokens per step of the target over those of the reference

    @property
    def final(self) -> float:
        """The ratio at the least loss that both reach."""
        return self.curve.ratio[-1]


def compare(reference: Path, target: Path) -> Comparison:
    """Steps of ``reference`` over steps of ``target``, at losses both reach at full learning rate."""
    configs = [read_config(run / "config.json") for run in (reference, target)]
    _comparable(*configs)
    curves = [_losses(run) for run in (reference, target)]
    stable = [config.schedule.stable for config in configs]
    phases = tuple((phase.start, phase.stop) for phase in stable)
    found = speedup_curves(*curves[0], *curves[1], phases)  # type: ignore[arg-type]
    if found.median is None:
        raise RunError(
            f"{reference} and {target}: no loss that both reach in their stable phases "
            f"({', '.join(f'steps {a} to {b}' for a, b in phases)}); train longer, or compare runs of like quality"
        )
    names = [config.name for config in configs]
    if names[0] == names[1]:
        names = [str(reference), str(target)]
    ratio = configs[1].budget.batch_tokens / configs[0].budget.batch_tokens
    return Comparison(names[0], names[1], found, found.median, ratio)


def _comparable(reference: RunConfig, target: RunConfig) -> None:
    known = bool(reference.task.data and target.task.data)  # older runs name their data by path alone
    one, two = (
        dataclasses.replace(task, source=task.data if known else task.source, data="")
        for task in (reference.task, target.task)
    )
    if one != two:
        kinds, fields = {type(one), type(two)}, [field.name for field in dataclasses.fields(one)]
        differ = [name for name in fields if getattr(one, name) != getattr(two, name, None)]
        what = "one writes text, one draws" if len(kinds) > 1 else f"task.{', task.'.join(differ)}"
        raise RunError(
            f"the runs have different tasks ({what}): their losses cannot be compared; "
            "give two runs on the same data with the same sequence"
        )


def _losses(run: Path) -> tuple[tuple[float, ...], list[float]]:
    """Every loss, in the middle of its step, as the reports of sweeps put the mean over a bin in the middle of it."""
    lines = with_loss(read_metrics(run))
    if not lines:
        raise RunError(f"{run}: has no losses in metrics.jsonl; give the directory of a trained run")
    return tuple(line["step"] + 0.5 for line in lines), [float(line["loss"]) for line in lines]


def to_dict(found: Comparison) -> dict[str, Any]:
    """Plain data."""
    about = {"reference": found.reference, "target": found.target, "batch_ratio": found.batch_ratio}
    return {**about, "median": found.median, "final": found.final, **asdict(found.curve)}


def to_text(found: Comparison) -> str:
    """The median, and the ratio at a few losses."""
    curve = found.curve
    lines = [
        f"{found.target} (B) over {found.reference} (A): takes {_takes(found.median, 'steps')} to the same loss "
        f"(median), {_takes(found.final, 'steps')} at the end"
    ]
    if found.batch_ratio != 1:
        lines.append(
            f"a step of {found.target} has {found.batch_ratio:g}x the tokens: it takes "
            f"{_takes(found.median / found.batch_ratio, 'tokens')}"
        )
    lines.append(f"{'loss':>8}  {'steps of A':>10}  {'steps of B':>10}  {'A / B':>6}")
    last = len(curve.loss) - 1
    for number in sorted({round(i * last / (_ROWS - 1)) for i in range(_ROWS)}):
        loss, ratio = curve.loss[number], curve.ratio[number]
        lines.append(
            f"{loss:8.4f}  {curve.reference_steps[number]:10.0f}  {curve.target_steps[number]:10.0f}  {ratio:6.2f}"
        )
    return "\n".join(lines)


def _takes(speedup: float, what: str) -> str:
    if f"{speedup:.2f}" == "1.00":
        return f"as many {what}"
    return f"{speedup:.2f}x fewer {what}" if speedup > 1 else f"{1 / speedup:.2f}x the {what}"


def draw(found: Comparison, path: Path) -> tuple[Path, Path]:
    """The ratio along the reference's steps as SVG, and beside it loss against steps."""
    curve = found.curve
    runs = ((found.reference, curve.reference_steps), (found.target, curve.target_steps))
    losses = tuple(
        Drawn(name, place, tuple(Dot(step, loss, f"{loss:.3f}") for step, loss in zip(taken, curve.loss, strict=True)))
        for place, (name, taken) in enumerate(runs)
    )
    panel = Panel("", linear_axis("steps", [*curve.reference_steps, *curve.target_steps]), losses)
    title, axis = "Loss, stable phase", linear_axis("smoothed loss", curve.loss)
    loss = write_svg(Picture("loss", title, "", axis, (panel,)), path.with_stem(f"{path.stem}-loss"))
    taken = zip(curve.reference_steps, curve.ratio, strict=True)
    line = Drawn(found.target, 1, tuple(Dot(step, ratio, f"{ratio:.2f}x") for step, ratio in taken), markers=False)
    panel = Panel("", linear_axis(f"steps of {found.reference}", curve.reference_steps), (line,))
    title, axis = "Speedup to the same loss, stable phase", linear_axis("speedup", [1.0, *curve.ratio])
    return write_svg(Picture("speedup", title, "", axis, (panel,), level=1.0), path), loss
