"""`mue bench`."""

from __future__ import annotations

import json as jsonlib
import math
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from complete_mue.cli.app import app, console, need_torch
from complete_mue.errors import RunError
from complete_mue.tabular import terminal_table


def _show(result: Any, json: bool, out: Path | None) -> None:
    """Print what was timed, and write it where that was asked for."""
    if json:
        print(jsonlib.dumps(result.to_dict(), indent=1))
    else:
        from complete_mue.lab.bench.profiler import kernel_table

        profiled = [kernel_table(row.title, row.kernels) for row in result.rows if row.kernels]
        console().print(result.table(), *profiled)
    if out is not None:
        print(f"wrote {result.write(out)}", file=sys.stderr)


bench = typer.Typer(help="Time kernels, training and sweeps on this machine.", no_args_is_help=False)
app.add_typer(bench, name="bench")
_Profile = Annotated[bool, typer.Option("--profile", help="Also show which kernels the time goes to.")]


@bench.command("moe")
def bench_moe_command(
    list_: Annotated[bool, typer.Option("--list", help="List the kernels and which of them run here.")] = False,
    figure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="capacity, granularity, width, tiny, layer_experts or layer_active; repeat for several.",
        ),
    ] = None,
    kernel: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this kernel; repeat for several.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cuda or cpu (smaller shapes). Default: cuda, if there is one.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed repeats of each row; the median counts.")] = 10,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="Time limit: start no shape that would end later.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the shapes already in OUT; time the others.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for moe.json and its picture.")] = None,
    draw: Annotated[Path | None, typer.Option(help="Draw an earlier moe.json; time nothing.")] = None,
    profile: _Profile = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time MoE kernels, compared with a dense block.

    Forward and backward, at the same active width, along the axes of the paper's two figures.

    Example:  mue bench moe --device cpu --figure width --repeats 5
    """
    need_torch("mue bench")
    from complete_mue.lab.bench.moe_records import BenchResult, check_names

    check_names(figure or (), device)  # refused before torch is loaded
    if resume and out is None:
        raise RunError("--resume continues what OUT holds: give --out", field="out", remedy="give --out")
    if list_:
        from complete_mue.lab.kernels import list_kernels

        kernels = list_kernels()
        if json:
            print(jsonlib.dumps([vars(info) for info in kernels], indent=2))
            return
        headings = ("kernel", "runs here", "what it is")
        table = terminal_table(headings, headings, box=None)
        for info in kernels:
            table.add_row(info.name, "yes" if info.runs_here else f"no: {info.reason}", info.summary)
        console().print(table)
        return
    if draw:
        result = BenchResult.read(draw)
    else:
        from complete_mue.lab.bench.moe import run
        from complete_mue.lab.sweep.gpu_turn import alone

        keep = (lambda so_far: so_far.write(out)) if out else (lambda so_far: None)
        known = BenchResult.read(out) if resume and out and (out / "moe.json").exists() else None
        limit = math.inf if seconds is None else seconds
        with alone(device):
            result = run(
                figure, device, repeats=repeats, kernels=kernel, each=keep, seconds=limit, known=known, profiled=profile
            )
    _show(result, json, None if draw else out)
    drawn = draw or (out / "moe.json" if out else None)
    if drawn is not None:
        picture = result.plot(drawn.with_suffix(".svg"))
        print(f"wrote {picture}" if picture else f"{drawn}: no row has a time, so nothing is drawn", file=sys.stderr)


@bench.command("sweep")
def bench_sweep_command(
    layout: Annotated[
        list[str] | None, typer.Option(metavar="LAYOUT", help="Repeat for several. Default: dense and 64e2a.")
    ] = None,
    replicas: Annotated[
        list[int] | None,
        typer.Option(
            "--replicas", "-k", min=1, metavar="K", help="Runs in one program; repeat for several. Default: 1 and 9."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cuda, cpu (a smaller model, one thread) or auto.")] = "auto",
    repeats: Annotated[int, typer.Option(min=1, help="Timed intervals of five steps; the median counts.")] = 8,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the config, as in `mue train`.")
    ] = None,
    profile: _Profile = False,
    out: Annotated[Path | None, typer.Option(help="Folder for sweep.json.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time many runs in one program, compared with one at a time.

    Prints total tokens per second.

    Example:  mue bench sweep --device cpu -k 1 -k 4
    """
    need_torch("mue bench")
    from complete_mue.lab.bench.sweep import LAYOUTS, SweepBench, run
    from complete_mue.lab.sweep.gpu_turn import alone

    def each(so_far: SweepBench) -> None:
        row = so_far.rows[-1]
        kind = "recorded" if row.recorded else "plain"
        print(f"{row.layout} K={row.replicas} {kind}: {row.ms_per_step:.1f} ms/step", file=sys.stderr)
        if out:
            so_far.write(out)

    options: dict[str, Any] = {"intervals": repeats, "overrides": overrides or (), "profiled": profile, "each": each}
    with alone(device):
        result = run(layout or LAYOUTS, replicas or (1, 9), device, **options)
    _show(result, json, out)


@bench.command("train")
def bench_train_command(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE[:LAYOUT]", help="Measure this recipe. Default: the trainer's own overhead."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="accumulate=8, budget.batch_tokens=131072, …")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="With RECIPE: timed steps, after three warmup steps.")] = 20,
    turns: Annotated[int, typer.Option(min=1, help="Without RECIPE: turns of ten steps.")] = 12,
    device: Annotated[str, typer.Option(help="With RECIPE: cuda, cpu or auto.")] = "auto",
    profile: Annotated[
        bool, typer.Option("--profile", help="With RECIPE: show which kernels the time goes to.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for train.json.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time training, or the trainer's own overhead.

    With RECIPE: its tokens per second, utilisation and memory. Without: the trainer compared with a minimal loop.

    Example:  mue bench train lm_tiny:16e4a --steps 10 --device cpu
    """
    need_torch("mue bench")
    if recipe is None and (profile or device not in ("auto", "cpu")):
        raise RunError("--profile and --device are for a RECIPE: the trainer's own overhead is timed on the CPU")
    from complete_mue.lab.bench.train import compare, measure
    from complete_mue.lab.sweep.gpu_turn import alone

    report = partial(print, file=sys.stderr)
    with alone(device):
        if recipe is None:
            result = compare(turns=turns)
        else:
            result = measure(recipe, overrides or (), steps=steps, device=device, report=report, profiled=profile)
    _show(result, json, out)


@bench.command("attention")
def bench_attention_command() -> None:
    """Time our attention over short rows, compared with torch's.

    Needs an NVIDIA GPU.

    Example:  mue bench attention
    """
    need_torch("mue bench")
    import torch

    from complete_mue.lab.bench.attention import TOKENS, WIDTH, run
    from complete_mue.lab.bench.profiler import machine
    from complete_mue.lab.sweep.gpu_turn import alone

    rows, where = run(), ", ".join(machine(torch.device("cuda")).values())
    print(f"{where}, {TOKENS:,} tokens, width {WIDTH}, bfloat16\ntokens  head_dim  plain ms  one kernel ms  ratio")
    with alone():
        for row in rows:
            times = f"{row.plain_ms:8.3f}  {row.kernel_ms:13.3f}  {row.plain_ms / row.kernel_ms:5.2f}"
            print(f"{row.tokens:6d}  {row.head_dim:8d}  {times}", flush=True)
