"""Many sweeps together: on how many layouts the transfer held, per axis and rule set, the worst drift and regret, and
what these runs cannot tell; in a table and in plain words."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from complete_mue.lab.records.schema import HYPERS
from complete_mue.lab.report.curves import Curve
from complete_mue.lab.report.labels import TASKS, label, with_unit
from complete_mue.lab.report.summary import Summary
from complete_mue.lab.report.tables import Row, Table, drift, regret
from complete_mue.lab.report.verdict import Line, beside_line, held_of, kind_of


@dataclass(frozen=True)
class Tally:
    """One axis, hyperparameter and rule set: the curves of its targets, the reference left out."""

    summary: Summary
    hyper: str
    rules: str
    main: bool  # by the rule set of the reference, ours
    curves: tuple[Curve, ...]


def tallies(summaries: Sequence[Summary]) -> tuple[Tally, ...]:
    """Sweep by sweep, hyperparameter by hyperparameter, the main rule set first."""
    found = []
    for summary in summaries:
        for scan in summary.scans:
            own = [curve.rules for curve in scan.curves if curve.target == summary.reference]
            curves = [curve for curve in scan.curves if curve.target != summary.reference]
            for rules in dict.fromkeys(curve.rules for curve in curves):
                group = tuple(curve for curve in curves if curve.rules == rules)
                found.append(Tally(summary, scan.hyper, rules, rules in own, group))
    return tuple(found)


def overview_table(found: Sequence[Tally]) -> Table:
    """One row per axis, hyperparameter and rule set of one task."""
    unit = found[0].summary.unit
    headings = (
        "axis", "hyperparameter", "rules", "held", "missed", "open", "unclear", "unfinished",
        "largest drift (octaves)", with_unit("largest regret", unit),
    )  # fmt: skip
    rows = []
    for tally in found:
        if not any(curve.scanned for curve in tally.curves):
            continue
        status = [curve.status for curve in tally.curves]
        counts = [status.count(name) for name in ("missed", "open", "unclear", "unfinished")]
        drifted, costly = worst_drift(tally.curves), worst_regret(tally.curves)
        flat = status.count("flat")
        held = status.count("held") + flat
        texts = (
            tally.summary.title, label(tally.hyper), tally.rules,
            f"{held} of {len(tally.curves)}" + (f" ({flat} flat)" if flat else ""),
            *(str(count or "–") for count in counts),
            f"{drift(drifted)} ({drifted.target})" if drifted else "–",
            f"{regret(costly)} ({costly.target})" if costly else "–",
        )  # fmt: skip
        rows.append(Row(texts))
    return Table(TASKS[found[0].summary.task].capitalize(), headings, frozenset({0, 1, 2, 8, 9}), tuple(rows))


def overview_lines(found: Sequence[Tally]) -> list[Line]:
    """The verdict on everything, task by task and hyperparameter by hyperparameter."""
    lines: list[Line] = []
    for (task, hyper), group in itertools.groupby(sorted(found, key=_subject), key=lambda t: (t.summary.task, t.hyper)):
        lines += _subject_lines(task, hyper, list(group))
    return lines


def _subject(tally: Tally) -> tuple[int, int]:
    place = HYPERS.index(tally.hyper) if tally.hyper in HYPERS else len(HYPERS)
    return list(TASKS).index(tally.summary.task), place


def _subject_lines(task: str, hyper: str, group: Sequence[Tally]) -> list[Line]:
    """By the reference's rule set, with the others beside it; where sweeps have several such, or none, each by name."""
    main = [tally for tally in group if tally.main]
    names, lines = dict.fromkeys(tally.rules for tally in main or group), list[Line]()
    for name in names:
        own = [tally for tally in main or group if tally.rules == name]
        lines += _rules_lines(task, hyper, own, "" if main and len(names) == 1 else f" by {name}")
        others = [tally for tally in group if main and not tally.main]
        lines += _other_rules(own, [other for other in others if (_beside(main, other) or main[0]).rules == name])
    return [dataclasses.replace(line, about=f"{task} {hyper}") for line in lines]


