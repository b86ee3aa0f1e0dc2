"""`mue cluster`: a recipe on many GPUs, on paper."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from complete_mue.cli.app import app, console, need_torch
from complete_mue.errors import MueError, RunError
from complete_mue.layout.numbers import real


@app.command("cluster")
def cluster_command(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE[:LAYOUT]", help="lm_large, dit_large:128e8a4g1s:video, …")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="expert_parallel=8, budget.batch_tokens=…, …")
    ] = None,
    gpus: Annotated[str, typer.Option(help="Number of GPUs, or several numbers with commas.")] = (
        "8,16,32,64,128,256,512,1024"
    ),
    gpu: Annotated[str, typer.Option(help="H200, H100, A100, B200 or 4090.")] = "H200",
    mfu: Annotated[
        float | None,
        typer.Option(help="Share of the peak that compute reaches. Default: from kernels timed on an H200."),
    ] = None,
    node: Annotated[int, typer.Option(help="GPUs per machine.")] = 8,
    link: Annotated[float, typer.Option(help="GB/s per GPU inside a machine.")] = 450.0,
    network: Annotated[float, typer.Option(help="GB/s per GPU between machines.")] = 50.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Estimate memory, speed and traffic of a recipe on many GPUs.

    Assumes that FSDP's messages overlap with compute, and that the exchange of tokens between experts' ranks does not.

    Example:  mue cluster lm_large expert_parallel=8 --gpus 8,64,512
    """
    need_torch("mue cluster")
    from complete_mue.lab.recipes import recipe as named
    from complete_mue.lab.train.config import override

    for option, speed in (("--link", link), ("--network", network)):
        real(option, speed)
    config, numbers = override(named(recipe), *(overrides or [])), _numbers(gpus)
    from complete_mue.lab.train.estimate import Machine, estimate, meta_task

    machine = Machine(gpu, mfu, node, link * 1e9, network * 1e9)
    task, rows, refused = meta_task(config), list[Any](), list[str]()
    for number in numbers:
        try:
            rows.append(estimate(config, number, machine, task))
        except MueError as problem:
            refused.append(f"{number} GPUs: {problem}")
    if not rows:
        raise RunError(refused[0])
    if as_json:
        print(
            json.dumps({"recipe": config.name, "rows": [row.to_dict() for row in rows], "refused": refused}, indent=1)
        )
        return
    print(
        f"{config.name} on {gpu}s, experts over {config.expert_parallel} ranks\n"
        f"{config.budget.batch_tokens:,} tokens a step, {rows[0].flops_per_token:.3g} FLOP per token\n"
        "GiB per rank; seconds of compute, FSDP, tokens to experts, the whole step"
    )
    _table(rows)
    for line in refused:
        print(line)
    print(
        f"Assumed: {_compute(gpu, mfu)},\n"
        f"{link:g} GB/s between the {node} GPUs of a machine, {network:g} GB/s beyond; FSDP's messages\n"
        "overlap with compute, tokens sent to experts do not, and no rank waits for a\nslower one."
    )


def _compute(gpu: str, mfu: float | None) -> str:
    """What the time of the arithmetic rests on."""
    if mfu is not None:
        return f"compute at {mfu:.1%} of the peak"
    elsewhere = "" if gpu == "H200" else f",\nscaled to the peak and bandwidth of the {gpu}"
    return f"compute at the speed of kernels timed on one H200{elsewhere}"


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise RunError(f"--gpus {text}: give whole numbers with commas between them, such as 8,64,512") from None


def _table(rows: list[Any]) -> None:
    from complete_mue.tabular import terminal_table

    headings = ("GPUs", "GiB", "fits", "compute", "FSDP", "tokens", "step", "ktok/s", "MFU", "days")
    table = terminal_table(headings, ())
    for row in rows:
        seconds = (row.compute_seconds, row.fsdp_seconds, row.exchange_seconds, row.seconds)
        table.add_row(
            str(row.gpus), f"{row.bytes / 2**30:.1f}", "yes" if row.fits else "no",
            *(f"{part:.3f}" for part in seconds), f"{row.tokens_per_second / 1e3:,.0f}", f"{row.mfu:.1%}",
            f"{row.seconds * row.steps / 86400:.1f}",
        )  # fmt: skip
    console().print(table)
