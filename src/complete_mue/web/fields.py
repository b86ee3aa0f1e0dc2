"""The planner's form as the two files of `mue plan`: one parameter per key.

Parameters are named after the keys: ``r.width`` is ``width`` of the reference, ``t.feed_forward`` of the target; an
empty one leaves its key out. Their text is read by the functions that the command line reads files with, so a mistake
has the same message, and names the field it is about. ``t.config``, a pasted config.json, is the target's shape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

from complete_mue.errors import MueError, nearest
from complete_mue.layout.hf_config import READABLE, departs, shape_of_config
from complete_mue.layout.reference import Reference
from complete_mue.layout.shape import Budget, ModelShape
from complete_mue.layout.toml_files import BUDGET_KEYS, HYPER_KEYS, SHAPE_KEYS, Document, shape_table
from complete_mue.storage import json_object

T = TypeVar("T")

# The page has no field for attention_scale, the last key of [hyper].
TABLES = {"shape": SHAPE_KEYS, "budget": BUDGET_KEYS, "hyper": HYPER_KEYS[:-1]}
FILES = {"r": ("reference.toml", ("shape", "budget", "hyper")), "t": ("target.toml", ("shape", "budget"))}
CONFIG, FILE = "t.config", "config.json"
OPTIONS = ("rules", "betas", "duration", "compare", "form", "role", "axis")
KEYS = tuple(f"{side}.{key}" for side, (_, tables) in FILES.items() for t in tables for key in TABLES[t])
PARAMETERS = (*KEYS, CONFIG, *OPTIONS)

# Far beyond any model, and quick. What was read is bounded, so it does not matter how a number was written.
MOST_LAYERS, MOST_PARTS = 1_000, 1_024

_TOML_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9](?:_?\d)*)(?:\.\d(?:_?\d)*)?(?:[eE][+-]?\d(?:_?\d)*)?|inf|nan)", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_COUNTS = {"width", "depth", "expert_width", "dense_layers", "head_dim", "batch_tokens", "steps"}
_COUNT = re.compile(r"(\d[\d_]*(?:\.\d*)?(?:e\+?\d{1,2})?)\s?([a-z]{0,2})", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_MOST_DIGITS = 18  # more are nobody's count


class FieldError(MueError):
    """What the command line would say; ``field`` is the parameter it is about where that is known."""


@dataclass(frozen=True)
class File:
    """A file as text."""

    name: str
    text: str


@dataclass(frozen=True)
class Specs:
    """What the form says, read: the arguments of a transfer, and the files."""

    reference: Reference
    shape: ModelShape
    budget: Budget
    files: tuple[File, File]
    fields: Mapping[str, str] | None = None  # the form's values for a pasted config, where it can hold them
    departs: str = ""  # what a pasted config has that the plan does not fit


def toml_file(side: str, parameters: Mapping[str, str]) -> File:
    """The file of one side, ``r`` or ``t``, from the parameters that are filled in."""
    name, tables = FILES[side]
    parts = []
    for table in tables:
        given = {key: parameters.get(f"{side}.{key}", "").strip() for key in TABLES[table]}
        parts.append(
            "\n".join([f"[{table}]", *(f"{key} = {_value(key, text)}" for key, text in given.items() if text)])
        )
    return File(name, "\n\n".join(parts) + "\n")


def read(parameters: Mapping[str, str]) -> Specs:
    """Reference, shape and budget; a mistake is a ``FieldError`` with the command line's text."""
    for name in parameters:
        if name not in PARAMETERS:
            raise FieldError(
                f"unknown parameter {name!r:.80}{nearest(name, PARAMETERS)}; parameters are {', '.join(PARAMETERS)}"
            )
    config = parameters.get(CONFIG, "").strip()
    pasted = _pasted(parameters, config) if config else None
    fields = _form_fields(pasted) if pasted is not None else None
    if pasted is not None:
        shown = fields or _form_fields(replace(pasted, feed_forward=pasted.main)) or {}
        parameters = {**parameters, **{f"t.{key}": value for key, value in shown.items()}}
    files = toml_file("r", parameters), toml_file("t", parameters)
    reference = _read("r", files[0], Document.reference)
    shape, budget = _read("t", files[1], Document.target)
    if pasted is not None:
        shape = pasted  # which a TOML file says but for the number of weights,
        if fields is None:  # or cannot say, where layers differ
            files = files[0], File(FILE, json.dumps(json.loads(config), indent=2) + "\n")
    for side, asked in (("r", reference.shape), ("t", shape)):
        parts = len(asked.main.branches) + len(asked.main.groups)
        for key, what, given, most in (
            ("depth", "layers", asked.depth, MOST_LAYERS),
            ("feed_forward", "branches and groups", parts, MOST_PARTS),
        ):
            if given > most:
                says = f"{key} has {given} {what}: the planner takes at most {most} {what}; use `mue plan`"
                raise FieldError(says, field=f"{side}.{key}", given=given, allowed=most)
    return Specs(reference, shape, budget, files, fields, departs(json.loads(config)) if config else "")