def _beside(main: Sequence[Tally], other: Tally) -> Tally | None:
    """What another rule set's tally is compared with: that of its own sweep, or of a part of it that lies elsewhere."""
    alike = [t for t in main if (t.summary.title, t.summary.scale) == (other.summary.title, other.summary.scale)]
    return min(alike, key=lambda tally: tally.summary is not other.summary, default=None)


def _rules_lines(task: str, hyper: str, tallies: Sequence[Tally], by: str) -> list[Line]:
    """One rule set on all axes; a layout that several axes share, by the same runs, counts once."""
    places = _distinct(tallies)
    curves, summary = [curve for curve, _ in places], tallies[0].summary
    where = {id(curve): titles for curve, titles in places}
    axes = f"{len(tallies)} axes" if len(tallies) > 1 else "one axis"
    text = f"{TASKS[task].capitalize()}, {label(hyper)}{by}, {axes}: the value transferred from "
    text += f"{summary.reference} held on {held_of(curves)}."
    if drifted := worst_drift(curves):
        text += f" Largest drift: {drift(drifted)} octaves ({drifted.target}, {where[id(drifted)]})."
    if costly := worst_regret(curves):
        text += f" Largest regret: {regret(costly)} {summary.unit} ({costly.target}, {where[id(costly)]})."
    lines = [Line(kind_of(curves), text)]
    for status, kind, says in (
        ("flat", "note", "Held, but flat"),
        ("missed", "bad", "Missed"),
        ("open", "open", "Open, the optimum is at the grid's edge"),
        ("unclear", "open", "Unclear, the budget is too small to tell"),
        ("unfinished", "open", "Unfinished"),
    ):
        named = [f"{c.target} ({titles}{_reason(c)})" for c, titles in places if c.status == status]
        if named:
            lines.append(Line(kind, f"{says}: {'; '.join(named)}."))
    return lines


def _distinct(tallies: Sequence[Tally]) -> list[tuple[Curve, str]]:
    """Every set of runs once, with the titles of the axes that hold it."""
    found: dict[str, tuple[Curve, list[str]]] = {}
    for tally in tallies:
        for curve in tally.curves:
            found.setdefault(curve.runs, (curve, []))[1].append(tally.summary.title)
    return [(curve, ", ".join(titles)) for curve, titles in found.values()]


def _reason(curve: Curve) -> str:
    if curve.drift is None or curve.regret is None or (curve.optimum and curve.optimum.open):
        return f": {curve.says}"
    return f": drift {drift(curve)}, regret {regret(curve)}"


def _other_rules(main: Sequence[Tally], others: Sequence[Tally]) -> list[Line]:
    """Every other rule set beside the main one, on the axes where both ran."""
    lines = []
    for rules in dict.fromkeys(tally.rules for tally in others):
        axes = [tally for tally in others if tally.rules == rules]
        both: dict[str, tuple[Curve | None, Curve]] = {}
        for tally in axes:
            ours = _beside(main, tally)
            at = {curve.target: curve for curve in ours.curves} if ours else {}
            for curve in tally.curves:
                both.setdefault(curve.runs, (at.get(curve.target), curve))
        line = beside_line(main[0].rules, list(both.values()), rules, main[0].summary.unit)
        known = [ours for ours, curve in both.values() if ours is not None and curve.scanned]
        where = f"On the same axes ({'; '.join(tally.summary.title for tally in axes)})"
        text = f"{line.text} {where} {main[0].rules} held on {held_of(known)}." if known else line.text
        lines.append(dataclasses.replace(line, text=text))
    return lines


def worst_drift(curves: Iterable[Curve]) -> Curve | None:
    """The finished curve whose optimum moved farthest, in either direction."""
    known = (c for c in curves if c.drift is not None and c.status != "unfinished")
    return max(known, key=lambda c: abs(c.drift or 0.0), default=None)


def worst_regret(curves: Iterable[Curve]) -> Curve | None:
    """The finished curve that pays most for the transferred value."""
    known = (c for c in curves if c.regret is not None and c.status != "unfinished")
    return max(known, key=lambda c: c.regret or 0.0, default=None)
