"""What the quickstart says, part by part, once for the terminal and once for the page, which has its pictures, too.

1. sizes     rules on live models: how far the updates of every role move its activations, along three axes
2. trained   short runs: what the transferred learning rate costs along two axes
3. recorded  the repository's own GPU records, where they are
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from complete_mue.apply.checks import TOLERANCE, AxisCheck, CheckResult, check
from complete_mue.apply.judge import RoleVerdict
from complete_mue.chart import Axis, Dot, Drawn, Panel, Picture, log_axis
from complete_mue.chart_svg import write_svg
from complete_mue.lab.models.check_setup import language_model_setup
from complete_mue.lab.report.html_page import figure_html, page_html, verdict_html
from complete_mue.lab.report.pictures import pictures
from complete_mue.lab.report.summary import Summary, summarize
from complete_mue.lab.report.tables import bound
from complete_mue.lab.report.verdict import Line
from complete_mue.lab.sweep.grid import REFERENCE_RULES
from complete_mue.lab.sweep.quickstart import COST_LIMIT, DRIFT_LIMIT, OURS, RIVAL, Found, found_by, worst_along
from complete_mue.storage import make_folder, write_json, write_text

DERIVED = "complete_mue"  # the paper's rules, which follow from sizes; OURS adds a measured factor
WALKED = {"width": "width", "activated": "activated experts", "granularity": "granularity"}  # as the page says it
_STEPS, _DRAWS, _LAYOUT = 4, 2, "8e2a"
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Part:
    """A table, a picture and sentences; ``held`` says of every axis and rule set whether it held."""

    name: str
    title: str
    about: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[Line, ...]
    picture: Picture | None
    held: dict[str, dict[str, bool]]


# -- sizes ---------------------------------------------------------------------------------------------------------


def sizes() -> Part:
    """Walk live models along the axes, ours beside the rival, each in a process of its own."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        found = dict(zip((DERIVED, RIVAL), pool.map(partial(_walk, draws=_DRAWS), (DERIVED, RIVAL)), strict=True))
    rows, held = [], dict[str, dict[str, bool]]()
    for place, name in enumerate(WALKED.values()):
        for rules, result in found.items():
            axis = result.axes[place]
            worst = max(axis.roles, key=lambda r: max(abs(r.size_slope - r.expected), abs(r.change_slope)))
            relative = _relative(worst)
            held.setdefault(name, {})[rules] = axis.ok
            span = f"x{axis.xs[-1] / axis.xs[0]:g}"
            rows.append((
                f"{name} {span}", rules, worst.role, spark(relative), f"x{relative[-1]:.2f}", word(axis.ok),
            ))  # fmt: skip
    return Part(
        "sizes",
        "The rules on live models: do the sizes stay?",
        f"Models of one kind, {_STEPS} steps of AdamW each. Shown is the role that moves most: how much its updates "
        "change its output, from the smallest model to the largest. "
        f"Held: no role's size or change grows or falls faster than the axis to the power {TOLERANCE:g}.",
        ("axis", "rules", "role", "", "change", "verdict"),
        tuple(rows),
        _axes_lines(held),
        _sizes_picture(found),
        held,
    )


def _walk(rules: str, draws: int) -> CheckResult:
    torch.set_num_threads(1)
    return check(language_model_setup, list(WALKED), layout=_LAYOUT, rules=rules, steps=_STEPS, seeds=draws)


def _relative(role: RoleVerdict) -> list[float]:
    return [point.change / (role.points[0].change or 1.0) for point in role.points]


def _sizes_picture(found: dict[str, CheckResult]) -> Picture:
    styles = {role.role: i for i, role in enumerate(next(iter(found.values())).axes[0].roles, start=1)}
    panels = tuple(
        Panel(f"{WALKED[axis.axis]}, {rules}", log_axis(WALKED[axis.axis], axis.xs), _size_lines(axis, styles))
        for rules, result in found.items()
        for axis in result.axes
    )
    values = [dot.y for panel in panels for line in panel.lines for dot in line.dots]
    top = 2 ** math.ceil(math.log2(max(2.0, *values)))
    bottom = 2 ** math.floor(math.log2(min(0.5, *values)))
    ticks = tuple((2.0**k, f"x{2.0**k:g}") for k in range(round(math.log2(bottom)), round(math.log2(top)) + 1))
    return Picture(
        "sizes",
        "Change of activations by the updates: flat is right",
        f"One line per role, relative to the smallest model; {_STEPS} steps. Above: {DERIVED}. Below: {RIVAL}.",
        Axis("relative change", bottom, top, ticks, log=True),
        panels,
        level=1.0,
    )


