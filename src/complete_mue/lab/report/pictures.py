"""What the pictures of a sweep show, as charts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from complete_mue.chart import Dot, Drawn, Panel, Picture, linear_axis, log_axis
from complete_mue.lab.report.curves import Curve
from complete_mue.lab.report.labels import TASKS, label, with_unit
from complete_mue.lab.report.roles import changes, condition
from complete_mue.lab.report.speedup import Speedup
from complete_mue.lab.report.summary import Scan, Summary, TransferredRun
from complete_mue.tabular import counted, short_count


def pictures(summary: Summary) -> tuple[Picture, ...]:
    """Every picture that the sweep's records allow."""
    if summary.probe:
        drawn = [_power_picture(summary), _roles_picture(summary)]
    else:
        scans = [_scan_picture(summary, scan) for scan in summary.scans]
        drawn = [*scans, _scaling_picture(summary), _speedup_picture(summary), _first_steps_picture(summary)]
    where = f"{summary.title}, {TASKS.get(summary.task, summary.task)}, scale {summary.scale}"
    return tuple(dataclasses.replace(picture, where=where) for picture in drawn if picture is not None)


# -- loss against a hyperparameter ------------------------------------------------------------------------


def _scan_picture(summary: Summary, scan: Scan) -> Picture | None:
    seen = [curve for curve in scan.curves if curve.optimum is not None]
    if not seen:
        return None
    values = [point.value for curve in scan.curves for point in curve.points]
    losses = [point.loss for curve in seen for point in curve.points if point.loss is not None and not point.diverged]
    needed = [loss for curve in seen if curve.optimum for loss in (curve.optimum.best_loss, curve.optimum.loss)]
    needed += [curve.transferred_loss for curve in seen if curve.transferred_loss is not None]
    guide = (scan.tuned, f"{scan.tuned:.3g}") if scan.tuned > 0 else None  # zero has no place on a log axis
    name = f"{label(scan.hyper)}, in units of {summary.reference}"
    x = log_axis(name, values, reach=[scan.tuned] if guide else [])
    panels = tuple(
        Panel(rules, x, tuple(_scan_line(summary, curve) for curve in curves), guide)
        for rules, curves in _panels(summary.reference, scan.curves)
    )
    return Picture(
        key=scan.hyper,
        title=f"Loss against {label(scan.hyper)}",
        caption=f"One line per layout; the dashed line is the value tuned on {summary.reference}, transferred to all. "
        "Rings mark fitted minima, crosses on top runs that diverged, bars the standard deviation over seeds.",
        y=linear_axis(with_unit("final loss", summary.unit), needed + _calm(losses, needed)),
        panels=panels,
    )


def _power_picture(summary: Summary) -> Picture | None:
    """Optima of one role against sparsity, with the power law; runs under other conditions stand beside it."""
    panels, heights = [], [0.0]
    for power in summary.powers:
        curves = [c for scan in summary.scans for c in scan.curves if (c.hyper, c.rules) == (power.hyper, power.rules)]
        found: dict[str, list[Dot]] = {"layout alone changed": [], "other conditions too": []}
        for curve in curves:
            x, name = summary.target(curve.target).x, [*found][bool(condition(curve.target))]
            if x is not None and curve.drift is not None:
                text = f"{curve.target}: {curve.drift:+.2f} octaves from the plan"
                found[name].append(Dot(x, curve.drift, text, curve.drift_error))
        ends = [Dot(x, power.exponent * math.log2(x), "fit") for x in (power.low, power.high)]
        law = Drawn(f"(N/a)^{power.exponent:.2f}", 0, tuple(ends), markers=False)
        places = [dot for dots in found.values() for dot in dots]
        apart = dict(zip(places, _side_by_side(places), strict=True))
        lines = [
            Drawn(name, 1 + k, tuple(apart[dot] for dot in dots), joined=False)
            for k, (name, dots) in enumerate(found.items())
            if dots
        ]
        heights += [dot.y + side * (dot.error or 0.0) for dot in places for side in (-1, 1)]
        x_axis = log_axis("experts per active one, N/a", [dot.x for dot in places])
        panels.append(Panel(f"{label(power.hyper)}, {power.rules}", x_axis, (law, *lines)))
    if not panels:
        return None
    return Picture(
        key="power",
        title="Where the optimum lies, against sparsity",
        caption="Octaves from the plan's value, with one standard error. The line is the power law through the targets "
        "whose layout alone was changed. Targets of one N/a stand side by side. The table names the others.",
        y=linear_axis("optimum (octaves from the plan's value)", heights),
        panels=tuple(panels),
        level=0.0,
    )


def _side_by_side(dots: Sequence[Dot]) -> list[Dot]:
    """The same dots, in their order, those of one x a little apart on a log axis."""
    moved = []
    for dot in dots:
        beside = [other for other in dots if other.x == dot.x]
        place = beside.index(dot) - (len(beside) - 1) / 2
        moved.append(dataclasses.replace(dot, x=dot.x * 2 ** (0.06 * place)))
    return moved


