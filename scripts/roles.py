"""Which tensors want another learning rate: the runs behind docs/results/roles.md, most important first, on one GPU.

    python scripts/roles.py DATA --reference docs/results/pair/reference.toml
    python scripts/roles.py DATA --only fit,probe --seconds 540     # start nothing new after nine minutes
    python scripts/roles.py DATA --list                             # the commands alone

DATA is what `mue data prepare` made; the set ``tokens`` reads runs/data/neox, made with its `--tokenizer`. Everything
resumes: a second start goes on where this one was stopped, and ``--known`` takes over records that are packed.
``--jobs 3`` keeps three sweeps going, so that some train while others compile. At the end:

    mue report RUNS/* --pack docs/results/roles
    mue report docs/results/roles --page docs/results/roles.md
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from turns import take_turns, taken

# Eight active and N / a from 1 to 32, and two of 64: scanned first, around where -1/3 expects the optimum.
FIT = ("64e8a", "256e8a", "8e8a", "64e2a", "128e8a", "32e8a")
# Predicted from those, then scanned: two and four active, and N / a up to 128. One window for all.
FRESH = ("256e2a", "16e2a", "512e4a", "32e4a", "128e4a", "512e8a", "1024e8a", "2e2a", "4e4a")
# Layouts with what else differs from the reference: routing, shared experts, batch, duration, depth, width.
CONDITIONS = (
    "64e8a@16,router.score=softmax", "64e8a2s@16", "64e8a@16,budget.steps=4000", "64e8a@16,shape.depth=16",
    "64e8a@64,shape.width=512", "64e8a@16,budget.steps=8000", "64e8a@16,budget.batch_tokens=65536",
    "256e8a@16,budget.batch_tokens=65536", "64e8a@16,budget.batch_tokens=4096",
    "64e8a@16,budget.steps=500,budget.batch_tokens=262144", "64e8a@16,budget.steps=500",
)  # fmt: skip
# Text cut into GPT-NeoX tokens instead of bytes: 50,000 more of them, so fewer runs fit into one program.
TOKENS = (
    ("64e8a@16,task.source=runs/data/neox", "expert_up", "-2:0"),
    ("dense,task.source=runs/data/neox", "dense_up", "-1:1"),
)
# Without likeness among an expert's tokens; and the dense model's own up projection with as little gradient noise.
CAUSE = (
    ("64e8a@16,router.score=shuffled", "expert_up", "-2:1"),
    ("256e8a@16,router.score=shuffled", "expert_up", "-2.5:0.5"),
    ("dense,budget.batch_tokens=65536", "dense_up", "-1:1"),
)
# Fewer active experts want less at the same N / a. Is it their number, or the narrower block? As wide as the reference
# with few and with many experts; and dense, half as wide.
BLOCK = (
    ("16e2a@64", "expert_up", "-2.5:0.5"),
    ("128e16a@8", "expert_up", "-2.5:0.5"),
    ("shape.feed_forward=dense@64", "dense_up", "-1.5:1.5"),
)
DIFFUSION = Path("docs/results/dit-reference.toml")
BOTH = ("--rules", "complete_mue", "--rules", "complete_mue_sparse", "--hyper", "lr", "--octaves=-0.1:0.1")
SEEDS = "4"


def window(layout: str, exponent: float = -1 / 3, reach: float = 1.5) -> str:
    """Octaves to scan: around where the exponent expects the optimum, in half octaves."""
    experts, _, active = layout.partition("e")
    sparsity = int(experts) / int(active.partition("a")[0])
    centre = round(2 * exponent * math.log2(sparsity)) / 2
    return f"{centre - reach:g}:{centre + reach:g}"


def fit() -> Iterator[list[str]]:
    """The learning rate of the experts' up projection alone, layout by layout."""
    for layout in FIT:
        yield scan(layout, "expert_up", window(layout))


def fresh() -> Iterator[list[str]]:
    """The same for layouts that the exponent was not fitted to."""
    for layout in FRESH:
        yield scan(layout, "expert_up", "-3:0.5" if "-" in window(layout, reach=0) else window(layout))


def scan(target: str, role: str, octaves: str, replicas: int = 32) -> list[str]:
    """One role's learning rate on a half-octave grid."""
    grid = [f"--octaves={octaves}", "--per-octave", "2", "--replicas", str(replicas)]
    return ["roles", "--target", target, "--role", role, *grid]


def cause() -> Iterator[list[str]]:
    """What remains where the cause that is suspected is taken away."""
    for target in CAUSE:
        yield scan(*target)


def block() -> Iterator[list[str]]:
    """The number of active experts and the width of the block, told apart."""
    for target in BLOCK:
        yield scan(*target)


def diffusion() -> Iterator[list[str]]:
    """The experts' up projection in a diffusion model."""
    for layout in ("64e8a", "256e8a"):
        yield [*scan(layout, "expert_up", "-2:0.5"), "--task", "dit"]


