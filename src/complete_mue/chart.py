"""What a chart shows, as plain data: panels of lines with one y axis. `chart_svg` draws it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Dot:
    """A place in a panel with the words that explain it; ``error`` is the half-length of its bar."""

    x: float
    y: float
    says: str
    error: float | None = None


@dataclass(frozen=True)
class Look:
    """A line's colour, as pages have it in light mode, and its marker: an SVG path."""

    colour: str
    path: str


LOOKS = (
    Look("#1c2024", "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z"),
    Look("#0072b2", "M-3.7,-3.7H3.7V3.7H-3.7Z"),
    Look("#d55e00", "M0,-4.8L4.6,3.5H-4.6Z"),
    Look("#009e73", "M0,-5L4.6,0L0,5L-4.6,0Z"),
    Look("#b3589a", "M0,4.8L4.6,-3.5H-4.6Z"),
    Look("#c98200", "M-1.5,-4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z"),
    Look("#3a9fd6", "M0,-4.8L4.6,-1.5L2.8,4H-2.8L-4.6,-1.5Z"),
    Look("#882255", "M-4.8,0L3.5,-4.6V4.6Z"),
)


def look_of(style: int) -> int:
    """Which of the looks a style has: the first is the reference's alone, the others come round again."""
    return 0 if style == 0 else 1 + (style - 1) % (len(LOOKS) - 1)


@dataclass(frozen=True)
class Drawn:
    """One line of a panel. ``style`` numbers its colour and marker (0: the reference); ``diverged`` dots go on top.
    Dots that are no line are not ``joined``."""

    name: str
    style: int
    dots: tuple[Dot, ...]
    markers: bool = True
    diverged: tuple[Dot, ...] = ()
    minimum: Dot | None = None
    joined: bool = True


@dataclass(frozen=True)
class Axis:
    """A range with labelled ticks, on a linear or a logarithmic scale."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value lies, 0 to 1 from low to high."""
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return (at - low) / (high - low)


@dataclass(frozen=True)
class Panel:
    """One coordinate system: a rule set, mostly. ``guide`` is the dashed line of the transferred value."""

    title: str
    x: Axis
    lines: tuple[Drawn, ...]
    guide: tuple[float, str] | None = None


@dataclass(frozen=True)
class Picture:
    """Panels side by side with one y axis; ``level`` is a dashed horizontal line."""

    key: str
    title: str
    caption: str
    y: Axis
    panels: tuple[Panel, ...]
    level: float | None = None
    where: str = ""  # axis, model and scale, for a file that stands alone


def log_axis(
    name: str,
    values: Iterable[float],
    words: Callable[[float], str] = "{:.3g}".format,
    reach: Sequence[float] = (),
) -> Axis:
    """Ticks at the values themselves, from the middle one outwards, as far as there is room for their labels; the axis
    spans ``reach`` as well."""
    found = sorted(set(values))
    low, high = min([found[0], *reach]), max([found[-1], *reach])
    pad = (high / low) ** 0.06 if high > low else 1.4
    middle, kept = found[len(found) // 2], list[float]()
    for value in sorted(found, key=lambda v: abs(math.log(v / middle))):
        if all(abs(math.log(value / other)) > 0.18 * math.log(high / low) for other in kept):
            kept.append(value)
    return Axis(name, low / pad, high * pad, tuple((v, words(v)) for v in sorted(kept)), log=True)


def round_numbers(values: Iterable[float]) -> list[float]:
    """1, 2, 5, 10, … as far as they lie among the values; the values, if none does."""
    found = sorted(values)
    powers = range(math.floor(math.log10(found[0])), math.ceil(math.log10(found[-1])) + 1)
    steps = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    return [step for step in steps if found[0] <= step <= found[-1]] or found


def linear_axis(name: str, values: Iterable[float]) -> Axis:
    """Round ticks, four to six of them."""
    values = list(values)
    low, high = min(values), max(values)
    span = (high - low) or max(abs(high), 1e-3) * 0.1
    low, high = low - 0.06 * span, high + 0.06 * span
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough)
    digits = max(0, -math.floor(math.log10(step) + 1e-9) + (1 if f"{step / power:g}" == "2.5" else 0))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    form = f".{digits}f" if digits < 10 and max(-low, high) < 1e10 else ".4g"
    return Axis(name, low, high, tuple((i * step, format(i * step, form)) for i in range(first, last + 1)))
