"""What ten steps of each role change in its own output, through training: is alignment what sparse experts share?

    python scripts/update_effect.py DATA --reference docs/results/pair/reference.toml --out runs/effect
    python scripts/update_effect.py stdlib --scale tiny --target 8e2a --steps 20 --at 10 --over 5    # a look, on a CPU

Every target trains by the paper's rules from the dense reference's values. At the steps ``--at``, the change that the
next ``--over`` steps make to each role's output is measured on tokens that were not trained on, routed as they are
(`update_effect`). The rule that a step should change an output by as much as in the dense model asks for the lr to be
divided by the ratio to the dense one's. Writes OUT/TARGET-seed.json, which a second start reads instead of training
again, and prints the ratios in octaves. The page's numbers and picture, from the records kept:

    python scripts/update_effect.py runs/data/bytes --reference docs/results/pair/reference.toml \\
        --out docs/results/update-effect --optima docs/results/roles/lm-roles.jsonl
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from complete_mue.apply.effect import update_effect
from complete_mue.chart import Dot, Drawn, Panel, Picture, linear_axis
from complete_mue.chart_svg import write_svg
from complete_mue.lab.report.summary import summarize
from complete_mue.lab.sweep.figures import SCALES, base_config
from complete_mue.lab.sweep.roles import target_of
from complete_mue.lab.train.config import RunConfig, override
from complete_mue.lab.train.task import build
from complete_mue.lab.train.trainer import Trainer, pick_device
from complete_mue.layout.toml_files import read_reference
from complete_mue.storage import write_json

FITTED = ("8e8a", "64e8a", "256e8a", "64e2a", "16e2a", "256e2a", "64e8a@16,router.score=shuffled")
# Their alignment was predicted from the power fitted to those, and from their optima, before it was measured.
PREDICTED = ("32e8a", "128e8a", "32e4a", "128e4a", "512e4a", "4e4a", "2e2a")
TARGETS = (*FITTED, *PREDICTED)
# A dense model's counterpart of each expert role.
COUNTERPARTS = {"expert_up": "dense_up", "expert_down": "dense_down"}


def measured(config: RunConfig, marks: list[int], over: int) -> list[dict[str, Any]]:
    """Train, and measure every role's effect at the marks."""
    device = pick_device(config.device)
    trainer = Trainer(config, device)
    trainer.start()
    probe = build(dataclasses.replace(config, compile=False, precision="float32"), device=device).model
    for module in probe.modules():
        if hasattr(module, "kernel"):
            module.kernel = "reference"
    fresh = trainer.task.batch(config.budget.steps)[0].to(device)
    found: list[dict[str, Any]] = []
    before: dict[str, Tensor] = {}
    for number in range(marks[-1] + over + 1):
        if number in marks:
            before = weights(trainer.model)
            for name, buffer in probe.named_buffers():  # routing as it was: biases that balance the load
                buffer.copy_(trainer.model.get_buffer(name))
        if number - over in marks:
            effects = update_effect(probe, before, weights(trainer.model), lambda model: model(fresh[..., :-1]))
            found += [
                {"step": number - over, "role": role.value, "change": effect.change, "alignment": effect.alignment}
                for role, effect in effects.items()
            ]
        trainer.step(number)
    return found


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy, by name."""
    return {name: weight.detach().float().clone() for name, weight in model.named_parameters()}


Records = dict[str, list[list[dict[str, Any]]]]  # by target, then seed


def table(records: Records) -> str:
    """Octaves of each target's change and alignment over the dense one's, role by role, over seeds and steps."""
    lines = [f"{'target':31} {'role':14} {'change':>7} {'alignment':>10}   change/dense   alignment/dense"]
    for target, seeds in records.items():
        for role in dict.fromkeys(line["role"] for line in seeds[0]):
            own = [line for lines_of in seeds for line in lines_of if line["role"] == role]
            means = [statistics.fmean(line[what] for line in own) for what in ("change", "alignment")]
            ratios = [octaves(records, target, role, what) for what in ("change", "alignment")]
            words = [f"{ratio[0]:+.2f} ± {ratio[1]:.2f}" if ratio else "" for ratio in ratios]
            lines.append(
                f"{target:31} {role:14} {means[0]:7.4f} {means[1]:10.2f}   {words[0]:>12}   {words[1]:>15}".rstrip()
            )
    return "\n".join(lines)


def octaves(records: Records, target: str, role: str, what: str) -> tuple[float, float] | None:
    """Over the dense model's: the mean over seeds and steps, its standard error. None where it has no such role."""
    ratios = []
    for ours, theirs in zip(records[target], records["dense"], strict=True):
        known = {line["step"]: line[what] for line in theirs if line["role"] == COUNTERPARTS.get(role, role)}
        ratios += [math.log2(line[what] / known[line["step"]]) for line in ours if line["role"] == role and known]
    if not ratios:
        return None
    return statistics.fmean(ratios), statistics.stdev(ratios) / math.sqrt(len(ratios)) if ratios[1:] else math.nan


