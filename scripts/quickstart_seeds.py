"""Ten seeds, one verdict? Runs `mue quickstart` for several seeds, each pinned to two cores, and prints what each says.

    python scripts/quickstart_seeds.py --seeds 10 --at-once 8 --out runs/quickstart-seeds

A finished seed is read, not run again. Exit status 0 if all seeds agree, 1 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CORES = 2


def main() -> int:
    """Run, then print the table and whether the verdicts agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--at-once", type=int, help="Default: as many as there are pairs of cores.")
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart-seeds"))
    parser.add_argument("--steps", help="Of every run, to try this script.")
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    pairs = [cores[i : i + CORES] for i in range(0, len(cores) - CORES + 1, CORES)] or [cores]
    free: queue.Queue[list[int]] = queue.Queue()
    for pair in pairs[: given.at_once]:
        free.put(pair)
    more = ["--steps", given.steps] if given.steps else []
    with ThreadPoolExecutor(free.qsize()) as pool:
        done = list(pool.map(lambda seed: run(seed, given.out / f"seed-{seed}", free, more), range(given.seeds)))
    names = list(done[0]["verdict"])
    print("\n".join(f"{chr(ord('a') + i)}: {name}" for i, name in enumerate(names)))
    print("seed  seconds  " + "  ".join(f"{chr(ord('a') + i):6}" for i in range(len(names))))
    for seed, found in enumerate(done):
        print(f"{seed:4}  {found['seconds']:7.0f}  " + "  ".join(f"{word:6}" for word in found["verdict"].values()))
    verdicts = {tuple(found["verdict"].values()) for found in done}
    print(f"{len(done)} seeds, {len(verdicts)} verdict{'s' if len(verdicts) > 1 else ''}")
    return 0 if len(verdicts) == 1 else 1


def run(seed: int, out: Path, free: queue.Queue[list[int]], more: list[str]) -> dict[str, Any]:
    """One quickstart on a pair of cores; its verdict and its time."""
    result = out / "quickstart.json"
    if not result.exists():
        out.mkdir(parents=True, exist_ok=True)
        pair = free.get()
        try:
            with (out / "log.txt").open("w") as log:
                command = [sys.executable, "-m", "complete_mue", "quickstart", "--seed", str(seed), "--out", str(out)]
                subprocess.run(
                    [*command, *more], check=True, stdout=log, stderr=log,
                    env={**os.environ, "OMP_NUM_THREADS": str(len(pair))},
                    preexec_fn=lambda: os.sched_setaffinity(0, pair),
                )  # fmt: skip
        finally:
            free.put(pair)
        print(f"seed {seed} done", file=sys.stderr)
    found: dict[str, object] = json.loads(result.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    sys.exit(main())
