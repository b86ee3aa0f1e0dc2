"""A dense and a sparse language model of equal active width, by one transferred plan: the runs behind
docs/results/pair.md. With several ``--layout``, one dense model and as many sparse ones.

    python scripts/pair.py DATA --reference docs/results/pair/reference.toml                   # 503 M tokens each
    python scripts/pair.py DATA --reference FILE --questions questions.xz --seconds 540        # save and stop by then
    python scripts/pair.py DATA --reference FILE --evals FOLDER                                # score the answers
    python scripts/pair.py DATA --reference FILE --list                                        # the commands alone

DATA is what `mue data prepare` made; if it holds fewer tokens than a run, give `--set task.epochs=repeat`.
``questions.xz`` is made where lm-evaluation-harness is, by `mue eval --data FOLDER --requests-out questions.xz`, and
scoring needs it again; the rest does not. All models train, then they are evaluated, then compared. Everything
resumes: a second start goes on where this one was stopped. Results are in RUNS/results, a folder for each model.
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from turns import Step, of_equal_width, one_by_one, speedups

from complete_mue.errors import MueError

LAYOUT = "128e8a1s"


def models(given: argparse.Namespace) -> dict[str, str]:
    """By name, their layouts."""
    return of_equal_width(given.layout or [LAYOUT], given.width // 8)


def steps(given: argparse.Namespace) -> Iterator[Step]:
    """All commands in order."""
    runs, results = given.runs, given.runs / "results"
    shape = [f"shape.width={given.width}", f"shape.depth={given.depth}", "shape.head_dim=32"]
    text = [f"task.source={given.source}", f"task.sequence={given.sequence}"]
    count = math.ceil(given.tokens / given.batch_tokens)
    budget = [f"budget.batch_tokens={given.batch_tokens}", f"budget.steps={count}"]
    often = ["log_every=5", f"checkpoint_every={max(1, count // 10)}"]
    for name, layout in models(given).items():
        changes = [f"shape.feed_forward={layout}", *shape, *text, *budget, *often, *given.set]
        tuned = ["--reference", str(given.reference)]
        yield Step(["train", f"lm_proxy:{name}", *changes, *tuned, "--resume", "--out", str(runs / name)])
    device = ["--device", given.device]
    for name in models(given):
        held = results / name / "held_out.json"
        yield Step(["eval", str(runs / name), "--held-out", *device, "--out", str(held.parent)], held)
    dense, *sparse = (runs / name for name in models(given))
    yield from speedups(dense, sparse, results)
    for name in models(given):
        answers = results / name / "answers.jsonl.xz"
        if given.questions:
            asked = ["--requests", str(given.questions), *device, "--out", str(answers.parent)]
            yield Step(["eval", str(runs / name), *asked], answers)
        if given.evals:
            scored = answers.with_name("eval.json")
            yield Step(
                ["eval", "--data", str(given.evals), "--answers", str(answers), "--out", str(scored.parent)], scored
            )


def main() -> int:
    """Run what is not done yet, or list the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a folder that `mue data prepare` made, or a built-in source")
    parser.add_argument("--reference", type=Path, required=True, help="a tuned reference.toml")
    parser.add_argument(
        "--layout", action="append", help=f"of an MoE (default: {LAYOUT}); experts are an eighth of the width wide"
    )
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--batch-tokens", type=int, default=65536)
    parser.add_argument("--tokens", type=float, default=503e6, help="of each run")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change both runs' config")
    parser.add_argument("--questions", type=Path, help="answer them, as `mue eval --requests`")
    parser.add_argument("--evals", type=Path, help="score the answers by these sets, as `mue eval --answers --data`")
    parser.add_argument("--device", default="auto", help="as of `mue eval`")
    parser.add_argument("--runs", type=Path, default=Path("runs/pair"))
    parser.add_argument("--seconds", type=float, default=math.inf, help="save and stop after so many")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    try:
        models(given)
    except MueError as error:
        parser.error(str(error))
    if given.list:
        for step in steps(given):
            print("mue", shlex.join(step.command))
        return 0
    return one_by_one(steps(given), given.seconds)


if __name__ == "__main__":
    sys.exit(main())
