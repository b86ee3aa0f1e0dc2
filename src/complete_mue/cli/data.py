"""`mue data`: prepare text, show what a prepared folder holds."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from complete_mue.cli.app import app, need_torch
from complete_mue.errors import FileError

data = typer.Typer(help="Tokenize text into shards, and inspect them.")
app.add_typer(data, name="data")


@data.command("prepare")
def prepare_command(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE", help="Text, .jsonl or .parquet files (also .gz, .xz), or a dataset's name."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the shards and their manifest.")],
    tokenizer: Annotated[str, typer.Option(help="bytes, a tokenizer.json (or .json.xz), or a hub name.")] = "bytes",
    text_key: Annotated[str, typer.Option(help="The column or key that holds the text.")] = "text",
    separator: Annotated[
        str | None, typer.Option(help=r"Text between the documents of a text file, such as '\n\n\n'.")
    ] = None,
    held_out: Annotated[
        float, typer.Option(help="Fraction of the text to hold out: the last documents, or the end of a single one.")
    ] = 0.0,
    workers: Annotated[int, typer.Option(min=1, help="Tokenizer threads.")] = 2,
) -> None:
    """Tokenize text once, into shards.

    If it is killed, run the same command again to continue.

    Example:  mue data prepare corpus.txt.xz --out data/corpus --held-out 0.02
    """
    need_torch("mue data")
    from complete_mue.lab.data import describe, prepare

    if separator is not None:
        separator = _unescaped(separator)
    prepare(
        sources, out, tokenizer=tokenizer, text_key=text_key, separator=separator, held_out=held_out, workers=workers
    )
    print(describe(out))


def _unescaped(text: str) -> str:
    try:
        return text.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError as problem:
        raise FileError(f"--separator {text!r}: {problem.reason}; write a backslash as \\\\") from None


@data.command("show")
def show_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `mue data prepare` wrote.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a prepared folder holds.

    Example:  mue data show data/corpus
    """
    need_torch("mue data")
    from complete_mue.lab.data import describe

    summary = describe(folder)
    print(jsonlib.dumps(summary.to_dict(), indent=2) if json else summary)
