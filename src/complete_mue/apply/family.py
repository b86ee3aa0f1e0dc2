"""A family: what a kind of model calls its tensors, as a table.

One line per tensor: ``name | role | axes | multiplied as | start``. In a name, ``*`` stands for a number (the first one
is the layer), ``{a,b}`` for either, a leading ``?`` marks a tensor that not every model of the family has. In the axes,
``<...>`` marks the fan-in, the axis that is summed over: it is declared, never guessed from a shape. The last two
columns, mostly empty, are TensorSpec.multiplied_as and TensorSpec.start.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from complete_mue.errors import BindError, nearest
from complete_mue.layout.tensors import Role, TensorSpec

# What wrappers of single layers put into a parameter's name; the name below them is what a family knows.
_WRAPPERS = re.compile(r"\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_MULTIPLIED_AS = ("", "residual", "inner", *(role.value for role in Role))


def plain_name(name: str) -> str:
    """A qualified name without what torch.compile, checkpointing and FSDP insert into it."""
    return _WRAPPERS.sub("", name)


@dataclass(frozen=True)
class Pattern(TensorSpec):
    """One line of a family's table: what all tensors are whose names are of its pattern, ``name``."""

    optional: bool = False

    @classmethod
    def parse(cls, line: str) -> Pattern:
        """Read ``[?]name | role | axes [| multiplied as [| start]]``."""
        cells = [cell.strip() for cell in line.split("|")]
        if not 3 <= len(cells) <= 5:
            raise BindError(
                f"family line {line.strip()!r}: write `name | role | axes`, "
                "such as `blocks.*.w2 | dense_down | width <hidden>`"
            )
        axes = cells[2].split()
        fan_in = [axis[1:-1] for axis in axes if axis.startswith("<") and axis.endswith(">")]
        if "".join(axes).count("<") != len(fan_in) or "".join(axes).count(">") != len(fan_in):
            raise BindError(f"family line {line.strip()!r}: write the axis that is summed over as <name>, in one word")
        if len(fan_in) > 1:
            raise BindError(f"family line {line.strip()!r}: mark one axis as <fan-in>, not {len(fan_in)}")
        multiplied_as, start = (*cells[3:], "", "")[:2]
        if multiplied_as not in _MULTIPLIED_AS:
            close = nearest(multiplied_as, _MULTIPLIED_AS)
            raise BindError(
                f"family line {line.strip()!r}: fourth column {multiplied_as!r}{close}; "
                "give a role, `residual` (a norm behind a branch), `inner` (a projection before one), or nothing"
            )
        return cls(
            name=cells[0].removeprefix("?").strip(),
            role=Role.parse(cells[1]),
            axes=tuple(axis.strip("<>") for axis in axes),
            fan_in=fan_in[0] if fan_in else None,
            multiplied_as=multiplied_as,
            start=start,
            optional=cells[0].startswith("?"),
        )

    def match(self, name: str) -> re.Match[str] | None:
        """Whether a qualified name is of this pattern; group 1 is the first number."""
        return _regex(self.name).fullmatch(name)

    def tensor(self, name: str, layer: int | None, multiplier: float) -> TensorSpec:
        """The tensor of that name."""
        return TensorSpec(name, self.role, self.axes, self.fan_in, layer, multiplier, self.multiplied_as, self.start)


@lru_cache(maxsize=4096)
def _regex(glob: str) -> re.Pattern[str]:
    text = re.escape(glob).replace(r"\*", r"(\d+)")
    text = re.sub(r"\\\{(.*?)\\\}", lambda found: "(?:" + "|".join(found[1].split(",")) + ")", text)
    return re.compile(text)


