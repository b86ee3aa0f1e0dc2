"""Whether the transfer held, in plain words: where it did, where it did not, and what these runs cannot tell."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from complete_mue.lab.report.curves import Curve
from complete_mue.lab.report.estimator import CLIFF
from complete_mue.lab.report.labels import label, with_unit
from complete_mue.tabular import counted, short_count

DRIFT_GOAL = 0.5  # octaves
REGRET_GOAL = 0.01  # nats
_CLEAR = 2.0  # standard errors
OURS = ("complete_mue", "complete_mue_sparse")
LEGEND = f"""\
Held: the layout's own optimum is within {DRIFT_GOAL:g} octaves of the reference's, and the transferred value costs at
most {REGRET_GOAL:g} in loss, with error bars no wider than that. Flat layouts hold too: by two standard errors the
cost is within that, but the optimum may lie more than {DRIFT_GOAL:g} octaves away. Missed: beyond one of the two by
more than two standard errors. Unclear: the noise could explain it, and the budget is too small to tell. Open: the best
value is at the edge of the grid; ≥ and ≤ are bounds. Unfinished: runs are missing. ± is one standard error from the
seeds; beside a loss or a speedup, the standard deviation over seeds."""


@dataclass(frozen=True)
class Line:
    """One sentence; ``kind`` is good, bad, open or note. Sentences with one ``about`` belong together."""

    kind: str
    text: str
    about: str = ""

    @property
    def sign(self) -> str:
        """Its kind as one character."""
        return {"good": "✓", "bad": "✗", "open": "○", "note": "·"}[self.kind]


def judge(curve: Curve, unit: str, reference: Curve | None) -> Curve:
    """The curve with the verdict on its target under its rule set."""
    if curve.diverges:
        return _with(curve, "missed", "diverges at every value")
    if curve.transferred_diverged:
        return _with(curve, "missed", "diverges at the transferred value")
    if curve.optimum is None:
        return _with(curve, "unfinished", "no result yet")
    if curve.gaps:
        return _with(curve, "unfinished", f"runs are missing at {_values(curve.gaps)}")
    if not curve.scanned:
        return _with(curve, "open", "one value alone; give --octaves to scan around it")
    if curve.regret is None:
        return _with(curve, "unfinished", "no result at the transferred value")
    regret, error = curve.regret, curve.regret_error or 0.0
    if curve.optimum.open:
        edge = f"the {curve.optimum.open} edge of the grid"
        if reference is not None and reference.optimum and reference.optimum.open == curve.optimum.open:
            return _with(curve, "open", f"optimum at {edge}, as that of {reference.target}: scan wider")
        if regret - _CLEAR * error > REGRET_GOAL:
            return _with(curve, "missed", f"regret at least {regret:.3f} {unit}; the optimum lies at {edge}")
        return _with(curve, "open", f"optimum at {edge}: scan wider")
    if reference is not None and reference.gaps:
        return _with(curve, "unfinished", f"runs of {reference.target} are missing, so the drift is not known")
    if curve.drift is None:
        return _with(curve, "unclear", "the reference's optimum is not known, so neither is the drift")
    return _weighed(curve, curve.drift, regret, unit)


def _weighed(curve: Curve, drift: float, regret: float, unit: str) -> Curve:
    drift_error, regret_error = curve.drift_error, curve.regret_error
    drift_off, regret_off = abs(drift) > DRIFT_GOAL, regret > REGRET_GOAL
    numbers = f"drift {drift:+.2f} octaves, regret {regret:.3f} {unit}"
    clear = (drift_off and abs(drift) - _CLEAR * (drift_error or 0.0) > DRIFT_GOAL) or (
        regret_off and regret - _CLEAR * (regret_error or 0.0) > REGRET_GOAL
    )
    if clear:
        why = "the basin is wide, so it costs little" if not regret_off else ""
        return _with(curve, "missed", f"{numbers}; {why}" if why else numbers, why)
    wide_drift = drift_error is not None and drift_error > DRIFT_GOAL
    wide_regret = regret_error is not None and regret_error > REGRET_GOAL
    if not (drift_off or regret_off or wide_drift or wide_regret):
        return _with(curve, "held", numbers, "")
    most = math.inf if regret_error is None else regret + _CLEAR * regret_error
    if most <= REGRET_GOAL:
        most = math.ceil(most * 1000) / 1000
        return _with(curve, "flat", f"costs at most {most:.3f} {unit}; the drift may be more than half an octave")
    noise = [f"±{drift_error:.2f} octaves"] if drift_error is not None and (drift_off or wide_drift) else []
    noise += [f"±{regret_error:.3f} {unit}"] if regret_error is not None and (regret_off or wide_regret) else []
    why = f"with noise of {' and '.join(noise)} the budget is too small to tell"
    return _with(curve, "unclear", f"{numbers}; {why}", why)


def _with(curve: Curve, status: str, says: str, why: str | None = None) -> Curve:
    """``says`` is the whole reason, ``why`` the same less the drift and the regret, if they are in it."""
    return dataclasses.replace(curve, status=status, says=says, why=says if why is None else why)


def _values(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


def scan_lines(hyper: str, tuned: float, reference: str, curves: Sequence[Curve], unit: str) -> list[Line]:
    """The sentences for one hyperparameter: the reference's rule set first, then every other beside it. Where the
    targets ran by other rules alone, the first of these leads, by its name."""
    own = next((c for c in curves if c.target == reference), None)
    groups = _by_rules(reference, curves)
    lines = _reference_lines(hyper, tuned, reference, own)
    if groups:
        (lead, ours), *others = groups.items()
        at = {curve.target: curve for curve in ours}
        beside = []
        for rules, group in others:
            both = [(at.get(c.target), c) for c in group]
            beside += [beside_line(lead, both, rules, unit), *gain_lines(lead, both, rules, unit)]
        value = f"the value transferred from {reference}"
        value += f" ({tuned:.3g})" if own is not None and own.optimum is not None else ""
        by = "" if own is not None and own.rules == lead else f" by {lead}"
        lines = [*_main_lines(hyper, value, ours, unit, by), *lines, *beside]
    elif own is not None and own.optimum is not None and own.optimum.open is None:  # a scan of the reference alone
        text = f"{label(hyper).capitalize()}: {reference} has its optimum at {optimum_words(own, unit)}"
        doubtful = doubts(own)
        lines = [Line("open" if doubtful else "good", "; ".join([text, *doubtful]) + ".")]
    return [dataclasses.replace(line, about=hyper) for line in lines]


def _by_rules(reference: str, curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        if curve.target != reference:
            groups.setdefault(curve.rules, []).append(curve)
    return groups


def paired_lines(reference: str, curves: Sequence[Curve], unit: str) -> list[Line]:
    """Where only the transferred value was run: the difference of every rule set of ours from the first."""
    groups = _by_rules(reference, curves)
    lead = next(iter(groups), "")
    at = {curve.target: curve for curve in groups.pop(lead, [])}
    return [
        line
        for rules, group in groups.items()
        for line in gain_lines(lead, [(at.get(curve.target), curve) for curve in group], rules, unit)
    ]


def optimum_words(curve: Curve, unit: str) -> str:
    """``0.008 ± 0.12 octaves; from … 0.004 to 0.012 the loss is within 0.01 nats of the best``."""
    best = curve.optimum
    if best is None:
        return "none"
    error = f" ± {curve.optimum_error:.2f} octaves" if curve.optimum_error is not None else ""
    text = f"{best.value:.3g}{error}; from {best.basin} the loss is within {best.basin.nats:g} {unit} of the best"
    return f"{text}; it diverges {best.diverges}" if best.diverges else text


def doubts(curve: Curve) -> list[str]:
    """What keeps the optimum of a tuned model from being known well."""
    found = []
    if curve.optimum_error is not None and curve.optimum_error > DRIFT_GOAL:
        found.append(f"± {curve.optimum_error:.2f} octaves is more than half an octave: take more seeds or longer runs")
    if curve.optimum is not None:
        basin = curve.optimum.basin
        sides = [name for name, off in (("low", basin.low_open), ("high", basin.high_open)) if off]
        if sides:
            found.append(f"the basin runs off the grid on its {' and '.join(sides)} side: scan wider")
        found += _cliff(curve)
    if curve.gaps:
        found.append(f"runs are missing at {_values(curve.gaps)}")
    return found


def _cliff(curve: Curve) -> list[str]:
    """Whether a tuned learning rate lies where another model may not train."""
    cliff = curve.optimum.cliff if curve.optimum is not None and curve.hyper == "lr" else None
    if cliff is None:
        return []
    return [
        f"a cliff at {cliff:.3g}, where the loss is more than {CLIFF:g} higher or a run diverged; a larger model or an "
        "MoE may fall off sooner: take a smaller value, or norms of queries and keys (qk_norm=true)"
    ]


def _main_lines(hyper: str, value: str, group: Sequence[Curve], unit: str, by: str) -> list[Line]:
    held = [curve for curve in group if curve.held]
    text = f"{label(hyper).capitalize()}{by}: {value} held on {held_of(group)}"
    drifts = [abs(curve.drift or 0.0) for curve in held if curve.status == "held"]
    facts = [f"drift at most {max(drifts):.2f} octaves"] if drifts else []
    facts += [f"regret at most {max(curve.regret or 0.0 for curve in held):.4f} {unit}"] if held else []
    first = Line(kind_of(group), f"{text}{': ' if facts else ''}{', '.join(facts)}.")
    return [first, *(verdict_line(curve, curve.target) for curve in group if curve.status != "held")]


def verdict_line(curve: Curve, where: str) -> Line:
    """``64e2a, missed: drift -0.81 octaves, …``."""
    return Line({"flat": "note", "missed": "bad"}.get(curve.status, "open"), f"{where}, {curve.verdict}: {curve.says}.")


def kind_of(group: Sequence[Curve]) -> str:
    """good: all held; bad: none did, and not for lack of evidence."""
    if all(curve.held for curve in group):
        return "good"
    missed = any(curve.status == "missed" for curve in group)
    return "bad" if missed and not any(curve.held for curve in group) else "open"


def _reference_lines(hyper: str, tuned: float, reference: str, own: Curve | None) -> list[Line]:
    if own is not None and (own.diverges or own.transferred_diverged):
        where = "every value" if own.diverges else f"its tuned {label(hyper)} {tuned:.3g}"
        return [Line("bad", f"{reference}: the reference diverges at {where}: tune it again.")]
    if own is None or own.optimum is None:
        return [Line("open", f"{reference}: the reference has no result yet, so the drift is not known.")]
    if own.gaps:
        text = f"{reference}: the reference's runs are missing at {_values(own.gaps)}, so the drift is not known."
        return [Line("open", text)]
    if own.optimum.open:
        edge = f"{own.optimum.open} edge" if own.optimum.open != "both" else "edge"
        return [Line("open", f"{reference}: the reference's own optimum is at the {edge} of its grid: scan wider.")]
    cliff = [Line("open", f"{reference}: {words}.") for words in _cliff(own)]
    moved = math.log2(own.optimum.value / tuned) if tuned > 0 else math.inf
    if abs(moved) > DRIFT_GOAL + _CLEAR * (own.optimum_error or 0.0):
        text = f"{reference}: its own optimum here is {own.optimum.value:.3g}, {moved:+.2f} octaves from the tuned"
        return [Line("bad", f"{text} {label(hyper)} {tuned:.3g}: tune the reference again."), *cliff]
    return cliff


def held_of(group: Sequence[Curve]) -> str:
    """``3 of 4 layouts, 1 of them flat, 1 unfinished``."""
    status = [curve.status for curve in group]
    flat, unfinished = status.count("flat"), status.count("unfinished")
    held = status.count("held") + flat
    more = f", {flat} of them flat" if flat and len(group) > 1 else ""
    more += f", {unfinished} unfinished" if unfinished else ""
    if held == len(group):
        return f"all {held} layouts{more}" if held > 1 else "its one layout"
    return f"{held or 'none'} of {counted(len(group), 'layout')}{more}"


def beside_line(main: str, both: Sequence[tuple[Curve | None, Curve]], rules: str, unit: str) -> Line:
    """How another rule set does, in the loss that one pays at the transferred value; ``both`` holds the main rule set's
    curve (if there is one) and the other's for each target. It is never better where it blew up."""
    pairs = [(ours, curve) for ours, curve in both if ours is not None]
    scanned = any(curve.scanned for _, curve in both)
    text = f"{rules} held on {held_of([curve for _, curve in both])}" if scanned else f"{rules}, not scanned"
    blown = [b.target for _, b in pairs if b.transferred_diverged]
    text += f", diverged at the transferred value for {', '.join(blown)}" if blown else ""
    costs = [found for ours, theirs in pairs if (found := _costs(ours, theirs))]
    if not costs:
        return Line("note", f"{text}; no loss at the transferred value to compare with {main} yet.")
    more, error = _mean_and_error(costs)
    threshold = _CLEAR * error if error is not None else REGRET_GOAL / 2
    ours_held, theirs_held = (sum(pair[side].held for pair in pairs) for side in (0, 1))
    if abs(more) <= threshold and (theirs_held >= ours_held or not scanned) and not blown:
        return Line("open", f"{text}: it does as well as {main} here; these runs do not tell the two apart.")
    bar = f" ± {error:.3f}" if error is not None else ""
    side = "higher" if more > 0 else "lower"
    text += f"; its loss at the transferred value is {abs(more):.3f}{bar} {unit} {side} than by {main} on average"
    if len(costs) < len(both):
        text += f" on the {counted(len(costs), 'layout')} where both finished"
    better = -more > threshold and not blown
    kind = "good" if rules in OURS else "bad"  # where a rival does better, that speaks against ours
    return Line(kind if better else "note", f"{text}: it does better here." if better else f"{text}.")