def axes() -> Iterator[list[str]]:
    """Both rule sets at the transferred value on the other axes of the MoE, and in diffusion."""
    for figure in ("activated", "capacity"):
        yield [figure, *BOTH, "--task", "dit"]
    for figure in ("shared", "grouped"):
        yield [figure, *BOTH]


def sizes() -> Iterator[list[str]]:
    """Both rule sets at the transferred value, wider and deeper."""
    for figure in ("width", "depth"):
        yield [figure, *BOTH]


def probe() -> Iterator[list[str]]:
    """Every role of one sparse layout and of the dense reference."""
    for layout in ("64e2a", "dense"):
        yield ["roles", "--target", layout, "--per-octave", "1", "--replicas", "33"]


def check() -> Iterator[list[str]]:
    """The global learning rate by the rule set with sparsity; the paper's at the transferred value, to compare."""
    for rules, octaves in (("complete_mue_sparse", "-1:1"), ("complete_mue", "-0.1:0.1")):
        for figure in ("activated", "granularity", "capacity"):
            yield [
                figure, "--rules", rules, "--hyper", "lr", f"--octaves={octaves}", "--per-octave", "2", "--replicas",
                "20",
            ]  # fmt: skip


def decay() -> Iterator[list[str]]:
    """The same scan with lr * weight decay held: a smaller learning rate that does not also decay less."""
    for layout in ("64e8a", "256e8a"):
        yield [*scan(layout, "expert_up", window(layout)), "--hyper", "lr_same_decay"]


def conditions() -> Iterator[list[str]]:
    """The experts' up projection again under other conditions: is the exponent the same?"""
    for change in CONDITIONS:
        yield scan(change, "expert_up", window(change.partition(",")[0], reach=1))


def tokens() -> Iterator[list[str]]:
    """The same on GPT-NeoX tokens."""
    for target in TOKENS:
        yield scan(*target, replicas=5)


def rivals() -> Iterator[list[str]]:
    """Other rule sets for MoE at the transferred value."""
    yield ["activated", "--rules", "dmft_moe", *BOTH[4:]]


SETS = {
    "fit": fit, "probe": probe, "check": check, "decay": decay, "conditions": conditions, "cause": cause,
    "diffusion": diffusion, "axes": axes, "sizes": sizes, "fresh": fresh, "block": block,
    "tokens": tokens, "rivals": rivals,
}  # fmt: skip


def commands(given: argparse.Namespace) -> list[list[str]]:
    """All `mue` commands of the chosen sets."""
    common = ["--scale", given.scale, "--seeds", given.seeds]
    common += [part for change in given.set for part in ("--set", change)]
    common += taken(given.known, given.trust_known)
    text = ["--set", f"task.source={given.source}"]
    text += ["--reference", str(given.reference)] if given.reference else []
    found = []
    for name in given.only.split(","):
        for options in SETS[name]():
            options = options if "--rules" in options else [*options, "--rules", "complete_mue"]
            parts = [name, *(part for part in ("dit", options[0]) if part in options and part != "roles")]
            own = ["--reference", str(DIFFUSION)] if "dit" in options else text
            found.append(["sweep", *options, *own, *common, "--out", str(given.runs / "-".join(parts))])
    return found


def with_finished(command: list[str]) -> list[str]:
    """A command that takes runs from the sweeps beside its own: figures share layouts, and the dense reference."""
    own = Path(command[-1])
    others = sorted(place.parent for place in own.parent.glob("*/sweep.json") if place.parent != own)
    return [*command, *taken(others, False)]


def main() -> int:
    """Print or run the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a folder that `mue data prepare` made, or a built-in source")
    parser.add_argument("--reference", type=Path, help="a tuned reference.toml")
    parser.add_argument("--scale", default="small", help="as of `mue sweep`")
    parser.add_argument("--seeds", default=SEEDS)
    parser.add_argument("--only", default=",".join(SETS), help=f"some of {', '.join(SETS)}")
    parser.add_argument("--target", action="append", help="the sweeps of these targets alone, in this order")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the reference's config")
    parser.add_argument("--runs", type=Path, default=Path("runs/roles"))
    parser.add_argument("--known", type=Path, action="append", default=[], help="sweeps to take finished runs from")
    parser.add_argument("--trust-known", action="store_true", help="as of `mue sweep`")
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=math.inf, help="start nothing after so many")
    parser.add_argument("--list", action="store_true", help="print the commands and stop")
    given = parser.parse_args()
    if unknown := [name for name in given.only.split(",") if name not in SETS]:
        parser.error(f"--only {unknown[0]!r}: give some of {', '.join(SETS)}")
    waiting = commands(given)
    if given.target:
        waiting = [command for target in given.target for command in waiting if target in command]
    if given.list:
        print("\n".join(f"mue {shlex.join(command)}" for command in waiting))
        return 0
    logs = given.runs / "logs"
    return 1 if take_turns(waiting, with_finished, given.jobs, seconds=given.seconds, stagger=15, logs=logs) else 0


if __name__ == "__main__":
    sys.exit(main())
