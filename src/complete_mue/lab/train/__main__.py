"""``torchrun --nproc-per-node 8 -m complete_mue.lab.train RECIPE[:LAYOUT] [KEY=VALUE]… --out DIR [--resume]``.

The same recipes and keys as ``mue train``, on all ranks that torchrun starts; without torchrun, on one device.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import torch

from complete_mue.errors import MueError
from complete_mue.lab.recipes import configured
from complete_mue.lab.train.estimate import Machine, estimate
from complete_mue.lab.train.loop import divergence, repeated, train
from complete_mue.lab.train.parallel import launched, leave
from complete_mue.lab.train.trainer import pick_device

_DIVERGED, _INTERRUPTED, _REFUSED = 3, 130, 2


def main(arguments: list[str] | None = None) -> int:
    """Parse, train, and return the exit status: 0, 2 for a refused config, 3 if it diverged, 130 if interrupted."""
    given = _parser().parse_intermixed_args(arguments)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    try:
        config = configured(given.recipe, given.overrides, given.reference)
        if given.dry_run:
            if rank == 0:
                print(f"{config.name}\n{estimate(config, world, Machine()).memory()}")
            return 0
        run = given.out or Path("runs") / config.name
        if (given.resume or _restarted()) and (ended := divergence(run, config)) is not None:
            # torchrun counts a divergence as a failure and starts the ranks again: they must not repeat it.
            print(f"rank {rank}: {repeated(run, ended, config)}", file=sys.stderr)
            return _DIVERGED
        device = _device(config.device)
        with launched(config.expert_parallel, device) as ranks:
            result = train(
                config, run, resume=given.resume or (given.restart and _restarted()),
                restart=given.restart and not _restarted(), report=_report(config), ranks=ranks, device=device,
                warn=lambda text: print(f"warning: {text}", file=sys.stderr),
            )  # fmt: skip
    except MueError as problem:
        print(f"rank {rank}: error: {' '.join(str(problem).split())}", file=sys.stderr)
        return _REFUSED
    if rank == 0:
        loss = f", loss {result.loss:.4f}" if result.loss is not None else ""
        print(f"{result.status} after {result.steps} steps on {world} ranks{loss}")
    return {"finished": 0, "diverged": _DIVERGED}.get(result.status, _INTERRUPTED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchrun … -m complete_mue.lab.train",
        description="Train a recipe on many ranks: FSDP2, and experts over expert_parallel=N of them.",
        epilog="Example:  torchrun --nproc-per-node 8 --max-restarts 3 -m complete_mue.lab.train lm_large:128e8a4g1s "
        "task.source=DATA expert_parallel=8 --out runs/large --resume",
    )
    parser.add_argument("recipe", metavar="RECIPE[:LAYOUT]", help="lm_tiny, lm_tiny:16e4a, lm_large, …")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="budget.steps=300, expert_parallel=8, …")
    parser.add_argument("--reference", type=Path, help="a tuned reference.toml to transfer from, as `mue tune` writes")
    parser.add_argument("--out", type=Path, help="the run's directory, which all ranks see; default runs/NAME")
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument(
        "--resume", action="store_true",
        help="go on from the newest checkpoint, if there is one; so that a restarted run does",
    )  # fmt: skip
    begin.add_argument(
        "--restart", action="store_true",
        help="begin anew, with what an earlier run left set aside; ranks that torchrun starts again go on",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="print the memory per rank and train nothing")
    return parser


def _device(name: str) -> torch.device:
    """Each rank its own GPU of its machine."""
    device = pick_device(name)
    local = os.environ.get("LOCAL_RANK")
    return torch.device("cuda", int(local)) if device.type == "cuda" and local is not None else device


def _restarted() -> bool:
    """Whether torchrun has started these ranks before."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def _report(config: Any) -> Any:
    def show(line: dict[str, Any]) -> None:
        facts = [f"step {line['step'] + 1}/{config.budget.steps}", f"loss {line['loss']:.4f}"]
        if "tokens_per_second" in line:
            facts.append(f"{line['tokens_per_second']:,.0f} tokens/s")
        if "mfu" in line:
            facts.append(f"MFU {line['mfu']:.1%}")
        print("  ".join(facts), file=sys.stderr, flush=True)

    return show


if __name__ == "__main__":
    leave(main())
