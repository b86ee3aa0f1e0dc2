"""The planner's form as the two files of `mue plan`: one parameter per key, one line per parameter.

Parameters are named after the keys: ``r.width`` is ``width`` of the reference, ``t.feed_forward`` of the target; an
empty one leaves its key out. The files are read by the functions that the command line reads files with, so a mistake
has the same message, and its line leads back to the field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from complete_mue.errors import MueError, nearest
from complete_mue.layout.reference import Reference
from complete_mue.layout.shape import Budget, ModelShape
from complete_mue.layout.toml_files import BUDGET_KEYS, HYPER_KEYS, SHAPE_KEYS, read_reference, read_target

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
    """What the command line would say, and the parameter it is about where that is known."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class TomlFile:
    """A file as text, with the parameter that made each line."""

    name: str
    text: str
    parameters: Mapping[int, str]


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
    lines: list[str] = []
    made: dict[int, str] = {}
    for table in tables:
        lines += ["", f"[{table}]"] if lines else [f"[{table}]"]
        for key in TABLES[table]:
            given = parameters.get(f"{side}.{key}", "").strip()
            if given:
                lines.append(f"{key} = {_value(key, given)}")
                made[len(lines)] = f"{side}.{key}"
    return TomlFile(name, "\n".join(lines) + "\n", made)


def read(parameters: Mapping[str, str]) -> Specs:
    """Reference, shape and budget; a mistake is a ``FieldError`` with the command line's text."""
    for name in parameters:
        if name not in PARAMETERS:
            raise FieldError(
                f"unknown parameter {name!r:.80}{nearest(name, PARAMETERS)}; parameters are {', '.join(PARAMETERS)}"
            )
    files = toml_file("r", parameters), toml_file("t", parameters)
    with TemporaryDirectory(prefix="mue-web-") as folder:
        paths = [Path(folder) / file.name for file in files]
        for path, file in zip(paths, files, strict=True):
            path.write_text(file.text, encoding="utf-8")
        try:
            reference = read_reference(paths[0])
            shape, budget = read_target(paths[1])
        except MueError as problem:
            raise _placed(str(problem), Path(folder), files) from None
    for side, asked in (("r", reference.shape), ("t", shape)):
        if asked.depth > MOST_LAYERS:
            raise FieldError(
                f"depth = {asked.depth}: the planner takes at most {MOST_LAYERS} layers; use `mue plan` for more",
                f"{side}.depth",
            )
        block = asked.main
        if len(block.branches) + len(block.groups) > MOST_PARTS:
            raise FieldError(
                f"feed_forward has {len(block.branches) + len(block.groups)} branches and groups: the planner takes "
                f"at most {MOST_PARTS}; use `mue plan` for more",
                f"{side}.feed_forward",
            )
    return Specs(reference, shape, budget, files)


def _placed(message: str, folder: Path, files: tuple[TomlFile, ...]) -> FieldError:
    """The message with the files' own names, and the parameter on the line that it names."""
    message = " ".join(message.replace(f"{folder}/", "").split())  # as the command line prints it
    for side, file in zip(FILES, files, strict=True):
        found = re.match(rf"{re.escape(file.name)}:(\d+): (?:\[\w+\] has no '(\w+)')?", message)
        if found:
            missing = "expert_width" if "says nothing of widths" in message else found[2]
            return FieldError(message, f"{side}.{missing}" if missing else file.parameters.get(int(found[1])))
    return FieldError(message)


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
