"""Latents and text features computed once and kept on disk, then sampled like any other pictures.

    folder/
      manifest.json                       written last
      features-00000.safetensors …        images [items, …], text [items, length(, size)], lengths [items]

Shards appear whole or not at all; a killed run continues after the last finished one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Unpack

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from complete_mue.errors import FileError, RunError, ShapeError, one_of
from complete_mue.lab.data.batches import ImageBatch, Pictures
from complete_mue.lab.data.encoders import Autoencoder, TextEncoder, fingerprint
from complete_mue.lab.data.file_parts import OpenFiles, StoredRows
from complete_mue.lab.data.item_order import Order, Shuffled
from complete_mue.lab.data.progress import Meter
from complete_mue.lab.data.shard_folder import (
    FEATURES,
    MANIFEST,
    PROGRESS,
    is_whole,
    refuse_other_request,
    write_shard,
)
from complete_mue.lab.records.decode import Checksum, Count
from complete_mue.layout.numbers import count
from complete_mue.storage import write_json

STORED = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class FeatureShard:
    """One file of features."""

    file: Annotated[str, Meta(pattern=r"\Afeatures-[0-9]{5,8}\.safetensors\Z")]
    items: Count
    bytes: Count
    sha256: Checksum


@dataclass(frozen=True)
class FeatureManifest:
    """All there is to know about a folder of features. ``asked`` is what decides them."""

    asked: Mapping[str, Any]
    image_shape: Annotated[tuple[Count, ...], Meta(min_length=3, max_length=4)]
    text_shape: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=2)]
    shards: Annotated[tuple[FeatureShard, ...], Meta(min_length=1)]

    @property
    def items(self) -> int:
        """Pictures in all shards."""
        return sum(shard.items for shard in self.shards)

    def facts(self) -> dict[str, Any]:
        """A summary in plain data."""
        return {
            "items": self.items,
            "images": " x ".join(map(str, self.image_shape)),
            "text": " x ".join(map(str, self.text_shape)),
            "autoencoder": str(self.asked.get("autoencoder_name") or "none, pixels"),
            "text_encoder": str(self.asked.get("text_encoder_name") or "none, bytes"),
            "stored": str(self.asked.get("store")),
            "shards": len(self.shards),
        }

    @classmethod
    def read(cls, folder: str | Path) -> FeatureManifest:
        """The manifest of a folder that ``cache_features`` wrote, every field checked."""
        return FEATURES.read(cls, Path(folder))


def cache_features(
    source: Pictures,
    out: str | Path,
    *,
    autoencoder: str | Path | Autoencoder | None = None,
    text_encoder: str | Path | TextEncoder | None = None,
    items: int | None = None,
    text_length: int = 77,
    store: str = "float16",
    batch: int = 16,
    shard_items: int = 1024,
    device: str | torch.device = "cpu",
    progress: bool = True,
) -> FeatureManifest:
    """Encode every item of ``source`` (the first ``items`` of an endless one) into the folder ``out``.

    ``autoencoder`` and ``text_encoder`` are local folders, hub names, or loaded ones; without them pixels and bytes
    are kept. The same call continues where it was stopped and returns at once when all is done.
    """
    out = Path(out)
    for name, value in (("text_length", text_length), ("batch", batch), ("shard_items", shard_items)):
        count(name, value)
    one_of("store", store, STORED, ShapeError)
    if items is None and source.items is None:
        raise ShapeError("items = None with an endless source: say how many items to cache")
    total = count("items", items if items is not None else source.items)
    if source.items is not None and total > source.items:
        raise ShapeError(f"items = {total}: the source has {source.items}")
    images = Autoencoder.load(autoencoder, device=device) if isinstance(autoencoder, str | Path) else autoencoder
    text = TextEncoder.load(text_encoder, device=device) if isinstance(text_encoder, str | Path) else text_encoder
    asked = {
        "source": source.identity(),
        "items": total,
        "shard_items": shard_items,
        "store": store,
        "text_length": text_length if text else None,
        "autoencoder": fingerprint(images.module) if images else None,
        "text_encoder": fingerprint(text.module) if text else None,
        "autoencoder_name": images.name if images else None,
        "text_encoder_name": text.name if text else None,
    }
    with FEATURES.held(out), Meter(progress, total, "items") as meter:
        if (out / MANIFEST).exists():
            finished = FeatureManifest.read(out)
            refuse_other_request(out, finished.asked, asked)
            return finished
        shards = _finished(out, asked)
        meter.begin("encoding")
        encode = _Encode(source, images, text, text_length, STORED[store], batch, meter)
        while (done := sum(shard.items for shard in shards)) < total:
            numbers = np.arange(done, min(done + shard_items, total))
            shards.append(_write(out / f"features-{len(shards):05d}.safetensors", encode(numbers)))
            write_json(out / PROGRESS, asdict(_Progress(asked, shards)))
        first = StoredRows(out / shards[0].file, OpenFiles(FEATURES.remedy))
        shapes = first.shape("images") or (), first.shape("text") or ()
        manifest = FeatureManifest(asked, *shapes, tuple(shards))
        FEATURES.finish(out, asdict(manifest))
        return manifest


@dataclass(frozen=True)
class _Encode:
    """Items to tensors."""

    source: Pictures
    images: Autoencoder | None
    text: TextEncoder | None
    text_length: int
    store: torch.dtype
    batch: int
    meter: Meter

    def __call__(self, numbers: NDArray[np.int64]) -> dict[str, Tensor]:
        parts = [self._some(numbers[at : at + self.batch]) for at in range(0, len(numbers), self.batch)]
        return {key: torch.cat([part[key] for part in parts]).contiguous() for key in parts[0]}

    def _some(self, numbers: NDArray[np.int64]) -> dict[str, Tensor]:
        given = self.source.at(numbers)
        pictures = self.images.encode(given.images) if self.images else given.images
        if self.text is None:
            text, lengths = given.text.to(torch.uint8), (given.text != 0).sum(-1)
        else:
            text, lengths = self.text.encode(self.source.captions(numbers), self.text_length)
            text = self._stored(text, "text features")
        self.meter.at(int(numbers[-1]) + 1, len(numbers))
        return {
            "images": self._stored(pictures, "latents"), "text": text.cpu(), "lengths": lengths.to(torch.int32).cpu(),
        }  # fmt: skip

    def _stored(self, tensor: Tensor, what: str) -> Tensor:
        tensor = tensor.to(self.store).cpu()
        if not tensor.isfinite().all():
            raise RunError(f'{what}: not finite in {self.store}; say store="float32", or look at the encoder')
        return tensor


class FeatureData(Shuffled, Pictures):
    """A folder that ``cache_features`` wrote: latents as images, features (or bytes) as text.

    Text features are NaN after a caption's last token, which the diffusion transformer reads as "no text".
    """

    items: int

    def __init__(self, folder: str | Path, *, rows: int, verify: bool = False, **order: Unpack[Order]) -> None:
        self.folder, self.manifest = Path(folder), FeatureManifest.read(folder)
        for shard in self.manifest.shards:
            FEATURES.check(self.folder / shard.file, shard.bytes, shard.sha256 if verify else None)
        self._starts = np.cumsum([0, *(shard.items for shard in self.manifest.shards)])
        self.image_shape, self.text_shape = self.manifest.image_shape, self.manifest.text_shape
        super().__init__(self.manifest.items, rows, f"{folder}: pictures", **order)
        self._files, self._shards = OpenFiles(FEATURES.remedy), dict[int, StoredRows]()

    def identity(self) -> str:
        """The shards' checksums."""
        return f"{[shard.sha256 for shard in self.manifest.shards]} 0 {self.items}"

    def captions(self, items: NDArray[np.int64]) -> list[str]:
        """Only bytes can be read back as text."""
        if len(self.text_shape) != 1:
            raise ShapeError(f"{self.folder}: captions are stored as features, not as text")
        return [bytes(row.tolist()).rstrip(b"\0").decode("utf-8", "replace") for row in self.at(items).text]

    def at(self, items: NDArray[np.int64]) -> ImageBatch:
        """Read the items of these numbers."""
        places = np.searchsorted(self._starts, items, side="right") - 1
        images = torch.empty(len(items), *self.image_shape)
        features = len(self.text_shape) == 2
        text = torch.empty(len(items), *self.text_shape, dtype=torch.float32 if features else torch.int64)
        for row, (number, place) in enumerate(zip(items.tolist(), places.tolist(), strict=True)):
            inside, shard = number - int(self._starts[place]), self._shard(place)
            images[row], text[row] = shard.row("images", inside), shard.row("text", inside)
            words = int(shard.row("lengths", inside)) if features else 0
            for what, tensor in (("images", images[row]), ("text", text[row, :words])):
                if not tensor.isfinite().all():
                    raise FileError(
                        f"{shard.path}: {what} of item {inside} hold NaN or infinity; look at the encoder that made "
                        "them, and cache the features again"
                    )
            if features:
                text[row, words:] = torch.nan
        return ImageBatch(images, text)

    def _shard(self, place: int) -> StoredRows:
        if place not in self._shards:
            shard = StoredRows(self.folder / self.manifest.shards[place].file, self._files)
            for name, shape in (("images", self.image_shape), ("text", self.text_shape), ("lengths", ())):
                if shard.shape(name) != shape:
                    raise FileError(f"{shard.path}: {name} are not of the manifest's size; {FEATURES.remedy}")
            self._shards[place] = shard
        return self._shards[place]


def _write(path: Path, tensors: dict[str, Tensor]) -> FeatureShard:
    content = save(tensors)
    return FeatureShard(path.name, len(tensors["images"]), len(content), write_shard(path, [content]))


@dataclass(frozen=True)
class _Progress:
    asked: dict[str, Any]
    shards: list[FeatureShard]


def _finished(out: Path, asked: dict[str, Any]) -> list[FeatureShard]:
    """Shards of an earlier call, up to the first that is not whole."""
    found = FEATURES.unfinished(_Progress(asked, []), out)
    if found.shards:
        refuse_other_request(out, found.asked, asked)
    return list(takewhile(lambda shard: is_whole(out / shard.file, shard.bytes), found.shards))
