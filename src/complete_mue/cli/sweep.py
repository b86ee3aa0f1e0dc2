"""`mue tune` and `mue sweep`."""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from complete_mue.cli.app import app, console, need_torch, print_text, warn
from complete_mue.cli.report import show
from complete_mue.cli.sweep_progress import shown
from complete_mue.errors import MueError, RunError
from complete_mue.lab.paper_figures import FIGURES
from complete_mue.rules import Rules
from complete_mue.tabular import counted

if TYPE_CHECKING:
    from complete_mue.lab.sweep.grid import Sweep
    from complete_mue.lab.sweep.launch import Launch

_SCALES = "tiny (minutes on a CPU), small or medium (one GPU), or paper (the paper's small models)."
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change the reference's config, as in `mue train`."),
]
Seeds = Annotated[int | None, typer.Option(min=1, help="Seeds per point. Default: 1 to 3, depending on scale.")]
Span = Annotated[
    int | None, typer.Option(min=1, help="Octaves (factors of two) on either side. Default: depends on scale.")
]
Octaves = Annotated[
    str | None, typer.Option(metavar="LOW:HIGH", help="Scan from LOW to HIGH octaves instead, such as -2.5:0.5.")
]
PerOctave = Annotated[
    int | None, typer.Option(min=1, help="Values per factor of two. Default: 2 for lr from scale small up, else 1.")
]
ExecutorName = Annotated[str, typer.Option(help="processes, here (in this process) or ray.")]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Worker processes. Default: one per core; two on a GPU, which take turns.")
]
Address = Annotated[str | None, typer.Option(help="A Ray cluster. Default: a local one.")]
Replicas = Annotated[
    int | None, typer.Option("--replicas", "-k", min=1, help="Runs per program. Default: as many as fit and help.")
]
Known = Annotated[
    list[Path] | None,
    typer.Option(metavar="PLACE", help="Reuse finished points of this sweep (a folder or a packed file); repeat."),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust-known",
        help="Also reuse older records, which do not name their data. You vouch that it is the same.",
    ),
]


@app.command("sweep")
def sweep_command(
    figure: Annotated[
        str,
        typer.Argument(
            metavar="FIGURE|FILE.toml",
            help=f"{', '.join(FIGURES)}; roles, to scan one role (kind of tensor) at a time; or a file with a grid of "
            "your own (docs/sweep.md).",
        ),
    ],
    task: Annotated[str | None, typer.Option(help="lm (language) or dit (diffusion). Default: lm.")] = None,
    scale: Annotated[str | None, typer.Option(help=f"{_SCALES} Default: tiny.")] = None,
    reference: Annotated[Path | None, typer.Option(help="A tuned reference.toml, written by `mue tune`.")] = None,
    rules: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Rule set to use; repeat to compare. Default: ours.")
    ] = None,
    hyper: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="lr, weight_decay or init_std; for roles also lr_same_decay (lr x decay constant). Repeat for "
            "several. Default: the figure's.",
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="LAYOUT[,KEY=VALUE]", help="For roles: what to probe, such as 64e2a; repeat for several."),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE",
            help="For roles: scan this one, or several together (embedding+readout). Default: each in turn.",
        ),
    ] = None,
    seeds: Seeds = None,
    span: Span = None,
    octaves: Octaves = None,
    per_octave: PerOctave = None,
    overrides: Overrides = None,
    executor: ExecutorName = "processes",
    workers: Workers = None,
    address: Address = None,
    replicas: Replicas = None,
    known: Known = None,
    trust_known: Trust = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed points again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run; train nothing.")] = False,
    out: Annotated[Path | None, typer.Option(help="The sweep's folder. Default: runs/TASK-FIGURE-SCALE.")] = None,
) -> None:
    """Scan a hyperparameter on every layout of a figure.

    A figure is a named set of layouts. The transferred value is in the middle of each scan. Runs of one shape train
    together in one program. If it is killed, run the same command again to continue; nothing runs twice. `mue report`
    then says whether the transfer held.

    `mue sweep roles` scans the learning rate of one role at a time, with all others at the plan's value. It names the
    tensors that need another value.

    \b
    Examples:
      mue sweep activated --rules complete_mue --rules sp
      mue sweep shorter --set duration=fixed
      mue sweep roles --target 16e2a --role expert_up --role expert_down
    """
    need_torch("mue sweep")
    for name in rules or ():
        Rules(name)
    if figure.endswith(".toml") and (task, scale) != (None, None):
        given = f"--scale {scale}" if task is None else f"--task {task}"
        raise RunError(f"{figure}: {given} is for named figures; the recipe and overrides there say task and size")
    from complete_mue import __version__
    from complete_mue.lab.records import Ledger
    from complete_mue.lab.sweep.request import SweepRequest, refuse_failures

    request = SweepRequest(
        figure, "lm" if task is None else task, "tiny" if scale is None else scale, reference, rules, hyper, target,
        role, seeds, _reach(span, octaves), per_octave, overrides,
    )  # fmt: skip
    folder = out or request.folder
    if dry_run:
        _describe(
            request.sweep(), _launch(executor, workers, address, replicas, known, trust_known), folder, retry_failed
        )
        return
    asked = {**request.to_dict(), "version": __version__}
    if not _already_done(folder, asked, retry_failed):
        sweep = request.sweep()  # what cannot be swept is refused before torch is loaded
        launch = _launch(executor, workers, address, replicas, known, trust_known)
        points = _run(launch, sweep, folder, request=asked, retry_failed=retry_failed)
        if len(Ledger(folder).failures(points)) < len(points):
            _report(folder)
        refuse_failures(folder, points, "--retry-failed")


