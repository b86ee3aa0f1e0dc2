"""`mue quickstart`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from complete_mue.cli.app import app, console, need_torch
from complete_mue.cli.sweep import Workers, run_whole
from complete_mue.tabular import terminal_table

if TYPE_CHECKING:
    from complete_mue.lab.sweep.quickstart_parts import Part

ADVICE = (
    "Tune a dense model on your data: `mue tune lm --scale small --set task.source=DIR`, 2000 steps a run, one GPU. "
    "For a large target tune longer, and as deep as the target: the paper takes width 128, 32 layers and 25,000 steps "
    "for 6 B parameters and 100,000 steps. The tiny models above are not a reference.",
    "`mue init` writes a reference.toml and a target.toml to put your values into.",
    "`mue plan reference.toml target.toml` gives the target's hyperparameters, tensor by tensor.",
)


@app.command("quickstart")
def quickstart_command(
    seed: Annotated[int, typer.Option(min=0, help="Other seeds should give the same verdict.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for runs and report. Default: runs/quickstart.")] = None,
    workers: Workers = None,
    steps: Annotated[int | None, typer.Option(min=2, hidden=True, help="Of every run, for tests.")] = None,
) -> None:
    """See the transfer hold, in about five minutes on two CPU cores.

    First, the sizes of updates on live models: constant with our rules, not with standard parametrization. Second,
    short runs: one dense learning rate, transferred to MoEs with more active experts and more width. Third, the
    repository's GPU records. Every verdict is "held" or "missed", with its threshold. If it is killed, run the same
    command again to continue.

    Example:  mue quickstart --seed 1
    """
    need_torch("mue quickstart")
    from complete_mue.lab.report.summary import summarize
    from complete_mue.lab.sweep.launch import Launch
    from complete_mue.lab.sweep.quickstart import STEPS, sweep_of
    from complete_mue.lab.sweep.quickstart_parts import recorded, sizes, trained, write_page

    began = time.monotonic()
    folder = out or Path("runs") / ("quickstart" if seed == 0 else f"quickstart-{seed}")
    notes = console(stderr=True)
    with notes.status("checking live models, half a minute"):
        parts = [sizes()]
    _show(1, parts[-1])
    run_whole(Launch("processes", workers), sweep_of(seed, steps or STEPS), folder / "runs")
    parts.append(trained(summarize(folder / "runs")))
    _show(2, parts[-1])
    with notes.status("reading the records"):
        parts.append(recorded())
    _show(3, parts[-1])
    seconds = time.monotonic() - began
    page = write_page(parts, ADVICE, {"seed": seed, "seconds": round(seconds, 1)}, folder)
    terminal = console()
    terminal.print(f"\nReport: {page} ({seconds:.0f} s)\n\nNext:")
    for line in ADVICE:
        terminal.print(f"- {line}")


def _show(number: int, part: Part) -> None:
    """A part on the terminal."""
    terminal = console()
    terminal.print(f"\n{number}. {part.title}", style="bold")
    terminal.print(part.about)
    if part.rows:
        table = terminal_table(part.headings, part.headings)
        for column in table.columns:
            column.no_wrap = True
        for row in part.rows:
            table.add_row(*row, style={"held": "green", "missed": "red"}.get(row[-1], ""))
        terminal.print(table)
    for line in part.lines:
        terminal.print(f"- {line.text}", style={"good": "green", "bad": "red"}.get(line.kind, ""))
