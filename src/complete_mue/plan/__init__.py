"""Plans: the transferred settings of a target, as a table that explains itself."""

from complete_mue.plan.plan import Plan
from complete_mue.plan.row import Row
from complete_mue.plan.transfer import transfer

__all__ = ["Plan", "Row", "transfer"]