@app.command("tune")
def tune_command(
    task: Annotated[str, typer.Argument(metavar="TASK", help="lm or dit.")] = "lm",
    scale: Annotated[str, typer.Option(help=_SCALES)] = "tiny",
    hyper: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="What to scan, in order. Default: lr, weight_decay, init_std, lr."),
    ] = None,
    seeds: Seeds = None,
    span: Span = None,
    per_octave: Annotated[int, typer.Option(min=1, help="Values per factor of two.")] = 1,
    overrides: Overrides = None,
    executor: Annotated[
        str | None,
        typer.Option(
            help="processes, here (in this process) or ray. Default: processes; on a GPU here, to compile once."
        ),
    ] = None,
    workers: Workers = None,
    address: Address = None,
    replicas: Replicas = None,
    known: Known = None,
    trust_known: Trust = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run; train nothing.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for all results. Default: runs/TASK-tune-SCALE.")] = None,
) -> None:
    """Tune the dense reference and write reference.toml.

    Scans learning rate, weight decay and init std, and widens a scan whose best value is at its edge. With two or more
    seeds, it says how well each optimum is known. `mue plan` and `mue sweep --reference` read the file.

    Example:  mue tune lm --scale tiny --hyper lr
    """
    need_torch("mue tune")
    from complete_mue.lab.records.schema import HYPERS
    from complete_mue.lab.sweep.figures import SEEDS, base_config
    from complete_mue.lab.sweep.tune import first_scans, tune

    base = base_config(task, scale, None, overrides or ())
    folder = out or Path("runs") / f"{task}-tune-{scale}"
    options: dict[str, Any] = {
        "scale": scale, "hypers": tuple(hyper or (*HYPERS, "lr")), "span": span or (3 if scale == "tiny" else 4),
        "per_octave": per_octave, "seeds": range(seeds) if seeds else SEEDS[scale],
    }  # fmt: skip
    scans = first_scans(base, **options)  # what cannot be scanned is refused before torch is loaded
    if dry_run:
        launch = _launch(executor or "processes", workers, address, replicas, known, trust_known)
        for sweep in scans:
            _describe(sweep, launch)
        print_text(
            "Each scan starts from what the ones before it found. It is widened if its best value is at an edge."
        )
        return
    from complete_mue.lab.train.trainer import pick_device

    executor = executor or ("here" if pick_device(base.device).type == "cuda" and not workers else "processes")
    launch = _launch(executor, workers, address, replicas, known, trust_known)
    _, found = tune(base, folder, partial(run_whole, launch), **options)
    for tuned in found:
        print(tuned.says)
        for doubt in tuned.doubts:
            warn(f"{tuned.hyper}: {doubt}")
    print(f"wrote {folder / 'reference.toml'}; see `mue report {folder}`")


