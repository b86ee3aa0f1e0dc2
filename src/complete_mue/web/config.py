"""A pasted Hugging Face config.json as the target's shape, and that shape as the form's fields."""

from __future__ import annotations

import json
from pathlib import Path

from complete_mue.errors import MueError
from complete_mue.layout.hf_config import READABLE, shape_of_config
from complete_mue.layout.notation import FeedForward
from complete_mue.layout.shape import ModelShape
from complete_mue.layout.toml_files import SHAPE_KEYS

FILE = "config.json"
MOST_LAYERS = 1_000  # far beyond any model, and quick


def shape_in(text: str) -> ModelShape:
    """The shape that the JSON text gives; a mistake is a ``MueError`` that begins with the file's name."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise MueError(f"{FILE}: not valid JSON; paste the whole file, from {{ to }}") from None
    family = data.get("model_type") if isinstance(data, dict) else None
    if not isinstance(family, str):
        raise MueError(f"{FILE}: no model_type; paste the config.json of a Hugging Face model")
    if family not in READABLE:
        raise MueError(f"{FILE}: the fields of family {family!r:.60} do not give its shape; use `mue plan`, or type it")
    for depth in ("num_hidden_layers", "n_layer"):
        if isinstance(data.get(depth), int) and data[depth] > MOST_LAYERS:
            raise MueError(f"{FILE}: {depth} = {data[depth]:.0e}: the planner takes at most {MOST_LAYERS} layers")
    return shape_of_config(Path(FILE), data)


def form_fields(shape: ModelShape) -> dict[str, str] | None:
    """The form's values for a shape; None where layers differ in a way that one layout cannot say."""
    if not isinstance(shape.feed_forward, FeedForward):
        return None
    given = {
        "width": shape.width, "depth": shape.depth, "feed_forward": shape.feed_forward.with_widths,
        "dense_layers": shape.dense_layers, "head_dim": shape.head_dim,
    }  # fmt: skip
    return {key: str(given.get(key) or "") for key in SHAPE_KEYS}
