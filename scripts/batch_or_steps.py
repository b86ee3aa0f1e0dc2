"""Does the best learning rate go with the batch or with the number of steps? From the records of all such sweeps.

    python scripts/batch_or_steps.py                       # the tables of docs/results/steps.md

For every setting: the powers p and q of lr = batch^p steps^q that fit the optima, as AdamW gets them, with one q for
fewer steps than the reference's and one for more. Then how much lower runs end by other rules than by the paper's,
(steps* / steps)^(1/2): for budgets with fewer, as many and more steps, and over all. Rules start from the setting's own
optimum at the reference's budget. Nothing is trained: a loss between two values of the grid is read off the parabola
through the nearest three, seed by seed.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from complete_mue.lab.report.curves import Curve
from complete_mue.lab.report.summary import Summary, summarize

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SETTINGS = {
    "dense": ("transfer/lm-duration", "transfer/lm-batch_steps", "transfer/lm-batch_tokens"),
    "MoE (64e8a)": ("transfer/lm-duration_moe", "transfer/lm-batch_steps_moe", "transfer/lm-batch_tokens_moe"),
    "diffusion": ("transfer/dit-batch_steps", "transfer/dit-batch_tokens"),
    "small batch": ("small_batch/lm-duration", "small_batch/lm-batch_steps", "small_batch/lm-batch_tokens"),
    "larger batch": ("larger_batch/lm-duration", "larger_batch/lm-batch_steps"),
}
TESTED = {  # budgets that were predicted before they ran: where each setting was tuned before, and their records
    "small batch": (SETTINGS["small batch"], "steps/lm-batch-and-steps"),
    "dense": (SETTINGS["dense"], "transfer/lm-batch_and_steps"),
    "MoE (64e8a)": (SETTINGS["MoE (64e8a)"], "transfer/lm-batch_and_steps"),
    "diffusion": (SETTINGS["diffusion"], "transfer/dit-batch_and_steps"),
    "MoE (64e8a), diffusion": (("transfer/dit-grouped",), "transfer/dit-batch_and_steps"),
}
LONGER = {  # likewise, of more steps
    "small batch": (SETTINGS["small batch"], "steps/lm-more-steps"),
    "dense": (SETTINGS["dense"], "transfer/lm-more_steps"),
    "MoE (64e8a)": (SETTINGS["MoE (64e8a)"], "transfer/lm-more_steps"),
}
MOE = "64e8a"
_SCATTER = 0.15  # octaves: what powers leave, beyond the optima's own errors
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
    return _cases(SETTINGS[name], "MoE" in name)


def tested(name: str) -> list[Case]:
    """A setting's reference, as tuned before, and the budgets that were predicted."""
    return _tested(name, *TESTED[name])


def longer(name: str) -> list[Case]:
    """The same of more steps."""
    return _tested(name, *LONGER[name])


def of_more_steps(name: str) -> list[tuple[Case, dict[int, float]]]:
    """By how much the fourth root ends lower than the paper's at all budgets of more steps, predicted or not."""
    found = [*cases(name), *(tested(name)[1:] if name in TESTED else []), *longer(name)[1:]]
    return [gain for gain in gains(found, RULES["batch^(1/4)"]) if gain[0].steps > 1]


def _tested(name: str, before: tuple[str, ...], file: str) -> list[Case]:
    old = _cases(before, "MoE" in name)
    known = {(case.batch, case.steps) for case in old}
    new = [case for case in _cases((file,), "MoE" in name) if (case.batch, case.steps) not in known]
    return [old[0], *new]


@cache
def _summary(file: str) -> Summary:
    return summarize(RESULTS / f"{file}.jsonl")


def _cases(files: tuple[str, ...], routed: bool) -> list[Case]:
    found: dict[tuple[float, float], Case] = {}
    for file in files:
        summary = _summary(file)
        dense = summary.target(summary.reference)
        for curve in summary.scans[0].curves:
            target = summary.target(curve.target)
            if curve.optimum is None or (curve.target.split(",")[0] == MOE) != routed:
                continue
            batch, steps = target.batch_tokens / dense.batch_tokens, target.steps / dense.steps
            found.setdefault((batch, steps), Case(batch, steps, curve))
    return sorted(found.values(), key=lambda case: (case.batch, case.steps) != (1, 1))


