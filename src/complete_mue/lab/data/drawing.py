"""Coloured shapes, many at once, with smooth edges: what scenes and sprites are made of.

A shape is a signed distance in units of its radius, negative inside; a pixel's coverage is the distance across one
pixel. All shapes cover their centre and stay within their radius.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

COLOURS = {
    "red": (230, 30, 30), "green": (30, 180, 50), "blue": (40, 70, 230), "yellow": (245, 220, 30),
    "orange": (250, 140, 20), "purple": (140, 50, 180), "cyan": (40, 210, 220), "pink": (250, 130, 190),
}  # fmt: skip
BACKGROUNDS = {"black": (0, 0, 0), "gray": (128, 128, 128), "white": (255, 255, 255)}
SHAPES = ("circle", "square", "triangle", "diamond", "cross")

Floats = NDArray[np.floating[Any]]


def palette(colours: dict[str, tuple[int, int, int]]) -> NDArray[np.float32]:
    """Colours in [-1, 1]: [colours, 3]."""
    return np.array(list(colours.values()), np.float32) / np.float32(127.5) - 1


def _distance(shape: int, x: Floats, y: Floats) -> Any:
    """Distance from the outline at (x, y), in radii; y points down."""
    name = SHAPES[shape]
    if name == "circle":
        return np.sqrt(x * x + y * y) - 1
    if name == "square":
        return np.maximum(abs(x), abs(y)) - 0.85
    if name == "diamond":
        return (abs(x) + abs(y) - 1) * np.float32(0.7071)
    if name == "triangle":  # upright, from -0.9 to 0.75
        return np.maximum(y - 0.75, (abs(x) * 1.8 - y - 0.9) * np.float32(0.4856))
    across, along = np.minimum(abs(x), abs(y)), np.maximum(abs(x), abs(y))
    return np.maximum(across - 0.32, along - 0.95)


def blank(grounds: NDArray[np.int64], size: int) -> NDArray[np.float32]:
    """A canvas of each of these backgrounds: [rows, 3, size, size]."""
    return np.broadcast_to(palette(BACKGROUNDS)[grounds][:, :, None, None], (len(grounds), 3, size, size)).copy()


def draw(
    canvas: NDArray[np.float32],
    shapes: NDArray[np.int64],
    colours: NDArray[np.float32],
    x: Floats,
    y: Floats,
    radius: Floats,
) -> None:
    """Paint one shape onto each of ``canvas`` [rows, 3, size, size]; places and radii are fractions of the size."""
    size = canvas.shape[-1]
    at = np.arange(size, dtype=np.float32) + np.float32(0.5)
    scale = (radius * size).astype(np.float32)[:, None, None]
    u = (at - (x * size).astype(np.float32)[:, None])[:, None, :] / scale
    v = (at - (y * size).astype(np.float32)[:, None])[:, :, None] / scale
    for shape in range(len(SHAPES)):
        rows = np.flatnonzero(shapes == shape)
        if len(rows):
            inside = np.clip(0.5 - _distance(shape, u[rows], v[rows]) * scale[rows], 0, 1)[:, None]
            under = canvas[rows]
            canvas[rows] = under + inside * (colours[rows][:, :, None, None] - under)


def in_words(colour: int, shape: int) -> str:
    """``a red circle``."""
    word = tuple(COLOURS)[colour]
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word} {SHAPES[shape]}"
