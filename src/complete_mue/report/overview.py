"""Many sweeps together: per axis and rule set how many layouts were served, the worst drift and regret, and what these
runs cannot tell; in a table and in plain words."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from complete_mue.report.curves import Curve
from complete_mue.report.summary import Summary
from complete_mue.report.tables import Piece, Row, Table, drift_cell, plain, regret_cell
from complete_mue.report.verdict import Line, beside_line, kind_of, served_of
from complete_mue.report.words import TASKS, label, with_unit


@dataclass(frozen=True)
class Tally:
    """One axis, hyperparameter and rule set: the curves of its targets, the reference left out."""

    summary: Summary
    hyper: str
    rules: str
    main: bool  # by the rule set of the sweep's first panel, ours
    curves: tuple[Curve, ...]

    def having(self, *statuses: str) -> tuple[Curve, ...]:
        """The curves with one of these verdicts."""
        return tuple(curve for curve in self.curves if curve.status in statuses)


def tallies(summaries: Sequence[Summary]) -> tuple[Tally, ...]:
    """Sweep by sweep, hyperparameter by hyperparameter, the main rule set first."""
    found = []
    for summary in summaries:
        for scan in summary.scans:
            curves = [curve for curve in scan.curves if curve.target != summary.reference]
            for number, rules in enumerate(dict.fromkeys(curve.rules for curve in curves)):
                own = tuple(curve for curve in curves if curve.rules == rules)
                found.append(Tally(summary, scan.hyper, rules, number == 0, own))
    return tuple(found)


def overview_table(found: Sequence[Tally]) -> Table:
    """One row per axis, hyperparameter and rule set of one task."""
    unit = found[0].summary.unit
    headings = (
        "axis", "hyperparameter", "rules", "served", "missed", "open", "unclear", "unfinished",
        "largest drift (octaves)", with_unit("largest regret", unit),
    )  # fmt: skip
    rows = []
    for tally in found:
        counts = [len(tally.having(status)) for status in ("missed", "open", "unclear", "unfinished")]
        drifted, costly = worst_drift(tally.curves), worst_regret(tally.curves)
        texts = (
            tally.summary.title, label(tally.hyper), tally.rules, f"{len(tally.having('held'))} of {len(tally.curves)}",
            *(str(count or "–") for count in counts),
            f"{plain(drift_cell(drifted))} ({drifted.target})" if drifted else "–",
            f"{plain(regret_cell(costly))} ({costly.target})" if costly else "–",
        )  # fmt: skip
        rows.append(Row(tuple((Piece(text),) for text in texts)))
    return Table(TASKS[found[0].summary.task].capitalize(), headings, frozenset({0, 1, 2, 8, 9}), tuple(rows))


def overview_lines(found: Sequence[Tally]) -> list[Line]:
    """The verdict on everything, task by task and hyperparameter by hyperparameter."""
    lines: list[Line] = []
    for (task, hyper), group in itertools.groupby(sorted(found, key=_subject), key=lambda t: (t.summary.task, t.hyper)):
        lines += _subject_lines(task, hyper, list(group))
    return lines


def _subject(tally: Tally) -> tuple[int, int]:
    hypers = ("lr", "weight_decay", "init_std")
    place = hypers.index(tally.hyper) if tally.hyper in hypers else len(hypers)
    return list(TASKS).index(tally.summary.task), place


def _subject_lines(task: str, hyper: str, group: Sequence[Tally]) -> list[Line]:
    main = [tally for tally in group if tally.main]
    curves = [curve for tally in main for curve in tally.curves]
    served = [curve for curve in curves if curve.status == "held"]
    axes = f"{len(main)} axes" if len(main) > 1 else "one axis"
    text = f"{TASKS[task].capitalize()}, {label(hyper)}: the {main[0].summary.reference} optimum served "
    text += f"{served_of(served, curves)} on {axes}"
    titles = {id(curve): tally.summary.title for tally in main for curve in tally.curves}
    drifted, costly = worst_drift(curves), worst_regret(curves)
    if drifted:
        text += f"; the largest drift is {plain(drift_cell(drifted))} octaves ({drifted.target}, {titles[id(drifted)]})"
    if costly:
        unit = group[0].summary.unit
        text += f", the largest regret {plain(regret_cell(costly))} {unit} ({costly.target}, {titles[id(costly)]})"
    lines = [Line(kind_of(curves), f"{text}.")]
    for status, kind, says in (
        ("missed", "bad", "Missed"),
        ("open", "open", "Open, the optimum is at the grid's edge"),
        ("unclear", "open", "Too small a budget to tell"),
        ("unfinished", "open", "Unfinished"),
    ):
        named = [f"{c.target} ({tally.summary.title}{_reason(c)})" for tally in main for c in tally.having(status)]
        if named:
            lines.append(Line(kind, f"{says}: {'; '.join(named)}."))
    lines += _other_rules(main, [tally for tally in group if not tally.main])
    return [dataclasses.replace(line, about=f"{task} {hyper}") for line in lines]


def _reason(curve: Curve) -> str:
    if curve.drift is None or curve.regret is None or (curve.optimum and curve.optimum.open):
        return f": {curve.says}"
    return f": drift {plain(drift_cell(curve))}, regret {plain(regret_cell(curve))}"


def _other_rules(main: Sequence[Tally], others: Sequence[Tally]) -> list[Line]:
    """Every other rule set beside the main one, on the axes where both ran."""
    lines = []
    for rules in dict.fromkeys(tally.rules for tally in others):
        both: list[tuple[Curve | None, Curve]] = []
        axes = [tally for tally in others if tally.rules == rules]
        for tally in axes:
            ours = next((t for t in main if t.summary.title == tally.summary.title), None)
            at = {curve.target: curve for curve in ours.curves} if ours else {}
            both += [(at.get(curve.target), curve) for curve in tally.curves]
        line = beside_line(main[0].rules, both, rules, main[0].summary.unit)
        held = [ours for ours, _ in both if ours is not None and ours.status == "held"]
        known = [ours for ours, _ in both if ours is not None]
        where = f"There ({', '.join(tally.summary.title for tally in axes)})"
        text = f"{line.text} {where} {main[0].rules} served {served_of(held, known)}." if known else line.text
        lines.append(dataclasses.replace(line, text=text))
    return lines


def worst_drift(curves: Iterable[Curve]) -> Curve | None:
    """The curve whose optimum moved farthest, in either direction."""
    return max((c for c in curves if c.drift is not None), key=lambda c: abs(c.drift or 0.0), default=None)


def worst_regret(curves: Iterable[Curve]) -> Curve | None:
    """The curve that pays most for the transferred value."""
    return max((c for c in curves if c.regret is not None), key=lambda c: c.regret or 0.0, default=None)