def _logs(found: list[Case]) -> np.ndarray[Any, Any]:
    """log2 of batch, steps and optimum as AdamW gets it, and its error with the scatter: a row for each known one."""
    known = [(case, best) for case in found if (best := case.curve.optimum) is not None and not best.open]
    return np.array([
        (
            math.log2(case.batch), math.log2(case.steps), math.log2(best.value / case.steps**0.5),
            math.hypot(case.curve.optimum_error or math.nan, _SCATTER),
        )
        for case, best in known
    ])  # fmt: skip


def power_of_others(name: str) -> float:
    """p of lr = batch^p, whatever the steps, from all settings but one, each with a level of its own."""
    above = below = 0.0
    for other in SETTINGS:
        if other != name:
            batch, _, optimum, error = _logs(cases(other)).T
            centred = batch - np.average(batch, weights=error**-2)
            above += float((centred * optimum / error**2).sum())
            below += float((centred * centred / error**2).sum())
    return above / below


def noise_scale(name: str) -> float:
    """In batches of the reference: with it lr = 1/sqrt(1 + noise scale/batch) fits the optima at the reference's steps
    and the smallest and the largest batch; where one of these is a bound, so is it."""
    known = sorted((case for case in cases(name) if case.steps == 1), key=lambda case: case.batch)
    (low, first), *_, (high, last) = ((c.batch, c.curve.optimum.value) for c in known if c.curve.optimum is not None)
    square = (last / first) ** 2
    return (square - 1) / (1 / low - square / high)


def powers(found: list[Case]) -> list[tuple[float, float]]:
    """p, and q for fewer and for more steps, with their errors: least squares of log2 of the optima that are known."""
    batch, steps, optimum, error = _logs(found).T
    terms = np.stack([np.ones_like(batch), batch, np.minimum(steps, 0), np.maximum(steps, 0)], axis=1) / error[:, None]
    inverse = np.linalg.inv(terms.T @ terms)
    fitted = inverse @ terms.T @ (optimum / error)
    return [(float(fitted[k]), float(inverse[k, k]) ** 0.5) for k in (1, 2, 3)]


def gains(found: list[Case], rule: Callable[[float, float], float]) -> list[tuple[Case, dict[int, float]]]:
    """By how much a rule ends lower than the paper's, budget by budget and seed by seed."""
    tuned = found[0].curve.optimum
    assert tuned is not None
    return [
        (case, dict(_gains(case.curve, tuned.value, tuned.value * rule(case.batch, case.steps) * case.steps**0.5)))
        for case in found[1:]  # grids are scanned in the paper's units
    ]


def mean(lower: list[tuple[Case, dict[int, float]]]) -> tuple[float, float]:
    """Over budgets, and its error: over seeds and over budgets, as if each were drawn from many."""
    budgets = [statistics.fmean(by_seed.values()) for _, by_seed in lower]
    seeds = sorted({seed for _, by_seed in lower for seed in by_seed})
    levels = [statistics.fmean(by_seed[seed] for _, by_seed in lower if seed in by_seed) for seed in seeds]
    parts = [statistics.stdev(part) / math.sqrt(len(part)) if part[1:] else 0.0 for part in (budgets, levels)]
    return statistics.fmean(budgets), math.hypot(*parts)


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


def values(reference: Case, case: Case) -> list[str]:
    """As AdamW gets them: the optimum with its error in octaves, and what the fourth root and the paper's rule give."""
    best = case.curve.optimum
    assert best is not None
    ours, theirs = (_planned(reference, case, rule) for rule in ("batch^(1/4)", "paper"))
    return [f"{best.value / case.steps**0.5:.4f} ± {case.curve.optimum_error:.2f}", f"{ours:.4f}", f"{theirs:.4f}"]


def foretold(name: str, case: Case) -> float:
    """The optimum by the powers that fit the budgets of more steps before, as AdamW gets it."""
    start = cases(name)[0].curve.optimum
    assert start is not None
    (batch, _), _, (steps, _) = powers(cases(name))
    return start.value * case.batch**batch * case.steps**steps


def miss(reference: Case, case: Case, rule: str) -> float:
    """By how many octaves the optimum lies above what a rule gives."""
    best = case.curve.optimum
    assert best is not None
    return math.log2(best.value / case.steps**0.5 / _planned(reference, case, rule))


