"""From a config to a model, batches and a loss: the two tasks behind one small interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from complete_mue.data import ImageData, ImageFolder, MovingSprites, Scenes, StandardLibrary, TextData
from complete_mue.models import DiffusionTransformer, LanguageModel
from complete_mue.nn.router import Routing
from complete_mue.plan.plan import Plan
from complete_mue.train.config import PictureTask, RunConfig, TextTask
from complete_mue.train.objective import interpolate, next_token_loss, velocity_loss

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


def build(config: RunConfig, plan: Plan | None = None, *, replicas: int | None = None) -> Task:
    """The task of a config; with ``replicas``, K models in one, all on the same batches."""
    plan = plan or config.plan
    if isinstance(config.task, TextTask):
        return _text(config, config.task, plan, replicas)
    return _pictures(config, config.task, plan, replicas)


def _text(config: RunConfig, task: TextTask, plan: Plan, replicas: int | None) -> Task:
    options: dict[str, Any] = {
        "sequence": task.sequence,
        "rows": config.rows,
        "seed": config.seed,
        "epochs": task.epochs,
    }
    data = StandardLibrary(**options) if task.source == "stdlib" else TextData(Path(task.source), **options)
    vocab = data.vocab
    model = LanguageModel(config.shape, vocab, plan, qk_norm=config.qk_norm, router=config.router, replicas=replicas)

    def loss(model: nn.Module, batch: Batch, routings: list[Routing]) -> Tensor:
        (tokens,) = batch
        return next_token_loss(model(tokens[..., :-1], routings=routings), tokens, task.z_loss)

    return Task(model, lambda step: (data.batch(step),), loss, task.sequence, config.shape.width * vocab, len(data))


def _pictures(config: RunConfig, task: PictureTask, plan: Plan, replicas: int | None) -> Task:
    options: dict[str, Any] = {
        "size": task.size,
        "rows": config.rows,
        "seed": config.seed,
        "text_length": task.text_length,
    }
    if task.source == "scenes":
        data: Any = Scenes(**options)
    elif task.source == "sprites":
        data = MovingSprites(frames=task.frames, **options)
    else:
        data = ImageData(ImageFolder(task.source), **options)
    video = task.source == "sprites"
    patch = (1, task.patch, task.patch) if video else (task.patch, task.patch)
    model = DiffusionTransformer(
        config.shape, 3, patch, plan, qk_norm=config.qk_norm, router=config.router, replicas=replicas
    )

    def batch(step: int) -> Batch:
        pictures = data.batch(step)
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        noise = torch.randn(pictures.images.shape, generator=generator)
        t = torch.rand(len(noise), generator=generator)
        dropped = torch.rand(len(noise), generator=generator) < task.text_dropout
        x, velocity = interpolate(noise, pictures.images, t)
        return x, t, model.drop_text(pictures.text, dropped), velocity

    def loss(model: nn.Module, batch: Batch, routings: list[Routing]) -> Tensor:
        x, t, text, velocity = batch
        return velocity_loss(model(x, t, text, routings=routings), velocity, len(patch))

    pixels = 3 * task.patch**2
    steps = data.steps
    return Task(model, batch, loss, task.tokens_per_row() + task.text_length, 2 * config.shape.width * pixels, steps)
