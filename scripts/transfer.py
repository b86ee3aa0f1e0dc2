"""Does the transfer hold? The runs behind docs/results/transfer.md, in order of importance, on one GPU.

    python scripts/transfer.py DATA                          # language, on text that `mue data prepare` made
    python scripts/transfer.py scenes --task dit             # diffusion, on procedural scenes
    python scripts/transfer.py DATA --only activated,width   # some figures
    python scripts/transfer.py DATA --seconds 540            # start nothing new after nine minutes
    python scripts/transfer.py stdlib --scale tiny           # a look at it all on a CPU, in hours
    python scripts/transfer.py DATA --list                   # the commands alone, with what each costs
    python scripts/transfer.py DATA --known docs/results/transfer --reference docs/results/pair/reference.toml
                                                             # go on from packed records, of the same data

First the dense reference is tuned (RUNS/TASK-tune/reference.toml), unless one is given. Then every figure is swept over
the learning rate by the paper's rules; then, into the same folders, by the other rule sets and over weight decay and
init std. What a figure has finished, such as the dense reference's runs, the next ones take over. Everything resumes: a
second start goes on where this one was stopped. ``--jobs 2`` keeps two sweeps going, so that one trains while the other
compiles.

Beside figures, ``--only`` takes rows that scan something else: `weight_decay` and `init_std` of diffusion's activated
experts; `betas_held`, a quarter and a half of the steps with the reference's betas; `softmax`, activated experts by the
other router; `logit_bias`, by a router with a bias on its logits; `decay_long`, the weight decay of language at four
times the steps. At the tuned values lr x weight decay x steps is 0.5: weights forget less than half of their past, so
that a smaller weight decay changes nothing, and the loss has a flank on one side alone. The rules for duration keep
that product. So `decay_long` scans it from 0.12 to 8, at four times the tokens per weight; two smaller models that
trained long ended lowest with hardly any (docs/results/small_batch.md). The last four are no figures of the page:
their folders are in RUNS/apart.

At the end:

    mue report RUNS/TASK-* --pack docs/results/transfer
    mue report docs/results/transfer --page docs/results/transfer.md
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from turns import mue, take_turns, taken

from complete_mue.lab.paper_figures import FIGURES
from complete_mue.lab.sweep.cost import sweep_seconds
from complete_mue.lab.sweep.request import SweepRequest
from complete_mue.layout.toml_files import read_reference, reference_toml
from complete_mue.rules.batch_duration import schedule_factor, transfer_beta
from complete_mue.storage import write_text

FIRST, LAST = ("activated", "ffn_width"), ("depth", "depth_dense", "width", "scaling", "selected", "large_batch")
APART = {
    "betas_held": "shorter",
    "softmax": "activated",
    "logit_bias": "activated",
    "decay_long": "activated",
}  # rows with other settings than the page's, and their figure
AXES = {
    "lm": (*FIRST, *(name for name in FIGURES if name not in (*FIRST, *LAST, *APART.values())), *LAST, *APART),
    "dit": (
        "activated", "capacity", "width", "granularity", "shared", "grouped", "weight_decay", "init_std",
        "ffn_width_moe", "batch_steps", "batch_tokens", "batch_and_steps", "depth",
        "depth_dense", "more_steps",
    ),
}  # fmt: skip
COMPARED = ("activated", "ffn_width", "width")  # also by the other rule sets
LR = ("--hyper", "lr")
PAPER = "complete_mue"  # the paper's rules; ours beyond it are on the page of roles
TWO = ("--seeds", "2")  # where runs are dear or many; else the scale's three
DEAR = {"lm": ("width", "large_batch"), "dit": ("activated", "capacity", "width")}
COARSE = ("--per-octave", "1")  # recorded in whole octaves
HALF = ("--octaves=-1.5:1", "--per-octave", "2")  # where the optimum is sought, and not only that it is near
HIGHER = ("--octaves=-1.5:2", "--per-octave", "2")  # at four times the steps it lay at the edge of the others
HALVES = {
    "lm": ("shared_instead", "ffn_width_moe", "depth", "depth_dense", "softmax", "logit_bias"),
    "dit": (
        "granularity", "shared", "grouped", "init_std", "ffn_width_moe", "batch_steps", "batch_tokens", "depth",
        "depth_dense",
    ),
}  # fmt: skip
LOWER = ("--octaves=-2:1", "--per-octave", "2")  # an MoE's are predicted at -1.3, too near the edge
GRIDS = {
    "duration": HIGHER,
    "duration_moe": ("--octaves=-2:1.5", "--per-octave", "2"),
    "batch_steps_moe": LOWER,
    "batch_tokens_moe": LOWER,
    "betas_held": LOWER,
    "batch_and_steps": ("--octaves=-2.5:1", "--per-octave", "2"),  # the paper's value and the batch's, and beyond
    "more_steps": ("--octaves=-0.5:2", "--per-octave", "2"),  # likewise
}
OWN = {
    # Scores of 64 experts that add up to one are small, and so must be the steps of the bias that balances them.
    "betas_held": (*LR, "--set", "betas=hold"),
    "softmax": (*LR, "--set", "router.score=softmax", "--set", "bias_rate=0.001"),
    "logit_bias": (*LR, "--set", "router.logit_bias=true"),
    "decay_long": ("--hyper", "weight_decay", "--octaves=-2:4", *TWO),
    # Diffusion's is flat from 0.0006 to 0.16, where lr x weight decay x steps is 1.5.
    "weight_decay": ("--hyper", "weight_decay", "--octaves=0:9"),
    "init_std": ("--hyper", "init_std"),
    "activated": LR,
}
# Their optima may lie far from the transferred value: a wider scan.
OTHERS = ("--rules", "sp", "--rules", "mup", "--rules", "mup_moe", "--span", "3", *COARSE, *TWO)
LONGER = 4  # times the steps of `decay_long`


@dataclass(frozen=True)
class Evidence:
    """Which runs, of what, and where they go."""

    task: str
    source: str
    runs: Path
    scale: str
    changes: tuple[str, ...]
    only: tuple[str, ...]
    known: tuple[Path, ...] = ()
    trusted: bool = False
    tuned: Path | None = None

    @property
    def reference(self) -> Path:
        """What tuning writes, or what was tuned before."""
        return self.tuned or self.runs / f"{self.task}-tune" / "reference.toml"

    @property
    def longer(self) -> Path:
        """The same at more steps."""
        return self.runs / f"{self.task}-tune" / "longer.toml"

    @property
    def figures(self) -> tuple[str, ...]:
        """Most important first."""
        return tuple(axis for axis in AXES[self.task] if not self.only or axis in self.only)

    def tuning(self) -> list[str]:
        """The command that tunes the dense reference."""
        options = (*self._settings(*self.changes), *(TWO if self.task == "dit" else ()))
        return [
            "tune", self.task, "--scale", self.scale, *options, *taken(self.known, self.trusted), "--out",
            str(self.reference.parent),
        ]  # fmt: skip

    def sweeps(self) -> list[tuple[str, tuple[str, ...]]]:
        """Every sweep's folder and its own options, most important first."""
        found: list[tuple[str, tuple[str, ...]]] = []
        for axis in self.figures:
            grid: tuple[str, ...] = GRIDS.get(axis, HALF if axis in HALVES[self.task] else COARSE)
            grid = () if axis in FIGURES and FIGURES[axis].fixed else grid  # it scans nothing
            options = (*OWN.get(axis, ()), *grid)
            options += TWO if axis in DEAR[self.task] else ()
            found.append((axis if axis in (*FIGURES, *APART) else "activated", options))
        if self.task == "lm":
            found += [(axis, (*LR, *OTHERS)) for axis in COMPARED if axis in self.figures]
            if "activated" in self.figures:
                found.append(("activated", ("--hyper", "weight_decay", "--hyper", "init_std", *TWO)))
        return found

    def command(self, axis: str, options: tuple[str, ...]) -> list[str]:
        """A sweep's command; points that other figures have finished by now are taken from there."""
        own = self.runs / ("apart" if axis in APART else "") / f"{self.task}-{axis}"
        folders = [self.runs / f"{self.task}-{each}" for each in AXES[self.task] if each in FIGURES]
        others = [folder for folder in folders if folder != own and (folder / "sweep.json").is_file()]
        options = options if "--rules" in options else ("--rules", PAPER, *options)
        tuned, changes = self.reference, self.changes
        if axis == "decay_long":
            tuned, changes = self.longer, tuple(each for each in changes if not each.startswith("budget.steps="))
        return [
            "sweep", APART.get(axis, axis), "--task", self.task, "--scale", self.scale, "--reference", str(tuned),
            *self._settings(*changes), *options, *taken((*self.known, *others), self.trusted), "--out", str(own),
        ]  # fmt: skip

    def write_longer(self) -> None:
        """The tuned dense model at more steps, by the rule for duration, as a reference of its own."""
        tuned = read_reference(self.reference)
        factor, hyper = schedule_factor(LONGER), tuned.hyper
        first, second = (transfer_beta("beta", beta, LONGER) for beta in hyper.betas)
        values = {"lr": hyper.lr * factor, "weight_decay": hyper.weight_decay * factor, "eps": hyper.eps / factor}
        budget = replace(tuned.budget, steps=tuned.budget.steps * LONGER)
        longer = replace(tuned, budget=budget, hyper=replace(hyper, **values, betas=(first, second)))
        self.longer.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.longer, reference_toml(longer, [f"{self.reference}, at {LONGER} times the steps"]))

    def _settings(self, *changes: str) -> list[str]:
        return [part for change in (f"task.source={self.source}", *changes) for part in ("--set", change)]


