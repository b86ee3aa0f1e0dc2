"""Lightning: groups in ``configure_optimizers``, clipping in ``configure_gradient_clipping``."""

import lightning
import torch
from transformers import AutoModelForCausalLM, MixtralConfig

import complete_mue as mue

STEPS = 40


class Module(lightning.LightningModule):
    """A stock MoE with its plan."""

    def __init__(self) -> None:
        super().__init__()
        config = MixtralConfig(
            hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            num_local_experts=6, num_experts_per_tok=3, vocab_size=128, tie_word_embeddings=False,
        )  # fmt: skip
        self.model = AutoModelForCausalLM.from_config(config).train()
        reference = mue.Reference(  # the small dense model that was tuned
            shape=mue.ModelShape(width=32, depth=2, feed_forward=mue.FeedForward.dense(48)),
            budget=mue.Budget(batch_tokens=8 * 32, steps=STEPS),
            hyper=mue.Hyper(lr=1e-2, weight_decay=0.1, init_std=0.05),
        )
        self.plan = mue.transfer(reference, mue.describe(self.model))
        mue.initialize(self.model, self.plan)
        self.losses: list[float] = []

    def configure_optimizers(self) -> dict[str, object]:  # noqa: D102
        optimizer = torch.optim.AdamW(mue.param_groups(self.model, self.plan))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 5))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, *_: object, **__: object) -> None:  # noqa: D102
        mue.clip_grad_norm_(self.model, self.plan, 1.0)

    def training_step(self, tokens: torch.Tensor, index: int) -> torch.Tensor:  # noqa: D102
        loss = self.model(input_ids=tokens, labels=tokens).loss
        self.losses.append(loss.item())
        return loss


def main() -> tuple[list[float], torch.optim.Optimizer]:
    """Train, and return the losses and the optimizer."""
    words = torch.randint(3, 20, (STEPS * 8, 32), generator=torch.Generator().manual_seed(0))
    module, trainer = Module(), lightning.Trainer(
        max_steps=STEPS, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(words, batch_size=8))
    print(f"loss {module.losses[0]:.3f} -> {module.losses[-1]:.3f}")
    return module.losses, trainer.optimizers[0]


if __name__ == "__main__":
    main()
