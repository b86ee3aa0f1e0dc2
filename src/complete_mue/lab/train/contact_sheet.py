"""Pictures side by side, as a PNG; clips as a GIF, or as an MP4 where PyAV is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from complete_mue.errors import RunError
from complete_mue.storage import whole

_GAP, _LEAST_SIDE, _FRAMES_PER_SECOND = 2, 96, 8
Frame = NDArray[np.uint8]


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
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".mp4":
        _write_mp4(frames, path)
        return
    from PIL import Image

    first, *others = (Image.fromarray(frame) for frame in frames)
    with whole(path) as file:
        if path.suffix.lower() == ".png":
            first.save(file, "PNG", optimize=True)
        else:
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
