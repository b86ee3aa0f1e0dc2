"""Arithmetic and memory of a run, for utilisation figures and dry runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from complete_mue.layout import ModelShape

# Dense bfloat16 peak of one device, TFLOP/s, by a word in its name; what is not here has no utilisation figure.
_PEAKS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "B200": 2250.0, "4090": 165.0}


@dataclass(frozen=True)
class Cost:
    """Per token of training, and bytes of a whole run's states."""

    flops_per_token: float
    state_bytes: int

    @classmethod
    def of(cls, shape: ModelShape, parameters: int, embedding: int, sequence: int) -> Cost:
        """6 FLOPs per active weight and token, attention's products, and fp32 weights, gradients and two moments."""
        active = shape.parameters.active + embedding
        attention = 12 * shape.depth * shape.width * sequence
        return cls(6 * active + attention, 16 * parameters)


def peak_flops(device: torch.device) -> float | None:
    """FLOP/s that the device could reach in bfloat16, if known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((1e12 * peak for word, peak in _PEAKS.items() if word in name), None)
