"""A feed-forward block as data: ``"128e8a4g1s"`` <-> ``FeedForward``.

RULES of the block (unified formula, Eq. hybrid-general):

    y = A * ( sum over always-active branches m of o_m(x)  +  r * sum over selected experts e of pi_e(x) o_e(x) )

A dense FFN is one branch and no groups; a Dense MoE activates every expert; every other layout lies between.

Notation. ``XeYa[Gg][Zs]``: X routed experts, Y activated in all, G groups (Y/G chosen in each), Z shared experts of the
expert's own width. ``dense`` is the dense FFN. Blocks that mix widths are written as a sum whose terms carry their
width: ``dense@512+32e2a@512+16e2a@256``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

from complete_mue.errors import NotationError, ShapeError
from complete_mue.layout.numbers import count

_TERM = re.compile(
    r"(?:dense|(?P<experts>\d+)e(?P<active>\d+)a(?:(?P<groups>\d+)g)?(?:(?P<shared>\d+)s)?)(?:@(?P<width>\d+))?",
    re.ASCII,
)
_EXAMPLES = "'dense', '64e8a', '128e8a1s', '128e8a4g1s', or with widths 'dense@512+32e2a@256'"
_LONGEST_NOTATION = 4096
_MOST_BRANCHES = 65_536


@dataclass(frozen=True)
class RoutedGroup:
    """Experts that compete with each other: each token takes the best ``active`` of ``experts``."""

    experts: int
    active: int
    expert_width: int

    def __post_init__(self) -> None:
        count("experts", self.experts)
        count("active", self.active)
        count("expert_width", self.expert_width)
        if self.active > self.experts:
            raise ShapeError(
                f"active = {self.active} of experts = {self.experts}: "
                "a token cannot activate more experts than there are; lower active or add experts"
            )

    @property
    def density(self) -> float:
        """Share of the group's experts that one token activates, a_g / N_g."""
        return self.active / self.experts