def against_optima(records: Records, pack: Path, out: Path) -> str:
    """Where the loss wants expert_up's lr, against how much its updates agree with its inputs; drawn if possible."""
    found = {
        curve.target: (*align, curve.drift, curve.drift_error)
        for scan in summarize(pack).scans
        for curve in scan.curves
        if curve.hyper == "expert_up.lr" and curve.target in records and curve.drift is not None and curve.drift_error
        if (align := octaves(records, curve.target, "expert_up", "alignment"))
    }
    rows = [(name, x, y, e) for name, (x, _, y, e) in sorted(found.items(), key=lambda row: [*records].index(row[0]))]
    fitted = [row for row in rows if row[0] not in PREDICTED]
    weight = sum(x * x / e**2 for _, x, _, e in fitted)
    power = sum(x * y / e**2 for _, x, y, e in fitted) / weight
    misfit = _squares(fitted, power) / (len(fitted) - 1)
    error = math.sqrt(max(1.0, misfit) / weight)
    lines = [f"{'target':31} {'alignment/dense':>15} {'optimum':>14} {'power law':>10}"]
    lines += [f"{name:31} {x:+15.2f} {f'{y:+.2f} ± {e:.2f}':>14} {power * x:+10.2f}" for name, x, y, e in rows]
    lines.append(
        f"the first {len(fitted)}: optimum = alignment^({power:.2f} ± {error:.2f}), "
        f"chi squared per degree of freedom {misfit:.1f}"
    )
    if others := [row for row in rows if row[0] in PREDICTED]:
        lines.append(f"the others, by the same power: chi squared {_squares(others, power) / len(others):.1f} each")
    ends = tuple(Dot(x, power * x, "fit") for x in (0.0, max(x for _, x, _, _ in rows)))
    kinds: dict[str, list[Dot]] = {"fitted": [], "fitted, routing shuffled": [], "predicted before": []}
    for name, x, y, e in rows:
        kind = "predicted before" if name in PREDICTED else "fitted" + ", routing shuffled" * ("shuffled" in name)
        kinds[kind].append(Dot(x, y, name, e))
    drawn = (
        Drawn(f"alignment^{power:.1f}", 0, ends, markers=False),
        *(Drawn(kind, 1 + k, tuple(dots), joined=False) for k, (kind, dots) in enumerate(kinds.items())),
    )
    panel = Panel("", linear_axis("alignment of expert_up's updates, octaves over dense", [0, 1.2]), drawn)
    optima = linear_axis("optimum of expert_up's lr, octaves", [0.5, *(y - e for _, _, y, e in rows)])
    title = "The more an expert's updates agree with its tokens, the smaller its learning rate"
    write_svg(Picture("alignment", title, "", optima, (panel,), level=0.0), out / "alignment.svg")
    return "\n".join(lines)


def _squares(rows: list[tuple[str, float, float, float]], power: float) -> float:
    return sum(((y - power * x) / error) ** 2 for _, x, y, error in rows)


def main() -> int:
    """Train what is not there yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a folder that `mue data prepare` made, or a built-in source")
    parser.add_argument("--reference", type=Path, help="a tuned reference.toml")
    parser.add_argument("--scale", default="small", choices=SCALES)
    parser.add_argument("--target", action="append", help=f"as of `mue sweep roles`; default: {', '.join(TARGETS)}")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, help="of the schedule; default: the reference's")
    parser.add_argument("--at", type=int, nargs="+", default=[100, 200, 500, 1000, 1500])
    parser.add_argument("--over", type=int, default=10)
    parser.add_argument("--optima", type=Path, help="records of `mue sweep roles`, to compare and draw")
    parser.add_argument("--out", type=Path, default=Path("runs/effect"))
    given = parser.parse_args()
    changes = [f"task.source={given.source}", *([f"budget.steps={given.steps}"] if given.steps else [])]
    reference = read_reference(given.reference) if given.reference else None
    base = dataclasses.replace(base_config("lm", given.scale, reference, changes), rules="complete_mue")
    records: Records = {}
    for text in ("dense", *(given.target or TARGETS)):
        for seed in range(given.seeds):
            place = given.out / f"{text.replace(',', '-')}-{seed}.json"
            if not place.is_file():
                place.parent.mkdir(parents=True, exist_ok=True)
                config = override(target_of(base, text).config, f"seed={seed}")
                write_json(place, measured(config, sorted(given.at), given.over))
            records.setdefault(text, []).append(json.loads(place.read_text(encoding="utf-8")))
            print(f"{text}, seed {seed}", flush=True)
    print(table(records))
    if given.optima:
        print(against_optima(records, given.optima, given.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
