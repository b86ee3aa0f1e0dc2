"""`mue check`."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from complete_mue.cli.app import app, console, need_torch
from complete_mue.errors import FileError
from complete_mue.layout.axes import AXES, axis_lines
from complete_mue.rules import CATALOG, DEFAULT_RULES, Rules


@app.command("check")
def check_command(
    axis: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS", help="Property to vary, named as in `mue sweep`; repeat for several. Default: all."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION", help="Your function build(plan) -> mue.Setup. Default: our language model."
        ),
    ] = None,
    layout: Annotated[
        str | None, typer.Option(help="Layout along width, depth and batch_steps, such as 8e2a. Default: 8e2a1s.")
    ] = None,
    rules: Annotated[str, typer.Option(help=f"Rule set: {', '.join(CATALOG)}.")] = DEFAULT_RULES,
    steps: Annotated[int, typer.Option(min=1, help="AdamW steps to take at each point.")] = 4,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds, for error bars on slopes.")] = 3,
    tolerance: Annotated[float, typer.Option(min=0.0, help="Largest slope on log axes that counts as flat.")] = 0.3,
    update_effect: Annotated[
        bool, typer.Option("--update-effect", help="Also measure how much updates change each role's output.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for check.json and check.svg.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that a training setup follows its plan.

    Trains small models and checks activations, updates, init, norms, routing, optimizer and clipping. It says where it
    cannot tell. Exit status: 0 if nothing is wrong, 1 if something changes along an axis or is not as planned.

    \b
    Examples:
      mue check --axis width --axis activated --out runs/check
      mue check --model my_package.training:build --layout 8e2a
    """
    need_torch("mue check")
    Rules(rules)  # what cannot be read is refused before torch is loaded
    axis_lines(axis or list(AXES), layout, None)
    from complete_mue.apply.check_report import tables, write
    from complete_mue.apply.checks import check
    from complete_mue.lab.models.check_setup import language_model_setup

    build = _named_function(model) if model else language_model_setup
    notes = console(stderr=True)
    with notes.status("checking") as status:
        result = check(
            build,
            axis or None,
            layout=layout,
            rules=rules,
            steps=steps,
            seeds=seeds,
            update_effect=update_effect,
            tolerance=tolerance,
            progress=status.update,
        )
    if json:
        print(jsonlib.dumps(result.to_dict(), indent=2))
    else:
        for part in tables(result):
            console().print(part)
    if out is not None:
        for path in write(result, out):
            notes.print(f"wrote {path}")
    if not result.ok:
        raise typer.Exit(1)


def _named_function(name: str) -> Any:
    """`package.module:function`, imported from the working directory or the installed packages."""
    import importlib

    from complete_mue.lab.data.extras import in_our_words

    module, _, function = name.partition(":")
    if not module or not function:
        raise FileError(f"--model {name!r}: give MODULE:FUNCTION, such as my_package.training:build")
    sys.path.insert(0, str(Path.cwd()))
    with in_our_words(f"--model {name!r}: cannot be imported", "give an importable MODULE:FUNCTION"):
        found = getattr(importlib.import_module(module), function)
    if not callable(found):
        raise FileError(f"--model {name!r}: {function} is a {type(found).__name__}; give a function build(plan)")
    return found
