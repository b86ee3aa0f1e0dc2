"""A model with multipliers and its folded twin take the same steps: AdamW cannot tell them apart."""

import torch
import torch.nn.functional as F

import complete_mue as mue
from complete_mue.lab.models import LanguageModel

VOCAB, STEPS = 64, 12


def losses(plan: mue.Plan) -> list[float]:
    """Train in float64 on fixed random tokens. The model multiplies what the plan says: nothing, if it is folded."""
    model = LanguageModel(plan.shape, VOCAB, plan, kernel="reference").double()
    mue.initialize(model, plan)
    optimizer = torch.optim.AdamW(mue.param_groups(model, plan))
    tokens = torch.randint(0, VOCAB, (STEPS, 4, 33), generator=torch.Generator().manual_seed(0))
    found = []
    for batch in tokens:
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        mue.clip_grad_norm_(model, plan, 0.5)  # torch's own clipping would see a difference
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def main() -> float:
    """Print both runs and return their largest difference."""
    reference = mue.Reference(
        shape=mue.ModelShape(width=16, depth=2, feed_forward=mue.FeedForward.dense(16), head_dim=8),
        budget=mue.Budget(batch_tokens=128, steps=STEPS),
        hyper=mue.Hyper(lr=1e-2, weight_decay=0.1, init_std=0.1),
    )
    block = mue.FeedForward.parse("8e2a1s", expert_width=16)
    plan = mue.transfer(reference, mue.ModelShape(width=32, depth=4, feed_forward=block, head_dim=8))
    folded = plan.fold()
    assert folded.unfold().isclose(plan)
    one, other = losses(plan), losses(folded)
    for step, (a, b) in enumerate(zip(one, other, strict=True)):
        print(f"step {step:2}  with multipliers {a:.12f}  folded {b:.12f}")
    largest = max(abs(a - b) for a, b in zip(one, other, strict=True))
    print(f"largest difference {largest:.1e}")
    return largest


if __name__ == "__main__":
    main()
