"""Everything a report says about one sweep, as plain data: ``summarize(folder).to_dict()`` is the report's JSON."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from complete_mue.report.curves import Curve, close, curve_noise, fit_curve, value_points
from complete_mue.report.records import Outcome, Point, Sweep, Target, read_sweep
from complete_mue.report.speedup import Speedup, bin_middles, speedup_curves
from complete_mue.report.verdict import Line, Sized, judge, scaling_lines, scan_lines
from complete_mue.report.words import UNITS, label

HYPERS = ("lr", "weight_decay", "init_std")


@dataclass(frozen=True)
class Progress:
    """How far the sweep is. ``missing`` counts runs without a record, ``seconds`` those spent on the others."""

    runs: int
    finished: int
    diverged: int
    failed: int
    missing: int
    seeds: int
    seconds: float


@dataclass(frozen=True)
class Scan:
    """All curves of one hyperparameter, the reference's first."""

    hyper: str
    tuned: float
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class TransferredRun:
    """A target at the transferred values: means over its finished seeds."""

    rules: str
    target: str
    seeds: int
    diverged: bool
    loss: float | None
    spread: float | None
    load_variation: float | None
    first: tuple[float, ...]
    curve_step: tuple[int, ...]
    curve_loss: tuple[float, ...]
    speedup: Speedup | None = None
    speedup_median: float | None = None


