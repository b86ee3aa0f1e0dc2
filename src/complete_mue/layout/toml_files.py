"""Reference and target files: TOML in, validated specs out, and back.

    [shape]                          [budget]                 [hyper]              # the reference only
    width = 128                      batch_tokens = 262144    lr = 1e-3
    depth = 32                       steps = 25000            weight_decay = 0.1
    feed_forward = "dense"                                    init_std = 0.01
    expansion = 1.0                                           betas = [0.95, 0.95]
                                                              eps = 1e-8

An MoE shape says ``feed_forward = "128e8a4g1s"`` with ``expert_width`` and, optionally, ``dense_layers``. A reference
may add ``[tuned.ROLE]`` tables for single roles. Messages point at the line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from complete_mue.errors import FileError, MueError, nearest
from complete_mue.layout.notation import FeedForward
from complete_mue.layout.numbers import LARGEST_COUNT, count, real
from complete_mue.layout.reference import TUNABLE, Hyper, Reference, Tuned, tuned_from
from complete_mue.layout.shape import Budget, ModelShape
from complete_mue.layout.tensors import Role

T = TypeVar("T")

SHAPE_KEYS = ("width", "depth", "feed_forward", "expansion", "expert_width", "dense_layers", "head_dim")
BUDGET_KEYS = ("batch_tokens", "steps")
HYPER_KEYS = ("lr", "weight_decay", "init_std", "betas", "eps", "route_scale", "attention_scale")
_TABLES = ("shape", "budget", "hyper", "tuned")
_NEEDED = {
    "shape": ("width", "depth", "feed_forward"),
    "budget": BUDGET_KEYS,
    "hyper": ("lr", "weight_decay", "init_std"),
}
_LARGEST_FILE = 1_000_000


class Document:
    """A parsed TOML file that can say on which line a key stands; ``name`` is what messages call it."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        try:
            self.data = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError, ValueError) as problem:
            raise FileError(f"{name}: not valid TOML: {str(problem) or 'nested too deeply'}") from None
        if _holds_huge_number(self.data):
            raise FileError(f"{name}: holds a whole number of more than 64 bits; no key takes one")
        for key in self.data:
            if key not in _TABLES:
                raise FileError(
                    f"{self._at(key) if isinstance(self.data[key], dict) else self._at('', key)}: "
                    f"unknown name {key!r}{nearest(key, _TABLES)}; "
                    f"a file of this kind has {', '.join(f'[{k}]' for k in _TABLES)}"
                )

    @classmethod
    def read(cls, path: Path, holds: str = "[shape] and [budget]") -> Document:
        """The document in a file; where it is missing, what such a file ``holds`` is said."""
        try:
            if path.is_file() and path.stat().st_size > _LARGEST_FILE:
                raise FileError(f"{path}: larger than {_LARGEST_FILE} bytes: give a reference or target file")
            text = path.read_bytes().decode("utf-8-sig")
        except FileNotFoundError:
            raise FileError(f"{path}: no such file; give the path of a TOML file with {holds}") from None
        except UnicodeDecodeError as problem:
            raise FileError(
                f"{path}: not UTF-8 text ({problem.reason} at byte {problem.start}); save it as UTF-8"
            ) from None
        except (OSError, ValueError) as problem:
            if isinstance(problem, MueError):
                raise
            raise FileError(f"{path}: cannot be read ({getattr(problem, 'strerror', None) or problem})") from None
        return cls(str(path), text)

    def reference(self) -> Reference:
        """The tuned model."""
        shape, budget = self.target()
        data = self._table("hyper", HYPER_KEYS)
        own = {key: data[key] for key in ("route_scale", "attention_scale") if key in data}
        adamw = {key: value for key, value in data.items() if key not in own}
        hyper = self._checked("hyper", data, lambda: Hyper(**adamw))
        tables = self.data.get("tuned", {})
        if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
            raise FileError(
                f"{self._at('', 'tuned')}: write one table per role, such as [tuned.embedding] with lr = 2e-3"
            )
        tuned = dict(self._tuned(role, table) for role, table in tables.items())
        return self._checked("hyper", data, lambda: Reference(shape, budget, hyper, tuned=tuned, **own))

    def target(self) -> tuple[ModelShape, Budget]:
        """Shape and budget alone."""
        data = self._table("shape", SHAPE_KEYS)
        rest = {key: data[key] for key in ("dense_layers", "head_dim") if key in data}
        shape = self._checked(
            "shape", data, lambda: ModelShape(data["width"], data["depth"], _feed_forward(data), **rest), "feed_forward"
        )
        budget = self._table("budget", BUDGET_KEYS)
        return shape, self._checked("budget", budget, lambda: Budget(**budget))

    def _tuned(self, role: str, table: Mapping[str, Any]) -> tuple[Role, Tuned]:
        return self._checked(f"tuned.{role}", table, lambda: (Role.parse(role), tuned_from(role, table)))

    def _at(self, table: str, key: str | None = None) -> str:
        """``file:line``, with the line of the key, or of its table, or of neither."""
        here, header = "", 0
        for number, line in enumerate(self.text.splitlines(), start=1):
            opened = re.match(r"\s*\[\s*([^\]]*?)\s*\]", line)
            if opened:
                here = opened[1].replace('"', "")
                header = number if here == table else header
            named = re.match(r"""\s*["']?([^"'=]*?)["']?\s*=""", line)
            if (
                named
                and key is not None
                and ((named[1] == key and here == table) or named[1].replace(" ", "") == f"{table}.{key}")
            ):
                return f"{self.name}:{number}"
        return f"{self.name}:{header}" if header else f"{self.name}"

    def _table(self, name: str, known: tuple[str, ...]) -> dict[str, Any]:
        """The table of that name with only known keys and every needed one."""
        data = self.data.get(name)
        if data is None:
            needed = ", ".join(_NEEDED[name])
            raise FileError(f"{self.name}: no [{name}] table; add [{name}] with {needed}")
        if not isinstance(data, dict):
            raise FileError(f"{self._at('', name)}: {name} = {data!r}: write a table [{name}] with {', '.join(known)}")
        for key in data:
            if key not in known:
                raise FileError(
                    f"{self._at(name, key)}: unknown key {key!r} in [{name}]{nearest(key, known)}; "
                    f"keys are {', '.join(known)}",
                    field=key,
                    allowed=known,
                )
        for key in _NEEDED[name]:
            if key not in data:
                raise FileError(f"{self._at(name)}: [{name}] has no {key!r}; add it", field=key, remedy="add it")
        return data

    def _checked(self, table: str, data: Mapping[str, Any], make: Callable[[], T], otherwise: str | None = None) -> T:
        """Run ``make``; put file and line before what it complains about, or those of the key ``otherwise``."""
        try:
            return make()
        except MueError as problem:
            key = problem.field if problem.field in data else otherwise
            # A key that is known but not there is what to fill in; the line is then another's.
            field = problem.field if problem.field in SHAPE_KEYS else key
            raise FileError(
                f"{self._at(table, key)}: {problem}",
                field=field,
                given=problem.given,
                allowed=problem.allowed,
                remedy=problem.remedy,
            ) from None


