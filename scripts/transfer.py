"""Does the transfer hold? The runs behind docs/results/transfer.md, in order of importance, on one GPU.

    python scripts/transfer.py DATA                          # language, on text that `mue data prepare` made
    python scripts/transfer.py scenes --task dit             # diffusion, on procedural scenes
    python scripts/transfer.py DATA --only activated,width   # some figures
    python scripts/transfer.py stdlib --scale tiny           # a look at it all on a CPU, in hours
    python scripts/transfer.py DATA --list                   # the commands alone
    python scripts/transfer.py DATA --known docs/results/transfer   # go on from packed records, of the same data

First the dense reference is tuned (RUNS/TASK-tune/reference.toml). Then every figure is swept over the learning rate by
the paper's rules; then, into the same folders, by the other rule sets and over weight decay and init std. What a figure
has finished, such as the dense reference's runs, the next ones take over. Everything resumes: a second start goes on
where this one was stopped. ``--jobs 2`` keeps two sweeps going, so that one trains while the other compiles.

At the end:

    mue report RUNS/TASK-* --pack docs/results/transfer
    mue report docs/results/transfer --page docs/results/transfer.md
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from complete_mue.lab.paper_figures import FIGURES

FIRST, LAST = ("activated", "ffn_width"), ("depth", "width", "scaling", "large_batch")
AXES = {
    "lm": (*FIRST, *(name for name in FIGURES if name not in FIRST + LAST), *LAST),
    "dit": ("activated", "capacity", "width"),
}
COMPARED = ("activated", "ffn_width", "width")  # also by the other rule sets
LR = ("--hyper", "lr")
PAPER = "complete_mue"  # the paper's rules; ours beyond it are on the page of roles
TWO = ("--seeds", "2")  # where runs are dear or many; else the scale's three
DEAR = ("width", "large_batch")
# Their optima may lie far from the transferred value: a wider scan.
OTHERS = ("--rules", "sp", "--rules", "mup", "--rules", "mup_moe", "--span", "3", *TWO)


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

    @property
    def reference(self) -> Path:
        """What tuning writes."""
        return self.runs / f"{self.task}-tune" / "reference.toml"

    @property
    def figures(self) -> tuple[str, ...]:
        """Most important first."""
        return tuple(axis for axis in AXES[self.task] if not self.only or axis in self.only)

    def tuning(self) -> list[str]:
        """The command that tunes the dense reference."""
        options = (*self._settings(), *(TWO if self.task == "dit" else ()))
        return [
            "tune", self.task, "--scale", self.scale, *options, *_taken(self.known, self.trusted), "--out",
            str(self.reference.parent),
        ]  # fmt: skip

    def sweeps(self) -> list[tuple[str, tuple[str, ...]]]:
        """Every sweep's figure and its own options, most important first."""
        found: list[tuple[str, tuple[str, ...]]] = [
            (axis, (*(LR if axis == "activated" else ()), *(TWO if axis in DEAR or self.task == "dit" else ())))
            for axis in self.figures
        ]
        if self.task == "lm":
            found += [(axis, (*LR, *OTHERS)) for axis in COMPARED if axis in self.figures]
            if "activated" in self.figures:
                found.append(("activated", ("--hyper", "weight_decay", "--hyper", "init_std", *TWO)))
        return found

    def command(self, figure: str, options: tuple[str, ...]) -> list[str]:
        """A sweep's command; points that other figures have finished by now are taken from there."""
        folders = {axis: self.runs / f"{self.task}-{axis}" for axis in AXES[self.task]}
        others = [folder for axis, folder in folders.items() if axis != figure and (folder / "sweep.json").is_file()]
        options = options if "--rules" in options else ("--rules", PAPER, *options)
        return [
            "sweep", figure, "--task", self.task, "--scale", self.scale, "--reference", str(self.reference),
            *self._settings(), *options, *_taken((*self.known, *others), self.trusted), "--out", str(folders[figure]),
        ]  # fmt: skip

    def _settings(self) -> list[str]:
        return [part for change in (f"task.source={self.source}", *self.changes) for part in ("--set", change)]


def _taken(places: Sequence[Path], trusted: bool) -> list[str]:
    return [*(part for place in places for part in ("--known", str(place))), *(["--trust-known"] if trusted else [])]


def mue(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a command, after printing it."""
    print("mue", shlex.join(command), flush=True)
    return subprocess.Popen([sys.executable, "-m", "complete_mue", *command])


def take_turns(evidence: Evidence, jobs: int) -> int:
    """Run all sweeps in order, ``jobs`` at a time, of different figures; the number that failed."""
    waiting, failed = evidence.sweeps(), 0
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            for figure in [figure for figure, process in running.items() if process.poll() is not None]:
                failed += running.pop(figure).returncode != 0
            ready = next((entry for entry in waiting if entry[0] not in running), None)
            if ready is not None and len(running) < jobs:
                waiting.remove(ready)
                running[ready[0]] = mue(evidence.command(*ready))
            else:
                time.sleep(0.5)
    finally:
        for process in running.values():
            process.terminate()
    return failed


def main() -> int:
    """Read the options and run, or list the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a folder that `mue data prepare` made, or a built-in source")
    parser.add_argument("--task", choices=sorted(AXES), default="lm")
    parser.add_argument("--scale", choices=("tiny", "small", "paper"), default="small", help="as of `mue sweep`")
    parser.add_argument("--only", default="", help="figures, divided by commas")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the reference's config")
    parser.add_argument("--runs", type=Path, default=Path("runs/transfer"))
    parser.add_argument("--known", type=Path, action="append", default=[], help="sweeps to take finished runs from")
    parser.add_argument("--trust-known", action="store_true", help="also those that do not say what their data held")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    only = tuple(name for name in given.only.split(",") if name)
    unknown = [name for name in only if name not in AXES[given.task]]
    if unknown:
        parser.error(f"--only {unknown[0]!r}: figures of {given.task} are {', '.join(AXES[given.task])}")
    evidence = Evidence(
        given.task, given.source, given.runs, given.scale, tuple(given.set), only, tuple(given.known), given.trust_known
    )
    if given.list:
        for command in (evidence.tuning(), *(evidence.command(*entry) for entry in evidence.sweeps())):
            print("mue", shlex.join(command))
        return 0
    if not evidence.reference.exists() and mue(evidence.tuning()).wait():
        return 1
    return 1 if take_turns(evidence, given.jobs) else 0


if __name__ == "__main__":
    sys.exit(main())