def _roles_picture(summary: Summary) -> Picture | None:
    """One small panel per role: what another value would change, seed by seed. Conditions other than the layout have
    panels of their own."""
    panels, heights = [], [0.0]
    groups = [
        (scan.hyper, other, [curve for curve in scan.curves if condition(curve.target) == other])
        for scan in summary.scans
        for other in dict.fromkeys(condition(curve.target) for curve in scan.curves)
    ]
    for hyper, other, curves in groups:
        lines = []
        for curve in curves:
            dots = tuple(
                Dot(x, y, f"{curve.target}, {curve.rules}, 2^{x:g} of the plan's value: {y:+.4f}", error)
                for x, y, error in changes(curve)
            )
            name = curve.target if len({c.rules for c in curves}) == 1 else f"{curve.target}, {curve.rules}"
            lines += [Drawn(name, style_of(summary, curve.target), dots)] if dots else []
            heights += [dot.y for dot in dots]
        if lines:
            x = linear_axis("octaves from the plan's value", [dot.x for line in lines for dot in line.dots])
            title = f"{label(hyper)}, {other}" if other else label(hyper)
            panels.append(Panel(title, x, tuple(lines), (0.0, "")))
    if not panels:
        return None
    alone = len(panels) == 1
    return Picture(
        key="roles",
        title="What another value of one role would change" + (f": {panels[0].title}" if alone else ""),
        caption="One panel per role, one line per layout; below zero, another value than the plan's does better. "
        "Bars are standard errors over paired seeds.",
        y=linear_axis(with_unit("change of the final loss", summary.unit), heights + _calm(heights, [0.0])),
        panels=(dataclasses.replace(panels[0], title=""),) if alone else tuple(panels),
        level=0.0,
    )


