"""Data as a pure function of the step: prepared text, built-in sources, images with captions, cached features.

    prepare(sources, folder, tokenizer=…)         text -> shards with a manifest
    TextData(folder, …).batch(step)               int64 [rows, sequence + 1]
    Scenes(…).batch(step), ImageData(…), …        ImageBatch(images, text)
    cache_features(source, folder, …)             images -> latents, captions -> features, on disk

Importing this loads nothing heavy: torch, tokenizers, datasets, transformers and diffusers come when they are used.
"""

from typing import TYPE_CHECKING, Any

_LAZY = {
    "FeatureData": "features",
    "HubImages": "images",
    "ImageArrays": "images",
    "ImageBatch": "batches",
    "ImageData": "images",
    "ImageFolder": "images",
    "ImageTars": "tars",
    "MovingSprites": "video",
    "Scenes": "scenes",
    "Shapes": "scenes",
    "StandardLibrary": "text",
    "TextData": "text",
    "cache_features": "features",
    "describe": "summary",
    "prepare": "prepare_text",
}
if TYPE_CHECKING:
    from complete_mue.lab.data.batches import ImageBatch as ImageBatch
    from complete_mue.lab.data.features import FeatureData as FeatureData
    from complete_mue.lab.data.features import cache_features as cache_features
    from complete_mue.lab.data.images import HubImages as HubImages
    from complete_mue.lab.data.images import ImageArrays as ImageArrays
    from complete_mue.lab.data.images import ImageData as ImageData
    from complete_mue.lab.data.images import ImageFolder as ImageFolder
    from complete_mue.lab.data.prepare_text import prepare as prepare
    from complete_mue.lab.data.scenes import Scenes as Scenes
    from complete_mue.lab.data.scenes import Shapes as Shapes
    from complete_mue.lab.data.summary import describe as describe
    from complete_mue.lab.data.tars import ImageTars as ImageTars
    from complete_mue.lab.data.text import StandardLibrary as StandardLibrary
    from complete_mue.lab.data.text import TextData as TextData
    from complete_mue.lab.data.video import MovingSprites as MovingSprites


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'complete_mue.lab.data' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"complete_mue.lab.data.{_LAZY[name]}"), name)
