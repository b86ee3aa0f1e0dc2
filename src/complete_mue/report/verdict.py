"""Whether the transfer held, in plain words: what served, what did not, and what these runs cannot tell.

A target is served (``held``) where its drift is at most half an octave and its regret at most 0.01, and the error bars
are no wider than these goals. ``missed`` is a miss that the noise does not explain; ``unclear`` is anything the noise
does explain. ``open`` means the optimum lies at the grid's edge, ``unfinished`` that runs are missing.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from complete_mue.report.curves import Curve
from complete_mue.report.words import label, short_count

DRIFT_GOAL = 0.5  # octaves
REGRET_GOAL = 0.01  # nats
_CLEAR = 2.0  # standard errors


@dataclass(frozen=True)
class Line:
    """One sentence; ``kind`` is good, bad, open or note. Sentences with one ``about`` belong together."""

    kind: str
    text: str
    about: str = ""


def judge(curve: Curve, unit: str, reference_known: bool) -> tuple[str, str]:
    """(status, reason) of one target under one rule set."""
    if curve.optimum is None:
        diverged = any(point.diverged for point in curve.points)
        return ("missed", "diverges at every value") if diverged else ("unfinished", "no result yet")
    if curve.transferred_diverged:
        return "missed", "diverges at the transferred value"
    if curve.regret is None:
        return "unfinished", "no result at the transferred value"
    regret, error = curve.regret, curve.regret_error or 0.0
    if regret - _CLEAR * error > REGRET_GOAL and curve.optimum.open:
        return "missed", f"regret at least {regret:.3f} {unit}; the optimum lies at the {_edge(curve)}"
    if curve.optimum.open:
        more = "; runs are missing" if not curve.complete else ": scan wider"
        return "unfinished" if not curve.complete else "open", f"optimum at the {_edge(curve)}{more}"
    if curve.drift is None or not reference_known:
        return "unclear", "the reference's optimum is not known, so neither is the drift"
    return _weigh(curve.drift, curve.drift_error, regret, curve.regret_error, unit)


def _weigh(
    drift: float, drift_error: float | None, regret: float, regret_error: float | None, unit: str
) -> tuple[str, str]:
    drift_off, regret_off = abs(drift) > DRIFT_GOAL, regret > REGRET_GOAL
    moved = f"drift {drift:+.2f} octaves"
    cost = f"regret {regret:.3f} {unit}"
    clear = (drift_off and abs(drift) - _CLEAR * (drift_error or 0.0) > DRIFT_GOAL) or (
        regret_off and regret - _CLEAR * (regret_error or 0.0) > REGRET_GOAL
    )
    if clear:
        flat = "; the basin is flat, so it costs little" if not regret_off else ""
        return "missed", f"{moved}, {cost}{flat}"
    wide_drift = drift_error is not None and drift_error > DRIFT_GOAL
    wide_regret = regret_error is not None and regret_error > REGRET_GOAL
    if drift_off or regret_off or wide_drift or wide_regret:
        noise = [f"±{drift_error:.2f} octaves"] if drift_error is not None and (drift_off or wide_drift) else []
        noise += [f"±{regret_error:.3f} {unit}"] if regret_error is not None and (regret_off or wide_regret) else []
        return "unclear", f"{moved}, {cost}, but the noise is {' and '.join(noise)}: too small a budget to tell"
    return "held", f"{moved}, {cost}"


def _edge(curve: Curve) -> str:
    side = curve.optimum.open if curve.optimum else None
    return "both edges of the grid (one value)" if side == "both" else f"{side} edge of the grid"


def scan_lines(hyper: str, tuned: float, reference: str, curves: Sequence[Curve], unit: str) -> list[Line]:
    """The sentences for one hyperparameter: the main rule set first, then every other beside it."""
    own = next((c for c in curves if c.target == reference), None)
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        if curve.target != reference:
            groups.setdefault(curve.rules, []).append(curve)
    lines = _reference_lines(hyper, tuned, reference, own)
    if groups:
        (main, ours), *others = groups.items()
        at = {curve.target: curve for curve in ours}
        beside = [beside_line(main, [(at.get(c.target), c) for c in group], rules, unit) for rules, group in others]
        lines = [*_main_lines(hyper, tuned, reference, ours, unit), *lines, *beside]
    elif own is not None and own.optimum is not None and own.optimum.open is None:  # a scan of the reference alone
        best = own.optimum
        error = f" ± {own.optimum_error:.2f} octaves" if own.optimum_error is not None else ""
        text = f"{label(hyper).capitalize()}: {reference} has its optimum at {best.value:.3g}{error}; "
        text += f"from {best.basin.low:.3g} to {best.basin.high:.3g} the loss is within {best.basin.nats:g} {unit}"
        wall = f"; it diverges {best.diverges}" if best.diverges else ""
        lines = [Line("good", f"{text} of the best{wall}.")]
    return [dataclasses.replace(line, about=hyper) for line in lines]


def _main_lines(hyper: str, tuned: float, reference: str, group: Sequence[Curve], unit: str) -> list[Line]:
    served = [curve for curve in group if curve.status == "held"]
    text = f"{label(hyper).capitalize()}: the {reference} optimum ({tuned:.3g}) served {served_of(served, group)}"
    if served:
        drift = max(abs(curve.drift or 0.0) for curve in served)
        regret = max(curve.regret or 0.0 for curve in served)
        text += f": drift at most {drift:.2f} octaves, regret at most {regret:.3f} {unit}"
    first = Line(kind_of(group), f"{text}.")
    rest = [curve for curve in group if curve.status != "held"]
    return [first, *(Line("bad" if c.status == "missed" else "open", f"{c.target}: {c.says}.") for c in rest)]


def kind_of(group: Sequence[Curve]) -> str:
    """good: all were served; bad: none, and not for want of evidence."""
    statuses = [curve.status for curve in group]
    if all(status == "held" for status in statuses):
        return "good"
    return "bad" if "missed" in statuses and "held" not in statuses else "open"


def _reference_lines(hyper: str, tuned: float, reference: str, own: Curve | None) -> list[Line]:
    if own is None or own.optimum is None:
        return [Line("open", f"{reference}: the reference has no result yet, so the drift is not known.")]
    if own.optimum.open:
        edge = f"{own.optimum.open} edge" if own.optimum.open != "both" else "edge"
        return [Line("open", f"{reference}: the reference's own optimum is at the {edge} of its grid: scan wider.")]
    moved = math.log2(own.optimum.value / tuned) if tuned > 0 else math.inf
    if abs(moved) > DRIFT_GOAL + _CLEAR * (own.optimum_error or 0.0):
        text = f"{reference}: its own optimum here is {own.optimum.value:.3g}, {moved:+.2f} octaves from the tuned"
        return [Line("bad", f"{text} {label(hyper)} {tuned:.3g}: tune the reference again.")]
    return []


def served_of(served: Sequence[object], group: Sequence[object]) -> str:
    """``3 of 4 layouts``."""
    noun = "layout" if len(group) == 1 else "layouts"
    if len(served) == len(group):
        return f"all {len(group)} {noun}" if len(group) > 1 else "its one layout"
    return f"{len(served) or 'none'} of {len(group)} {noun}"


def beside_line(main: str, both: Sequence[tuple[Curve | None, Curve]], rules: str, unit: str) -> Line:
    """How another rule set does, in the loss that one pays at the transferred value; ``both`` holds the main rule set's
    curve (if there is one) and the other's for each target."""
    theirs = [curve for _, curve in both]
    pairs = [(ours, curve) for ours, curve in both if ours is not None]
    served = [curve for curve in theirs if curve.status == "held"]
    text = f"{rules} served {served_of(served, theirs)}"
    blown = [b.target for _, b in pairs if b.transferred_diverged]
    text += f", diverged at the transferred value for {', '.join(blown)}" if blown else ""
    costs = [(a, b) for a, b in pairs if a.transferred_loss is not None and b.transferred_loss is not None]
    if not costs:
        return Line("note", f"{text}; no loss at the transferred value to compare with {main} yet.")
    more = statistics.fmean((b.transferred_loss or 0.0) - (a.transferred_loss or 0.0) for a, b in costs)
    error = _mean_error([curve for pair in costs for curve in pair], len(costs))
    threshold = _CLEAR * error if error is not None else REGRET_GOAL / 2
    ours_held, theirs_held = (sum(pair[side].status == "held" for pair in pairs) for side in (0, 1))
    if abs(more) <= threshold and theirs_held >= ours_held and not blown:
        return Line("open", f"{text}: it does as well as {main} here; these runs do not tell the two apart.")
    bar = f" ± {error:.3f}" if error is not None else ""
    side = "higher" if more > 0 else "lower"
    text += f"; its loss at the transferred value is {abs(more):.3f}{bar} {unit} {side} than that of {main} on average"
    better = -more > threshold
    return Line("bad" if better else "note", f"{text}: it does better here." if better else f"{text}.")


