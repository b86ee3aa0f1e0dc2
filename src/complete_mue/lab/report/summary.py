"""Everything a report says about one sweep, as plain data: ``summarize(folder).to_dict()`` is the report's JSON."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from complete_mue.lab.records import Outcome, PlannedPoint, PlannedTarget, StoredSweep, read_sweep
from complete_mue.lab.records.schema import HYPERS
from complete_mue.lab.report.curves import Curve, close, fit_curve, scan_noise, value_points
from complete_mue.lab.report.labels import UNITS, label
from complete_mue.lab.report.roles import Power, is_role, judged, power_of, role_lines
from complete_mue.lab.report.speedup import Speedup, bin_middles, speedup_curves
from complete_mue.lab.report.verdict import Line, Sized, judge, paired_lines, scaling_lines, scan_lines


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

    @property
    def troubles(self) -> list[str]:
        """What did not finish, in words."""
        words = {"diverged": self.diverged, "failed": self.failed, "missing": self.missing}
        return [f"{number} {word}" for word, number in words.items() if number]


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
    speedup_spread: float | None = None  # standard deviation over pairs of runs with one seed


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
    targets: tuple[PlannedTarget, ...]
    progress: Progress
    scaling: bool  # one value per target: loss against size is the picture, there is no optimum
    size: str  # "active" or "total": the count of parameters that grows along the sweep
    scans: tuple[Scan, ...]
    runs: tuple[TransferredRun, ...]
    verdict: tuple[Line, ...]
    powers: tuple[Power, ...] = ()  # of a role probe: optima against sparsity

    @property
    def probe(self) -> bool:
        """Whether single roles were scanned, around the plan's value."""
        return any(is_role(scan.hyper) for scan in self.scans)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: NaN becomes null."""
        data: dict[str, Any] = json.loads(msgspec.json.encode(dataclasses.asdict(self)))
        if not self.probe:
            del data["powers"]
        return data

    def target(self, name: str) -> PlannedTarget:
        """The target of that name."""
        return next(target for target in self.targets if target.name == name)


def summarize(folder: str | Path) -> Summary:
    """Read a sweep's folder and compute its optima, drifts, regrets, speedups and verdict."""
    sweep = read_sweep(folder)
    unit = UNITS[sweep.plan.task]
    values = {(point.hyper, point.rules, point.target, point.value) for point in sweep.plan.points}
    scaling = len(values) == len({of_curve[:3] for of_curve in values})
    scans = () if scaling else _scans(sweep)
    runs = _transferred_runs(sweep, scaling)
    actives = {target.active for target in sweep.plan.targets}
    size = "active" if len(actives) == len(sweep.plan.targets) else "total"
    progress = _progress(sweep)
    whole = [scan for scan in scans if not is_role(scan.hyper)]
    lines = [line for scan in whole for line in scan_lines(scan.hyper, scan.tuned, sweep.reference, scan.curves, unit)]
    powers = _powers(sweep, scans)
    lines += role_lines([curve for scan in scans if is_role(scan.hyper) for curve in scan.curves], powers, unit)
    lines += _off_grid_lines(scans, runs)
    if scaling:
        lines += scaling_lines(_by_size(sweep, runs, size), unit, size)
        lines += [line for scan in _scans(sweep) for line in paired_lines(sweep.reference, scan.curves, unit)]
    return Summary(
        name=sweep.plan.name,
        title=sweep.plan.title,
        task=sweep.plan.task,
        scale=sweep.plan.scale,
        command=sweep.plan.command,
        axis=sweep.plan.axis,
        unit=unit,
        reference=sweep.reference,
        tuned=dict(sweep.tuned),
        targets=sweep.plan.targets,
        progress=progress,
        scaling=scaling,
        size=size,
        scans=scans,
        runs=runs,
        verdict=(*lines, *_progress_lines(progress)),
        powers=powers,
    )


