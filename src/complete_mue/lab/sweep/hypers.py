"""What a scan may change: a hyperparameter of the whole reference, or one of some roles alone.

    lr                        the reference's learning rate, for all tensors
    expert_up.lr              that of one role; every other tensor keeps the plan's
    embedding+readout.lr      several roles together
    expert_up.lr_same_decay   lr with the decay per step, lr x weight decay, held: AdamW's lr also decays

Values are those of the reference, before the transfer. A role's scan is centred on what the plan gives it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from complete_mue.errors import RunError, nearest
from complete_mue.lab.records.schema import HYPERS
from complete_mue.layout import Reference, Role
from complete_mue.layout.tensors import VECTOR_ROLES

ROLE_HYPERS = (*HYPERS, "lr_same_decay")


@dataclass(frozen=True)
class Hyper:
    """A name as above, read: no roles means all tensors."""

    name: str
    roles: tuple[Role, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Hyper:
        """Read ``lr`` or ``ROLE[+ROLE].lr``; what cannot be scanned is refused."""
        before, dot, name = str(text).rpartition(".")
        known = ROLE_HYPERS if dot else HYPERS
        if name not in known:
            hint = " of one role: ROLE.lr" if not dot and name in ROLE_HYPERS else nearest(name, known)
            raise RunError(f"hyperparameter {text!r}{hint}; give one of {', '.join(known)}")
        roles = tuple(Role.parse(role) for role in before.split("+")) if dot else ()
        idle = [role.value for role in roles if name != "lr" and role in VECTOR_ROLES]
        if idle:
            raise RunError(f"hyperparameter {text!r}: {idle[0]} has no {name} of its own; scan its lr")
        return cls(name, roles)

    def of(self, reference: Reference) -> float:
        """The value that the reference has."""
        column = "lr" if self.name == "lr_same_decay" else self.name
        if not self.roles:
            return float(getattr(reference.hyper, column))
        values = {getattr(reference.base(role), column) for role in self.roles}
        if len(values) > 1:
            raise RunError(f"roles {', '.join(self.roles)} have different {column} in the reference: scan them apart")
        return float(values.pop())

    def put(self, reference: Reference, value: float) -> Reference:
        """The reference with this value; at its own value, the reference itself."""
        changed: dict[str, Any] = {self.name: value}
        if not self.roles:
            return dataclasses.replace(reference, hyper=dataclasses.replace(reference.hyper, **changed))
        if value == self.of(reference):
            return reference
        tuned = dict(reference.tuned)
        for role in self.roles:
            if self.name == "lr_same_decay":
                base = reference.base(role)
                changed = {"lr": value, "weight_decay": base.weight_decay * base.lr / value}
            tuned[role] = dataclasses.replace(reference.tuned_of(role), **changed)
        return dataclasses.replace(reference, tuned=tuned)
