"""What a test run left out, by reason, and the command that would run it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

# By what a reason contains; the first that fits counts.
REMEDIES = {
    "GPU|Hopper|CUDA": "pytest -m gpu, where there is an NVIDIA Hopper GPU",
    "chromium": "make test, with chromium and chromedriver on the PATH (.ci/run installs them)",
    "lm-evaluation|megatron|torchtitan|deepspeed|tensorboard|datasets|pyarrow|diffusers": "make test-tools",
    "MUE_EVALS": "MUE_EVALS=FOLDER make test",
    "ray'": "pip install ray, then make test-slow",
    "wandb": "pip install wandb, then make test",
    "'av'|PyAV": "pip install av, then make test",
    "slow": "make test-slow",
    "install|extra|import|needs": "make test, which installs the extra dev",
}


def lines(reasons: Iterable[str]) -> list[str]:
    """One line per reason, the most frequent first."""
    counts = Counter(reason.removeprefix("Skipped: ") for reason in reasons)
    found = []
    for reason, count in counts.most_common():
        found.append(f"{count:5} {reason}")
        if command := remedy(reason):
            found[-1] += f"\n      -> {command}"
    return found


def remedy(reason: str) -> str:
    """The command that would run it, or nothing."""
    return next((command for part, command in REMEDIES.items() if re.search(part, reason)), "")
