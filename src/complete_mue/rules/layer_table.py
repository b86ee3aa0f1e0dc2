"""The layer table: role x ratios -> factors (Table mue-rules, with CompleteP's parameter groups).

Each cell is a monomial in the ratios: d, L, H, f (the tensor's own fan-in), a (activated experts), S (experts per
active one), s (schedule) and B (batch).
``output``, ``route`` and ``residual`` multiply in the forward pass; the other cells are factors on the tuned value.
Norm gains and biases have no init std and are not decayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from complete_mue.errors import TransferError
from complete_mue.layout.tensors import Role
from complete_mue.rules.batch_duration import BATCH_LR
from complete_mue.rules.monomial import ONE, Monomial
from complete_mue.rules.sparse import EXPERT_UP_LR


@dataclass(frozen=True)
class LayerRule:
    """One line of a rule table."""

    output: Monomial = ONE
    route_scale: Monomial = ONE
    residual: Monomial = ONE
    init_std: Monomial = ONE
    lr: Monomial = ONE
    weight_decay: Monomial = ONE
    eps: Monomial = ONE


COLUMNS = tuple(entry.name for entry in fields(LayerRule))
RuleTable = dict[Role, LayerRule]


def line(text: str) -> LayerRule:
    """One line: ``output | route scale | residual | init std | lr | weight decay | eps``."""
    cells = [Monomial.parse(cell.strip()) for cell in text.split("|")]
    if len(cells) != len(COLUMNS):
        raise TransferError(
            f"rule {text!r} has {len(cells)} cells: write {' | '.join(COLUMNS)}", given=text, allowed=COLUMNS
        )
    return LayerRule(*cells)


def table(lines: Mapping[str, str], like: RuleTable | None = None) -> RuleTable:
    """A rule table from lines keyed by role names; several roles may share a line, ``like`` has the others' lines."""
    rules = {Role.parse(name): line(text) for names, text in lines.items() for name in names.split()}
    rules = {**(like or {}), **rules}
    missing = [role.value for role in Role if role not in rules]
    if missing:
        raise TransferError(f"no rule for {', '.join(missing)}: give every role a line", field=missing[0])
    return rules


HIDDEN_ROLES = "attention_in dense_up shared_up expert_up router modulation"

COMPLETE_MUE = table({
    #                            output | route | residual | init std    | lr     | weight decay | eps
    "embedding":                 "1     | 1     | 1        | 1           | s      | s            | d^-1 s^-1",
    HIDDEN_ROLES:                "1     | 1     | 1        | d^-1/2      | s d^-1 | s d          | d^-1 L^-1 s^-1",
    "attention_out":             "1     | 1     | L^-1     | d^-1/2      | s d^-1 | s d          | d^-1 L^-1 s^-1",
    "dense_down shared_down":    "H^-1  | 1     | L^-1     | d^-1/2 H^1/2| s d^-1 | s d          | d^-1 L^-1 s^-1",
    "expert_down":               "H^-1  | a     | L^-1     | d^-1/2 H^1/2| s d^-1 | s d          | d^-1 L^-1 s^-1",
    "norm bias":                 "1     | 1     | 1        | 1           | s      | 1            | d^-1 L^-1 s^-1",
    "final_norm":                "1     | 1     | 1        | 1           | s      | 1            | s^-1",
    "readout":                   "d^-1  | 1     | 1        | 1           | s      | s            | d^-1 s^-1",
})  # fmt: skip


def with_fixed(rules: RuleTable, *, eps: bool, weight_decay: bool, duration: bool) -> RuleTable:
    """The other reading of the depth row: eps and/or weight decay follow the schedule alone, not width or depth. And
    lr by the batch alone, not by the number of steps."""
    fixed = {}
    for role, rule in rules.items():
        if eps:
            rule = replace(rule, eps=rule.eps.without("d", "L", "f"))
        if weight_decay:
            rule = replace(rule, weight_decay=rule.weight_decay.without("d", "L", "f"))
        if duration and "s" in dict(rule.lr.powers):
            rule = replace(rule, lr=rule.lr.without("s") * Monomial.parse(f"B^{BATCH_LR}"))
        fixed[role] = rule
    return fixed


