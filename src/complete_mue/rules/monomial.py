"""Factors as products of powers: ``"s d^-1"`` is s / rho_d.

Every cell of every rule table is one of these, so that tables can be read, compared, inverted and composed as algebra.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from complete_mue.errors import TransferError

SYMBOLS = {
    "d": "ρ_d",  # residual width
    "L": "ρ_L",  # depth
    "H": "ρ_H",  # FFN expansion: active width over residual width
    "f": "ρ_f",  # the tensor's own fan-in
    "a": "ρ_a",  # activated experts
    "S": "ρ_S",  # sparsity: experts per active one, N / a
    "F": "F",  # forward-variance factor of the router
    "s": "s",  # schedule factor sqrt(ρ_B / ρ_D)
    "B": "ρ_B",  # tokens per step
}
_FACTOR = re.compile(r"([dLHfaSFsB])(?:\^(-?\d+(?:/[1-9]\d*)?))?")


@dataclass(frozen=True)
class Monomial:
    """A product of named ratios to rational powers."""

    powers: tuple[tuple[str, Fraction], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Monomial:
        """Read ``"1"`` or blank-separated ``symbol[^power]``."""
        product = cls()
        for part in [] if text == "1" else text.split():
            found = _FACTOR.fullmatch(part)
            if found is None:
                raise TransferError(
                    f"cell {text!r}: cannot read {part!r}; write 1, or factors such as d^-1/2 of {', '.join(SYMBOLS)}",
                    given=part,
                    allowed=tuple(SYMBOLS),
                )
            product *= cls.of({found[1]: Fraction(found[2] or 1)})
        return product

    @classmethod
    def of(cls, powers: Mapping[str, Fraction]) -> Monomial:
        """From a mapping; zero powers vanish, order is that of ``SYMBOLS``."""
        return cls(tuple((symbol, powers[symbol]) for symbol in SYMBOLS if powers.get(symbol)))

    def without(self, *symbols: str) -> Monomial:
        """The same product with those symbols left out."""
        return Monomial(tuple((symbol, power) for symbol, power in self.powers if symbol not in symbols))

    def __mul__(self, other: Monomial) -> Monomial:
        powers = dict(self.powers)
        for symbol, power in other.powers:
            powers[symbol] = powers.get(symbol, Fraction(0)) + power
        return Monomial.of(powers)

    @property
    def inverse(self) -> Monomial:
        """One over this product."""
        return Monomial(tuple((symbol, -power) for symbol, power in self.powers))

    def evaluate(self, ratios: Mapping[str, float]) -> float:
        """The number; exactly 1.0 where every ratio in it is 1."""
        value = 1.0
        for symbol, power in self.powers:
            value *= ratios[symbol] ** float(power)
        return value

    def __str__(self) -> str:
        """``ρ_d^-1/2 ρ_H^1/2``; ``1`` for the empty product."""
        return " ".join(SYMBOLS[s] + ("" if p == 1 else f"^{p}") for s, p in self.powers) or "1"

    def numbers(self, ratios: Mapping[str, float]) -> str:
        """``8^-1/2 × 4.5^1/2``."""
        return " × ".join(f"{ratios[s]:.6g}" + ("" if p == 1 else f"^{p}") for s, p in self.powers) or "1"


ONE = Monomial()
