"""What a benchmark ran on, in words."""

from __future__ import annotations

import platform

import torch


def machine(device: torch.device, threads: int | None = None) -> dict[str, str]:
    """The device's name (on CPU with its threads) and torch's version, for tables and records."""
    if device.type == "cuda":
        return {"device": torch.cuda.get_device_name(device), "torch": f"torch {torch.__version__}"}
    threads = threads or torch.get_num_threads()
    counted = f"{threads} thread{'s' if threads > 1 else ''}"
    return {"device": f"{platform.machine()} CPU, {counted}", "torch": f"torch {torch.__version__}"}
