"""Plans: the transferred settings of a target, as a table that explains itself."""

from complete_mue.plan.plan import Plan, Row
from complete_mue.plan.transfer import transfer

__all__ = ["Plan", "Row", "transfer"]