def _pasted(parameters: Mapping[str, str], config: str) -> ModelShape:
    """The shape of a pasted config, which goes without fields of its own."""
    beside = [f"t.{key}" for key in SHAPE_KEYS if parameters.get(f"t.{key}", "").strip()]
    if beside:
        raise FieldError(f"{beside[0]} beside {CONFIG}: give the shape once", field=CONFIG)
    try:
        return _shape_in(config)
    except MueError as problem:
        raise FieldError(" ".join(str(problem).split()), field=CONFIG) from None


def _shape_in(text: str) -> ModelShape:
    """The shape that the JSON text gives; a mistake is a ``MueError`` that begins with the file's name."""
    data = json_object(text, FILE, "JSON object", "paste the whole file, from { to }")
    family = data.get("model_type")
    if not isinstance(family, str):
        raise MueError(f"{FILE}: no model_type; paste the config.json of a Hugging Face model")
    if family not in READABLE:
        raise MueError(f"{FILE}: the fields of family {family!r:.60} do not give its shape; use `mue plan`, or type it")
    for depth in ("num_hidden_layers", "n_layer"):
        if isinstance(data.get(depth), int) and data[depth] > MOST_LAYERS:
            raise MueError(f"{FILE}: {depth} = {data[depth]:.0e}: the planner takes at most {MOST_LAYERS} layers")
    return shape_of_config(Path(FILE), data)


def _form_fields(shape: ModelShape) -> dict[str, str] | None:
    """The form's values for a shape; None where layers differ in a way that one layout cannot say."""
    given = shape_table(shape)
    return None if given is None else {key: str(given.get(key) or "") for key in SHAPE_KEYS}


def _read(side: str, file: File, make: Callable[[Document], T]) -> T:
    """What the file's text holds; a mistake is said as the command line prints it, on one line."""
    try:
        return make(Document(file.name, file.text))
    except MueError as problem:
        field = problem.field and f"{side}.{problem.field}"
        raise FieldError(" ".join(str(problem).split()), field=field, given=problem.given) from None


def _value(key: str, text: str) -> str:
    """A TOML value: numbers as typed, counts such as 4M or 1e6 written out, a layout in quotes, two betas as a list;
    anything else in quotes, to be named."""
    if key == "feed_forward":
        return _quoted(text)
    if key == "betas":
        parts = text.removeprefix("[").removesuffix("]").split(",")
        return f"[{', '.join(_value('', part.strip()) for part in parts)}]"
    if key in _COUNTS and (whole := _count(text)) is not None:
        return str(whole)
    if _TOML_NUMBER.fullmatch(text):
        return text
    if _NUMBER.fullmatch(text):  # .5, 1., 007: numbers to people, not to TOML
        return str(int(text)) if text.lstrip("+-").isdigit() and len(text) < 64 else repr(float(text))
    return _quoted(text)


def _count(text: str) -> int | None:
    """A whole number with an exponent or a unit: 1e6, 4M, 2.5k, 4Mi; None for what is none, or is plain already."""
    found = _COUNT.fullmatch(text)
    if found is None or not (found[2] or "e" in found[1].lower()) or found[2].lower() not in _UNITS:
        return None
    number = Decimal(found[1]) * _UNITS[found[2].lower()]
    return int(number) if number == int(number) and number.adjusted() < _MOST_DIGITS else None


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\u{ord(found[0]):04x}", escaped) + '"'
