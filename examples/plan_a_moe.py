"""Plan the paper's large MoE (6.29 B parameters) from a dense model of width 128. Needs no torch."""

import complete_mue as mue

reference = mue.Reference(  # tuned once
    shape=mue.ModelShape(width=128, depth=32, feed_forward=mue.FeedForward.dense(128)),
    budget=mue.Budget(batch_tokens=128 * 2048, steps=25_000),
    hyper=mue.Hyper(lr=1e-3, weight_decay=0.1, init_std=0.01, betas=(0.95, 0.95), eps=1e-8),
)


def main() -> mue.Plan:
    """Print the table, one derivation, and what a layout of half the active experts would change."""
    block = mue.FeedForward.parse("128e8a4g1s", expert_width=512)  # 8 of 128 experts in 4 groups, 1 shared
    target = mue.ModelShape(width=1024, depth=32, feed_forward=block, dense_layers=2)
    budget = mue.Budget(batch_tokens=512 * 2048, steps=100_000)
    plan = mue.transfer(reference, target, budget)
    print(plan)
    print("\nWhy?\n")
    print(plan.explain("expert_down"))

    sparser = mue.ModelShape(1024, 32, mue.FeedForward.parse("128e4a4g1s", expert_width=512), dense_layers=2)
    other = mue.transfer(reference, sparser, budget).row("expert_down")
    row = plan.row("expert_down")
    print(f"\nHalf the active experts: multiplier {row.multiplier:.4g} -> {other.multiplier:.4g}, ", end="")
    print(f"init std {row.init_std:.4g} -> {other.init_std:.4g}, lr {row.lr:.4g} -> {other.lr:.4g}")
    return plan


if __name__ == "__main__":
    main()
