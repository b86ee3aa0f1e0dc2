"""What a benchmark ran on, and where a step's time goes: milliseconds by kernel, as torch's own profiler sees them."""

from __future__ import annotations

import platform
from collections.abc import Callable

import torch
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from complete_mue.tabular import counted, terminal_table

STEPS = 3  # that are profiled, after those that are timed
_SHOWN, _LETTERS = 12, 56


def machine(device: torch.device, threads: int | None = None) -> dict[str, str]:
    """The device's name (on CPU with its threads) and torch's version, for tables and records."""
    if device.type == "cuda":
        return {"device": torch.cuda.get_device_name(device), "torch": f"torch {torch.__version__}"}
    on = counted(threads or torch.get_num_threads(), "thread")
    return {"device": f"{platform.machine()} CPU, {on}", "torch": f"torch {torch.__version__}"}


class Profiler:
    """Watches the device between `start` and `stop`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        on_gpu = device.type == "cuda"
        self._time = "self_device_time_total" if on_gpu else "self_cpu_time_total"
        self._profile = profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU])

    def start(self) -> None:
        """Begin, once the device has done what it was given."""
        self._wait()
        self._profile.start()

    def stop(self, steps: int) -> dict[str, float]:
        """Milliseconds per step by kernel, the longest first."""
        self._wait()
        self._profile.stop()
        found = {event.key: getattr(event, self._time) / 1e3 / steps for event in self._profile.key_averages()}
        return {name: ms for name, ms in sorted(found.items(), key=lambda item: -item[1]) if ms > 0}

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def kernel_times(step: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Milliseconds by kernel (on CPU by operator) of a few steps."""
    profiler = Profiler(device)
    profiler.start()
    for _ in range(STEPS):
        step()
    return profiler.stop(STEPS)


def kernel_table(title: str, kernels: dict[str, float]) -> Table:
    """The longest kernels, and all others together."""
    table, total = terminal_table(("kernel", "ms / step", "share"), ("kernel",), title), sum(kernels.values())
    names = list(kernels)
    rest = sum(kernels[name] for name in names[_SHOWN:])
    rows = [(name, kernels[name]) for name in names[:_SHOWN]]
    rows += [(f"{len(names) - _SHOWN} others", rest)] if rest else []
    for name, ms in rows:
        table.add_row(name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…", f"{ms:.2f}", f"{ms / total:.1%}")
    return table
