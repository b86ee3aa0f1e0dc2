"""What a GPU of each kind has, by a word in its name. What is not here gets no estimate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """By its data sheet, but for the memory."""

    flops: float  # per second, dense, bfloat16
    bandwidth: float  # of its memory, bytes per second
    gib: float  # that torch can use


GPUS = {
    "H200": Gpu(989e12, 4.8e12, 139.0),
    "H100": Gpu(989e12, 3.35e12, 79.0),
    "A100": Gpu(312e12, 2.0e12, 79.0),
    "B200": Gpu(2250e12, 8.0e12, 178.0),
    "4090": Gpu(165e12, 1.0e12, 23.5),
}
