"""Many sweeps on one Markdown page, for a repository: verdict, overview, then axis by axis words, pictures and tables.

The page may hold text of your own: only what stands between the two markers is replaced,

    <!-- generated: NAME -->
    <!-- end -->

NAME being the page's. Pictures go into a folder of that name beside the page.
"""

from __future__ import annotations

import math
import os
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from complete_mue.chart import Picture
from complete_mue.chart_svg import write_svg
from complete_mue.errors import FileError
from complete_mue.lab.paper_figures import FIGURES
from complete_mue.lab.records.pack import file_stem, portable
from complete_mue.lab.report.across_sweeps import overview_lines, overview_table, tallies
from complete_mue.lab.report.labels import TASKS, code
from complete_mue.lab.report.pictures import pictures
from complete_mue.lab.report.summary import Summary
from complete_mue.lab.report.tables import axis_table, markdown, role_table, runs_table
from complete_mue.lab.report.verdict import LEGEND
from complete_mue.storage import inner_folder, remove_parts, write_text
from complete_mue.tabular import counted, escaped, short_count

END = "<!-- end -->"
_FIRST_STEPS = ("activated", "ffn_width", "ffn_width_moe")  # axes along which the paper shows the first steps
_COLUMNS = 2


@dataclass(frozen=True)
class Chapter:
    """One sweep with the place of its records and the first part of its pictures' names."""

    summary: Summary
    source: Path
    stem: str


def begin(page: Path) -> str:
    """The marker that the generated part begins with."""
    return f"<!-- generated: {page.stem} -->"


def chapters(found: Sequence[tuple[Summary, Path]]) -> tuple[Chapter, ...]:
    """By task, then in the order of the paper's figures, others after them; names are numbered where they repeat."""

    def order(item: tuple[Summary, Path]) -> tuple[object, ...]:
        name, known = item[0].name, list(FIGURES)
        return list(TASKS).index(item[0].task), known.index(name) if name in known else len(known), name

    made: list[Chapter] = []
    for summary, source in sorted(found, key=order):
        stem = file_stem(summary.task, summary.name)
        same = sum(chapter.stem == stem or chapter.stem.startswith(f"{stem}--") for chapter in made)
        made.append(Chapter(summary, source, f"{stem}--{same + 1}" if same else stem))
    return tuple(made)


def write_article(found: Sequence[tuple[Summary, Path]], page: Path) -> list[Path]:
    """Write the page's generated part and its pictures; pictures it no longer shows are removed."""
    before = _before(page)
    made = chapters(found)
    folder = page.with_suffix("")
    try:
        remove_parts(inner_folder(folder))
    except OSError as problem:
        raise FileError(f"{folder}: {problem.strerror}; give --page a file in a folder that can be written") from None
    written = []
    for chapter in made:
        for picture in shown(chapter.summary):
            written.append(write_svg(picture, folder / f"{chapter.stem}-{picture.key}.svg", _COLUMNS))
    old = generated(before, page) or ""
    new = f"\n{article(made, page)}"
    write_text(page, before.replace(f"{begin(page)}{old}{END}", f"{begin(page)}{new}{END}", 1))
    for name in re.findall(rf"\]\({re.escape(folder.name)}/([^)/]+\.(?:png|svg))\)", old):
        if folder / name not in written:
            (folder / name).unlink(missing_ok=True)
    return [page, *written]


def _before(page: Path) -> str:
    """The page as it is; one without room for the generated part is refused before anything is written."""
    if not page.exists():
        return f"# {page.stem.replace('_', ' ').replace('-', ' ').capitalize()}\n\n{begin(page)}\n{END}\n"
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise FileError(f"{page}: cannot be read ({problem}); give --page another file") from None
    if generated(text, page) is None:
        raise FileError(
            f"{page}: no {begin(page)} with {END} after it; put these two lines where the tables go, "
            "or give --page a new file"
        )
    return text


def generated(text: str, page: Path) -> str | None:
    """What stands between the markers; None where they are missing."""
    _, first, rest = text.partition(begin(page))
    inner, last, _ = rest.partition(END)
    return inner if first and last else None


def shown(summary: Summary) -> tuple[Picture, ...]:
    """The pictures worth a place on the page: scans, loss against size with the speedup, some axes' first steps."""
    keys = {scan.hyper for scan in summary.scans} | {"scaling", "roles", "power"}
    keys |= {"speedup"} if summary.scaling and len({run.rules for run in summary.runs}) == 1 else set()
    keys |= {"first-steps"} if summary.name in _FIRST_STEPS else set()
    return tuple(picture for picture in pictures(summary) if picture.key in keys)


