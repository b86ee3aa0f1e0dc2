"""A stock MoE from transformers, trained by a plan without touching its code."""

import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

import complete_mue as mue

STEPS = 8


def main() -> list[float]:
    """Describe, plan, initialize, train; return the losses."""
    config = Qwen3MoeConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=128,
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
        norm_topk_prob=True,  # the route scale needs routing weights that sum to one
        tie_word_embeddings=False,  # a readout follows its own rule
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    reference = mue.Reference(  # the small dense model that was tuned
        shape=mue.ModelShape(width=32, depth=2, feed_forward=mue.FeedForward.dense(48)),
        budget=mue.Budget(batch_tokens=256, steps=STEPS),
        hyper=mue.Hyper(lr=1e-2, weight_decay=0.1, init_std=0.05),
    )
    shape = mue.describe(model)  # width, depth and layout, read from the model
    print(
        f"{shape.main} of width {shape.width}: {shape.parameters.active:,} of {shape.parameters.total:,} weights active"
    )
    plan = mue.transfer(reference, shape)
    mue.initialize(model, plan, seed=0)
    optimizer = torch.optim.AdamW(mue.param_groups(model, plan))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    mue.check_scheduler(schedule)
    tokens = torch.randint(0, 16, (STEPS, 8, 32), generator=torch.Generator().manual_seed(0))
    losses = []
    for batch in tokens:
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        mue.clip_grad_norm_(model, plan, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        print(f"step {len(losses)}  loss {loss.item():.3f}")
    return losses


if __name__ == "__main__":
    main()
