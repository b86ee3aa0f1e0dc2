"""`mue bench`."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from complete_mue.cli.app import app, need_torch

bench = typer.Typer(help="Benchmarks: ratios in one run, on your machine.", no_args_is_help=False)
app.add_typer(bench, name="bench")


@bench.command("moe")
def bench_moe_command(
    list_: Annotated[
        bool, typer.Option("--list", help="List the kernels, which one runs here by default, and leave.")
    ] = False,
    figure: Annotated[
        list[str] | None, typer.Option("--figure", help="capacity, granularity or width; repeat for several.")
    ] = None,
    kernel: Annotated[list[str] | None, typer.Option("--kernel", help="Only this kernel; repeat for several.")] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cuda or cpu (smaller shapes). Default: cuda if there.")
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Timed repeats of each row; the median counts.")
    ] = 10,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for moe.json and its picture.")] = None,
    draw: Annotated[
        Path | None, typer.Option("--draw", help="Draw the picture of an earlier JSON file, time nothing.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time MoE kernels, forward + backward, against the dense block of the same active width: the paper's two figures.

    Example:  mue bench moe --device cpu --figure width --repeats 5
    """
    need_torch("mue bench")
    from rich.console import Console
    from rich.table import Table

    from complete_mue.bench.moe import BenchResult, list_kernels, run

    console, notes = Console(highlight=False, markup=False), Console(stderr=True, highlight=False)
    if list_:
        kernels = list_kernels()
        if json:
            print(jsonlib.dumps([vars(info) for info in kernels], indent=2))
            return
        table = Table(box=None, pad_edge=False)
        for heading in ("kernel", "runs here", "what it is"):
            table.add_column(heading)
        for info in kernels:
            table.add_row(info.name, "yes" if info.runs_here else f"no: {info.reason}", info.summary)
        console.print(table)
        return
    if draw:
        result = BenchResult.read(draw)
    else:
        keep = (lambda so_far: so_far.write(out)) if out else (lambda so_far: None)
        result = run(figure, device, repeats=repeats, kernels=kernel, each=keep)
    if json:
        print(result.to_json())
    else:
        console.print(result.table())
    folder = draw.parent if draw else out
    if folder is not None:
        path = draw or result.write(folder)
        notes.print(f"wrote {path}")
        notes.print(f"wrote {result.plot(path.with_suffix('.png'))}")