def article(made: Sequence[Chapter], page: Path) -> str:
    """The generated part: the same text for the same records."""
    found = tallies([chapter.summary for chapter in made if not chapter.summary.probe])
    places = dict.fromkeys(_near(c.source if c.source.is_dir() else c.source.parent) for c in made)
    command = " ".join(["mue report", *sorted(places), "--page", _near(page)])
    parts = [f"Made by {code(command)}; change the records, not the text between the markers.", ""]
    if found:
        lines = overview_lines(found)
        parts += ["## In short", "", *(f"- {line.sign} {escaped(line.text)}" for line in lines), ""]
        parts += [LEGEND, "", "## Axis by axis", ""]
        for task in TASKS:
            rows = [tally for tally in found if tally.summary.task == task]
            parts += [markdown(overview_table(rows))] if rows else []
    tasks = [task for task in TASKS if any(chapter.summary.task == task for chapter in made)]
    headings: set[str] = set()  # no two are alike: links need that
    for task in tasks:
        parts += [f"## {TASKS[task].capitalize()}", ""]
        for chapter in [chapter for chapter in made if chapter.summary.task == task]:
            heading = chapter.summary.title + (", diffusion" if task == "dit" and len(tasks) > 1 else "")
            heading += ", again" if heading in headings else ""
            headings.add(heading)
            parts += [f"### {escaped(heading)}", "", *_section(chapter, page)]
    return "\n".join(parts)


def _section(chapter: Chapter, page: Path) -> list[str]:
    summary = chapter.summary
    drawn = {picture.key: picture for picture in shown(summary)}

    def image(key: str) -> list[str]:
        if key not in drawn:
            return []
        picture = drawn[key]
        panels = ", ".join(panel.title for panel in picture.panels if panel.title)
        alt = f"{summary.title}, {TASKS[summary.task]}. {picture.title}" + (f": {panels}" if panels else "")
        place = f"{page.stem}/{chapter.stem}-{key}.svg"
        return [f"![{escaped(alt)}]({place})", "", escaped(picture.caption), ""]

    parts = [escaped(_facts(summary)), ""]
    parts += [*(f"- {line.sign} {escaped(line.text)}" for line in summary.verdict), ""]
    parts += ['<details markdown="1">', "<summary>Pictures, table, command</summary>", ""]
    if summary.probe:
        parts += [*image("roles"), markdown(role_table(summary))]
    for scan in () if summary.probe else summary.scans:
        parts += [*image(scan.hyper), markdown(axis_table(summary, scan))]
    if summary.scaling:
        parts += [*image("scaling"), *_speedup_words(summary), *image("speedup"), markdown(runs_table(summary))]
    if "first-steps" in drawn:
        parts += [*image("first-steps"), *_first_steps_words(summary)]
    return [*parts, *_origin(chapter, page), "</details>", ""]


def _facts(summary: Summary) -> str:
    own, p = summary.target(summary.reference), summary.progress
    state = ", ".join(p.troubles)
    return (
        f"Reference {summary.reference}: width {own.width}, {own.depth} layers, {short_count(own.active)} weights, "
        f"{own.steps:,} steps of {own.batch_tokens:,} tokens. {counted(p.runs, 'run')}, "
        f"{counted(p.seeds, 'seed')}{f'; {state}' if state else ''}; scale {summary.scale}."
    )


def _speedup_words(summary: Summary) -> list[str]:
    known = [(run.speedup_median, run) for run in summary.runs if run.speedup_median is not None]
    if not known:
        return []
    (low, least), (high, most) = (pick(known, key=lambda item: item[0]) for pick in (min, max))
    text = f"To the same loss in the stable phase, {summary.reference} takes {low:.2f} ({least.target}) to {high:.2f} "
    text += f"({most.target}) times the steps of the other layouts: medians along the stable phase."
    return [escaped(text), ""]


def _first_steps_words(summary: Summary) -> list[str]:
    """How far apart the layouts begin, from each other and from the reference: means over the first steps."""
    reference = next((run for run in summary.runs if run.target == summary.reference and run.first), None)
    if reference is None:
        return []
    lines = []
    for rules in dict.fromkeys(run.rules for run in summary.runs):
        starts = [run.first for run in summary.runs if run.rules == rules and run is not reference and run.first]
        steps = [step for step in zip(reference.first, *starts, strict=False) if all(map(math.isfinite, step))]
        if not starts or not steps:
            continue
        apart = statistics.fmean(max(layouts) - min(layouts) for _, *layouts in steps)
        below = statistics.fmean(own - statistics.fmean(layouts) for own, *layouts in steps)
        text = f"{rules}: over the first {len(steps)} steps "
        if len(starts) > 1:
            text += f"the {len(starts)} layouts lie within {apart:.3f} {summary.unit} of each other on average, "
        else:
            text += "the one layout lies "
        text += f"{abs(below):.3f} {'below' if below > 0 else 'above'} {summary.reference}."
        lines.append(f"- {escaped(text)}")
    return [*lines, ""]


def _origin(chapter: Chapter, page: Path) -> list[str]:
    """The commands, several one below the other, and where the records are."""
    commands = [" ".join(command.split()) for command in portable(chapter.summary.command).split(" && ")]
    made = [f"Made with {code(commands[0])}."]
    if len(commands) > 1:
        made = ["Made with", "", *(f"- {code(command)}" for command in commands)]
    if chapter.source.is_dir():
        return [*made, ""]
    place = os.path.relpath(chapter.source, page.parent).replace(os.sep, "/")
    return [*made, "", f"Every run is in [{escaped(chapter.source.name)}]({quote(place)}).", ""]


def _near(path: Path) -> str:
    """A path as one types it here; elsewhere its last name."""
    place = os.path.relpath(path)
    return path.name if place.startswith("..") else place.replace(os.sep, "/")
