"""What every rule set says about the down projection of an expert, as its layout changes. Needs no torch."""

import complete_mue as mue
from complete_mue.rules import CATALOG

reference = mue.Reference(
    shape=mue.ModelShape(width=256, depth=8, feed_forward=mue.FeedForward.dense(256)),
    budget=mue.Budget(batch_tokens=65_536, steps=10_000),
    hyper=mue.Hyper(lr=2e-3, weight_decay=0.1, init_std=0.02),
)


def main() -> dict[tuple[str, str], mue.Row]:
    """Fold every plan, so that the numbers can be compared: what a model without multipliers would be given."""
    found = {}
    for layout in ("8e1a", "64e8a", "64e8a1s"):
        shape = mue.ModelShape(width=1024, depth=16, feed_forward=mue.FeedForward.parse(layout, expert_width=128))
        print(f"\n{layout}, active width {shape.active_width}, folded:")
        print(f"  {'rules':14}{'init std':>12}{'lr':>12}{'weight decay':>14}")
        for rules in CATALOG:
            row = mue.transfer(reference, shape, rules=rules).fold().row("expert_down")
            print(f"  {rules:14}{row.init_std:>12.4g}{row.lr:>12.4g}{row.weight_decay:>14.4g}")
            found[layout, rules] = row
    return found


if __name__ == "__main__":
    main()