def gain_lines(main: str, both: Sequence[tuple[Curve | None, Curve]], rules: str, unit: str) -> list[Line]:
    """The difference of a rule set of ours at the transferred value, layout by layout, paired by seed."""
    if rules not in OURS:
        return []
    found = [(theirs.target, costs) for ours, theirs in both if ours and len(costs := _costs(ours, theirs)) > 1]
    each = [
        f"{target} {statistics.fmean(costs):+.4f} ± {statistics.stdev(costs) / math.sqrt(len(costs)):.4f}"
        for target, costs in found
    ]
    text = with_unit(f"Loss by {rules} minus that by {main}", unit)
    return [Line("note", f"{text}: {', '.join(each)}.")] if each else []


def _costs(ours: Curve, theirs: Curve) -> list[float]:
    """By how much the other rule set's loss is higher at the transferred value, seed by seed: what a seed adds to both
    alike is no difference. One number where that value was not scanned."""
    if ours.transferred_loss is None or theirs.transferred_loss is None:
        return []
    if ours.at_transferred is None or theirs.at_transferred is None:
        return [theirs.transferred_loss - ours.transferred_loss]
    own = dict(ours.at_transferred.losses)
    return [loss - own[seed] for seed, loss in theirs.at_transferred.losses if seed in own]