@dataclass(frozen=True)
class Summary:
    """One sweep, read and weighed."""

    name: str
    title: str
    task: str
    scale: str
    command: str
    axis: str
    unit: str
    reference: str
    tuned: dict[str, float]
    targets: tuple[Target, ...]
    progress: Progress
    scaling: bool  # one value per target: loss against size is the picture, there is no optimum
    size: str  # "active" or "total": the count of parameters that grows along the sweep
    scans: tuple[Scan, ...]
    runs: tuple[TransferredRun, ...]
    verdict: tuple[Line, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: NaN becomes null."""
        return {key: _plain(value) for key, value in dataclasses.asdict(self).items()}

    def target(self, name: str) -> Target:
        """The target of that name."""
        return next(target for target in self.targets if target.name == name)


def summarize(folder: str | Path) -> Summary:
    """Read a sweep's folder and compute its optima, drifts, regrets, speedups and verdict."""
    sweep = read_sweep(folder)
    unit = UNITS[sweep.task]
    scaling = _single_valued(sweep)
    scans = () if scaling else _scans(sweep, unit)
    runs = _transferred_runs(sweep, scaling)
    actives = {target.active for target in sweep.targets}
    size = "active" if len(actives) == len(sweep.targets) else "total"
    progress = _progress(sweep)
    lines = [line for scan in scans for line in scan_lines(scan.hyper, scan.tuned, sweep.reference, scan.curves, unit)]
    lines += _off_grid_lines(scans, runs)
    if scaling:
        lines += scaling_lines(_by_size(sweep, runs, size), unit, size)
    return Summary(
        name=sweep.name,
        title=sweep.title,
        task=sweep.task,
        scale=sweep.scale,
        command=sweep.command,
        axis=sweep.axis,
        unit=unit,
        reference=sweep.reference,
        tuned=dict(sweep.tuned),
        targets=sweep.targets,
        progress=progress,
        scaling=scaling,
        size=size,
        scans=scans,
        runs=runs,
        verdict=(*lines, *_progress_lines(progress)),
    )


def _single_valued(sweep: Sweep) -> bool:
    values: dict[tuple[str, str, str], set[float]] = {}
    for point in sweep.points:
        values.setdefault((point.hyper, point.rules, point.target), set()).add(point.value)
    return all(len(found) == 1 for found in values.values())


def _progress(sweep: Sweep) -> Progress:
    ids = {point.id for point in sweep.points}
    found = [sweep.outcomes[id_] for id_ in ids if id_ in sweep.outcomes]
    status = [outcome.status for outcome in found]
    return Progress(
        runs=len(ids),
        finished=status.count("finished"),
        diverged=status.count("diverged"),
        failed=status.count("failed"),
        missing=len(ids) - len(found),
        seeds=len({point.seed for point in sweep.points}),
        seconds=math.fsum(sorted(outcome.seconds for outcome in found)),
    )


def _progress_lines(progress: Progress) -> list[Line]:
    lines = []
    if progress.missing:
        lines.append(
            Line("open", f"{progress.missing} of {progress.runs} runs are missing: the sweep is not finished.")
        )
    if progress.failed:
        lines.append(Line("bad", f"{progress.failed} of {progress.runs} runs failed and are left out."))
    if progress.seeds == 1:
        lines.append(Line("note", "One seed per value: there are no error bars, and small differences may be noise."))
    return lines


def _off_grid_lines(scans: Sequence[Scan], runs: Sequence[TransferredRun]) -> list[Line]:
    """A tuned value that was not scanned: `mue sweep` always scans it, a grid of one's own may not."""
    if runs or not scans:
        return []
    values = ", ".join(f"{label(scan.hyper)} {scan.tuned:.3g}" for scan in scans)
    text = f"No run was planned at the transferred value ({values}): the loss there, and so the regret, is read off "
    text += "the curve between its neighbours, and there are no speedups and no first steps. Scan that value, too."
    return [Line("note", text)]


def _scans(sweep: Sweep, unit: str) -> tuple[Scan, ...]:
    hypers = dict.fromkeys(point.hyper for point in sweep.points)
    order = sorted(hypers, key=lambda name: HYPERS.index(name) if name in HYPERS else len(HYPERS))
    return tuple(_scan(sweep, hyper, unit) for hyper in order)


def _scan(sweep: Sweep, hyper: str, unit: str) -> Scan:
    tuned = sweep.tuned[hyper]
    groups: dict[tuple[str, str], list[tuple[Point, Outcome | None]]] = {}
    for point in sweep.points:
        if point.hyper == hyper:
            groups.setdefault((point.rules, point.target), []).append((point, sweep.outcomes.get(point.id)))
    places = {target.name: i for i, target in enumerate(sweep.targets)}
    rules = _rule_order(sweep)
    order = sorted(groups, key=lambda key: (key[1] != sweep.reference, rules.index(key[0]), places[key[1]]))
    found = {key: value_points(groups[key]) for key in order}
    noises = [noise for points in found.values() if (noise := curve_noise(points)) is not None]
    shared = statistics.median(noises) if noises else None
    curves = [fit_curve(hyper, *key, tuned, found[key], shared) for key in order]
    reference = next((curve for curve in curves if curve.target == sweep.reference), None)
    return Scan(hyper, tuned, tuple(_judged(curve, reference, unit) for curve in curves))


def _rule_order(sweep: Sweep) -> list[str]:
    """That of the reference's own runs first, then as the sweep has them."""
    return list(dict.fromkeys(p.rules for p in sorted(sweep.points, key=lambda p: p.target != sweep.reference)))


def _judged(curve: Curve, reference: Curve | None, unit: str) -> Curve:
    if curve is reference:
        return dataclasses.replace(curve, status="reference", says="the curve that was tuned")
    ours, theirs = curve.optimum, reference.optimum if reference else None
    known = theirs is not None and theirs.open is None
    drift = error = None
    if ours is not None and theirs is not None and known:
        drift = ours.log2 - theirs.log2
        if curve.optimum_error is not None and reference is not None and reference.optimum_error is not None:
            error = math.hypot(curve.optimum_error, reference.optimum_error)
    curve = dataclasses.replace(curve, drift=drift, drift_error=error)
    status, says = judge(curve, unit, known)
    return dataclasses.replace(curve, status=status, says=says)


def _transferred_runs(sweep: Sweep, scaling: bool) -> tuple[TransferredRun, ...]:
    """Each target at the transferred values, once per rule set; the reference first."""
    groups: dict[tuple[str, str], dict[str, Point]] = {}
    for point in sweep.points:
        if scaling or close(point.value, sweep.tuned[point.hyper]):
            groups.setdefault((point.rules, point.target), {})[point.id] = point
    rules = _rule_order(sweep)
    places = {target.name: i for i, target in enumerate(sweep.targets)}
    order = sorted(groups, key=lambda key: (key[1] != sweep.reference, rules.index(key[0]), places[key[1]]))
    runs = [
        _transferred_run(*key, [sweep.outcomes[id_] for id_ in groups[key] if id_ in sweep.outcomes]) for key in order
    ]
    reference = next((run for run in runs if run.target == sweep.reference), None)
    return tuple(_with_speedup(run, reference, sweep) for run in runs)


def _transferred_run(rules: str, target: str, outcomes: Sequence[Outcome]) -> TransferredRun:
    finished = [outcome for outcome in outcomes if outcome.status == "finished"]
    losses = [outcome.loss for outcome in finished if outcome.loss is not None]
    loads = [outcome.load_variation for outcome in finished if outcome.load_variation is not None]
    shown = finished or [outcome for outcome in outcomes if outcome.status == "diverged"]
    first = [outcome.first for outcome in shown if outcome.first]
    ends = finished[0].curve_step if finished else ()
    curves = [outcome.curve_loss for outcome in finished if outcome.curve_step == ends]
    return TransferredRun(
        rules=rules,
        target=target,
        seeds=len(losses),
        diverged=any(outcome.status == "diverged" for outcome in outcomes),
        loss=statistics.fmean(losses) if losses else None,
        spread=statistics.stdev(losses) if len(losses) > 1 else None,
        load_variation=statistics.fmean(loads) if loads else None,
        first=_mean([values[: min(map(len, first))] for values in first]),
        curve_step=ends,
        curve_loss=_mean(curves),
    )


def _mean(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(statistics.fmean(column) for column in zip(*rows, strict=True))


def _with_speedup(run: TransferredRun, reference: TransferredRun | None, sweep: Sweep) -> TransferredRun:
    if reference is None or run.target == reference.target or not run.curve_step or not reference.curve_step:
        return run
    found = speedup_curves(
        bin_middles(reference.curve_step),
        reference.curve_loss,
        bin_middles(run.curve_step),
        run.curve_loss,
        (sweep.target(reference.target).stable, sweep.target(run.target).stable),
    )
    return dataclasses.replace(run, speedup=found, speedup_median=found.median) if found.ratio else run


def _by_size(sweep: Sweep, runs: Sequence[TransferredRun], size: str) -> dict[str, list[Sized]]:
    """Per rule set, smallest first; the reference stands in every one."""
    rules = dict.fromkeys(run.rules for run in runs)
    rows: dict[str, list[Sized]] = {}
    for name in rules:
        chosen = [run for run in runs if run.rules == name or run.target == sweep.reference]
        sized: list[Sized] = []
        for run in chosen:
            error = (run.spread or 0.0) / math.sqrt(max(run.seeds, 1))
            sized.append((run.target, getattr(sweep.target(run.target), size), run.loss, error, run.diverged))
        rows[name] = sorted(sized, key=lambda row: row[1])
    return rows


def _plain(data: Any) -> Any:
    if isinstance(data, dict):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
