"""The command `mue` itself: the application its commands register with, and what they share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from complete_mue.errors import MueError

if TYPE_CHECKING:
    from rich.console import Console

    from complete_mue.lab.train.config import RunConfig

app = typer.Typer(
    name="mue",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Tune one small dense model once, then transfer its hyperparameters to any Mixture-of-Experts layout.\n\n"
    "Start with:  mue plan examples/lm_reference.toml examples/lm_large.toml",
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from complete_mue import __version__

        print(__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help())


def need_torch(command: str) -> None:
    """Stop with a clear line where torch is not installed."""
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise MueError(f"{command} needs torch: install it with `pip install 'complete-mue[torch]'`")


def need_run(folder: Path) -> RunConfig:
    """The run's config; what is no run's directory is refused before torch is loaded."""
    from complete_mue.lab.train.config import read_config

    return read_config(folder / "config.json")


def warn(text: str) -> None:
    """Say it on stderr."""
    print(f"warning: {text}", file=sys.stderr)


def console(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """Prints text as it is, and tables."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, soft_wrap=soft_wrap)


def print_text(text: str) -> None:
    """Long lines wrap under their own indentation on a terminal, and stay whole in a pipe."""
    if not sys.stdout.isatty():
        print(text)
        return
    import shutil
    import textwrap

    columns = shutil.get_terminal_size().columns
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        print(textwrap.fill(line, columns, subsequent_indent=indent + "  ", break_long_words=False) if line else "")
