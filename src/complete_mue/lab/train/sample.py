"""Samples of a trained run: text; pictures side by side, as a PNG; clips as a GIF, or as an MP4 where PyAV is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from complete_mue.errors import MueError, RunError
from complete_mue.lab.data.batches import ImageBatch, caption_tokens
from complete_mue.lab.data.digest import tokenizer_identity
from complete_mue.lab.data.encoders import Autoencoder, TextEncoder, fingerprint
from complete_mue.lab.data.features import FeatureManifest
from complete_mue.lab.data.manifest import Manifest
from complete_mue.lab.data.picture_sources import open_pictures
from complete_mue.lab.data.shard_folder import holds_features
from complete_mue.lab.data.tokenizers import ByteTokenizer, Tokenizer
from complete_mue.lab.models.dit import DiffusionTransformer
from complete_mue.lab.models.flow_sampling import sample
from complete_mue.lab.models.lm import LanguageModel
from complete_mue.lab.train import checkpoint
from complete_mue.lab.train.config import PictureTask, RunConfig, TextTask, read_config
from complete_mue.lab.train.task import build
from complete_mue.storage import make_folder, whole

_GAP, _LEAST_SIDE, _FRAMES_PER_SECOND = 2, 96, 8
Frame = NDArray[np.uint8]
Coder = TypeVar("Coder", Autoencoder, TextEncoder)


def load_run(run: Path, warn: Callable[[str], None] = lambda text: None) -> tuple[RunConfig, nn.Module, int]:
    """The config of a run, its model with the newest sound weights, and the step they are of; damaged checkpoints are
    named to ``warn``."""
    config = read_config(run / "config.json")
    model = build(config).model
    step = checkpoint.load_newest(run, config, model, None, warn)
    if not step:
        raise RunError(f"{run} has no checkpoint: train it first, or wait for its first one")
    return config, model.eval(), step


def run_tokenizer(config: RunConfig) -> Tokenizer:
    """The tokenizer that a language-model run was trained with."""
    assert isinstance(config.task, TextTask)
    task = config.task
    if task.source == "stdlib":
        return ByteTokenizer()
    manifest = Manifest.read(task.source)
    if task.data and not task.data.startswith(f"{tokenizer_identity(manifest)}-"):
        raise RunError(
            f"{task.source}: its tokenizer ({tokenizer_identity(manifest)}) is not that of the data that the run was "
            f"trained on ({task.data}); put that data back"
        )
    return manifest.load_tokenizer(task.source)


def write_text(config: RunConfig, model: nn.Module, prompt: str, count: int, temperature: float, seed: int) -> str:
    """The prompt and what the model makes of it."""
    assert isinstance(model, LanguageModel)
    tokenizer = run_tokenizer(config)
    tokens = torch.tensor([tokenizer.encode(prompt)], device=model.readout.device)
    written = model.generate(tokens, count, temperature=temperature, generator=torch.Generator().manual_seed(seed))
    return str(tokenizer.decode(written[0].tolist()))


def draw_pictures(
    config: RunConfig,
    model: nn.Module,
    prompt: str,
    count: int,
    out: Path,
    *,
    steps: int,
    guidance: float,
    seed: int,
    autoencoder: str | None = None,
    text_encoder: str | None = None,
) -> Path:
    """A grid of pictures as PNG, or of clips as GIF or MP4; without a prompt, of captions from the run's own source.

    Runs on cached features are decoded by the autoencoder that made them (or the one of the same weights in
    ``autoencoder``), and a prompt goes through their text encoder.
    """
    assert isinstance(config.task, PictureTask)
    assert isinstance(model, DiffusionTransformer)
    task, video = config.task, len(model.patch) == 3
    path = _path(out, video)
    features = FeatureManifest.read(task.source) if holds_features(Path(task.source)) else None
    coder = None
    if features is not None and features.asked.get("autoencoder") is not None:
        # Before minutes of sampling: what is missing is said at once.
        why = "only the autoencoder that made the run's latents turns them into pictures"
        coder = _maker(Autoencoder, "autoencoder", autoencoder, task, features, why)
    text = _text(task, features, prompt, count, seed, text_encoder).to(model.readout.device)
    size = (task.frames, task.size, task.size) if video else (task.size, task.size)
    generator = torch.Generator().manual_seed(seed)
    pictures = sample(model, text, size, steps=steps, guidance=guidance, generator=generator)
    pictures = (pictures if coder is None else coder.decode(pictures)).cpu()
    frames = grid(pictures if video else pictures[:, :, None])
    write_pictures(frames, path)
    return path


def _path(out: Path, video: bool) -> Path:
    allowed = (".gif", ".mp4") if video else (".png",)
    if not out.suffix:
        return out.with_suffix(allowed[0])
    if out.suffix.lower() not in allowed:
        raise RunError(f"{out}: give a name that ends in {' or '.join(allowed)}")
    return out


def _maker(
    kind: type[Coder], what: str, given: str | None, task: PictureTask, features: FeatureManifest, why: str
) -> Coder:
    """What made the features, or what is ``given`` in its place, if its weights are the same."""
    made_by = str(features.asked.get(f"{what}_name"))
    try:
        coder = kind.load(given or made_by)
    except MueError as problem:
        option = f"--{what.replace('_', '-')}"
        raise RunError(f"{why} ({made_by!r}): {problem}; name its folder with {option}") from None
    if fingerprint(coder.module) != features.asked[what]:
        raise RunError(f"{what} {coder.name!r}: its weights are not those that made the features in {task.source}")
    return coder


def _text(
    task: PictureTask, features: FeatureManifest | None, prompt: str, count: int, seed: int, encoder: str | None
) -> Tensor:
    """Bytes or features of the prompt; without one, of items of the run's source."""
    if not prompt:
        return of_the_source(task, count, seed).text
    if features is None or len(features.text_shape) == 1:
        return caption_tokens([prompt] * count, features.text_shape[0] if features else task.text_length)
    why = "without a prompt, texts of the features are taken; a prompt goes through the text encoder that made them"
    coder = _maker(TextEncoder, "text_encoder", encoder, task, features, why)
    hidden, lengths = coder.encode([prompt] * count, features.text_shape[0])
    for row, length in zip(hidden, lengths.tolist(), strict=True):
        row[length:] = torch.nan
    return hidden