@dataclass(frozen=True)
class Family:
    """What ``mue`` must know of a kind of model.

    ``active`` names the config field (or gives the number) of activated experts. ``normalized`` says whether routing
    weights sum to one over the selected experts: True, False, or the config field that decides. ``native`` gives what
    the model's forward already multiplies the product of a role, or of one line of the table, with: a number, or a
    config field (``1/field`` inverts, ``field**0.5`` takes the root). All three are compared with what the model does
    (``probe``). ``fan_in_ratios`` gives target / reference for fan-in axes that do not grow with the width, such as a
    fixed rank of latent attention: ``{"rank": 1.0}``; axes not named there are taken to grow with it. ``state`` names
    tensors without gradient that the model updates itself and that start at zero, such as a selection bias kept as a
    parameter. ``refuses`` gives, for names of tensors that some models of the family have, why those are not supported.
    """

    name: str
    patterns: tuple[Pattern, ...] = ()
    active: str | int = 0
    normalized: bool | str = True
    native: Mapping[str, str | float] = field(default_factory=dict)
    fan_in_ratios: Mapping[str, float] = field(default_factory=dict)
    state: tuple[str, ...] = ()
    refused: str = ""
    refuses: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = [*(role.value for role in Role), *(pattern.name for pattern in self.patterns)]
        for key in self.native:
            if key not in known:
                raise BindError(
                    f"family {self.name!r}: native names {key!r}{nearest(key, known)}; "
                    "give a role, or a name exactly as it stands in the table"
                )
        fan_ins = {pattern.fan_in for pattern in self.patterns} - {None}
        for axis, ratio in self.fan_in_ratios.items():
            if axis not in fan_ins:
                raise BindError(
                    f"family {self.name!r}: fan_in_ratios names {axis!r}, but the fan-ins of its table are "
                    f"{', '.join(sorted(map(str, fan_ins)))}; name one of them"
                )
            if not isinstance(ratio, int | float) or not 0 < ratio < math.inf:
                raise BindError(f"family {self.name!r}: fan_in_ratios[{axis!r}] = {ratio!r}: give a number above 0")

    @classmethod
    def define(
        cls,
        name: str,
        table: str,
        *,
        active: str | int = 0,
        normalized: bool | str = True,
        native: Mapping[str, str | float] | None = None,
        fan_in_ratios: Mapping[str, float] | None = None,
        state: Iterable[str] = (),
        refuses: Mapping[str, str] | None = None,
    ) -> Family:
        """A family from its table, one tensor per line; blank lines and ``#`` comments are skipped."""
        lines = [line for line in table.splitlines() if line.strip() and not line.strip().startswith("#")]
        return cls(
            name,
            tuple(map(Pattern.parse, lines)),
            active,
            normalized,
            dict(native or {}),
            dict(fan_in_ratios or {}),
            tuple(state),
            refuses=dict(refuses or {}),
        )

    def __hash__(self) -> int:
        return hash((self.name, self.patterns))

    def bind_names(
        self, names: Iterable[str], native: Mapping[str, float] | None = None, frozen: Iterable[str] = ()
    ) -> tuple[TensorSpec, ...]:
        """Every name to exactly one line of the table, and every line to some name, or an error that lists them.

        ``frozen`` names may have a line or not: they are not trained, but they still show what the model looks like.
        """
        names = list(names)
        trainable, used, unbound = set(names), set(), []
        specs: list[TensorSpec] = []
        for name in (*names, *frozen):
            plain = plain_name(name)
            found = [(pattern, match) for pattern in self.patterns if (match := pattern.match(plain))]
            if not found:
                if name in trainable:
                    self._refuse(name)
                    unbound.append(name)
                continue
            if len(found) > 1:
                lines = ", ".join(repr(pattern.name) for pattern, _ in found)
                raise BindError(
                    f"parameter {name!r} matches several lines of family {self.name!r}: {lines}; "
                    "make one of them narrower"
                )
            pattern, match = found[0]
            used.add(pattern)
            layer = int(match[1]) if match.re.groups else None
            specs.append(pattern.tensor(name, layer, _native_factor(pattern, native or {})))
        if unbound:
            raise BindError(
                f"{len(unbound)} parameters have no line in family {self.name!r}: {_some(unbound)}; "
                "add a line `name | role | axes` for each (see docs/apply.md), or freeze them"
            )
        idle = [pattern.name for pattern in self.patterns if pattern not in used and not pattern.optional]
        if idle:
            close = nearest(idle[0], [plain_name(name) for name in names])
            raise BindError(
                f"{len(idle)} lines of family {self.name!r} match no parameter: {_some(idle)}{close}; "
                "correct the name, or put ? before a line that not every model has"
            )
        return tuple(specs)

    def _refuse(self, name: str) -> None:
        for glob, reason in self.refuses.items():
            if _regex(glob).match(plain_name(name)):
                raise BindError(f"family {self.name!r} is not supported with {name!r}: {reason}")

    def native_of(self, spec: TensorSpec) -> str | float | None:
        """What ``native`` gives for a tensor: for its line, else for its role."""
        lines = [given for key, given in self.native.items() if _regex(key).fullmatch(plain_name(spec.name))]
        return lines[0] if lines else self.native.get(spec.role.value)

    def is_state(self, name: str) -> bool:
        """Whether a name is listed as ``state``."""
        return any(_regex(glob).fullmatch(plain_name(name)) for glob in self.state)


def _native_factor(pattern: Pattern, native: Mapping[str, float]) -> float:
    """The model's own factor on a tensor's product: that of its line, else that of its role, or of the role of the
    projection whose bias it is."""
    role = pattern.multiplied_as if pattern.multiplied_as in [*Role] else pattern.role
    return native.get(pattern.name, native.get(role, 1.0))


def _some(names: list[str], most: int = 8) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
