"""Where a picture task's items come from: built-in scenes, a folder of images, or a folder of cached features."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from complete_mue.errors import RunError
from complete_mue.lab.data import FeatureData, ImageData, ImageFolder, MovingSprites, Scenes, Shapes
from complete_mue.lab.data.features import FeatureManifest
from complete_mue.lab.data.shard_folder import FEATURES, MANIFEST, PROGRESS
from complete_mue.lab.train.config import PictureTask

BUILT_IN: dict[str, Any] = {"scenes": Scenes, "shapes": Shapes, "sprites": MovingSprites}


@dataclass(frozen=True)
class PictureSource:
    """Items, and what a model must know of them."""

    data: Any
    channels: int
    video: bool
    text_length: int
    text_features: int | None  # size of a text token's features; None for bytes
    steps: int | None  # in one epoch; None if endless


def picture_source(task: PictureTask, rows: int, seed: int, rank: int = 0, world: int = 1) -> PictureSource:
    """The source that ``task.source`` names; its batches are the rows of this rank."""
    options: dict[str, Any] = {"rows": rows, "seed": seed, "rank": rank, "world": world}
    pixels: dict[str, Any] = {"size": task.size, "text_length": task.text_length}
    if task.source in BUILT_IN:
        video = task.source == "sprites"
        data = BUILT_IN[task.source](**options, **pixels, **({"frames": task.frames} if video else {}))
        return PictureSource(data, 3, video, task.text_length, None, None)
    if not Path(task.source).is_dir():
        raise RunError(
            f"task.source = {task.source!r}: give {', '.join(BUILT_IN)}, a folder of captioned images, or one that "
            "cache_features wrote"
        )
    if not holds_features(Path(task.source)):
        data = ImageData(ImageFolder(task.source), **options, **pixels, epochs=task.epochs)
        return PictureSource(data, 3, False, task.text_length, None, len(data) if task.epochs == "single" else None)
    manifest = FeatureManifest.read(task.source)
    _check(task, manifest)
    features = FeatureData(task.source, **options, epochs=task.epochs)
    length, *size = manifest.text_shape
    return PictureSource(
        features,
        manifest.image_shape[0],
        len(manifest.image_shape) == 4,
        length,
        size[0] if size else None,
        len(features) if task.epochs == "single" else None,
    )


def holds_features(folder: Path) -> bool:
    """Whether ``cache_features`` wrote (or is writing) the folder."""
    return FEATURES.is_at(folder) or (not (folder / MANIFEST).is_file() and (folder / PROGRESS).is_file())


def _check(task: PictureTask, manifest: FeatureManifest) -> None:
    """The config's sizes decide the budget, so they must be those of the folder."""
    _, *sizes = manifest.image_shape
    given = [task.size, task.size] if len(sizes) == 2 else [task.frames, task.size, task.size]
    if given == sizes and (len(sizes) == 3 or task.frames == 1):
        return
    if sizes[-1] != sizes[-2]:
        raise RunError(f"{task.source}: latents of {' x '.join(map(str, sizes))}; cache square ones")
    raise RunError(
        f"{task.source}: holds latents of {' x '.join(map(str, sizes))}, and the config asks for "
        f"{' x '.join(map(str, given))}; give task.size={sizes[-1]} task.frames={sizes[0] if len(sizes) == 3 else 1} "
        "and a task.patch that divides the size"
    )