def cost(command: list[str], seen: set[str]) -> tuple[int, float]:
    """Runs that no sweep before it has, and their minutes on an H200; untuned, at the scale's values."""
    parser = argparse.ArgumentParser()
    parser.add_argument("figure")
    parser.add_argument("--reference", type=Path)
    for name, kind in {
        "--task": str,
        "--scale": str,
        "--seeds": int,
        "--span": int,
        "--per-octave": int,
        "--octaves": str,
        "--out": Path,
    }.items():
        parser.add_argument(name, type=kind)
    for name in ("--rules", "--hyper", "--set", "--known"):
        parser.add_argument(name, action="append")
    parser.add_argument("--trust-known", action="store_true")
    asked = parser.parse_args(command[1:])
    low, _, high = (asked.octaves or "").partition(":")
    is_tuned, is_longer = asked.reference.exists(), asked.reference.name == "longer.toml"
    request = SweepRequest(
        asked.figure, asked.task, asked.scale, asked.reference if is_tuned else None, asked.rules, asked.hyper,
        seeds=asked.seeds, span=(float(low), float(high)) if asked.octaves else asked.span,
        per_octave=asked.per_octave, overrides=asked.set,
    )  # fmt: skip
    sweep = request.sweep()
    new = [point for point in sweep.points if is_longer or point.id not in seen]
    seen |= {point.id for point in new}
    return len(new), sweep_seconds(new) / 60 * (LONGER if is_longer and not is_tuned else 1)