def against(rule: str) -> list[tuple[float, float]]:
    """For each predicted budget, the miss of a rule and by how much it ends lower than the paper's."""
    return [
        (miss(tested(name)[0], case, rule), statistics.fmean(by_seed.values()))
        for name in TESTED
        for case, by_seed in gains(tested(name), RULES[rule])
    ]


def _planned(reference: Case, case: Case, rule: str) -> float:
    start = reference.curve.optimum
    assert start is not None
    return start.value * RULES[rule](case.batch, case.steps)


def by_steps(lower: list[tuple[Case, dict[int, float]]]) -> list[tuple[float, float] | None]:
    """The mean at fewer, as many and more steps than the reference's, and over all; None where there are no budgets."""
    signs = [[entry for entry in lower if (entry[0].steps > 1) - (entry[0].steps < 1) == sign] for sign in (-1, 0, 1)]
    return [mean(part) if part else None for part in (*signs, lower)]


def _root(power: float, batch: float, steps: float) -> float:
    return batch**power


def main() -> int:
    """Print all tables."""
    print(f"{'':13} {'budgets':>7} {'batch^p':>16} {'steps^q, fewer':>16} {'steps^q, more':>16}")
    for name in SETTINGS:
        fits = [f"{value:+.2f} ± {error:.2f}" for value, error in powers(cases(name))]
        print(f"{name:13} {len(cases(name)):7} " + " ".join(f"{fit:>16}" for fit in fits))
    for rule in list(RULES)[1:]:
        print(f"\n{rule} ends lower than the paper's rule by")
        print(f"{'':13} {'fewer steps':>18} {'as many':>18} {'more steps':>18} {'all':>18} {'worst':>8}")
        for name in SETTINGS:
            lower = gains(cases(name), RULES[rule])
            worst = min(statistics.fmean(by_seed.values()) for _, by_seed in lower)
            print(f"{name:13} " + " ".join(f"{_shown(found):>18}" for found in by_steps(lower)) + f" {worst:>+8.4f}")
    print("\nbatch^p, with p of the four other settings, ends lower than the paper's rule by")
    for name in SETTINGS:
        p = power_of_others(name)
        print(f"{name:13} p = {p:.2f}: {_shown(mean(gains(cases(name), partial(_root, p))))}")
    print("\nnoise scale, in batches of the reference, by which the optima move with the batch")
    for name in SETTINGS:
        print(f"{name:13} {noise_scale(name):.1f}")
    print("\nbudgets predicted before they ran: optimum, batch^(1/4), the paper's; batch^(1/4) ends lower by")
    for name in TESTED:
        print(name)
        reference, *_ = tested(name)
        for case, by_seed in gains(tested(name), RULES["batch^(1/4)"]):
            budget = f"  batch x{case.batch:g}, steps x{case.steps:g}:"
            print(budget, *values(reference, case), _shown(mean([(case, by_seed)])))
    print("\nthe same at four times the steps: optimum, batch^(1/4), the paper's, the powers of before")
    for name in LONGER:
        reference, *_ = longer(name)
        for case, by_seed in gains(longer(name), RULES["batch^(1/4)"]):
            budget = f"{name:13} batch x{case.batch:g}, steps x{case.steps:g}:"
            before = f"{foretold(name, case):.4f}"
            print(budget, *values(reference, case), before, _shown(mean([(case, by_seed)])))
    print("\nbatch^(1/4) ends lower at all budgets of more steps by")
    for name in LONGER:
        print(f"{name:13} {_shown(mean(of_more_steps(name)))}")
    print("\nof the twenty, the optimum lies within 0.4 octaves, and a run ends lower than by the paper's rule")
    roots, plain = against("batch^(1/4)"), against("unchanged")
    for rule, found in (("batch^(1/4)", roots), ("unchanged", plain)):
        print(f"{rule:13} {sum(abs(far) <= 0.4 for far, _ in found)} {sum(lower > 0 for _, lower in found)}")
    print("batch^(1/4) ends lower than unchanged:", sum(r[1] > u[1] for r, u in zip(roots, plain, strict=True)))
    return 0


def _shown(found: tuple[float, float] | None) -> str:
    return f"{found[0]:+.4f} ± {found[1]:.4f}" if found else "–"


if __name__ == "__main__":
    sys.exit(main())
