"""Accelerate: groups survive ``prepare``; clip with mue instead of ``accelerator.clip_grad_norm_``."""

import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, MixtralConfig

import complete_mue as mue

STEPS = 40


def main() -> tuple[list[float], torch.optim.Optimizer]:
    """Train, and return the losses and the optimizer."""
    accelerator = Accelerator(cpu=True)
    config = MixtralConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        num_local_experts=6, num_experts_per_tok=3, vocab_size=128, tie_word_embeddings=False,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    reference = mue.Reference(  # the small dense model that was tuned
        shape=mue.ModelShape(width=32, depth=2, feed_forward=mue.FeedForward.dense(48)),
        budget=mue.Budget(batch_tokens=8 * 32, steps=STEPS),
        hyper=mue.Hyper(lr=1e-2, weight_decay=0.1, init_std=0.05),
    )
    plan = mue.transfer(reference, mue.describe(model))
    mue.initialize(model, plan)
    optimizer = torch.optim.AdamW(mue.param_groups(model, plan))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 5))
    words = torch.randint(3, 20, (STEPS * 8, 32), generator=torch.Generator().manual_seed(0))
    loader = torch.utils.data.DataLoader(words, batch_size=8)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    mue.check_scheduler(schedule, STEPS)
    losses = []
    for tokens in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.unscale_gradients()
                mue.clip_grad_norm_(model, plan, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses, optimizer


if __name__ == "__main__":
    main()
