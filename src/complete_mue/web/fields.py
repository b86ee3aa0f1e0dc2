"""The planner's form as the two files of `mue plan`: one parameter per key.

Parameters are named after the keys: ``r.width`` is ``width`` of the reference, ``t.feed_forward`` of the target; an
empty one leaves its key out. Their text is read by the functions that the command line reads files with, so a mistake
has the same message, and names the field it is about.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from complete_mue.errors import MueError, nearest
from complete_mue.layout.reference import Reference
from complete_mue.layout.shape import Budget, ModelShape
from complete_mue.layout.toml_files import BUDGET_KEYS, HYPER_KEYS, SHAPE_KEYS, Document

T = TypeVar("T")

TABLES = {"shape": SHAPE_KEYS, "budget": BUDGET_KEYS, "hyper": HYPER_KEYS}
FILES = {"r": ("reference.toml", ("shape", "budget", "hyper")), "t": ("target.toml", ("shape", "budget"))}
OPTIONS = ("rules", "betas")
PARAMETERS = (*(f"{side}.{key}" for side, (_, tables) in FILES.items() for t in tables for key in TABLES[t]), *OPTIONS)

# Far beyond any model, and quick. What was read is bounded, so it does not matter how a number was written.
MOST_LAYERS = 1_000
MOST_PARTS = 1_024

_TOML_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9](?:_?\d)*)(?:\.\d(?:_?\d)*)?(?:[eE][+-]?\d(?:_?\d)*)?|inf|nan)", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


class FieldError(MueError):
    """What the command line would say; ``field`` is the parameter it is about where that is known."""


@dataclass(frozen=True)
class TomlFile:
    """A file as text."""

    name: str
    text: str


@dataclass(frozen=True)
class Specs:
    """What the form says, read: the arguments of a transfer, and the files."""

    reference: Reference
    shape: ModelShape
    budget: Budget
    files: tuple[TomlFile, TomlFile]


def toml_file(side: str, parameters: Mapping[str, str]) -> TomlFile:
    """The file of one side, ``r`` or ``t``, from the parameters that are filled in."""
    name, tables = FILES[side]
    parts = []
    for table in tables:
        given = {key: parameters.get(f"{side}.{key}", "").strip() for key in TABLES[table]}
        parts.append(
            "\n".join([f"[{table}]", *(f"{key} = {_value(key, text)}" for key, text in given.items() if text)])
        )
    return TomlFile(name, "\n\n".join(parts) + "\n")


def read(parameters: Mapping[str, str]) -> Specs:
    """Reference, shape and budget; a mistake is a ``FieldError`` with the command line's text."""
    for name in parameters:
        if name not in PARAMETERS:
            raise FieldError(
                f"unknown parameter {name!r:.80}{nearest(name, PARAMETERS)}; parameters are {', '.join(PARAMETERS)}"
            )
    files = toml_file("r", parameters), toml_file("t", parameters)
    reference = _read("r", files[0], Document.reference)
    shape, budget = _read("t", files[1], Document.target)
    for side, asked in (("r", reference.shape), ("t", shape)):
        if asked.depth > MOST_LAYERS:
            raise FieldError(
                f"depth = {asked.depth}: the planner takes at most {MOST_LAYERS} layers; use `mue plan` for more",
                field=f"{side}.depth",
                given=asked.depth,
                allowed=MOST_LAYERS,
            )
        block = asked.main
        if len(block.branches) + len(block.groups) > MOST_PARTS:
            raise FieldError(
                f"feed_forward has {len(block.branches) + len(block.groups)} branches and groups: the planner takes "
                f"at most {MOST_PARTS}; use `mue plan` for more",
                field=f"{side}.feed_forward",
                allowed=MOST_PARTS,
            )
    return Specs(reference, shape, budget, files)


def _read(side: str, file: TomlFile, make: Callable[[Document], T]) -> T:
    """What the file's text holds; a mistake is said as the command line prints it, on one line."""
    try:
        return make(Document(file.name, file.text))
    except MueError as problem:
        field = problem.field and f"{side}.{problem.field}"
        raise FieldError(" ".join(str(problem).split()), field=field, given=problem.given) from None


def _value(key: str, text: str) -> str:
    """A TOML value: numbers as typed, a layout in quotes, two betas as a list; anything else in quotes, to be named."""
    if key == "feed_forward":
        return _quoted(text)
    if key == "betas":
        parts = text.removeprefix("[").removesuffix("]").split(",")
        return f"[{', '.join(_value('', part.strip()) for part in parts)}]"
    if _TOML_NUMBER.fullmatch(text):
        return text
    if _NUMBER.fullmatch(text):  # .5, 1., 007: numbers to people, not to TOML
        return str(int(text)) if text.lstrip("+-").isdigit() and len(text) < 64 else repr(float(text))
    return _quoted(text)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\u{ord(found[0]):04x}", escaped) + '"'