def _calm(losses: Sequence[float], needed: Sequence[float]) -> list[float]:
    """Losses worth the paper's height: the lower three quarters, and some room above what is needed, so that the
    highest basin shows; far higher ones would flatten the basins."""
    ordered = sorted(losses)
    floor = ordered[0]
    ceiling = floor + 1.15 * (max(needed) - floor)
    quarter = ordered[min(len(ordered) - 1, (3 * len(ordered)) // 4)]
    top = max(ceiling, floor + 1.3 * (quarter - floor))
    return [loss for loss in losses if loss <= top] + ([top] if top < ordered[-1] else [])


def _panels(reference: str, curves: Iterable[Curve]) -> list[tuple[str, list[Curve]]]:
    """Rule set by rule set, the reference's curve in each."""
    curves = list(curves)
    own = [curve for curve in curves if curve.target == reference]
    rules = _rule_sets(reference, curves)
    return [(name, own + [c for c in curves if c.rules == name and c.target != reference]) for name in rules]


def _rule_sets(reference: str, found: Sequence[Curve] | Sequence[TransferredRun]) -> list[str]:
    """Those by which layouts ran: where none but the reference has the paper's, it needs no panel of its own."""
    layouts = [one.rules for one in found if one.target != reference]
    return list(dict.fromkeys(layouts or [one.rules for one in found]))


def _scan_line(summary: Summary, curve: Curve) -> Drawn:
    name = label(curve.hyper)
    dots, diverged = [], []
    for point in curve.points:
        where = f"{curve.target}, {name} {point.value:.3g}"
        if point.diverged:
            diverged.append(Dot(point.value, math.nan, f"{where}: diverged"))
        elif point.loss is not None:
            bar = f" ± {point.std:.4f}" if point.std is not None else ""
            seeds = counted(point.seeds, "seed")
            dots.append(Dot(point.value, point.loss, f"{where}: loss {point.loss:.4f}{bar}, {seeds}", point.std))
    best = curve.optimum
    minimum = None
    if best is not None and curve.scanned:
        edge = f", open: at the {best.open} edge" if best.open else ""
        wall = f", diverges {best.diverges}" if best.diverges else ""
        text = f"{curve.target}: optimum {best.value:.3g}, loss {best.loss:.4f}{edge}{wall}"
        minimum = Dot(best.value, best.loss, text)
    return Drawn(curve.target, style_of(summary, curve.target), tuple(dots), True, tuple(diverged), minimum)


def style_of(summary: Summary, target: str) -> int:
    """0 for the reference, then the targets in order."""
    others = [t.name for t in summary.targets if t.name != summary.reference]
    return 0 if target == summary.reference else 1 + others.index(target)


# -- loss against size, speedup, first steps ------------------------------------------------------------------


def _scaling_picture(summary: Summary) -> Picture | None:
    """Loss along each of the figure's axes; where its targets lie on none, against their size."""
    runs = [run for run in summary.runs if run.loss is not None and not run.diverged]
    if not summary.scaling or not runs:
        return None
    places = [place for target in summary.targets for place in target.places]
    caption = f"Every layout trained with the values tuned on {summary.reference}; "
    own = next((run.loss for run in runs if run.target == summary.reference), None)
    if places:
        panels = tuple(_axis_panel(summary, runs, title) for title in dict.fromkeys(place.title for place in places))
        caption += f"the dashed line is {summary.reference} itself; "
    else:
        panels, own = (_size_panel(summary, runs),), None
    losses = [dot.y for panel in panels for line in panel.lines for dot in line.dots]
    return Picture(
        key="scaling",
        title="Loss against size, hyperparameters fixed",
        caption=f"{caption}bars are the standard deviation over seeds.",
        y=linear_axis(with_unit("final loss", summary.unit), losses + ([own] if own is not None else [])),
        panels=panels,
        level=own,
    )


def _axis_panel(summary: Summary, runs: Sequence[TransferredRun], title: str) -> Panel:
    """Loss against the place along the axis of this title, a line per rule set."""
    at = {target.name: place for target in summary.targets for place in target.places if place.title == title}
    lines = []
    for number, rules in enumerate(dict.fromkeys(run.rules for run in summary.runs)):
        chosen = [run for run in runs if run.rules == rules and run.target in at]
        dots = sorted((_sized_dot(summary, run, rules, at[run.target].x) for run in chosen), key=lambda dot: dot.x)
        lines += [Drawn(rules, number + 1, tuple(dots))] if dots else []
    x = log_axis(next(iter(at.values())).label, [place.x for place in at.values()], short_count)
    return Panel(title, x, tuple(lines))


def _size_panel(summary: Summary, runs: Sequence[TransferredRun]) -> Panel:
    """Loss against the number of parameters, a colour per rule set."""
    lines = []
    for number, rules in enumerate(dict.fromkeys(run.rules for run in summary.runs)):
        chosen = [run for run in runs if run.rules == rules or run.target == summary.reference]
        dots = [_sized_dot(summary, run, rules, getattr(summary.target(run.target), summary.size)) for run in chosen]
        lines.append(Drawn(rules, number + 1, tuple(sorted(dots, key=lambda dot: dot.x)), joined=False))
    sizes = [dot.x for line in lines for dot in line.dots]
    return Panel("", log_axis(f"{summary.size} parameters", sizes, short_count), tuple(lines))


def _sized_dot(summary: Summary, run: TransferredRun, rules: str, x: float) -> Dot:
    size = short_count(getattr(summary.target(run.target), summary.size))
    text = f"{rules}, {run.target}: {size} {summary.size} parameters, loss {run.loss:.4f}"
    return Dot(x, run.loss or 0.0, text + (f" ± {run.spread:.4f}" if run.spread else ""), run.spread)


def _speedup_picture(summary: Summary) -> Picture | None:
    known = [(run, run.speedup) for run in summary.runs if run.speedup is not None]
    if not known:
        return None
    levels = [loss for _, found in known for loss in found.loss]
    ratios = [ratio for _, found in known for ratio in found.ratio]
    x = linear_axis(with_unit("loss reached", summary.unit), levels)
    return Picture(
        key="speedup",
        title=f"Speedup over {summary.reference}",
        caption=f"Steps of {summary.reference} over steps of the layout to the same loss, at the transferred values, "
        "in the stable phase of the schedule, by the mean over seeds. Above one, the layout learns faster.",
        y=linear_axis("speedup", [*ratios, 1.0]),
        panels=tuple(
            Panel(rules, x, tuple(_speedup_line(summary, run, found) for run, found in known if run.rules == rules))
            for rules in dict.fromkeys(run.rules for run, _ in known)
        ),
        level=1.0,
    )


def _speedup_line(summary: Summary, run: TransferredRun, found: Speedup) -> Drawn:
    dots = tuple(
        Dot(loss, ratio, f"{run.target}: {ratio:.2f} times as fast to loss {loss:.3f}")
        for loss, ratio in zip(found.loss, found.ratio, strict=True)
    )
    return Drawn(run.target, style_of(summary, run.target), dots, markers=False)


def _first_steps_picture(summary: Summary) -> Picture | None:
    runs = [run for run in summary.runs if run.first]
    if not runs:
        return None
    losses = [loss for run in runs for loss in run.first if math.isfinite(loss)]
    steps = max(len(run.first) for run in runs)
    if not losses or steps < 2:
        return None
    x = linear_axis("step", [1, steps])
    rules = _rule_sets(summary.reference, runs)
    chosen = {name: [run for run in runs if run.rules == name or run.target == summary.reference] for name in rules}
    return Picture(
        key="first-steps",
        title=f"The first {steps} steps at the transferred values",
        caption="Where the rules fit, the layouts start alike.",
        y=linear_axis(with_unit("loss", summary.unit), losses),
        panels=tuple(Panel(name, x, tuple(_first_line(summary, run) for run in chosen[name])) for name in rules),
    )


def _first_line(summary: Summary, run: TransferredRun) -> Drawn:
    dots = tuple(
        Dot(step, loss, f"{run.target}: loss {loss:.3f} at step {step}")
        for step, loss in enumerate(run.first, start=1)
        if math.isfinite(loss)
    )
    return Drawn(run.target, style_of(summary, run.target), dots, markers=False)
