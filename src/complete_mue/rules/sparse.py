"""What sparsity does to an expert's learning rate: measured, not derived.

The paper gives an expert no factor for N / a, the number of experts per active one. Scans of single roles say that the
up projection of a sparse expert wants a smaller learning rate. The exponent is data. Its error is the fit's alone, and
too narrow: another estimator gives the same records a wider spread (docs/results/roles.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Exponent:
    """A fitted power with its standard error, the range of N / a it was fitted over, and where the runs are."""

    value: Fraction
    error: float
    low: int
    high: int
    source: str

    def __str__(self) -> str:
        return f"{self.value} ± {self.error:g}, measured for N/a from {self.low} to {self.high} ({self.source})"


EXPERT_UP_LR = Exponent(Fraction(-1, 3), 0.017, 1, 128, "docs/results/roles.md")
