"""A synthetic sweep on disk, written from a loss surface whose optima, regrets and speedups are known."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

STEPS, STABLE = 400, (16, 320)
GRID = tuple(0.008 * 2.0**k for k in range(-3, 4))


@dataclass
class Surface:
    """loss(target, rules, value) = floor + curvature (log2 value - log2 tuned - drift)^2 + seed and run noise."""

    drifts: dict[str, float] = field(default_factory=lambda: {"8e2a": 0.1, "16e4a": -0.2, "64e16a": 0.3})
    other_drifts: dict[str, dict[str, float]] = field(default_factory=dict)  # rules -> target -> drift
    hypers: tuple[str, ...] = ("lr",)
    grid: tuple[float, ...] = GRID
    seeds: int = 3
    curvature: float = 0.03
    run_noise: float = 0.0005
    seed_noise: float = 0.003
    speedup: float = 2.0
    diverged: Callable[[str, str, float], bool] = lambda target, rules, value: False
    missing: Callable[[str, str, float], bool] = lambda target, rules, value: False
    task: str = "lm"
    title: str = "Synthetic: activated experts"
    name: str = "synthetic"
    prefix: str = ""  # of the runs' ids: sweeps with the same share their runs

    def loss(self, target: str, rules: str, hyper: str, value: float, seed: int) -> float:
        drift = self.other_drifts.get(rules, self.drifts).get(target, 0.0)
        state = random.Random(f"{target} {rules} {hyper} {value} {seed}")
        place = math.log2(value / TUNED[hyper]) - drift
        shift = random.Random(f"seed {seed}").gauss(0, self.seed_noise)
        return self.floor(target) + self.curvature * place**2 + shift + state.gauss(0, self.run_noise)

    def floor(self, target: str) -> float:
        return 1.9 - 0.05 * ["dense", *self.drifts].index(target)


TUNED = {"lr": 0.008, "weight_decay": 0.1, "init_std": 0.06}


def write_sweep(folder: Path, surface: Surface | None = None) -> Path:
    """sweep.json and the ledger of a synthetic sweep."""
    s = surface or Surface()
    (folder / "ledger").mkdir(parents=True)
    names = ("dense", *s.drifts)
    targets = [
        {
            "name": name, "x": 2**i, "active": 12_345 * 2**i, "total": 12_345 * 4**i, "width": 64, "depth": 4,
            "batch_tokens": 2048, "steps": STEPS, "stable": list(STABLE),
        }
        for i, name in enumerate(names)
    ]  # fmt: skip
    points: list[dict[str, Any]] = []
    for rules in ("complete_mue", *s.other_drifts):
        for name in names:
            if name == "dense" and rules != "complete_mue":
                continue
            for hyper in s.hypers:
                for factor in s.grid:
                    for seed in range(s.seeds):
                        value = factor * TUNED[hyper] / TUNED["lr"]
                        shared = math.isclose(value, TUNED[hyper])
                        id_ = f"{s.prefix}{name}-{rules}-{'tuned' if shared else f'{hyper}-{value:.6g}'}-{seed}"
                        points.append(
                            {"id": id_, "target": name, "rules": rules, "hyper": hyper, "value": value, "seed": seed}
                        )
    sweep = {
        "format": 1, "name": s.name, "title": s.title, "task": s.task, "scale": "tiny", "axis": "activated experts",
        "command": "synthetic data of the tests, not a sweep", "targets": targets, "points": points,
        "reference": {"target": "dense", "hyper": TUNED},
    }  # fmt: skip
    (folder / "sweep.json").write_text(json.dumps(sweep))
    for point in points:
        place = (point["target"], point["rules"], point["value"])
        if not s.missing(*place):
            record = _record(s, point, s.diverged(*place))
            (folder / "ledger" / f"{point['id']}.json").write_text(json.dumps(record))
    return folder


def _record(s: Surface, point: dict[str, Any], diverged: bool) -> dict[str, Any]:
    name = point["target"]
    state = random.Random(point["id"])
    speed = 1.0 if name == "dense" else s.speedup
    offset = 0.02 * abs(math.log2(point["value"] / TUNED[point["hyper"]]))
    losses = [1.5 + 4.0 * (speed * (t + 0.5)) ** -0.35 + offset + state.gauss(0, 0.01) for t in range(STEPS)]
    ends = list(range(4, STEPS + 1, 4))
    curve = [sum(losses[end - 4 : end]) / 4 for end in ends]
    if diverged:
        losses[60:] = [math.nan] * (STEPS - 60)
        ends, curve = ends[:15], curve[:15]
    hyper = point["hyper"]
    return {
        "format": 1, "id": point["id"], "status": "diverged" if diverged else "finished",
        "loss": None if diverged else s.loss(name, point["rules"], hyper, point["value"], point["seed"]),
        "diverged": 60 if diverged else None, "error": None, "steps": STEPS, "seconds": 12.5, "seconds_share": 2.5,
        "curve": {"step": ends, "loss": curve}, "first": [x if math.isfinite(x) else None for x in losses[:100]],
        "load_variation": None if name == "dense" else 0.2 + 0.05 * state.random(), "last_window": [384, 400],
    }  # fmt: skip


@pytest.fixture(scope="session")
def synthetic() -> Callable[..., Path]:
    """Write a synthetic sweep into a folder: ``synthetic(path, seeds=1, drifts=...)``."""
    return lambda folder, **changes: write_sweep(folder, Surface(**changes))


@pytest.fixture
def sweep_folder(tmp_path: Path) -> Callable[..., Path]:
    """The same below the test's own folder: ``sweep_folder("a", seeds=1)``."""
    return lambda folder="sweep", **changes: write_sweep(tmp_path / folder, Surface(**changes))
