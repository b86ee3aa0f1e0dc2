"""Pictures by what their source is: built-in scenes, a folder, a .tar, an .npz, or cached features."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from complete_mue.errors import RunError
from complete_mue.lab.data.batches import Pictures
from complete_mue.lab.data.features import FeatureData
from complete_mue.lab.data.images import Collection, ImageArrays, ImageData, ImageFolder, pictures_in
from complete_mue.lab.data.item_order import Order
from complete_mue.lab.data.scenes import Scenes, Shapes
from complete_mue.lab.data.shard_folder import holds_features
from complete_mue.lab.data.tars import ImageTars
from complete_mue.lab.data.video import MovingSprites

BUILT_IN: dict[str, Any] = {"scenes": Scenes, "shapes": Shapes, "sprites": MovingSprites}


def open_pictures(
    source: str, *, size: int, frames: int, text_length: int, rows: int, **order: Unpack[Order]
) -> Pictures:
    """The source's batches, pictures cut to ``size``, or clips of ``frames`` where these are more than one."""
    if source in BUILT_IN:
        clips = {"frames": frames} if source == "sprites" else {}
        endless = {key: value for key, value in order.items() if key != "epochs"}
        return BUILT_IN[source](size=size, text_length=text_length, rows=rows, **clips, **endless)
    if holds_features(Path(source)):
        features = FeatureData(source, rows=rows, **order)
        _check_sizes(source, size, frames, features.image_shape[1:])
        return features
    clip = frames if frames > 1 else None
    return ImageData(open_collection(source), size=size, frames=clip, text_length=text_length, rows=rows, **order)


def open_collection(source: str) -> Collection:
    """The captioned pictures at a path: an .npz, a .tar, a folder of .tar files, or a folder of pictures."""
    path = Path(source)
    if path.suffix == ".npz" and path.is_file():
        return ImageArrays(path)
    if path.suffix == ".tar" or (path.is_dir() and any(path.glob("*.tar")) and not any(pictures_in(path))):
        return ImageTars(source)
    if path.is_dir():
        return ImageFolder(path)
    raise RunError(
        f"task.source = {source!r}: give {', '.join(BUILT_IN)}, a folder of captioned images, a .tar or a folder "
        "of them, an .npz of images, or a folder that cache_features wrote"
    )


def _check_sizes(source: str, size: int, frames: int, sizes: tuple[int, ...]) -> None:
    """The config's sizes decide the budget, so they must be those of the folder."""
    given = (size, size) if len(sizes) == 2 else (frames, size, size)
    if given == sizes and (len(sizes) == 3 or frames == 1):
        return
    if sizes[-1] != sizes[-2]:
        raise RunError(f"{source}: latents of {' x '.join(map(str, sizes))}; cache square ones")
    raise RunError(
        f"{source}: holds latents of {' x '.join(map(str, sizes))}, and the config asks for "
        f"{' x '.join(map(str, given))}; give task.size={sizes[-1]} task.frames={sizes[0] if len(sizes) == 3 else 1} "
        "and a task.patch that divides the size"
    )