def _mean_error(curves: Sequence[Curve], pairs: int) -> float | None:
    squares: list[float] = []
    for curve in curves:
        here = next((p for p in curve.points if p.loss == curve.transferred_loss and p.std is not None), None)
        if here is None or here.std is None:
            return None
        squares.append(here.std**2 / here.seeds)
    return math.sqrt(sum(squares)) / pairs


Sized = tuple[str, int, float | None, float, bool]  # target, size, loss, its standard error (0: unknown), diverged


def scaling_lines(losses: dict[str, list[Sized]], unit: str, size: str) -> list[Line]:
    """Loss against size at fixed hyperparameters, per rule set, smallest first; a rise within the noise is none."""
    lines: list[Line] = []
    for rules, rows in losses.items():
        known = [(name, n, loss, error) for name, n, loss, error, diverged in rows if loss is not None and not diverged]
        blown = [name for name, _, _, _, diverged in rows if diverged]
        if blown:
            lines.append(Line("bad", f"{rules}: {', '.join(blown)} diverged at the fixed hyperparameters."))
        if len(known) < 2:
            lines.append(Line("open", f"{rules}: fewer than two layouts have a loss yet."))
            continue
        rises = [
            name for (_, m, before, e), (name, n, loss, error) in itertools.pairwise(known)
            if n > m and loss - before >= _CLEAR * math.hypot(e, error)
        ]  # fmt: skip
        (_, n0, first, _), (_, n1, last, _) = known[0], known[-1]
        verb = "falls" if last < first else "rises"
        text = f"{rules}: at fixed hyperparameters the loss {verb} from {first:.3f} to {last:.3f} {unit} "
        text += f"between {short_count(n0)} and {short_count(n1)} {size} parameters"
        text += f", but not at {', '.join(rises)}." if rises and last < first else "."
        lines.append(Line("good" if last < first and not rises else "open" if last < first else "bad", text))
    return lines
