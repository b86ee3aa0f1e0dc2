"""What every source of pictures gives: images (or clips) with their text, by step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PADDING = 0  # the byte that fills captions up; no caption holds it


@dataclass(frozen=True)
class ImageBatch:
    """Pictures and their text.

    ``images`` float32 [rows, channels, (frames,) height, width]: pixels in [-1, 1], or latents. ``text``: byte tokens
    int64 [rows, length], or features float32 [rows, length, size], NaN where there is no word.
    """

    images: Tensor
    text: Tensor


class Pictures(ABC):
    """Items by number, batches by step."""

    items: int | None = None  # None where they never end
    steps: int | None = None  # that the items last; None where they never end, or epochs repeat
    image_shape: tuple[int, ...]  # channels, (frames,) height, width
    text_shape: tuple[int, ...]  # length of a text; of features also their size

    @abstractmethod
    def indices(self, step: int) -> NDArray[np.int64]:
        """Numbers of the items of this rank's rows at ``step``."""

    @abstractmethod
    def at(self, items: NDArray[np.int64]) -> ImageBatch:
        """The items of these numbers."""

    @abstractmethod
    def captions(self, items: NDArray[np.int64]) -> list[str]:
        """Their captions."""

    def all_captions(self) -> Sequence[str]:
        """Every caption there can be; none where texts are features."""
        return ()

    def cut_captions(self) -> str:
        """A warning where captions do not fit; empty where all do."""
        sizes = [len(caption.encode("utf-8", errors="replace")) for caption in self.all_captions()]
        cut = sum(size > self.text_shape[0] for size in sizes)
        if not cut:
            return ""
        return (
            f"{cut:,} of {len(sizes):,} captions are cut to task.text_length={self.text_shape[0]} bytes; "
            f"task.text_length={max(sizes)} holds them all"
        )

    @abstractmethod
    def identity(self) -> str:
        """Says whether two sources have the same items."""

    def batch(self, step: int) -> ImageBatch:
        """This rank's rows at ``step``."""
        return self.at(self.indices(step))


def caption_tokens(captions: Sequence[str], length: int) -> Tensor:
    """UTF-8 bytes of captions, cut or filled up with 0 to ``length``: int64 [rows, length]."""
    out = np.full((len(captions), length), PADDING, np.int64)
    for row, caption in zip(out, captions, strict=True):
        content = caption.encode("utf-8", errors="replace").replace(b"\0", b" ")[:length]
        row[: len(content)] = np.frombuffer(content, np.uint8)
    return torch.from_numpy(out)


def pixels(images: NDArray[np.uint8]) -> Tensor:
    """uint8 [rows, (frames,) height, width, channels] to float32 [rows, channels, (frames,) …] in [-1, 1]."""
    moved = np.ascontiguousarray(np.moveaxis(images, -1, 1))
    return torch.from_numpy(moved).to(torch.float32).mul_(2 / 255).sub_(1)