def _size_lines(axis: AxisCheck, styles: dict[str, int]) -> tuple[Drawn, ...]:
    lines = []
    for role in axis.roles:
        places = zip(axis.xs, _relative(role), strict=True)
        dots = (Dot(x, y, f"{role.role}, {axis.axis} {x:g}: x{y:.2f}") for x, y in places)
        lines.append(Drawn(role.role, styles[role.role], tuple(dots)))
    return tuple(lines)


# -- trained -------------------------------------------------------------------------------------------------------


def trained(summary: Summary) -> Part:
    """Where every model has its optimum, what the transferred value costs it, and the verdict along each axis."""
    every, worst = found_by(summary), worst_along(summary)
    held = {axis: {rules: found.held for rules, found in by.items()} for axis, by in worst.items()}
    alike = (
        Line("note", f"Along {axis} models this small do not tell the two apart; the sizes above do.")
        for axis, by in held.items()
        if by[OURS] and by[RIVAL]
    )
    steps, seeds = summary.targets[0].steps, summary.progress.seeds
    return Part(
        "trained",
        "Trained: does one learning rate do for all?",
        f"The dense model's learning rate, {summary.tuned['lr']:g}, transferred to MoEs, each of them scanned too: "
        f"{summary.progress.runs} runs of {steps} steps, medians over {seeds} paired seeds. Missed: the optimum lies "
        f"more than {DRIFT_LIMIT:g} octave from the transferred value, which costs more than {COST_LIMIT:g} nats "
        "against the best of the scan. An axis holds if all of its models do.",
        ("model", "rules", "octaves off", "cost", "loss", "verdict"),
        tuple(_found_row(found, found.target == summary.reference) for found in every),
        (*_axes_lines(held), *alike),
        _trained_picture(summary, every),
        held,
    )


def _found_row(found: Found, reference: bool) -> tuple[str, ...]:
    numbers = f"{bound(found.optimum)}{found.drift:+.1f}", f"{found.cost:.3f}", f"{found.loss:.3f}"
    return found.target, "(tuned)" if reference else found.rules, *numbers, "" if reference else word(found.held)


def _trained_picture(summary: Summary, every: list[Found]) -> Picture:
    """The report's picture of the scan, with the curves of the middle seed in place of means."""
    (picture,) = (picture for picture in pictures(summary) if picture.key == "lr")
    curves = {(found.rules, found.target): found for found in every}
    panels = tuple(
        replace(panel, lines=tuple(_median_line(panel.title, line, curves) for line in panel.lines))
        for panel in picture.panels
        if panel.title in (OURS, RIVAL)
    )
    return replace(
        picture,
        title="Loss against learning rate: by the right rules the minima stay",
        caption="One line per model; the dashed line is the dense model's learning rate, transferred to all. Rings "
        "mark the optima. Medians over paired seeds.",
        panels=panels,
    )


def _median_line(rules: str, line: Drawn, curves: dict[tuple[str, str], Found]) -> Drawn:
    found = curves.get((rules, line.name)) or curves[REFERENCE_RULES, line.name]
    dots = tuple(Dot(x, y, f"{line.name}, learning rate {x:.3g}: {y:.3f}") for x, y in found.losses.items())
    best = found.optimum
    ring = Dot(best.value, best.loss, f"{line.name}: optimum {best.value:.3g}, loss {best.loss:.3f}") if best else None
    return replace(line, dots=dots, minimum=ring)


# -- recorded ------------------------------------------------------------------------------------------------------

RECORDS = Path(__file__).parents[4] / "docs" / "results"  # in a clone; an installed package does not have them
_KEPT = ("transfer/lm-width.jsonl", "roles/lm-activated.jsonl", "roles/lm-capacity.jsonl")


