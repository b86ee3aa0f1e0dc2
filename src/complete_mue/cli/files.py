"""`mue init`, and the target of `mue plan`: a TOML file or a Hugging Face config.json. Mostly no torch."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from complete_mue.cli.app import app, need_torch, print_text, warn
from complete_mue.errors import FileError
from complete_mue.layout import Budget, FeedForward, ModelShape
from complete_mue.layout.hf_config import READABLE, departs, find_config, read_config, shape_of_config
from complete_mue.layout.toml_files import Document
from complete_mue.storage import make_folder, write_text

_BUDGET = Budget(batch_tokens=262144, steps=25000)


def target_of(
    path: Path, otherwise: Budget, batch_tokens: int | None = None, steps: int | None = None
) -> tuple[ModelShape, Budget]:
    """Shape and budget of a target: a TOML file, a config.json or its folder, which has the budget ``otherwise``."""
    config = find_config(path)
    shape, budget = _read_target(path) if config is None else (shape_in(config), otherwise)
    given = {"batch_tokens": batch_tokens, "steps": steps}
    return shape, replace(budget, **{name: value for name, value in given.items() if value is not None})


def _read_target(path: Path) -> tuple[ModelShape, Budget]:
    """Of a TOML file, which may be a reference's."""
    document = Document.read(path)
    if unread := [f"[{name}]" for name in ("hyper", "tuned") if name in document.data]:
        warn(f"{path}: {' and '.join(unread)} of a target is not read: the plan's numbers come from the reference")
    return document.target()


def shape_in(config: Path) -> ModelShape:
    """The shape in a config.json; of a family that its fields alone do not tell, that of the model on no device."""
    data = read_config(config)
    shape = _shape_in(config, data)
    if other := departs(data):
        warn(f"{config}: {other}")
    return shape


def _shape_in(config: Path, data: dict[str, Any]) -> ModelShape:
    if data["model_type"] in READABLE:
        return shape_of_config(config, data)
    need_torch(f"reading a config of family {data['model_type']!r}")
    from complete_mue.apply.bind import describe, family_of
    from complete_mue.lab.data.extras import in_our_words

    text = data.get("text_config")
    within = SimpleNamespace(model_type=text.get("model_type") if isinstance(text, dict) else None)
    family_of(SimpleNamespace(model_type=data["model_type"], text_config=within))  # before transformers is loaded
    advice = "install a newer one, or write a TOML file (`mue init`)"
    with in_our_words(f"{config}: transformers cannot read it", advice):
        from transformers import AutoConfig

        found = AutoConfig.from_pretrained(str(config))
    return describe(found)


@app.command("init")
def init_command(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG.json", help="Take the target from this Hugging Face config.json or folder."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for reference.toml and target.toml.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a reference.toml and a target.toml to fill in.

    Both have comments. `mue plan reference.toml target.toml` reads them.

    Example:  mue init models/Qwen3-30B-A3B --out plans
    """
    found = find_config(config) if config is not None else None
    if config is not None and found is None:
        missing = "" if config.exists() else "no such file; "
        raise FileError(f"{config}: {missing}give a config.json, or the folder of a model that has one")
    shape = shape_in(found) if found else ModelShape(1024, 32, FeedForward.parse("128e8a1s", 512), dense_layers=2)
    texts = {"reference.toml": _reference(shape)}
    if isinstance(shape.feed_forward, FeedForward):
        texts["target.toml"] = _target(shape, f"read from {found}" if found else "an example: put in your own")
    paths = {name: out / name for name in texts}
    there = [str(path) for path in paths.values() if os.path.lexists(path)]
    if there and not force:
        raise FileError(f"{', '.join(there)}: already exists; give --force to overwrite, or another --out")
    for name, text in texts.items():
        document = Document(name, text)
        document.reference() if name == "reference.toml" else document.target()  # what we write reads back
    make_folder(out)
    for name, path in paths.items():
        write_text(path, texts[name])
        print(f"wrote {path}")
    target = paths.get("target.toml", found)
    if "target.toml" not in paths:
        print_text("no target.toml: a TOML file cannot describe layers that differ; the config itself is the target")
    print(f"next: fill in what your tuning found, then run\n  mue plan {paths['reference.toml']} {target}")


def _reference(target: ModelShape) -> str:
    head_dim = target.head_dim
    width = head_dim * max(2, round(128 / head_dim)) if head_dim else 128
    heads = f"\nhead_dim = {head_dim}  # of attention heads: the target's" if head_dim else ""
    return f"""\
# The reference: a small dense model, tuned once. Every number below is a starting point, not a result.
# `mue tune` finds lr, weight_decay and init_std of the models in this package; tune your own in your trainer.

[shape]
width = {width}  # d, the residual width: small enough to train many times
depth = {target.depth}  # layers: the target's, or fewer
feed_forward = "dense"  # the block of every layer; an MoE can be a reference too: "16e4a", and expert_width
expansion = 1.0  # width of the block over d{heads}

[budget]
batch_tokens = {_BUDGET.batch_tokens}  # tokens per optimizer step
steps = {_BUDGET.steps}  # of the whole run; a target with others gets another lr, weight decay, eps and betas

[hyper]  # of torch.optim.AdamW
lr = 1e-3  # the peak of the schedule: TUNE
weight_decay = 0.1  # a step shrinks a weight by lr * weight_decay: TUNE
init_std = 0.01  # standard deviation of the initial weights, all matrices alike: TUNE
betas = [0.95, 0.95]
eps = 1e-8

# [tuned.embedding]  # where one role was tuned apart from the others
# lr = 4e-3
"""


def _target(shape: ModelShape, source: str) -> str:
    block = shape.main
    layout = block.with_widths if block.is_dense or "@" in str(block) else str(block)
    lines = [f'feed_forward = "{layout}"  # XeYa[Gg][Zs]: X experts, Y active, G groups, Z shared']
    if "@" not in layout:
        lines.append(f"expert_width = {block.expert_width}  # of one expert")
    if shape.dense_layers:
        lines.append(
            f"dense_layers = {shape.dense_layers}  # number of dense first layers, with the others' active width"
        )
    if shape.head_dim:
        lines.append(f"head_dim = {shape.head_dim}")
    rest = "\n".join(lines)
    return f"""\
# The model to train: {source}.

[shape]
width = {shape.width}  # d, the residual width
depth = {shape.depth}  # layers
{rest}

[budget]  # yours: a model does not tell it
batch_tokens = {_BUDGET.batch_tokens}  # tokens per optimizer step
steps = {_BUDGET.steps}  # of the whole run
"""
