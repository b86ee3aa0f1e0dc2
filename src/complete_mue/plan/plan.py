"""A plan: one frozen row per role and block kind, with everything a trainer needs and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from complete_mue.layout.tensors import Role
from complete_mue.plan.explain import explain
from complete_mue.plan.plan_json import read_dict, read_json, to_dict, to_json
from complete_mue.plan.render import to_csv, to_markdown, to_rich, to_text
from complete_mue.plan.row import Row
from complete_mue.plan.table import PlanTable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


@dataclass(frozen=True)
class Plan(PlanTable):
    """Hyperparameters of a target, transferred from a reference."""

    def explain(self, role: Role | str | None = None) -> str:
        """Derive a role's numbers in words and symbols; without a role, every row's."""
        roles = [Role.parse(role)] if role is not None else list(dict.fromkeys(row.role for row in self.rows))
        return "\n\n".join(explain(self, row) for r in roles for row in self._rows_of(r))

    def _rows_of(self, role: Role) -> list[Row]:
        found = [row for row in self.rows if row.role is role]
        return found or [self.row(role)]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; ``Plan.from_dict`` reads it back without loss."""
        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """Read back what ``to_dict`` wrote."""
        return cls(**read_dict(data))

    def to_json(self, indent: int | None = 2) -> str:
        """JSON text; ``Plan.from_json`` reads it back without loss."""
        return to_json(self, indent)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read back what ``to_json`` wrote."""
        return cls(**read_json(text))

    def to_markdown(self) -> str:
        """A Markdown table."""
        return to_markdown(self)

    def to_csv(self) -> str:
        """Comma-separated values, one line per row, full precision."""
        return to_csv(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from to_rich(self, options.max_width)

    def __str__(self) -> str:
        return to_text(self)