def _holds_huge_number(value: Any) -> bool:
    """Such numbers cannot even be printed; TOML lets them in as hexadecimals."""
    if isinstance(value, dict | list):
        return any(map(_holds_huge_number, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and value.bit_length() > 64


def _feed_forward(shape: Mapping[str, Any]) -> FeedForward:
    notation = shape["feed_forward"]
    if not isinstance(notation, str):
        raise FileError(
            f'feed_forward = {notation!r}: give a layout in quotes, such as "dense" or "128e8a4g1s"',
            field="feed_forward",
            given=notation,
        )
    if notation.strip() != "dense":
        # With an expansion in the file the width does not matter: the expansion is the mistake to name.
        block = FeedForward.parse(notation, shape.get("expert_width", 1 if "expansion" in shape else None))
        if "expert_width" in shape and all("@" in part for part in notation.split("+")):
            raise FileError(
                f'expert_width beside feed_forward = "{notation}": every part has its width; leave it out',
                field="expert_width",
                remedy="leave it out",
            )
        if "expansion" in shape:
            raise FileError(
                f'expansion beside feed_forward = "{notation}": it belongs to "dense"; give expert_width instead',
                field="expansion",
                remedy="give expert_width instead",
            )
        return block
    if "expert_width" in shape:
        raise FileError(
            'expert_width beside feed_forward = "dense": give expansion, or write "dense@WIDTH"', field="expert_width"
        )
    exact = real("expansion", shape.get("expansion", 1.0)) * count("width", shape["width"])
    width = round(exact) if exact <= LARGEST_COUNT else 0
    if width < 1 or abs(exact - width) > 1e-6 * exact:
        raise FileError(
            f"expansion = {shape.get('expansion', 1.0)} times width = {shape['width']} is {exact}, not a whole width; "
            'write "dense@WIDTH"',
            field="expansion",
            given=shape.get("expansion", 1.0),
            remedy='write "dense@WIDTH"',
        )
    return FeedForward.dense(width)


def read_reference(path: str | Path) -> Reference:
    """The tuned reference in a TOML file."""
    return Document.read(Path(path), "[shape], [budget] and [hyper]").reference()


def read_target(path: str | Path) -> tuple[ModelShape, Budget]:
    """The shape and budget in a TOML file; a reference file is a target too (its [hyper] is left unread)."""
    return Document.read(Path(path)).target()


def shape_table(shape: ModelShape) -> dict[str, object] | None:
    """The values of [shape], None for those to leave out; None where layers differ in a way no layout can say."""
    if not isinstance(shape.feed_forward, FeedForward):
        return None
    return {
        "width": shape.width, "depth": shape.depth, "feed_forward": shape.feed_forward.with_widths,
        "dense_layers": shape.dense_layers or None, "head_dim": shape.head_dim,
    }  # fmt: skip


def reference_toml(reference: Reference, notes: Sequence[str] = ()) -> str:
    """A reference as the text of a TOML file that ``read_reference`` reads back; ``notes`` go on top as comments."""
    shape, hyper = shape_table(reference.shape), reference.hyper
    if shape is None:
        raise FileError("a reference with one block per layer cannot be written as TOML: give one block for all layers")
    tables: dict[str, dict[str, object]] = {
        "shape": shape,
        "budget": {"batch_tokens": reference.budget.batch_tokens, "steps": reference.budget.steps},
        "hyper": {
            "lr": hyper.lr, "weight_decay": hyper.weight_decay, "init_std": hyper.init_std, "betas": list(hyper.betas),
            "eps": hyper.eps, "route_scale": reference.route_scale, "attention_scale": reference.attention_scale,
        },
    }  # fmt: skip
    for role, tuned in reference.tuned.items():
        tables[f"tuned.{role.value}"] = {name: getattr(tuned, name) for name in TUNABLE}
    lines = [f"# {note}" for note in notes]
    for name, table in tables.items():
        lines += ["", f"[{name}]"]
        for key, value in table.items():
            if value is not None:
                lines.append(f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value!r}")
    return "\n".join(lines).lstrip() + "\n"
