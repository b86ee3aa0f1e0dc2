"""Scores as people and machines read them: a table like the paper's, JSON, Markdown."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from complete_mue.lab.evals.tasks import TASKS
from complete_mue.storage import make_folder, write_json, write_text
from complete_mue.tabular import escaped, markdown_table

HEADINGS = ("task", "shots", "metric", "score", "± se", "chance", "count", "of paper's")


@dataclass(frozen=True)
class Score:
    """One task's result; scores are fractions, shown as percentages."""

    task: str
    metric: str
    score: float
    error: float
    count: int
    shots: int
    others: dict[str, float] = field(default_factory=dict)

    @property
    def chance(self) -> float:
        """What guessing scores."""
        return TASKS[self.task].chance

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**dataclasses.asdict(self), "chance": self.chance, "paper_count": TASKS[self.task].count}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Score:
        """Back from plain data; derived values are computed again."""
        return cls(**{entry.name: data[entry.name] for entry in dataclasses.fields(cls)})


@dataclass(frozen=True)
class Report:
    """All scores of one model."""

    model: str
    scores: tuple[Score, ...]
    about: dict[str, Any]

    @property
    def average(self) -> float:
        """Unweighted over tasks, as the paper's."""
        return sum(score.score for score in self.scores) / len(self.scores)

    @property
    def average_chance(self) -> float:
        """What guessing would average to on the same tasks."""
        return sum(score.chance for score in self.scores) / len(self.scores)

    def rows(self) -> list[tuple[str, ...]]:
        """Cells of the table, the average last."""
        ordered = sorted(self.scores, key=lambda score: list(TASKS).index(score.task))
        rows = [
            (
                TASKS[s.task].title, str(s.shots), s.metric, f"{100 * s.score:.1f}", f"{100 * s.error:.1f}",
                f"{100 * s.chance:.0f}", f"{s.count:,}", f"{TASKS[s.task].count:,}",
            )
            for s in ordered
        ]  # fmt: skip
        average, chance = f"{100 * self.average:.1f}", f"{100 * self.average_chance:.1f}"
        return [*rows, (f"Average of {len(rows)}", "", "", average, "", chance, "", "")]

    def to_text(self) -> str:
        """A table for a terminal."""
        table = [HEADINGS, *self.rows()]
        widths = [max(len(row[column]) for row in table) for column in range(len(HEADINGS))]
        left = (0, 2)
        lines = [
            "  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
            for row in table
        ]
        return "\n".join(line.rstrip() for line in (self.model, *lines))

    def to_markdown(self) -> str:
        """The same table in Markdown."""
        return f"# {escaped(self.model)}\n\n{markdown_table(HEADINGS, ('task', 'metric'), self.rows())}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "model": self.model,
            **self.about,
            "average": self.average,
            "average_chance": self.average_chance,
            "tasks": {score.task: score.to_dict() for score in self.scores},
        }

    def write(self, folder: Path) -> None:
        """``eval.json`` and ``eval.md``."""
        make_folder(folder)
        write_json(folder / "eval.json", self.to_dict())
        write_text(folder / "eval.md", self.to_markdown())
