"""From a config to a model, batches and a loss: the two tasks behind one small interface."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from complete_mue.errors import RunError
from complete_mue.lab.data.picture_sources import open_pictures
from complete_mue.lab.data.text import open_text
from complete_mue.lab.models import DiffusionTransformer, LanguageModel
from complete_mue.lab.nn.router import Routing
from complete_mue.lab.train.config import PictureTask, RunConfig, TextTask
from complete_mue.lab.train.parallel import ALONE, Ranks
from complete_mue.layout import Budget

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Task:
    """What the loop needs: a model, the batch of a step (a pure function of it), and the loss of a batch."""

    model: nn.Module
    batch: Callable[[int], Batch]
    loss: Callable[[nn.Module, Batch, list[Routing]], Tensor]
    sequence: int
    embedding: int  # weights of input and output tables that one token uses
    steps: int | None  # how many steps the data holds; None if endless
    warning: str = ""  # about the data

    def check_holds(self, budget: Budget) -> None:
        """Refuse a budget that the data cannot fill."""
        if self.steps is not None and self.steps < budget.steps:
            raise RunError(
                f"the data holds {self.steps} steps of {budget.batch_tokens} tokens and the budget asks for "
                f"{budget.steps}: give more data, fewer steps, or task.epochs=repeat"
            )


def build(config: RunConfig, *, device: torch.device | None = None, ranks: Ranks = ALONE) -> Task:
    """The task of a config. The model is made where ``device`` says; batches are those of this rank."""
    device = device or torch.get_default_device()
    check_fits(config, device)
    if config.rows % (ranks.world * config.accumulate):
        raise RunError(
            f"{config.rows} rows of a step over {ranks.world} ranks and accumulate = {config.accumulate}: give a "
            f"budget.batch_tokens that is a multiple of {config.task.tokens_per_row() * ranks.world} times accumulate"
        )
    if isinstance(config.task, TextTask):
        task = _text(config, config.task, device, ranks)
    else:
        task = _pictures(config, config.task, device, ranks)
    return dataclasses.replace(task, batch=_in_micro_batches(task.batch, config.accumulate))


def check_fits(config: RunConfig, device: torch.device) -> None:
    """Refuse a model whose weights alone are more than the device holds, before anything is made of it."""
    if device.type == "cuda":
        room = torch.cuda.get_device_properties(device).total_memory
    elif device.type == "cpu":
        room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        room = 2**62  # where nothing is held, a size must still be a number that torch can count to
    needed = 4 * config.shape.parameters.total
    if needed > room:
        raise RunError(
            f"shape.width = {config.shape.width}, shape.depth = {config.shape.depth}, shape.feed_forward = "
            f"{config.shape.main.with_widths:.80}: weights of {needed / 2**30:,.0f} GiB, and {device} holds "
            f"{room / 2**30:,.0f}; give a smaller shape"
        )


def _in_micro_batches(batch: Callable[[int], Batch], parts: int) -> Callable[[int], Batch]:
    """Rows in the order of their micro-batches, of which the i-th takes every row whose number is i modulo ``parts``.

    A micro-batch then has the same rows, over all ranks together, whatever their number: a balance loss, which is one
    number per micro-batch, does not depend on it either.
    """
    if parts == 1:
        return batch
    return lambda step: tuple(torch.cat([rows[part::parts] for part in range(parts)]) for rows in batch(step))


def _text(config: RunConfig, task: TextTask, device: torch.device, ranks: Ranks) -> Task:
    data = open_text(
        task.source, sequence=task.sequence, epochs=task.epochs, rows=config.rows, seed=config.seed, rank=ranks.rank,
        world=ranks.world,
    )  # fmt: skip
    vocab = data.vocab
    with device:
        model = LanguageModel(config.shape, vocab, config.plan, qk_norm=config.qk_norm, router=config.router)
    objective = torch.compile(next_token_loss, dynamic=False) if config.compile else next_token_loss

    def loss(model: nn.Module, batch: Batch, routings: list[Routing]) -> Tensor:
        (tokens,) = batch
        return objective(model(tokens[..., :-1], routings=routings), tokens, task.z_loss)

    return Task(model, lambda step: (data.batch(step),), loss, task.sequence, config.shape.width * vocab, data.steps)


def _pictures(config: RunConfig, task: PictureTask, device: torch.device, ranks: Ranks) -> Task:
    data = open_pictures(
        task.source, size=task.size, frames=task.frames, text_length=task.text_length, epochs=task.epochs,
        rows=config.rows, seed=config.seed, rank=ranks.rank, world=ranks.world,
    )  # fmt: skip
    channels, length = data.image_shape[0], data.text_shape[0]
    patch = (1, task.patch, task.patch) if len(data.image_shape) == 4 else (task.patch, task.patch)
    with device:
        model = DiffusionTransformer(
            config.shape, channels, patch, config.plan, text_features=next(iter(data.text_shape[1:]), None),
            qk_norm=config.qk_norm, router=config.router,
        )  # fmt: skip
    objective = torch.compile(velocity_loss, dynamic=False) if config.compile else velocity_loss

    def batch(step: int) -> Batch:
        pictures = data.batch(step)
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        # Drawn for the rows of all ranks, so that a row's noise is the same whatever their number.
        shape = (config.rows, *pictures.images.shape[1:])
        noise = torch.randn(shape, generator=generator).chunk(ranks.world)[ranks.rank]
        t = torch.rand(config.rows, generator=generator).chunk(ranks.world)[ranks.rank]
        dropped = torch.rand(config.rows, generator=generator).chunk(ranks.world)[ranks.rank] < task.text_dropout
        x, velocity = interpolate(noise, pictures.images, t)
        return x, t, model.drop_text(pictures.text, dropped), velocity

    def loss(model: nn.Module, batch: Batch, routings: list[Routing]) -> Tensor:
        x, t, text, velocity = batch
        return objective(model(x, t, text, routings=routings), velocity, len(patch))

    sequence = task.tokens_per_row() + length
    pixels = channels * task.patch**2
    tables = 2 * config.shape.width * pixels
    return Task(model, batch, loss, sequence, tables, data.steps, data.cut_captions())


# -- what is minimized: with replicas, a loss has one entry per replica, so that replicas do not mix ------------------


def next_token_loss(logits: Tensor, tokens: Tensor, z_loss: float = 0.0) -> Tensor:
    """Mean cross entropy of tokens[..., 1:] under logits [..., tokens, vocab] of tokens[..., :-1], in nats.

    logits [batch, tokens, vocab] give a scalar, [K, batch, tokens, vocab] a loss per replica, [K]. ``z_loss`` adds
    z_loss * logsumexp(logits)^2, which keeps the softmax's normalizer near 1.
    """
    targets = tokens[..., 1:]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    targets = targets.expand(logits.shape[:-1])
    loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)
    if z_loss:
        loss = loss + z_loss * logits.logsumexp(-1).square()
    return loss.mean(dim=(-2, -1))


def interpolate(noise: Tensor, data: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """x_t = (1 - t) x_0 + t x_1 and its velocity dx_t = x_1 - x_0, for t [..., batch]."""
    t = t.view(*t.shape, *(1,) * (data.ndim - t.ndim))
    return (1 - t) * noise + t * data, data - noise


def velocity_loss(predicted: Tensor, velocity: Tensor, axes: int) -> Tensor:
    """Mean squared error over batch, channels and ``axes`` picture axes; a leading replica axis stays."""
    difference = predicted.float() - velocity.float() if predicted.dtype != torch.float64 else predicted - velocity
    return difference.square().mean(dim=tuple(range(-2 - axes, 0)))