@dataclass(frozen=True)
class Reason:
    """Why a ratio stands in a column, and the equation that says so."""

    words: str
    equation: str


# (column, symbol) -> why. Every symbol that a table of ours uses in a column has its reason here.
REASONS: dict[tuple[str, str], Reason] = {
    ("output", "H"): Reason("one AdamW step moves the block's output by A·lr·H, so A = 1/ρ_H keeps it", "Bridge I, active-width muP (Eq. 2)"),
    ("output", "d"): Reason("logits sum over d features that learn together, so the readout is divided by ρ_d", "width muP, output layer"),
    ("route_scale", "a"): Reason("normalized routing averages the active experts; r ∝ a turns the average back into a sum", "route scale (Eq. 3)"),
    ("route_scale", "F"): Reason("unequal routing weights change the forward variance by F; dividing by sqrt(F) undoes it", "exact forward correction (Eq. 21)"),
    ("residual", "L"): Reason("L branches add up in the residual stream, so each is divided by ρ_L", "depth row (Table 3), CompleteP"),
    ("init_std", "d"): Reason("a sum over d inputs keeps its variance when the variance of each weight is divided by ρ_d", "backbone-width muP (Eqs. 14 and 15)"),
    ("init_std", "H"): Reason("A = 1/ρ_H over ρ_H as many terms would shrink the output by sqrt(ρ_H); the init makes up for it", "Bridge I, active-width muP (Eq. 2)"),
    ("init_std", "f"): Reason("the variance of each weight is divided by the growth of the tensor's own fan-in", "fan-in initialization"),
    ("lr", "d"): Reason("an AdamW step of size lr on d inputs moves the output by lr·d", "backbone-width muP (Eqs. 14 and 15)"),
    ("lr", "f"): Reason("an AdamW step of size lr moves the output by lr times the tensor's own fan-in", "width muP"),
    ("lr", "S"): Reason("few of the tokens reach a sparse expert, and those are alike: its up projection wants a smaller lr", f"beyond the paper: exponent {EXPERT_UP_LR}"),
    ("lr", "s"): Reason("T steps of size lr keep the horizon T·lr² when lr goes with sqrt(T*/T)", "global AdamW rule (Table 3)"),
    ("lr", "B"): Reason("optima went with the batch, and in shorter runs hardly with the number of steps", f"beyond the paper: exponent {BATCH_LR} (docs/results/steps.md)"),
    ("weight_decay", "d"): Reason("lr fell by ρ_d; weight decay rises by it so that lr·wd, the shrinkage per step, stays", "CompleteP parameter groups"),
    ("weight_decay", "f"): Reason("weight decay rises as lr falls so that lr·wd, the shrinkage per step, stays", "width muP, decoupled decay"),
    ("weight_decay", "s"): Reason("wd moves with lr so that wd/lr, the normalized decay, stays", "global AdamW rule (Table 3)"),
    ("eps", "d"): Reason("gradients of one weight shrink with the width; eps shrinks with them", "CompleteP parameter groups"),
    ("eps", "L"): Reason("gradients inside a residual branch carry 1/ρ_L; eps shrinks with them", "CompleteP parameter groups"),
    ("eps", "s"): Reason("gradient noise sets the size of Adam's denominator; eps moves with it", "global AdamW rule (Table 3)"),
}  # fmt: skip


# Where the paper's rules have a positive power; everywhere else it is negative.
_RISING = {
    ("route_scale", "a"), ("init_std", "H"), ("weight_decay", "d"), ("weight_decay", "f"), ("lr", "s"),
    ("weight_decay", "s"), ("lr", "B"),
}  # fmt: skip


def reason_for(column: str, symbol: str, power: float) -> Reason:
    """Why; another rule set may put a symbol where the paper has none, or turn its power around."""
    as_the_paper = (power > 0) == ((column, symbol) in _RISING)
    own = Reason("as the rule set says", "not one of the paper's")
    return REASONS.get((column, symbol), own) if as_the_paper else own
