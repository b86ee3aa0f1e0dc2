"""`mue plan` and `mue layout`: no torch."""

from __future__ import annotations

import json as jsonlib
import math
from pathlib import Path
from typing import Annotated, Literal

import typer

from complete_mue.cli.app import app, console, print_text, warn
from complete_mue.cli.files import target_of
from complete_mue.errors import FileError, NotationError, TransferError
from complete_mue.export import EXPORTS
from complete_mue.export import export as export_plan
from complete_mue.layout import FeedForward, ModelShape, read_reference
from complete_mue.layout.shape import ATTENTION_MATRICES
from complete_mue.plan import transfer
from complete_mue.plan.plan import Betas
from complete_mue.rules import CATALOG, DEFAULT_RULES, Rules
from complete_mue.rules.catalog import Duration, Reading
from complete_mue.rules.sde import LoadSde

Format = Literal["table", "json", "markdown", "md", "csv"]


@app.command("plan")
def plan_command(
    reference: Annotated[
        Path, typer.Argument(metavar="REFERENCE.toml", help="The tuned model: a TOML file (shape, budget, hyper).")
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET", help="The model to train: a TOML file (shape, budget), a config.json, or its folder."
        ),
    ],
    fold: Annotated[
        bool, typer.Option("--fold", help="Fold multipliers into init and learning rates, for stock models.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Derive every number in words and symbols.")] = False,
    role: Annotated[
        str | None, typer.Option(help="Explain only this role (kind of tensor), such as expert_down.")
    ] = None,
    format: Annotated[Format, typer.Option(help="Output format.")] = "table",
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    export: Annotated[
        str | None, typer.Option(help=f"Print the plan as a config of another tool: {', '.join(EXPORTS)}.")
    ] = None,
    rules: Annotated[str, typer.Option(help=f"Rule set: {', '.join(CATALOG)}.")] = DEFAULT_RULES,
    betas: Annotated[Betas, typer.Option(help="Transfer AdamW's betas, or keep the reference's.")] = "transfer",
    eps: Annotated[Reading, typer.Option(help="fixed: eps does not depend on width and depth.")] = "groups",
    weight_decay: Annotated[
        Reading, typer.Option(help="fixed: weight decay does not depend on width and depth.")
    ] = "groups",
    duration: Annotated[
        Duration,
        typer.Option(help="fixed: lr goes with the batch, not with the number of steps. Try it where they are fewer."),
    ] = "scaled",
    forward_factor: Annotated[
        float, typer.Option(help="Use the route scale r = a / sqrt(F), with F from `mue check`.")
    ] = 1.0,
    load: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Measured load, tokens or shares per expert: adds each one's noise scale."),
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(help="The target's tokens per step. Default: its file's, or the reference's.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="The target's steps. Default: its file's, or the reference's.")
    ] = None,
) -> None:
    """Compute a target's hyperparameters from a tuned reference.

    Prints learning rate, weight decay, init, eps and multiplier for each kind of tensor. The weights of a TOML file are
    counted with gated attention and as many keys as queries, those of most config.json files as they are.

    \b
    Examples:
      mue plan examples/lm_reference.toml examples/lm_large.toml
      mue plan examples/lm_reference.toml examples/lm_large.toml --explain
      mue plan reference.toml models/Qwen3-30B-A3B --steps 100000
    """
    if load is not None and (export is not None or explain or role is not None or format == "csv"):
        raise TransferError("--load works only with the table, Markdown and JSON: drop it or the other options")
    if (json or format != "table") and (explain or role is not None or export is not None):
        raise TransferError("--explain, --role and --export print text of their own: leave out --format and --json")
    if json and format not in ("table", "json"):
        raise TransferError(f"--json and --format {format}: give one of them")
    if export is not None and (explain or role is not None):
        raise TransferError("--export and --explain print different texts: leave out one (--role goes with --explain)")
    tuned = read_reference(reference)
    shape, budget = target_of(target, tuned.budget, batch_tokens, steps)
    chosen = Rules(rules, eps, weight_decay, forward_factor, duration)
    for name in chosen.idle:
        warn(f"--{name.replace('_', '-')} fixed changes nothing by the rule set {rules}")
    plan = transfer(tuned, shape, budget, rules=chosen, betas=betas)
    plan = plan.fold() if fold else plan
    loaded = plan.sde_with_load(_read_load(load, shape)) if load else None
    if export is not None:
        print(export_plan(plan, export), end="")
    elif explain or role is not None:
        print_text(plan.explain(role))
    elif json or format == "json":
        print(jsonlib.dumps(plan.to_dict() | _load_dict(loaded), indent=2, ensure_ascii=False, allow_nan=False))
    elif format in ("markdown", "md"):
        print(plan.to_markdown() + (f"\n\nload: {loaded}" if loaded else ""))
    elif format == "csv":
        print(plan.to_csv(), end="")
    else:
        terminal = console()
        terminal.print(plan) if terminal.is_terminal else print(plan)  # 100 columns where there is no terminal
        if loaded:
            print_text(f"load: {loaded}")


