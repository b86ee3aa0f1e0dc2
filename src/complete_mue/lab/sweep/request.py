"""What `mue sweep` was asked for: checked, kept in sweep.json, made into a sweep, and whether all of it ran.

Loads no torch, but for roles on cached features: what cannot be swept is refused, and a finished sweep recognised, at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from complete_mue.errors import FileError, MueError, RunError, one_of
from complete_mue.lab.data.digest import identity_now
from complete_mue.lab.paper_figures import FIGURES
from complete_mue.lab.records import Ledger, read_sweep
from complete_mue.lab.records.store import SWEEP_FILE
from complete_mue.layout.toml_files import read_reference
from complete_mue.rules import DEFAULT_RULES
from complete_mue.storage import sha256

if TYPE_CHECKING:
    from complete_mue.lab.sweep.grid import Sweep


@dataclass(frozen=True)
class SweepRequest:
    """A figure by name, ``roles``, or a file with a grid; None and empty lists leave the choice to the figure."""

    figure: str
    task: str = "lm"
    scale: str = "tiny"
    reference: Path | None = None
    rules: list[str] | None = None
    hypers: list[str] | None = None
    targets: list[str] | None = None
    roles: list[str] | None = None
    seeds: int | None = None
    span: int | tuple[float, float] | None = None
    per_octave: int | None = None
    overrides: list[str] | None = None

    def __post_init__(self) -> None:
        scan = self.hypers or self.span or self.per_octave
        if scan and self.from_file:
            raise RunError(
                f"{self.figure}: --hyper, --span, --octaves and --per-octave are for named figures; write [scan] there"
            )
        if scan and self.figure in FIGURES and FIGURES[self.figure].fixed:
            raise RunError(
                f"{self.figure} trains every layout at the reference's own values: leave out --hyper, --span, "
                "--octaves and --per-octave"
            )
        if self.figure != "roles" and (self.targets or self.roles):
            raise RunError(
                f"{self.figure}: --target and --role are for `mue sweep roles`, which scans one role at a time"
            )
        if not self.from_file:
            one_of("figure", self.figure, (*FIGURES, "roles", "FILE.toml"), RunError)
        elif not Path(self.figure).exists():
            raise FileError(
                f"{self.figure}: no such file; give a TOML file with a grid, or one of {', '.join(FIGURES)}"
            )
        if self.reference is not None:
            read_reference(self.reference)  # says what is wrong with it

    @property
    def from_file(self) -> bool:
        """Whether the grid is a TOML file."""
        return self.figure.endswith(".toml")

    @property
    def folder(self) -> Path:
        """Where it goes unless told otherwise."""
        return Path("runs") / f"{self.task}-{Path(self.figure).stem}-{self.scale}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, the same for the same question: files count by what they hold."""
        return {
            "figure": sha256(Path(self.figure)) if self.from_file else self.figure,
            "task": self.task, "scale": self.scale,
            "reference": sha256(self.reference) if self.reference else None, "rules": self.rules,
            "hyper": self.hypers, "seeds": self.seeds,
            "span": list(self.span) if isinstance(self.span, tuple) else self.span, "per_octave": self.per_octave,
            "set": self.overrides,
            **({"target": self.targets, "role": self.roles} if self.figure == "roles" else {}),
        }  # fmt: skip

    def sweep(self) -> Sweep:
        """All runs that answer it."""
        from complete_mue.lab.sweep.figures import base_config, figure
        from complete_mue.lab.sweep.sweep_toml import read_sweep_file

        tuned, overrides = read_reference(self.reference) if self.reference else None, self.overrides or ()
        if self.from_file:
            path = Path(self.figure)
            return read_sweep_file(path, seeds=self.seeds, rules=self.rules, overrides=overrides, reference=tuned)
        base = base_config(self.task, self.scale, tuned, overrides)
        options: dict[str, Any] = {
            "rules": self.rules or (DEFAULT_RULES,), "seeds": range(self.seeds) if self.seeds else None,
            "span": self.span, "per_octave": self.per_octave, "hypers": self.hypers,
        }  # fmt: skip
        if self.figure == "roles":
            from complete_mue.lab.sweep.roles import role_sweep

            return role_sweep(base, self.scale, self.targets or (), roles=self.roles, **options)
        return figure(self.figure, base, self.scale, **options)


def settled(folder: Path, request: dict[str, Any], *, retry_failed: bool = False) -> list[str] | None:
    """The points of a sweep, if it is the one asked for, on the same data, and all are done; None if there is work to
    do."""
    if not (folder / SWEEP_FILE).exists():
        return None
    plan = read_sweep(folder).plan
    if plan.request is None or any(_replaced(*known) for known in (plan.sources or {}).items()):
        return None
    same = {key: value for key, value in plan.request.items() if key != "sources"} == request
    ids = sorted({point.id for point in plan.points})
    return ids if same and not Ledger(folder).open_points(ids, retry_failed=retry_failed) else None


def _replaced(source: str, known: str) -> bool:
    """Whether data that is still there is not what it was."""
    try:
        return identity_now(source, known) != known
    except MueError:
        return False


def refuse_failures(folder: Path, points: Sequence[str], again: str) -> None:
    """End with an error where runs failed (a divergence is a result, not a failure)."""
    if failures := Ledger(folder).failures(points):
        raise RunError(
            f"{len(failures)} of {len(points)} runs failed, the first with: {failures[0]}; once that is fixed, "
            f"{again} runs them again"
        )
