"""Does the best learning rate go with the batch or with the number of steps? From the records of all such sweeps.

    python scripts/batch_or_steps.py                       # the tables of docs/results/steps.md

For every setting: the powers p and q of lr = batch^p steps^q that fit its optima, as plain learning rates; then how
much lower runs end by other rules than by the paper's, (steps* / steps)^(1/2), averaged over the setting's budgets. All
start from the setting's own optimum at the reference's budget. A loss between two values of the grid is read off the
parabola through the nearest three, seed by seed.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from complete_mue.lab.report.curves import Curve
from complete_mue.lab.report.summary import summarize

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SETTINGS = {
    "dense": ("transfer/lm-duration", "transfer/lm-batch_steps", "transfer/lm-batch_tokens"),
    "MoE (64e8a)": ("transfer/lm-duration_moe", "transfer/lm-batch_steps_moe", "transfer/lm-batch_tokens_moe"),
    "diffusion": ("transfer/dit-batch_steps", "transfer/dit-batch_tokens"),
    "small batch": ("small_batch/lm-duration", "small_batch/lm-batch_steps", "small_batch/lm-batch_tokens"),
    "larger batch": ("larger_batch/lm-duration", "larger_batch/lm-batch_steps"),
}
RULES: dict[str, Callable[[float, float], float]] = {  # of the ratios of batch and steps
    "paper": lambda batch, steps: steps**-0.5,
    "unchanged": lambda batch, steps: 1.0,
    "batch^(1/4)": lambda batch, steps: batch**0.25,
    "batch^(1/3)": lambda batch, steps: batch ** (1 / 3),
}


@dataclass(frozen=True)
class Case:
    """A layout at one batch and number of steps, as ratios to the reference's."""

    batch: float
    steps: float
    curve: Curve


def cases(name: str) -> list[Case]:
    """Each budget of a setting once, the first as at the reference's."""
    found: dict[tuple[float, float], Case] = {}
    for file in SETTINGS[name]:
        summary = summarize(RESULTS / f"{file}.jsonl")
        dense = summary.target("dense")
        for curve in summary.scans[0].curves:
            target = summary.target(curve.target)
            if curve.optimum is None or ("MoE" in name and curve.target == "dense"):
                continue
            batch, steps = target.batch_tokens / dense.batch_tokens, target.steps / dense.steps
            found.setdefault((batch, steps), Case(batch, steps, curve))
    return sorted(found.values(), key=lambda case: (case.batch, case.steps) != (1, 1))


def powers(found: list[Case]) -> list[tuple[float, float]]:
    """p and q with their errors, by least squares of log2 of the optima that are known."""
    known = [case for case in found if case.curve.optimum is not None and not case.curve.optimum.open]
    errors = np.array([case.curve.optimum_error or math.nan for case in known])
    terms = np.array([[1.0, math.log2(case.batch), math.log2(case.steps)] for case in known]) / errors[:, None]
    plain = [math.log2(case.curve.optimum.value) - math.log2(case.steps) / 2 for case in known if case.curve.optimum]
    inverse = np.linalg.inv(terms.T @ terms)
    fitted = inverse @ terms.T @ (np.array(plain) / errors)
    misfit = terms @ fitted - np.array(plain) / errors
    scale = max(1.0, float(misfit @ misfit) / (len(known) - 3)) ** 0.5  # where two powers do not fit, errors grow
    return [(float(fitted[k]), scale * float(inverse[k, k]) ** 0.5) for k in (1, 2)]


def gain(found: list[Case], rule: Callable[[float, float], float]) -> tuple[float, float, float]:
    """By how much a rule ends lower than the paper's: the mean over budgets, its error over seeds; the worst budget."""
    by_seed: dict[int, list[float]] = {}
    worst, tuned = math.inf, found[0].curve.optimum
    assert tuned is not None
    for case in found[1:]:
        value = tuned.value * rule(case.batch, case.steps) * case.steps**0.5  # grids are scanned in the paper's units
        gains = dict(_gains(case.curve, tuned.value, value))
        worst = min(worst, statistics.fmean(gains.values()))
        for seed, lower in gains.items():
            by_seed.setdefault(seed, []).append(lower)
    means = [statistics.fmean(lower) for lower in by_seed.values()]
    return statistics.fmean(means), statistics.stdev(means) / math.sqrt(len(means)), worst


def _gains(curve: Curve, paper: float, value: float) -> Iterator[tuple[int, float]]:
    for seed in sorted({seed for point in curve.points for seed, _ in point.losses}):
        runs = [(math.log2(p.value), dict(p.losses)[seed]) for p in curve.points if seed in dict(p.losses)]
        yield seed, _read(runs, paper) - _read(runs, value)


def _read(runs: list[tuple[float, float]], value: float) -> float:
    """The loss at a value, by the parabola through the nearest three; at the grid's edge where it lies beyond."""
    x = min(max(math.log2(value), runs[0][0]), runs[-1][0])
    nearest = min(range(1, len(runs) - 1), key=lambda k: abs(runs[k][0] - x))
    near = runs[nearest - 1 : nearest + 2]
    return sum(y * math.prod((x - b) / (a - b) for b, _ in near if b != a) for a, y in near)


def main() -> int:
    """Print both tables."""
    print(f"{'':13} {'budgets':>7} {'batch^p':>14} {'steps^q':>14}")
    for name in SETTINGS:
        p, q = powers(cases(name))
        print(f"{name:13} {len(cases(name)):7} {f'{p[0]:+.2f} ± {p[1]:.2f}':>14} {f'{q[0]:+.2f} ± {q[1]:.2f}':>14}")
    others = {name: rule for name, rule in RULES.items() if name != "paper"}
    print("\nends lower than by the paper's rule by" + "".join(f"{name:>28}" for name in others))
    for name in SETTINGS:
        found = [gain(cases(name), rule) for rule in others.values()]
        cells = (f"{mean:+.4f} ± {error:.4f} (≥ {worst:+.4f})" for mean, error, worst in found)
        print(f"{name:38}" + "".join(f"{cell:>28}" for cell in cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
