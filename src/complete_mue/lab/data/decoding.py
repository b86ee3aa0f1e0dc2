"""Pictures from bytes of others: formats named, sizes bounded before anything is unpacked, cut to one size."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from complete_mue.errors import FileError
from complete_mue.lab.data.extras import in_our_words, need

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
LARGEST_FILE = 2**27
LARGEST_PIXELS = 2**26


def decode(content: bytes, where: str, size: tuple[int, int], frames: int | None = None) -> NDArray[np.uint8]:
    """RGB of ``size`` (height, width): uint8 [(frames,) height, width, 3]. ``where`` names the picture in messages.

    The picture is scaled to cover the size, then cut around its middle; transparent parts become white. With
    ``frames`` that many are taken from an animation, evenly from the first to the last.
    """
    image = _opened(content, where)
    with in_our_words(f"{where}: a damaged picture", "replace or remove it"):
        if frames is None:
            return _covering(image, size)
        have = getattr(image, "n_frames", 1)
        chosen = []
        for number in np.linspace(0, have - 1, frames).round().astype(int).tolist():
            image.seek(number)
            chosen.append(_covering(image, size))
        return np.stack(chosen)


def resize(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """The same for pixels [(frames,) height, width, 3] that are decoded already."""
    if pixels.shape[-3:-1] == size:
        return pixels
    if pixels.ndim == 4:
        return np.stack([resize(frame, size) for frame in pixels])
    return _covering(need("PIL.Image", "pictures").fromarray(pixels), size)


def _opened(content: bytes, where: str) -> Any:
    """An image whose header says that it is of a known format and not too large; nothing is unpacked yet."""
    pillow = need("PIL.Image", "pictures")
    if len(content) > LARGEST_FILE:
        raise FileError(f"{where}: larger than {LARGEST_FILE} bytes; make it smaller")
    too_large = f"more than {LARGEST_PIXELS} pixels, perhaps a decompression bomb; make it smaller or remove it"
    try:
        image = pillow.open(io.BytesIO(content), formats=FORMATS)
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning):
        raise FileError(f"{where}: {too_large}") from None
    except (OSError, SyntaxError, ValueError, EOFError):
        kinds = ", ".join(FORMATS)
        raise FileError(f"{where}: not a picture of a known kind ({kinds}); save it again as one") from None
    if image.width * image.height > LARGEST_PIXELS:
        raise FileError(f"{where}: {image.width} x {image.height}, {too_large}")
    return image


def _covering(image: Any, size: tuple[int, int]) -> NDArray[np.uint8]:
    pillow, operations = need("PIL.Image", "pictures"), need("PIL.ImageOps", "pictures")
    height, width = size
    # JPEG can be decoded at a fraction of its size, which is what most of the time goes into.
    image.draft("RGB", (2 * width, 2 * height))
    image = operations.exif_transpose(image)
    if image.mode.startswith("I"):  # gray of 16 bits; Pillow would clip it at 255, to white
        image = pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = pillow.alpha_composite(pillow.new("RGBA", image.size, "white"), image)
    image = image.convert("RGB")
    if (image.height, image.width) != size:
        image = operations.fit(image, (width, height), pillow.Resampling.BICUBIC)
    return np.asarray(image)