def _powers(sweep: StoredSweep, scans: Sequence[Scan]) -> tuple[Power, ...]:
    """For every role that was scanned on several sparsities, by each rule set."""
    sparsity = {target.name: target.x for target in sweep.plan.targets}
    groups = [
        [curve for curve in scan.curves if curve.rules == rules]
        for scan in scans
        if is_role(scan.hyper)
        for rules in dict.fromkeys(curve.rules for curve in scan.curves)
    ]
    return tuple(power for group in groups if (power := power_of(group, sparsity)) is not None)


def _progress(sweep: StoredSweep) -> Progress:
    ids = {point.id for point in sweep.plan.points}
    found = [sweep.outcomes[id_] for id_ in ids if id_ in sweep.outcomes]
    status = [outcome.status for outcome in found]
    return Progress(
        runs=len(ids),
        finished=status.count("finished"),
        diverged=status.count("diverged"),
        failed=status.count("failed"),
        missing=len(ids) - len(found),
        seeds=len({point.seed for point in sweep.plan.points}),
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
    """A tuned value that was not scanned: `mue sweep` always scans it, a custom grid may not."""
    if runs or not scans:
        return []
    values = ", ".join(f"{label(scan.hyper)} {scan.tuned:.3g}" for scan in scans)
    text = f"No run was planned at the transferred value ({values}): the loss there, and so the regret, is read off "
    text += "the curve between its neighbours, and there are no speedups and no first steps. Scan that value, too."
    return [Line("note", text)]


def _scans(sweep: StoredSweep) -> tuple[Scan, ...]:
    hypers = dict.fromkeys(point.hyper for point in sweep.plan.points)
    order = sorted(hypers, key=lambda name: HYPERS.index(name) if name in HYPERS else len(HYPERS))
    return tuple(scan_of(sweep, hyper) for hyper in order)


def scan_of(sweep: StoredSweep, hyper: str) -> Scan:
    """One hyperparameter's curves, judged."""
    tuned, unit = sweep.tuned[hyper], UNITS[sweep.plan.task]
    groups: dict[tuple[str, str], list[tuple[PlannedPoint, Outcome | None]]] = {}
    for point in sweep.plan.points:
        if point.hyper == hyper:
            groups.setdefault((point.rules, point.target), []).append((point, sweep.outcomes.get(point.id)))
    order = _ordered(sweep, groups)
    found = {key: value_points(groups[key]) for key in order}
    noise = {rules: scan_noise(points for key, points in found.items() if key[0] == rules) for rules, _ in order}
    curves = []
    for key in order:
        fitted = fit_curve(hyper, *key, tuned, found[key], noise[key[0]])
        ids = " ".join(sorted(point.id for point, _ in groups[key]))
        curves.append(dataclasses.replace(fitted, runs=hashlib.sha256(ids.encode()).hexdigest()[:16]))
    if is_role(hyper):
        return Scan(hyper, tuned, tuple(judged(curve, unit) for curve in curves))
    reference = next((curve for curve in curves if curve.target == sweep.reference), None)
    return Scan(hyper, tuned, tuple(_judged(curve, reference, unit) for curve in curves))


def _ordered(sweep: StoredSweep, groups: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """(rules, target): the reference, then by rule set, that of the reference's runs first, as the sweep has them."""
    points = sorted(sweep.plan.points, key=lambda point: point.target != sweep.reference)
    rules = list(dict.fromkeys(point.rules for point in points))
    places = {target.name: i for i, target in enumerate(sweep.plan.targets)}
    return sorted(groups, key=lambda key: (key[1] != sweep.reference, rules.index(key[0]), places[key[1]]))


def _judged(curve: Curve, reference: Curve | None, unit: str) -> Curve:
    if curve is reference:
        return dataclasses.replace(curve, status="reference", says="the curve that was tuned")
    ours, theirs = curve.optimum, reference.optimum if reference else None
    drift = error = None
    # A single value ("both" edges are open) says nothing about where the optimum is.
    if ours is not None and ours.open != "both" and theirs is not None and theirs.open is None:
        drift = ours.log2 - theirs.log2
        if curve.optimum_error is not None and reference is not None and reference.optimum_error is not None:
            error = math.hypot(curve.optimum_error, reference.optimum_error)
    return judge(dataclasses.replace(curve, drift=drift, drift_error=error), unit, reference)


def _transferred_runs(sweep: StoredSweep, scaling: bool) -> tuple[TransferredRun, ...]:
    """Each target at the transferred values, once per rule set; the reference first."""
    groups: dict[tuple[str, str], dict[str, PlannedPoint]] = {}
    for point in sweep.plan.points:
        if scaling or close(point.value, sweep.tuned[point.hyper]):
            groups.setdefault((point.rules, point.target), {})[point.id] = point
    order = _ordered(sweep, groups)
    found = {
        key: {p.seed: sweep.outcomes[p.id] for p in groups[key].values() if p.id in sweep.outcomes} for key in order
    }
    reference = next((key for key in order if key[1] == sweep.reference), None)
    runs = []
    for key in order:
        run = _transferred_run(*key, list(found[key].values()))
        if reference is not None and key[1] != sweep.reference:
            run = _with_speedup(run, found[reference], found[key], sweep)
        runs.append(run)
    return tuple(runs)


def _transferred_run(rules: str, target: str, outcomes: Sequence[Outcome]) -> TransferredRun:
    finished = [outcome for outcome in outcomes if outcome.status == "finished"]
    losses = [outcome.loss for outcome in finished if outcome.loss is not None]
    loads = [outcome.load_variation for outcome in finished if outcome.load_variation is not None]
    shown = finished or [outcome for outcome in outcomes if outcome.status == "diverged"]
    first = [outcome.first for outcome in shown if outcome.first]
    ends, curve = _mean_curve(outcomes)
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
        curve_loss=curve,
    )


def _mean(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(statistics.fmean(column) for column in zip(*rows, strict=True))


def _mean_curve(outcomes: Sequence[Outcome]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Of those that finished."""
    curves = [outcome.curve for outcome in outcomes if outcome.status == "finished"]
    ends = curves[0].step if curves else ()
    return ends, _mean([curve.loss for curve in curves if curve.step == ends])


def _with_speedup(
    run: TransferredRun, reference: Mapping[int, Outcome], target: Mapping[int, Outcome], sweep: StoredSweep
) -> TransferredRun:
    """The run with its speedup, by the mean curves, and the spread over pairs of one seed. Steps of different batches
    cannot be compared: then there is none."""
    models = sweep.plan.target(sweep.reference), sweep.plan.target(run.target)
    if models[0].batch_tokens != models[1].batch_tokens:
        return run

    def speedup(a: Sequence[Outcome], b: Sequence[Outcome]) -> Speedup:
        (ends_a, losses_a), (ends_b, losses_b) = _mean_curve(a), _mean_curve(b)
        stable = models[0].stable, models[1].stable
        return speedup_curves(bin_middles(ends_a), losses_a, bin_middles(ends_b), losses_b, stable)

    whole = speedup(list(reference.values()), list(target.values()))
    if not whole.ratio:
        return run
    pairs = [speedup([reference[seed]], [target[seed]]).median for seed in reference if seed in target]
    medians = [median for median in pairs if median is not None]
    spread = statistics.stdev(medians) if len(medians) > 1 else None
    return dataclasses.replace(run, speedup=whole, speedup_median=whole.median, speedup_spread=spread)


def _by_size(sweep: StoredSweep, runs: Sequence[TransferredRun], size: str) -> dict[str, list[Sized]]:
    """Per rule set, smallest first; the reference stands in every one."""
    rules = dict.fromkeys(run.rules for run in runs)
    rows: dict[str, list[Sized]] = {}
    for name in rules:
        chosen = [run for run in runs if run.rules == name or run.target == sweep.reference]
        sized = []
        for run in chosen:
            target, error = sweep.plan.target(run.target), (run.spread or 0.0) / math.sqrt(max(run.seeds, 1))
            sized.append(Sized(target.name, target.active, target.total, run.loss, error, run.diverged))
        rows[name] = sorted(sized, key=lambda row: getattr(row, size))
    return rows
