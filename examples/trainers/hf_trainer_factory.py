"""Hugging Face Trainer that builds the optimizer itself, after it has wrapped or sharded the model.

The class handed over is not an Optimizer, so the Trainer calls ``Factory()(model, **kwargs)``. Works under FSDP too.
"""

import tempfile

import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Trainer, TrainingArguments

import complete_mue as mue

STEPS = 40


class Factory:
    """Makes the optimizer from the model as the Trainer sees it."""

    def __call__(self, model: torch.nn.Module, plan: mue.Plan) -> torch.optim.Optimizer:
        """AdamW on the plan's groups."""
        return torch.optim.AdamW(mue.param_groups(model, plan))


def main() -> tuple[list[float], torch.optim.Optimizer]:
    """Train, and return the losses and the optimizer."""
    config = Qwen3MoeConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True, vocab_size=128, tie_word_embeddings=False,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    reference = mue.Reference(  # the small dense model that was tuned
        shape=mue.ModelShape(width=32, depth=2, feed_forward=mue.FeedForward.dense(48)),
        budget=mue.Budget(batch_tokens=8 * 32, steps=STEPS),
        hyper=mue.Hyper(lr=1e-2, weight_decay=0.1, init_std=0.05),
    )
    plan = mue.transfer(reference, mue.describe(model))
    mue.initialize(model, plan)
    words = torch.randint(3, 20, (STEPS * 8, 32), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in words]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(  # no clipping here: see hf_trainer.py for clipping as the plan asks
            folder, per_device_train_batch_size=8, max_steps=STEPS, warmup_steps=5, max_grad_norm=0.0, logging_steps=1,
            save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = Trainer(model, arguments, train_dataset=data, optimizer_cls_and_kwargs=(Factory, {"plan": plan}))
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses, trainer.optimizer


if __name__ == "__main__":
    main()