def main() -> int:
    """Read the options and run, or list the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a folder that `mue data prepare` made, or a built-in source")
    parser.add_argument("--task", choices=sorted(AXES), default="lm")
    parser.add_argument(
        "--scale", choices=("tiny", "small", "medium", "paper"), default="small", help="as of `mue sweep`"
    )
    parser.add_argument("--only", default="", help="figures, divided by commas")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the reference's config")
    parser.add_argument("--runs", type=Path, default=Path("runs/transfer"))
    parser.add_argument("--reference", type=Path, help="a tuned reference.toml, in place of tuning one")
    parser.add_argument("--known", type=Path, action="append", default=[], help="sweeps to take finished runs from")
    parser.add_argument("--trust-known", action="store_true", help="also those that do not say what their data held")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=math.inf, help="start nothing after so many")
    parser.add_argument("--list", action="store_true", help="print the commands and stop")
    given = parser.parse_args()
    only = tuple(name for name in given.only.split(",") if name)
    unknown = [name for name in only if name not in AXES[given.task]]
    if unknown:
        parser.error(f"--only {unknown[0]!r}: figures of {given.task} are {', '.join(AXES[given.task])}")
    evidence = Evidence(
        given.task, given.source, given.runs, given.scale, tuple(given.set), only, tuple(given.known),
        given.trust_known, given.reference,
    )  # fmt: skip
    if given.reference and not given.reference.is_file():
        parser.error(f"--reference {given.reference}: no such file; give what `mue tune` wrote, or leave it out")
    if evidence.reference.exists():
        evidence.write_longer()
    if given.list:
        if evidence.tuned is None:
            print("mue", shlex.join(evidence.tuning()))
        seen: set[str] = set()
        for command in (evidence.command(*entry) for entry in evidence.sweeps()):
            runs, minutes = cost(command, seen)
            print(f"# {Path(command[-1]).name}: {runs} new runs at most, about {minutes:.1f} min on one NVIDIA H200")
            print("mue", shlex.join(command))
        return 0
    if not evidence.reference.exists():
        if mue(evidence.tuning()).wait():
            return 1
        evidence.write_longer()
    failed = take_turns(
        evidence.sweeps(), lambda entry: evidence.command(*entry), given.jobs, apart=True, seconds=given.seconds,
        logs=given.runs / "logs",
    )  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
