"""Samples of a trained run: text, grids of pictures, animations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from complete_mue.data import ByteTokenizer, Scenes, TextData, caption_tokens
from complete_mue.data.video import MovingSprites
from complete_mue.errors import RunError
from complete_mue.models.dit import DiffusionTransformer
from complete_mue.models.lm import LanguageModel
from complete_mue.models.sampling import sample
from complete_mue.storage import whole
from complete_mue.train import checkpoint
from complete_mue.train.config import PictureTask, RunConfig, TextTask, read_config
from complete_mue.train.task import build


def load_run(run: Path) -> tuple[RunConfig, nn.Module]:
    """The config of a run and its model with the newest sound weights."""
    config = read_config(run / "config.json")
    model = build(config).model
    if not checkpoint.load_newest(run, config.fingerprint, model, None, lambda text: None):
        raise RunError(f"{run} has no sound checkpoint: train it first, or wait for its first one")
    return config, model.eval()


def write_text(config: RunConfig, model: nn.Module, prompt: str, count: int, temperature: float, seed: int) -> str:
    """The prompt and what the model makes of it."""
    assert isinstance(config.task, TextTask)
    assert isinstance(model, LanguageModel)
    if config.task.source == "stdlib":
        tokenizer = ByteTokenizer()
    else:
        tokenizer = TextData(config.task.source, sequence=config.task.sequence, rows=config.rows).tokenizer
    tokens = torch.tensor([tokenizer.encode(prompt)])
    written = model.generate(tokens, count, temperature=temperature, generator=torch.Generator().manual_seed(seed))
    return str(tokenizer.decode(written[0].tolist()))


def draw_pictures(
    config: RunConfig, model: nn.Module, prompt: str, count: int, out: Path, *, steps: int, guidance: float, seed: int
) -> Path:
    """A grid of pictures as PNG, or of clips as GIF; without a prompt, of captions from the run's own source."""
    assert isinstance(config.task, PictureTask)
    assert isinstance(model, DiffusionTransformer)
    task, video = config.task, len(model.patch) == 3
    captions = [prompt] * count if prompt else _captions(task, count, seed)
    text = caption_tokens(captions, task.text_length)
    size = (task.frames, task.size, task.size) if video else (task.size, task.size)
    generator = torch.Generator().manual_seed(seed)
    pictures = sample(model, text, size, steps=steps, guidance=guidance, generator=generator)
    frames = _grid(pictures if video else pictures[:, :, None])
    path = out.with_suffix(".gif" if video else ".png")
    _save(frames, path)
    return path


def _captions(task: PictureTask, count: int, seed: int) -> list[str]:
    source = Scenes(rows=count, seed=seed + 1) if task.source != "sprites" else MovingSprites(rows=count, seed=seed + 1)
    return source.captions(source.indices(0))


def _grid(clips: Tensor) -> list[np.ndarray]:
    """Clips [count, 3, frames, height, width] in [-1, 1] as frames of one near-square grid, uint8."""
    count, _, frames, height, width = clips.shape
    columns = int(np.ceil(np.sqrt(count)))
    rows = -(-count // columns)
    pixels = ((clips.clamp(-1, 1) + 1) * 127.5).round().byte().numpy()
    grid = np.full((frames, rows * (height + 2), columns * (width + 2), 3), 255, np.uint8)
    for number in range(count):
        top, left = (number // columns) * (height + 2), (number % columns) * (width + 2)
        grid[:, top : top + height, left : left + width] = pixels[number].transpose(1, 2, 3, 0)
    return list(grid)


def _save(frames: list[np.ndarray], path: Path) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    pictures = [Image.fromarray(frame) for frame in frames]
    pictures = [p.resize((p.width * 3, p.height * 3), Image.Resampling.NEAREST) for p in pictures]
    with whole(path) as file:
        kind = path.suffix.removeprefix(".").upper()
        if len(pictures) > 1:
            pictures[0].save(file, kind, save_all=True, append_images=pictures[1:], duration=120, loop=0)
        else:
            pictures[0].save(file, kind)
