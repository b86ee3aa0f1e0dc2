"""What sweeps leave on disk: one description of their files, for all code that writes or reads them.

schema      the plan and the outcomes as frozen classes;  decode  JSON checked against a class
store       where a sweep lies: a folder, or one packed file;  ledger  its records, written point by point
merge       two parts of one sweep as one;  pack  the packed files
"""

from complete_mue.lab.records.decode import RecordError, decode
from complete_mue.lab.records.ledger import Ledger
from complete_mue.lab.records.schema import LossCurve, Outcome, Place, Plan, PlannedPoint, PlannedTarget
from complete_mue.lab.records.store import StoredSweep, find_sweeps, read_sweep

__all__ = [
    "Ledger",
    "LossCurve",
    "Outcome",
    "Place",
    "Plan",
    "PlannedPoint",
    "PlannedTarget",
    "RecordError",
    "StoredSweep",
    "decode",
    "find_sweeps",
    "read_sweep",
]