def recorded(folder: Path = RECORDS) -> Part:
    """The records of an H200, from 128 wide and 2000 steps on."""
    title, about = "Recorded: the same on one GPU", "One H200, width 128 to 512, 2000 steps, two to four seeds."
    if not all((folder / name).exists() for name in _KEPT):
        where = "docs/results of the repository, pages transfer.md and roles.md"
        return Part("recorded", title, about, (), (), (Line("note", f"The records are in {where}."),), None, {})
    width, active, capacity = (summarize(folder / name) for name in _KEPT)
    lines = (
        _recorded_line("Width x1 to x4, on an MoE", width, (DERIVED, RIVAL)),
        _recorded_line("2 to 16 of 64 experts active", active, (DERIVED, OURS)),
        _recorded_line("8 active of 8 to 256 experts", capacity, (DERIVED, OURS)),
    )
    (picture,) = (picture for picture in pictures(width) if picture.key == "lr")
    panels = tuple(panel for panel in picture.panels if panel.title in (DERIVED, RIVAL))
    picture = replace(picture, title="Loss against learning rate: MoEs of three widths", panels=panels)
    return Part("recorded", title, about, (), (), lines, picture, {})


def _recorded_line(what: str, summary: Summary, rules: tuple[str, ...]) -> Line:
    said = []
    for name in rules:
        curves = [c for c in summary.scans[0].curves if c.rules == name and c.target != summary.reference]
        drift = max(abs(curve.drift or 0.0) for curve in curves)
        regret = max(curve.regret or 0.0 for curve in curves)
        said.append(f"{name} up to {drift:.1f} octaves off, {regret:.3f} nats lost")
    return Line("note", f"{what}: {'; '.join(said)}.")


# -- words ---------------------------------------------------------------------------------------------------------


def word(held: bool) -> str:
    """The two words of every verdict."""
    return "held" if held else "missed"


def _axes_lines(axes: dict[str, dict[str, bool]]) -> tuple[Line, ...]:
    """A sentence per rule set."""
    lines = []
    for rules in next(iter(axes.values())):
        along = {word(held): [axis for axis, by in axes.items() if by[rules] == held] for held in (True, False)}
        said = "; ".join(f"{verdict} along {', '.join(names)}" for verdict, names in along.items() if names)
        lines.append(Line("bad" if along["missed"] else "good", f"{rules}: {said}."))
    return tuple(lines)


def spark(values: list[float]) -> str:
    """Bars for values around one, a quarter to four on a log scale."""
    places = [min(1.0, max(0.0, (math.log2(value) + 2) / 4)) if value > 0 else 0.0 for value in values]
    return "".join(_BARS[round(place * (len(_BARS) - 1))] for place in places)


# -- the page ------------------------------------------------------------------------------------------------------

TITLE = "Complete-muE quickstart"
ABOUT = "Tune one small dense model, transfer its hyperparameters to any MoE: does it hold, here and now?"


def write_page(parts: Sequence[Part], advice: Sequence[str], facts: dict[str, Any], folder: Path) -> Path:
    """Write quickstart.html, quickstart.json and the pictures; the page's path."""
    make_folder(folder)
    verdict = {
        f"{part.name}, {axis}, {rules}": word(held)
        for part in parts
        for axis, by in part.held.items()
        for rules, held in by.items()
    }
    numbers = [
        {"name": part.name, "headings": part.headings, "rows": part.rows, "says": [line.text for line in part.lines]}
        for part in parts
    ]
    data = {"format": 1, **facts, "verdict": verdict, "parts": numbers}
    write_json(folder / "quickstart.json", data)
    body = "".join(_section(number, part) for number, part in enumerate(parts, start=1))
    body += f"<section><h2>Next</h2>{''.join(f'<p>{escape(line)}</p>' for line in advice)}</section>"
    page = folder / "quickstart.html"
    write_text(page, page_html(TITLE, ABOUT, "", body, "mue quickstart", data))
    for part in parts:
        if part.picture is not None:
            write_svg(part.picture, folder / f"{part.name}.svg", columns=3)
    return page


def _section(number: int, part: Part) -> str:
    drawn = "" if part.picture is None else f'<div class="pictures">{figure_html(part.picture, f"p{number}")}</div>'
    return (
        f'<section><h2>{number}. {escape(part.title)}</h2><p class="soft">{escape(part.about)}</p>'
        f"{verdict_html(part.lines)}{drawn}{_table(part)}</section>"
    )


def _table(part: Part) -> str:
    if not part.rows:
        return ""
    head = "".join(f'<th scope="col" class="l">{escape(text)}</th>' for text in part.headings)
    rows = "".join(f"<tr>{''.join(_cell(text) for text in row)}</tr>" for row in part.rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(part.title)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    return f'<td class="l {text if text in ("held", "missed") else ""}">{escape(text)}</td>'
