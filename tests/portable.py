"""The numerical tests as other machines would compute them: `make test-portable`.

A rounding that one CPU's libraries happen to make proves nothing on another. So the tests marked ``numeric`` and
``draws`` run again with older instructions, without oneDNN and on two threads, and those marked ``draws`` with other
random numbers. `make test` itself computes with the best instructions and oneDNN, on one thread.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
SEEDS = 20
# What torch, MKL and oneDNN each have to be told; they choose for themselves otherwise.
INSTRUCTIONS = {
    "default": {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "best": {},
}


@dataclass(frozen=True)
class Run:
    """One call of pytest."""

    name: str
    options: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    workers: int = 2
    files: tuple[str, ...] = ()  # those that hold the tests: others need not be read

    @property
    def command(self) -> str:
        """As one would type it."""
        words = [*(f"{name}={value}" for name, value in self.environment.items()), "pytest", *self.options]
        return shlex.join(words)

    def passes(self) -> bool:
        """Run it, in this interpreter's environment."""
        began = time.monotonic()
        print(f"== {self.name}: {self.command}", flush=True)
        words = [sys.executable, "-m", "pytest", "-n", str(self.workers), *self.options, *self.files]
        done = subprocess.run(words, cwd=ROOT, env={**os.environ, **self.environment}, check=False)
        print(f"== {self.name}: {time.monotonic() - began:.0f} s", flush=True)
        return done.returncode == 0


def marked(*markers: str) -> tuple[str, ...]:
    """Files with tests that carry one of these markers."""
    pattern = re.compile(rf"mark\.({'|'.join(markers)})\b")
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return tuple(str(path.relative_to(ROOT)) for path in paths if pattern.search(path.read_text(encoding="utf-8")))


def runs() -> list[Run]:
    """Every set of instructions this CPU has, with and without oneDNN; then the tests that draw weights on two threads,
    in one process since threads of two would wait for each other; then the seeds."""
    has_avx2 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    chosen, found = ("-m", "(numeric or draws) and not slow and not gpu"), []
    for name, without in (("default", True), ("avx2", False)):
        if name == "avx2" and not has_avx2:
            continue
        title = f"{name} instructions, {'without' if without else 'with'} oneDNN"
        options = (*chosen, "--without-onednn") if without else chosen
        environment = {**INSTRUCTIONS[name], "OMP_NUM_THREADS": "1"}
        found.append(Run(title, options, environment, files=marked("numeric", "draws")))
    files = marked("draws")
    drawing = ("-m", "draws and not slow and not gpu", "--without-onednn")
    threads = Run("two threads, without oneDNN", drawing, {"OMP_NUM_THREADS": "2"}, workers=1, files=files)
    drawing = ("-m", "draws and not numeric and not slow and not gpu", "--seeds", str(SEEDS))
    seeds = Run(f"{SEEDS} draws", drawing, {"OMP_NUM_THREADS": "1"}, files=files)
    return [*found, threads, seeds]


def main() -> int:
    """All of them, whatever fails; then what to type to see a failure again."""
    failed = [run for run in runs() if not run.passes()]
    for run in failed:
        print(f"failed: {run.name}\n  {run.command}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