def of_the_source(task: PictureTask, count: int, seed: int) -> ImageBatch:
    """Items of a task's source: those whose texts are drawn where there is no prompt."""
    data = open_pictures(
        task.source, size=task.size, frames=task.frames, text_length=task.text_length, epochs="repeat", rows=1,
        seed=seed + 1,
    )  # fmt: skip
    return data.at(np.concatenate([data.indices(step) for step in range(count)]))


# -- as files -----------------------------------------------------------------------------------------------------


def grid(clips: Tensor) -> list[Frame]:
    """Clips [count, 3, frames, height, width] in [-1, 1] as frames of one near-square grid, small ones enlarged."""
    count, _, frames, height, width = clips.shape
    columns = int(np.ceil(np.sqrt(count)))
    rows = -(-count // columns)
    pixels = ((clips.float().clamp(-1, 1) + 1) * 127.5).round().byte().numpy()
    side = np.full((frames, rows * (height + _GAP), columns * (width + _GAP), 3), 255, np.uint8)
    for number in range(count):
        top, left = (number // columns) * (height + _GAP), (number % columns) * (width + _GAP)
        side[:, top : top + height, left : left + width] = pixels[number].transpose(1, 2, 3, 0)
    larger = max(1, _LEAST_SIDE // max(height, width))
    return list(side.repeat(larger, axis=1).repeat(larger, axis=2))


def write_pictures(frames: list[Frame], path: Path) -> None:
    """PNG (of the first frame), GIF or MP4, by the name's ending."""
    make_folder(path.parent)
    if path.suffix.lower() == ".mp4":
        _write_mp4(frames, path)
        return
    from PIL import Image

    with whole(path) as file:
        if path.suffix.lower() == ".png":
            Image.fromarray(frames[0]).save(file, "PNG", optimize=True)
        else:
            # One palette for all frames, and no dithering: plain areas stay plain, and the file small.
            palette = Image.fromarray(np.concatenate(frames)).quantize()
            first, *others = (
                Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames
            )
            duration = 1000 // _FRAMES_PER_SECOND
            first.save(file, "GIF", save_all=True, append_images=others, duration=duration, loop=0)


def _write_mp4(frames: list[Frame], path: Path) -> None:
    try:
        import av
    except ImportError:
        raise RunError(
            f"{path}: an .mp4 needs PyAV: pip install 'complete-mue[diffusion]'; or give a name that ends in .gif"
        ) from None
    height, width, _ = frames[0].shape
    height, width = height - height % 2, width - width % 2  # the codec halves colours
    with whole(path) as file, av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("libx264", rate=_FRAMES_PER_SECOND)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame[:height, :width]), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
