"""Draw docs/hero.svg from the records of docs/results: what each rule set loses against ours, layout by layout.

    python scripts/hero.py

Every model trains at the learning rate tuned on one dense model and transferred by the rule set. Ours is the zero line.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from complete_mue.lab.report import summarize
from complete_mue.lab.report.summary import TransferredRun

ROOT = Path(__file__).parents[1]
OURS = "complete_mue_sparse"
RULES = {  # which page measured it, how it is drawn and named
    "complete_mue": ("roles", "#0072b2", "M-5-5H5V5H-5Z", "the paper's rules"),
    "mup": ("transfer", "#009e73", "M0-7L7 0L0 7L-7 0Z", "mup"),
    "sp": ("transfer", "#d55e00", "M0-7L6.5 5H-6.5Z", "sp (standard)"),
    "mup_moe": ("transfer", "#b06098", "M0 7L6.5-5H-6.5Z", "mup_moe"),
}
LAYOUTS = (  # sweep, target, and the two lines below the axis
    ("activated", "64e2a", "64e2a", "2 of 64"),
    ("activated", "64e4a", "64e4a", "4 of 64"),
    ("activated", "64e8a", "64e8a", "8 of 64"),
    ("activated", "64e16a", "64e16a", "16 of 64"),
    ("width", "64e8a, width 256", "64e8a", "2x width"),
    ("width", "64e8a, width 512", "64e8a", "4x width"),
)
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 460, 62, 14, 112, 64
LEAST, MOST = -0.006, 0.05
STYLE = """
  .ground { fill: #fff } text { fill: #1c2024; font-size: 16px }
  .small { font-size: 14px; fill: #4c5564 } .title { font-size: 19px; font-weight: 600 }
  .grid { stroke: #dfe3ea } .ours { stroke: #1c2024; stroke-width: 4 }
  .bar { stroke-width: 1.6; fill: none } .parts { stroke: #9aa4b5; stroke-dasharray: 4 4 }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #16191f } text { fill: #e8ebf0 } .small { fill: #a9b3c3 }
    .grid { stroke: #323a47 } .ours { stroke: #e8ebf0 }
  }
"""


def behind(sweep: str, target: str, rules: str) -> tuple[float, float]:
    """How much more loss ``rules`` has than ours at the transferred value, and the standard error of that."""
    ours, theirs = (
        next(run for run in runs(page, sweep) if (run.rules, run.target) == (name, target))
        for name, page in ((OURS, "roles"), (rules, RULES[rules][0]))
    )
    if ours.loss is None or theirs.loss is None:
        raise ValueError(f"{target} by {rules}: no loss")
    error = math.sqrt(sum((run.spread or 0.0) ** 2 / run.seeds for run in (ours, theirs)))
    return theirs.loss - ours.loss, error


@cache
def runs(page: str, sweep: str) -> tuple[TransferredRun, ...]:
    """The runs at the transferred values that a page of results keeps."""
    return summarize(ROOT / f"docs/results/{page}/lm-{sweep}.jsonl").runs


def y(loss: float) -> float:
    """Where a loss lies in the picture."""
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (loss - LEAST) / (MOST - LEAST)


def drawn() -> Iterator[str]:
    """The picture, line by line."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="t d" '
        'font-family="system-ui, sans-serif">'
    )
    yield '<title id="t">What other rules lose against Complete-muE</title>'
    yield (
        '<desc id="d">Loss at the transferred learning rate, above that of complete_mue_sparse, for six MoE layouts by '
        "four other rule sets. All lie above zero.</desc>"
    )
    yield f"<style>{STYLE}</style>"
    yield f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>'
    yield f'<text class="title" x="{LEFT - 46}" y="30">Loss by other rules, above the loss by ours (nats)</text>'
    yield (
        f'<text class="small" x="{LEFT - 46}" y="52">Language model, width 128 and up. The learning rate is tuned on '
        "one dense model and transferred.</text>"
    )
    x = LEFT - 40
    for _, color, shape, name in RULES.values():
        yield f'<path fill="{color}" d="{shape}" transform="translate({x} 79)"/>'
        yield f'<text x="{x + 13}" y="84">{name}</text>'
        x += 70 + 6 * len(name)
    yield f'<path class="ours" d="M{x - 6} 79h18"/><text x="{x + 19}" y="84">ours</text>'
    for tick in range(6):
        at = y(tick / 100)
        yield f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text class="small" x="{LEFT - 8}" y="{at + 5:.1f}" text-anchor="end">{tick / 100:g}</text>'
    step = (WIDTH - LEFT - RIGHT) / len(LAYOUTS)
    edge = LEFT + 4 * step
    yield f'<path class="parts" d="M{edge:.1f} {TOP - 8}V{HEIGHT - 10}"/>'
    yield f'<path class="ours" d="M{LEFT} {y(0):.1f}H{WIDTH - RIGHT}"/>'
    for place, (sweep, target, layout, what) in enumerate(LAYOUTS):
        middle = LEFT + (place + 0.5) * step
        yield f'<text x="{middle:.1f}" y="{HEIGHT - BOTTOM + 26}" text-anchor="middle">{layout}</text>'
        yield f'<text class="small" x="{middle:.1f}" y="{HEIGHT - BOTTOM + 46}" text-anchor="middle">{what}</text>'
        for nth, (rules, (_, color, shape, _)) in enumerate(RULES.items()):
            loss, error = behind(sweep, target, rules)
            at = middle + (nth - 1.5) * step / 5
            if loss <= MOST:
                yield f'<path class="bar" stroke="{color}" d="M{at:.1f} {y(loss - error):.1f}V{y(loss + error):.1f}"/>'
            else:
                yield f'<path class="bar" stroke="{color}" d="M{at:.1f} {TOP + 20}V{TOP - 2}m-4 5l4-5l4 5"/>'
                yield f'<text x="{at + 10:.1f}" y="{TOP + 8}">{loss:.2f}</text>'
            yield f'<path fill="{color}" d="{shape}" transform="translate({at:.1f} {max(y(loss), TOP + 20):.1f})"/>'
    yield "</svg>"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    (ROOT / "docs/hero.svg").write_text("\n".join(drawn()) + "\n", encoding="utf-8")