@dataclass(frozen=True)
class FeedForward:
    """One feed-forward block: always-active branches (their widths) and routed groups."""

    branches: tuple[int, ...] = ()
    groups: tuple[RoutedGroup, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "branches", tuple(self.branches))
        object.__setattr__(self, "groups", tuple(self.groups))
        for width in self.branches:
            count("dense branch width", width)
        for group in self.groups:
            if not isinstance(group, RoutedGroup):
                raise ShapeError(f"group {group!r}: give RoutedGroup(experts, active, expert_width)")
        if not self.branches and not self.groups:
            raise ShapeError("an empty feed-forward block: give at least one dense branch or one routed group")
        if len(self.branches) + len(self.groups) > _MOST_BRANCHES:
            raise ShapeError(f"more than {_MOST_BRANCHES} branches and groups in one block: give fewer")

    # -- making one ---------------------------------------------------------------------------------------

    @classmethod
    def dense(cls, width: int) -> FeedForward:
        """The dense FFN of hidden width ``width``."""
        return cls(branches=(width,))

    @classmethod
    def moe(cls, experts: int, active: int, expert_width: int, *, groups: int = 1, shared: int = 0) -> FeedForward:
        """``experts`` routed experts of which ``active`` (in all) are activated, in ``groups`` equal groups."""
        count("experts", experts)
        count("active", active)
        count("groups", groups)
        count("shared", shared, least=0)
        count("expert_width", expert_width)
        if experts % groups or active % groups:
            raise ShapeError(
                f"groups = {groups} must divide experts = {experts} and active = {active}: "
                "each group takes an equal share of both"
            )
        if shared + groups > _MOST_BRANCHES:
            raise ShapeError(f"more than {_MOST_BRANCHES} branches and groups in one block: give fewer")
        group = RoutedGroup(experts // groups, active // groups, expert_width)
        return cls(branches=(expert_width,) * shared, groups=(group,) * groups)

    @classmethod
    def parse(cls, notation: str, expert_width: int | None = None) -> FeedForward:
        """Read ``XeYa[Gg][Zs]``, ``dense``, or a ``+``-sum of them with ``@width``.

        ``expert_width`` is the width of every term without its own ``@width``; for ``dense``, the FFN's whole width.
        """
        if not isinstance(notation, str) or not notation.strip():
            raise NotationError(f"layout {notation!r}: give a notation such as {_EXAMPLES}")
        if len(notation) > _LONGEST_NOTATION:
            raise NotationError(f"layout of {len(notation)} characters: give at most {_LONGEST_NOTATION}")
        branches: list[int] = []
        groups: list[RoutedGroup] = []
        for term in notation.strip().split("+"):
            block = cls._parse_term(notation, term.strip(), expert_width)
            branches += block.branches
            groups += block.groups
            if len(branches) + len(groups) > _MOST_BRANCHES:
                break  # the block says so
        return cls(tuple(branches), tuple(groups))

    @classmethod
    def within(cls, width: int, notation: str, expert_width: int | None = None) -> FeedForward:
        """What a command means by a layout in a model of ``width``: a bare ``dense`` is as wide as the model; experts
        without a width are an error."""
        if expert_width is None and notation.strip() == "dense":
            return cls.dense(count("width", width))
        return cls.parse(notation, expert_width)

    @classmethod
    def _parse_term(cls, notation: str, term: str, expert_width: int | None) -> FeedForward:
        found = _TERM.fullmatch(term)
        if found is None:
            raise NotationError(
                f"layout {notation!r}: cannot read {term!r}; write XeYa[Gg][Zs] (experts, activated in all, groups, "
                f"shared experts), such as {_EXAMPLES}"
            )
        if any(len(digits) > 18 for digits in found.groupdict("").values()):
            raise NotationError(f"layout {notation!r}: a number in {term!r} is too large; give at most 18 digits")
        width = int(found["width"]) if found["width"] else expert_width
        if width is None:
            raise NotationError(
                f"layout {notation!r} says nothing of widths: give expert_width (for 'dense', the FFN's width), "
                f"or write '{term}@WIDTH'",
                field="expert_width",
                remedy=f"write '{term}@WIDTH'",
            )
        if found["experts"] is None:
            return cls.dense(width)
        try:
            return cls.moe(
                int(found["experts"]),
                int(found["active"]),
                width,
                groups=int(found["groups"] or 1),
                shared=int(found["shared"] or 0),
            )
        except ShapeError as problem:
            raise NotationError(f"layout {notation!r}: {problem}", field=problem.field, given=problem.given) from None

    # -- reading it ---------------------------------------------------------------------------------------

    def __str__(self) -> str:
        """The shortest notation that reads back as this block (given ``expert_width`` where it carries none)."""
        if not self.groups and len(self.branches) == 1:
            return "dense"
        if len(set(self.groups)) == 1 and set(self.branches) <= {self.groups[0].expert_width}:
            return self._term(self.groups[0], len(self.groups), len(self.branches))
        return self.with_widths

    @property
    def with_widths(self) -> str:
        """The notation with every width spelled out: ``dense@512+32e2a@512``."""
        terms = [f"dense@{width}" for width in self.branches]
        for group, run in groupby(self.groups):
            terms.append(f"{self._term(group, len(list(run)), 0)}@{group.expert_width}")
        return "+".join(terms)

    @staticmethod
    def _term(group: RoutedGroup, groups: int, shared: int) -> str:
        text = f"{group.experts * groups}e{group.active * groups}a"
        return text + (f"{groups}g" if groups > 1 else "") + (f"{shared}s" if shared else "")

    @property
    def note(self) -> str:
        """What one should know of this layout before training it; empty for most."""
        if self.active != 1 or self.experts == 1:
            return ""
        return f"top-1 ({self}): a lone normalized weight is always 1, so the loss teaches its router nothing"

    @property
    def is_dense(self) -> bool:
        """No routed experts."""
        return not self.groups

    @property
    def experts(self) -> int:
        """N: routed experts in all groups; 0 for a dense FFN."""
        return sum(group.experts for group in self.groups)

    @property
    def active(self) -> int:
        """a: routed experts that one token activates, in all groups; 0 for a dense FFN."""
        return sum(group.active for group in self.groups)

    @property
    def expert_width(self) -> int | None:
        """h if every expert has the same width (for a dense FFN, the whole width); None where widths mix."""
        widths = {group.expert_width for group in self.groups} or (
            {self.branches[0]} if len(self.branches) == 1 else set()
        )
        return widths.pop() if len(widths) == 1 else None

    @property
    def routed_width(self) -> int:
        """Width one token passes through in routed experts, sum over groups of a_g h_g."""
        return sum(group.active * group.expert_width for group in self.groups)

    @property
    def active_width(self) -> int:
        """H: all that one token passes through (Eq. hybrid-total-width, with a counted per group)."""
        return sum(self.branches) + self.routed_width

    @property
    def total_width(self) -> int:
        """Width of all branches and all experts together."""
        return sum(self.branches) + sum(group.experts * group.expert_width for group in self.groups)

    @property
    def density(self) -> float:
        """a / N; 1 for a dense FFN."""
        return self.active / self.experts if self.groups else 1.0

    @property
    def route_scale(self) -> int:
        """r = a on the normalized routed sum (Eq. route-scale-main); 1 for a dense FFN."""
        return self.active or 1

    def parameters(self, width: int) -> Parameters:
        """Matrix entries of the block at residual width ``width``: SwiGLU's three matrices, and the router."""
        router = width * self.experts
        return Parameters(3 * width * self.active_width + router, 3 * width * self.total_width + router)


@dataclass(frozen=True)
class Parameters:
    """How many weights one token uses, and how many there are."""

    active: int
    total: int

    def __add__(self, other: Parameters) -> Parameters:
        return Parameters(self.active + other.active, self.total + other.total)
