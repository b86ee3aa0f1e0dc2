"""What ten steps of each role change in its own output, through training: is alignment what sparse experts share?

    python scripts/update_effect.py DATA --reference docs/results/pair/reference.toml --out runs/effect
    python scripts/update_effect.py stdlib --scale tiny --target 8e2a --steps 20 --at 10 --over 5    # a look, on a CPU

Every target trains by the paper's rules from the dense reference's values. At the steps ``--at``, the change that the
next ``--over`` steps make to each role's output is measured on tokens that were not trained on, routed as they are
(`update_effect`). The rule that a step should change an output by as much as in the dense model asks for the lr to be
divided by the ratio to the dense one's. Writes OUT/TARGET-seed.json, which a second start reads instead of training
again, and prints the ratios in octaves.
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
from complete_mue.lab.sweep.figures import SCALES, base_config
from complete_mue.lab.sweep.roles import target_of
from complete_mue.lab.train.config import RunConfig, override
from complete_mue.lab.train.task import build
from complete_mue.lab.train.trainer import Trainer, pick_device
from complete_mue.layout.toml_files import read_reference
from complete_mue.storage import write_json

TARGETS = ("8e8a", "64e8a", "256e8a", "64e2a", "16e2a", "256e2a", "64e8a@16,router.score=shuffled")
# A dense model's counterpart of each expert role.
COUNTERPARTS = {"expert_up": "dense_up", "expert_down": "dense_down"}


def measured(config: RunConfig, marks: list[int], over: int) -> list[dict[str, Any]]:
    """Train, and measure every role's effect at the marks."""
    device = pick_device(config.device)
    trainer = Trainer(config, device)
    trainer.start()
    probe = build(dataclasses.replace(config, compile=False, precision="float32"), trainer.plan, device=device).model
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


def table(records: dict[str, list[list[dict[str, Any]]]]) -> str:
    """Octaves of each target's change over the dense one's, role by role; the error is over seeds and steps."""
    dense = records["dense"]
    lines = [f"{'target':36} {'role':16} {'change':>8} {'alignment':>10}   octaves over dense"]
    for target, seeds in records.items():
        for role in dict.fromkeys(line["role"] for line in seeds[0]):
            ratios, changes, alignments = [], [], []
            for seed, lines_of in enumerate(seeds):
                own = {line["step"]: line for line in lines_of if line["role"] == role}
                theirs = {line["step"]: line for line in dense[seed] if line["role"] == COUNTERPARTS.get(role, role)}
                ratios += [math.log2(own[step]["change"] / theirs[step]["change"]) for step in own if step in theirs]
                changes += [line["change"] for line in own.values()]
                alignments += [line["alignment"] for line in own.values()]
            error = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.nan
            octaves = f"{statistics.fmean(ratios):+.2f} ± {error:.2f}" if ratios else "–"
            mean, aligned = statistics.fmean(changes), statistics.fmean(alignments)
            lines.append(f"{target:36} {role:16} {mean:8.4f} {aligned:10.2f}   {octaves}")
    return "\n".join(lines)


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
    parser.add_argument("--out", type=Path, default=Path("runs/effect"))
    given = parser.parse_args()
    changes = [f"task.source={given.source}", *([f"budget.steps={given.steps}"] if given.steps else [])]
    reference = read_reference(given.reference) if given.reference else None
    base = dataclasses.replace(base_config("lm", given.scale, reference, changes), rules="complete_mue")
    records: dict[str, list[list[dict[str, Any]]]] = {}
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
