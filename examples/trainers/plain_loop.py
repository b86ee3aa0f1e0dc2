"""A stock MoE in a plain PyTorch loop: plan, initial weights, groups, clipping, a schedule that multiplies."""

import torch
from transformers import AutoModelForCausalLM, MixtralConfig

import complete_mue as mue

STEPS = 40


def tiny_moe() -> torch.nn.Module:
    """A small Mixtral; embeddings untied, since a readout follows its own rule."""
    config = MixtralConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        num_local_experts=6, num_experts_per_tok=3, vocab_size=128, tie_word_embeddings=False,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config)


def batches() -> list[torch.Tensor]:
    """Random words, of which only a few are ever used: something to learn."""
    return list(torch.randint(3, 20, (STEPS, 8, 32), generator=torch.Generator().manual_seed(0)))


def main() -> tuple[list[float], torch.optim.Optimizer]:
    """Train, and return the losses and the optimizer."""
    model = tiny_moe()
    reference = mue.Reference(  # the small dense model that was tuned
        shape=mue.ModelShape(width=32, depth=2, feed_forward=mue.FeedForward.dense(48)),
        budget=mue.Budget(batch_tokens=8 * 32, steps=STEPS),
        hyper=mue.Hyper(lr=1e-2, weight_decay=0.1, init_std=0.05),
    )
    plan = mue.transfer(reference, mue.describe(model))
    mue.initialize(model, plan, seed=0)
    optimizer = torch.optim.AdamW(mue.param_groups(model, plan))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 5, (STEPS - step) / 10))
    mue.check_scheduler(schedule, STEPS)
    losses = []
    for tokens in batches():
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        mue.clip_grad_norm_(model, plan, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses, optimizer


if __name__ == "__main__":
    main()
