"""Named rule sets, written in one vocabulary so that they can be compared line by line.

    complete_mue   the paper's: every axis: width, depth, FFN width and MoE layout, batch and duration (the default)
    complete_mue_sparse   the same, and a smaller lr for the up projection of sparse experts: measured, not the paper's
    completep      width and depth with CompleteP's parameter groups; nothing for FFN width, experts, batch or duration
    mup            each tensor by its own fan-in, as width muP reads shapes; normalized routing as it comes
    mup_moe        each tensor by residual width alone; no active-width rule, no route scale
    sp             standard parametrization: fan-in initialization, everything else unchanged

Rule sets without a schedule factor hold the betas too. A route scale that a rule set does not know stays the
reference's (1 for a dense reference: plain normalized routing).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from complete_mue.errors import TransferError, nearest
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

MUP_MOE = table({
    #                                   output | route | residual | init std | lr   | weight decay | eps
    "embedding":                        "1     | 1     | 1        | 1        | 1    | 1            | 1",
    HIDDEN_ROLES:                       "1     | 1     | 1        | d^-1/2   | d^-1 | d            | 1",
    "attention_out":                    "1     | 1     | 1        | d^-1/2   | d^-1 | d            | 1",
    "dense_down shared_down expert_down": "1   | 1     | 1        | d^-1/2   | d^-1 | d            | 1",
    VECTORS:                            "1     | 1     | 1        | 1        | 1    | 1            | 1",
    "readout":                          "d^-1  | 1     | 1        | 1        | 1    | 1            | 1",
})  # fmt: skip

SP = table({
    #                                   output | route | residual | init std | lr   | weight decay | eps
    "embedding":                        "1     | 1     | 1        | 1        | 1    | 1            | 1",
    HIDDEN_ROLES:                       "1     | 1     | 1        | d^-1/2   | 1    | 1            | 1",
    "attention_out":                    "1     | 1     | 1        | d^-1/2   | 1    | 1            | 1",
    "dense_down shared_down expert_down": "1   | 1     | 1        | f^-1/2   | 1    | 1            | 1",
    VECTORS:                            "1     | 1     | 1        | 1        | 1    | 1            | 1",
    "readout":                          "1     | 1     | 1        | d^-1/2   | 1    | 1            | 1",
})  # fmt: skip

CATALOG: Mapping[str, RuleTable] = {
    "complete_mue": COMPLETE_MUE,
    "complete_mue_sparse": COMPLETE_MUE_SPARSE,
    "completep": COMPLETEP,
    "mup": MUP,
    "mup_moe": MUP_MOE,
    "sp": SP,
}


@dataclass(frozen=True)
class Rules:
    """A rule set by name, and the few readings on which people differ.

    ``eps="fixed"`` and ``weight_decay="fixed"`` leave width and depth out of those columns: the other reading of the
    paper's depth row. ``forward_factor`` is a measured F, as `mue check` prints it; r becomes a / sqrt(F).
    """

    name: str = "complete_mue"
    eps: Literal["groups", "fixed"] = "groups"
    weight_decay: Literal["groups", "fixed"] = "groups"
    forward_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.name not in CATALOG:
            raise TransferError(
                f"rules {self.name!r}{nearest(str(self.name), CATALOG)}: rule sets are {', '.join(CATALOG)}"
            )
        for option in ("eps", "weight_decay"):
            if getattr(self, option) not in ("groups", "fixed"):
                raise TransferError(f"Rules({option}={getattr(self, option)!r}): give 'groups' or 'fixed'")
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
    def scales_schedule(self) -> bool:
        """Whether this rule set knows batch and duration at all."""
        return self._scales_lr_by("s")

    @property
    def scales_sparsity(self) -> bool:
        """Whether this rule set knows the number of experts per active one."""
        return self._scales_lr_by("S")

    def _scales_lr_by(self, symbol: str) -> bool:
        return any(symbol == known for rule in self.table.values() for known, _ in rule.lr.powers)


@lru_cache(maxsize=64)
def _table(rules: Rules) -> RuleTable:
    lines = with_fixed(CATALOG[rules.name], eps=rules.eps == "fixed", weight_decay=rules.weight_decay == "fixed")
    if rules.forward_factor != 1:
        expert = lines[Role.EXPERT_DOWN]
        lines[Role.EXPERT_DOWN] = replace(expert, route_scale=expert.route_scale * Monomial.parse("F^-1/2"))
    return lines