def _load_dict(loaded: LoadSde | None) -> dict[str, object]:
    """As JSON, where an idle expert's infinite noise is null."""
    if loaded is None:
        return {}
    summary = {name: getattr(loaded, name) for name in ("minimum", "median", "maximum")}
    finite = {name: value if math.isfinite(value) else None for name, value in summary.items()}
    return {"load": {"sigma0": [value if math.isfinite(value) else None for value in loaded.sigma0], **finite}}


def _read_load(path: Path, shape: ModelShape) -> list[float]:
    """A number per expert, separated by blanks, commas or lines (JSON too), scaled to sum to the active experts."""
    if not shape.main.groups:
        raise TransferError("--load is for experts, and the target has none: leave it out")
    try:
        words = path.read_text(encoding="utf-8").translate(str.maketrans("[],", "   ")).split()
        numbers = [float(word) for word in words]
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise FileError(f"--load {path}: {reason}; give a text or JSON file with one number per expert") from None
    bad = [word for word, number in zip(words, numbers, strict=True) if not 0 <= number < math.inf]
    total = sum(numbers)
    if bad or not 0 < total < math.inf:
        raise FileError(f"--load {path}: {bad[0] if bad else 'all'} is no load: give tokens or shares, at least 0")
    return [number * shape.main.active / total for number in numbers]


@app.command("layout")
def layout_command(
    notation: Annotated[str, typer.Argument(metavar="LAYOUT", help="dense, 64e8a, 128e8a4g1s, dense@512+32e2a@256, …")],
    width: Annotated[int, typer.Option(help="Residual width d.")],
    expert_width: Annotated[int | None, typer.Option(help="Width of one expert, or of a dense FFN.")] = None,
    depth: Annotated[int, typer.Option(help="Layers, for the parameter counts.")] = 1,
    dense_layers: Annotated[int, typer.Option(help="How many of the first layers are dense.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain a layout: active width, route scale, parameters.

    A layout is written XeYa[Gg][Zs]: X experts, Y active in total, G groups, Z shared experts.

    Example:  mue layout 128e8a4g1s --width 1024 --expert-width 512 --depth 32
    """
    block = FeedForward.within(width, notation, expert_width)
    if expert_width is not None and all("@" in part for part in notation.split("+")):
        raise NotationError(f"--expert-width beside {notation!r}: every part has its width; leave it out")
    shape = ModelShape(width, depth, block, dense_layers)
    parameters = shape.parameters
    facts = {
        "notation": str(block),
        "active_width": block.active_width,
        "expansion": shape.expansion,
        "multiplier": width / block.active_width,
        "route_scale": block.route_scale,
        "density": block.density,
        "experts": block.experts,
        "active": block.active,
        "groups": len(block.groups),
        "shared_width": sum(block.branches) if block.groups else 0,
        "expert_width": block.expert_width,
        "depth": depth,
        "parameters": {"active": parameters.active, "total": parameters.total},
        "notes": list(shape.notes),
    }
    if json:
        print(jsonlib.dumps(facts, indent=2))
        return
    print(f"{block}  at d = {width}" + (f", {depth} layers" if depth > 1 else ""))
    if block.groups:
        groups = f" in {len(block.groups)} groups" if len(block.groups) > 1 else ""
        shared = f", plus {sum(block.branches)} shared width" if block.branches else ""
        print(f"  {block.active} of {block.experts} experts{groups}{shared}; density a/N = {block.density:.6g}")
    print(f"  active width H = {block.active_width}   expansion H/d = {shape.expansion:.6g}")
    print(f"  multiplier A = d/H = {width / block.active_width:.6g}   (against a reference of unit expansion)")
    print(f"  route scale r = {block.route_scale}")
    print(f"  parameters {parameters.active:,} active, {parameters.total:,} total, without embeddings")
    print(f"    attention counts as {ATTENTION_MATRICES} d x d matrices a layer: gated, with as many keys as queries")
    for note in shape.notes:
        print(f"  note: {note}")