def _reach(span: int | None, octaves: str | None) -> int | tuple[float, float] | None:
    """``--span`` or ``--octaves``, whichever is given."""
    if octaves is None:
        return span
    low, _, high = octaves.partition(":")
    try:
        found = float(low), float(high)
    except ValueError:
        found = math.nan, math.nan
    if span is not None or not -20 <= found[0] < found[1] <= 20:
        raise RunError(f"--octaves {octaves}: give LOW:HIGH, LOW first, such as -2.5:0.5, and leave out --span")
    return found


def _launch(
    executor: str, workers: int | None, address: str | None, replicas: int | None, known: list[Path] | None, trust: bool
) -> Launch:
    from complete_mue.lab.sweep.known import Known
    from complete_mue.lab.sweep.launch import Launch

    return Launch(executor, workers, address, replicas, Known(known or (), trusted=trust))


def _run(launch: Launch, sweep: Sweep, folder: Path, **options: Any) -> list[str]:
    from complete_mue.lab.sweep.launch import as_typed

    with shown(sweep.title) as show:
        return launch.run(sweep, folder, command=as_typed(sys.argv[1:]), show=show, warn=warn, **options)


def run_whole(launch: Launch, sweep: Sweep, folder: Path) -> None:
    """Run all of a sweep, what failed before too, or end with the cause: what follows needs every point."""
    from complete_mue.lab.sweep.request import refuse_failures

    refuse_failures(folder, _run(launch, sweep, folder, retry_failed=True), "the same command")


def _already_done(folder: Path, request: dict[str, Any], retry_failed: bool) -> bool:
    from complete_mue.lab.sweep.request import refuse_failures, settled

    points = settled(folder, request, retry_failed=retry_failed)
    if points is not None:
        print(f"nothing to do: all {len(points)} points of {folder} are done; see `mue report {folder}`")
        refuse_failures(folder, points, "--retry-failed")
    return points is not None


def _describe(sweep: Sweep, launch: Launch, folder: Path | None = None, retry_failed: bool = False) -> None:
    """What would run; of what ``folder`` and known sweeps hold, nothing."""
    from complete_mue.lab.sweep.cost import FITTED, sweep_seconds, vocabulary
    from complete_mue.lab.sweep.grid import fusible, pinned_sweep
    from complete_mue.lab.train.gpus import GPUS

    points, left = sweep.points, list(sweep.points)
    tokens = sum(point.config.budget.tokens for point in points)
    shapes = counted(len(list(fusible(points))), "shape")
    print_text(f"{sweep.title}: {counted(len(points), 'run')} of {shapes}, {tokens:,} tokens in all")
    for target in sweep.targets:
        shape, budget = target.config.shape, target.config.budget
        number = sum(point.target == target.name for point in points)
        print_text(
            f"  {target.name}: {counted(number, 'run')}, {shape.parameters.active:,} active of "
            f"{shape.parameters.total:,} weights, {budget.steps:,} steps of {budget.batch_tokens:,} tokens"
        )
    for scan in sweep.scans:
        print_text(f"  {scan.hyper}: {', '.join(f'{value:.4g}' for value in scan.values)}")
    if folder is not None:
        left = launch.left(pinned_sweep(sweep), folder, retry_failed)
    if len(left) < len(points):
        print_text(f"  {len(points) - len(left)} of {len(points)} runs are done: {len(left)} left")
    if not left:
        return
    here = _gpu()
    gpu = f"this {here}" if any(name in here for name in GPUS) else f"one NVIDIA {FITTED}"
    print_text(f"  about {math.ceil(sweep_seconds(left, gpu, launch.replicas) / 60)} min on {gpu}")
    try:
        vocabulary(points[0].config)
    except MueError as missing:
        print_text(f"  That is for bytes, since the vocabulary is not known: {missing}")


def _gpu() -> str:
    """The GPU's name, or nothing; torch is loaded only where there may be one."""
    if not Path("/proc/driver/nvidia").exists():
        return ""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def _report(folder: Path) -> None:
    from complete_mue.lab.report.summary import summarize
    from complete_mue.lab.report.write import write_report

    summary = summarize(folder)
    write_report([summary], folder)
    show(summary, console())
    print(f"report: {folder / 'report.html'}")
