"""Named rule sets, written in one vocabulary so that they can be compared line by line.

    complete_mue_sparse   the paper's, and a smaller lr for the up projection of sparse experts: measured (the default)
    complete_mue   the paper's: every axis: width, depth, FFN width and MoE layout, batch and duration
    completep      width and depth with CompleteP's parameter groups; nothing for FFN width, experts, batch or duration
    mup            each tensor by its own fan-in, as width muP reads shapes; normalized routing as it comes
    mup_moe        each tensor by residual width alone, as arXiv 2508.09752 has it; no active-width rule, no route scale
    dmft_moe       CompleteP and expert width at a fixed active fraction, by arXiv 2601.20205, as others read its table
    sp             standard parametrization: fan-in initialization, everything else unchanged

Rule sets without a schedule factor hold the betas too. A route scale that a rule set does not know stays the
reference's (1 for a dense reference: plain normalized routing).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any, Literal, get_args

from complete_mue.errors import TransferError, one_of
from complete_mue.layout.numbers import real
from complete_mue.layout.tensors import Role
from complete_mue.rules.layer_table import COMPLETE_MUE, HIDDEN_ROLES, RuleTable, table, with_fixed
from complete_mue.rules.monomial import Monomial
from complete_mue.rules.sparse import EXPERT_UP_LR

VECTORS = "norm bias final_norm"

_UP = COMPLETE_MUE[Role.EXPERT_UP]
COMPLETE_MUE_SPARSE = {
    **COMPLETE_MUE,
    Role.EXPERT_UP: replace(_UP, lr=_UP.lr * Monomial.of({"S": EXPERT_UP_LR.value})),
}

COMPLETEP = table({
    #                                   output | route | residual | init std | lr   | weight decay | eps
    "embedding":                        "1     | 1     | 1        | 1        | 1    | 1            | d^-1",
    HIDDEN_ROLES:                       "1     | 1     | 1        | d^-1/2   | d^-1 | d            | d^-1 L^-1",
    "attention_out":                    "1     | 1     | L^-1     | d^-1/2   | d^-1 | d            | d^-1 L^-1",
    "dense_down shared_down expert_down": "1   | 1     | L^-1     | d^-1/2   | d^-1 | d            | d^-1 L^-1",
    "norm bias":                        "1     | 1     | 1        | 1        | 1    | 1            | d^-1 L^-1",
    "final_norm":                       "1     | 1     | 1        | 1        | 1    | 1            | 1",
    "readout":                          "d^-1  | 1     | 1        | 1        | 1    | 1            | d^-1",
})  # fmt: skip

MUP = table({
    #                                   output | route | residual | init std | lr   | weight decay | eps
    "embedding":                        "1     | 1     | 1        | 1        | 1    | 1            | 1",
    HIDDEN_ROLES:                       "1     | 1     | 1        | d^-1/2   | d^-1 | d            | 1",
    "attention_out":                    "1     | 1     | 1        | d^-1/2   | d^-1 | d            | 1",
    "dense_down shared_down expert_down": "1   | 1     | 1        | f^-1/2   | f^-1 | f            | 1",
    VECTORS:                            "1     | 1     | 1        | 1        | 1    | 1            | 1",
    "readout":                          "d^-1  | 1     | 1        | 1        | 1    | 1            | 1",
})  # fmt: skip

MUP_MOE = table({"dense_down shared_down expert_down": "1 | 1 | 1 | d^-1/2 | d^-1 | d | 1"}, MUP)

# std alpha^-1 n^-1/2 and lr alpha^-1 n^-1 with alpha = h / n, for a mean over active experts, which is
# normalized routing. Decay is not in it: lr times decay is held, as by CompleteP.
DMFT_MOE = table({"dense_down shared_down expert_down": "1 | 1 | L^-1 | f^-1 d^1/2 | f^-1 | f | d^-1 L^-1"}, COMPLETEP)

SP = table({
    #                                   output | route | residual | init std | lr   | weight decay | eps
    "embedding":                        "1     | 1     | 1        | 1        | 1    | 1            | 1",
    HIDDEN_ROLES:                       "1     | 1     | 1        | d^-1/2   | 1    | 1            | 1",
    "attention_out":                    "1     | 1     | 1        | d^-1/2   | 1    | 1            | 1",
    "dense_down shared_down expert_down": "1   | 1     | 1        | f^-1/2   | 1    | 1            | 1",
    VECTORS:                            "1     | 1     | 1        | 1        | 1    | 1            | 1",
    "readout":                          "1     | 1     | 1        | d^-1/2   | 1    | 1            | 1",
})  # fmt: skip

ENTRY_POINTS = "complete_mue.rules"


class Catalog(Mapping[str, RuleTable]):
    """Rule sets by name: ours, those that were registered, and those that installed packages offer.

    The packages are asked only for a name that is not known, or for all names.
    """

    def __init__(self, **known: RuleTable) -> None:
        self._known = known
        self._asked = False

    def add(self, name: str, rules: RuleTable) -> None:
        """A name is given once: plans are kept by it."""
        if name in self._known:
            raise TransferError(f"rules {name!r} are known already: give another name", field="name", given=name)
        self._known[name] = rules

    def __getitem__(self, name: str) -> RuleTable:
        return self._known[name] if name in self._known else self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, RuleTable]:
        if not self._asked:
            self._asked = True
            for found in entry_points(group=ENTRY_POINTS):
                try:
                    register_rules(found.name, **found.load())
                except Exception as problem:  # a package of someone else's must not stop ours
                    warnings.warn(f"rules {found.name!r} of {found.value}: {problem}; left out", stacklevel=2)
        return self._known


CATALOG = Catalog(
    complete_mue_sparse=COMPLETE_MUE_SPARSE,
    complete_mue=COMPLETE_MUE,
    completep=COMPLETEP,
    mup=MUP,
    mup_moe=MUP_MOE,
    dmft_moe=DMFT_MOE,
    sp=SP,
)


# What every command and function takes where nothing is said: it wins or ties on every axis (docs/results/roles.md).
DEFAULT_RULES = "complete_mue_sparse"


def register_rules(name: str, lines: Mapping[str, str], *, like: str | None = None) -> Rules:
    """Add a rule set: role names -> ``output | route scale | residual | init std | lr | weight decay | eps``.

    With ``like``, the name of another rule set, give only the lines that differ. A package that offers rule sets to
    every command names them in its entry points, group ``complete_mue.rules``: dicts of the other arguments.
    """
    CATALOG.add(name, table(lines, Rules(like).table if like is not None else None))
    return Rules(name)


Reading = Literal["groups", "fixed"]  # a column follows width and depth, as CompleteP's parameter groups do, or not
Duration = Literal["scaled", "fixed"]  # the learning rate follows the number of steps, or the batch
READINGS: dict[str, tuple[Any, ...]] = {
    "eps": get_args(Reading), "weight_decay": get_args(Reading), "duration": get_args(Duration),
}  # fmt: skip


@dataclass(frozen=True)
class Rules:
    """A rule set by name, and the few readings on which people differ.

    ``eps="fixed"`` and ``weight_decay="fixed"`` leave width and depth out of those columns: the other reading of the
    paper's depth row. ``duration="fixed"`` leaves the number of steps out of lr, which then goes with the fourth root
    of the batch: our sweeps end lower so (docs/results/steps.md). ``forward_factor`` is a measured F, as `mue check`
    prints it; r becomes a / sqrt(F).
    """

    name: str = DEFAULT_RULES
    eps: Reading = "groups"
    weight_decay: Reading = "groups"
    forward_factor: float = 1.0
    duration: Duration = "scaled"

    def __post_init__(self) -> None:
        one_of("rules", self.name, CATALOG, TransferError)
        for option, known in READINGS.items():
            one_of(option, getattr(self, option), known, TransferError)
        object.__setattr__(self, "forward_factor", real("forward_factor", self.forward_factor))

    @classmethod
    def named(cls, rules: Rules | str) -> Rules:
        """A rule set from its name; a ``Rules`` passes through."""
        return rules if isinstance(rules, Rules) else cls(rules)

    @property
    def table(self) -> RuleTable:
        """Role -> line, with this object's readings applied."""
        return _table(self)

    @property
    def idle(self) -> tuple[str, ...]:
        """The readings that change nothing here: what they leave out, this rule set does not have."""
        others = {name: replace(self, **{name: known[0]}) for name, known in READINGS.items()}
        return tuple(name for name, other in others.items() if other != self and other.table == self.table)

    @property
    def scales_schedule(self) -> bool:
        """Whether this rule set knows batch and duration at all."""
        return self._scales_lr_by("s")

    @property
    def scales_sparsity(self) -> bool:
        """Whether this rule set knows the number of experts per active one."""
        return self._scales_lr_by("S")

    def _scales_lr_by(self, symbol: str) -> bool:
        return any(symbol == known for rule in CATALOG[self.name].values() for known, _ in rule.lr.powers)


@lru_cache(maxsize=64)
def _table(rules: Rules) -> RuleTable:
    lines = with_fixed(CATALOG[rules.name], **{name: getattr(rules, name) == "fixed" for name in READINGS})
    if rules.forward_factor != 1:
        expert = lines[Role.EXPERT_DOWN]
        lines[Role.EXPERT_DOWN] = replace(expert, route_scale=expert.route_scale * Monomial.parse("F^-1/2"))
    return lines