def _mean_and_error(costs: Sequence[Sequence[float]]) -> tuple[float, float | None]:
    """The mean over layouts, and its standard error from the spread over each layout's seeds."""
    means = [statistics.fmean(found) for found in costs]
    freedom = sum(len(found) - 1 for found in costs)
    if not freedom:
        return statistics.fmean(means), None
    rest = sum((cost - mean) ** 2 for found, mean in zip(costs, means, strict=True) for cost in found)
    error = math.sqrt(rest / freedom * sum(1 / len(found) for found in costs)) / len(costs)
    return statistics.fmean(means), error


@dataclass(frozen=True)
class Sized:
    """A target of a scaling figure: its parameters and its loss; ``error`` is zero where unknown."""

    target: str
    active: int
    total: int
    loss: float | None
    error: float
    diverged: bool

    def rises_above(self, other: Sized) -> bool:
        """Whether its loss is higher than that of a target no larger in any respect, beyond the noise."""
        if self.loss is None or other.loss is None or other.active > self.active or other.total > self.total:
            return False
        noise = math.hypot(self.error, other.error)
        return self is not other and self.loss - other.loss > (_CLEAR * noise or REGRET_GOAL / 2)


def scaling_lines(losses: dict[str, list[Sized]], unit: str, size: str) -> list[Line]:
    """Loss against size at fixed hyperparameters, per rule set, smallest first. More experts, more active ones and more
    layers are different ways to grow, so a rise counts only against a target that is no larger in any of them."""
    lines: list[Line] = []
    for rules, rows in losses.items():
        known = [row for row in rows if row.loss is not None and not row.diverged]
        blown = [row.target for row in rows if row.diverged]
        if blown:
            lines.append(Line("bad", f"{rules}: {', '.join(blown)} diverged at the fixed hyperparameters."))
        if len(known) < 2:
            lines.append(Line("open", f"{rules}: fewer than two layouts have a loss yet."))
            continue
        rises = [row.target for row in known if any(row.rises_above(other) for other in known)]
        first, last = known[0], known[-1]
        falls = (last.loss or 0.0) < (first.loss or 0.0)
        text = f"{rules}: at fixed hyperparameters the loss {'falls' if falls else 'rises'} from {first.loss:.3f} to "
        text += f"{last.loss:.3f} {unit} between {short_count(getattr(first, size))} and "
        text += f"{short_count(getattr(last, size))} {size} parameters"
        text += f", but not at {', '.join(rises)}." if rises and falls else "."
        lines.append(Line("good" if falls and not rises else "open" if falls else "bad", text))
    return lines
