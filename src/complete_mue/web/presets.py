"""Shapes to start from: the paper's models, and stock families as transformers' config classes default to them.

A preset fills the fields it names and leaves the others: a stock family says nothing of batch or steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A name, where it is from, and the values of fields (without ``r.`` or ``t.``)."""

    name: str
    source: str
    fields: Mapping[str, str]


def _shape(width: int, depth: int, feed_forward: str, **rest: object) -> dict[str, str]:
    shape = {"width": width, "depth": depth, "feed_forward": feed_forward, "expansion": "", "expert_width": ""}
    return {key: str(value) for key, value in {**shape, "dense_layers": "", "head_dim": "", **rest}.items()}


def _hyper(lr: str, weight_decay: str, init_std: str) -> dict[str, str]:
    numbers = {"lr": lr, "weight_decay": weight_decay, "init_std": init_std}
    return {**numbers, "betas": "0.95, 0.95", "eps": "1e-8", "route_scale": ""}


_PAPER, _FAMILY = "the paper", "stock families"
_PROXY = _shape(128, 32, "dense", expansion="1.0")
_LARGE = _shape(1024, 32, "128e8a4g1s", expert_width=512, dense_layers=2)

REFERENCES = (
    Preset(
        "Language model, d 128", _PAPER,
        {**_PROXY, "batch_tokens": "262144", "steps": "25000", **_hyper("1e-3", "0.1", "0.01")},
    ),
    Preset(
        "Diffusion transformer, d 128", _PAPER,
        {**_PROXY, "head_dim": "64", "batch_tokens": "262144", "steps": "100000", **_hyper("1.6e-3", "0.01", "0.02")},
    ),
)  # fmt: skip

TARGETS = (
    Preset("Language model, 6.3 B", _PAPER, {**_LARGE, "batch_tokens": "1048576", "steps": "100000"}),
    Preset(
        "Diffusion transformer, 6.3 B", _PAPER,
        {**_LARGE, "head_dim": "128", "batch_tokens": "786432", "steps": "100000"},
    ),
    Preset("mixtral", _FAMILY, _shape(4096, 32, "8e2a", expert_width=14336)),
    Preset("qwen2_moe", _FAMILY, _shape(2048, 24, "dense@5632+60e4a@1408")),
    Preset("qwen3_moe", _FAMILY, _shape(2048, 24, "128e8a", expert_width=768)),
    Preset("olmoe", _FAMILY, _shape(2048, 16, "64e8a", expert_width=2048)),
    Preset("deepseek_v3", _FAMILY, _shape(7168, 61, "256e8a1s", expert_width=2048, dense_layers=3)),
    Preset("gpt_oss", _FAMILY, _shape(2880, 36, "128e4a", expert_width=2880)),
    Preset("phimoe", _FAMILY, _shape(4096, 32, "16e2a", expert_width=6400)),
    Preset("minimax_m2", _FAMILY, _shape(3072, 62, "256e8a", expert_width=1536)),
    Preset("llama", _FAMILY, _shape(4096, 32, "dense@11008")),
)  # fmt: skip


def presets() -> dict[str, list[dict[str, Any]]]:
    """All presets as plain data, for the page."""
    return {"reference": [asdict(p) for p in REFERENCES], "target": [asdict(p) for p in TARGETS]}
