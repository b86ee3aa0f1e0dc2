"""The command `mue`: parse, call, print. Every error is one line on stderr and exit status 2."""

from __future__ import annotations

import json as jsonlib
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from complete_mue.errors import FileError, MueError
from complete_mue.export import EXPORTS
from complete_mue.export import export as export_plan
from complete_mue.layout import FeedForward, ModelShape, read_reference, read_target
from complete_mue.plan import Plan, transfer
from complete_mue.rules import CATALOG

# typer's own usage errors; some versions of typer carry click inside, so the class is taken from where both have it.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="mue",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Tune one small dense model once, then transfer its hyperparameters to any Mixture-of-Experts layout.\n\n"
    "Start with:  mue plan examples/lm_reference.toml examples/lm_large.toml",
)


class Format(StrEnum):
    """How a plan is printed."""

    table = "table"
    json = "json"
    markdown = "markdown"
    csv = "csv"


class BetasChoice(StrEnum):
    """What happens to AdamW's betas."""

    transfer = "transfer"
    hold = "hold"


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        from complete_mue import __version__

        print(__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command("plan")
def plan_command(
    reference: Annotated[
        Path, typer.Argument(metavar="REFERENCE.toml", help="The tuned model: tables shape, budget, hyper.")
    ],
    target: Annotated[Path, typer.Argument(metavar="TARGET.toml", help="The model to train: tables shape, budget.")],
    fold: Annotated[
        bool, typer.Option("--fold", help="Folded form: the same run without multipliers in the model.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Derive every number in words and symbols.")] = False,
    role: Annotated[
        str | None, typer.Option("--role", help="With --explain: this role only, such as expert_down.")
    ] = None,
    format: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.table,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    export: Annotated[
        str | None, typer.Option("--export", help=f"The plan as a config of another tool: {', '.join(EXPORTS)}.")
    ] = None,
    rules: Annotated[str, typer.Option("--rules", help=f"Which rule set: {', '.join(CATALOG)}.")] = "complete_mue",
    betas: Annotated[
        BetasChoice, typer.Option("--betas", help="Transfer AdamW's betas, or hold the reference's.")
    ] = BetasChoice.transfer,
) -> None:
    """Transfer a tuned reference to a target: learning rate, weight decay, init and multipliers per role.

    Example:  mue plan examples/lm_reference.toml examples/lm_large.toml --explain --role expert_down
    """
    tuned = read_reference(reference)
    shape, budget = read_target(target)
    plan = transfer(tuned, shape, budget, rules=rules, betas=betas.value)
    plan = plan.fold() if fold else plan
    if export is not None:
        print(export_plan(plan, export), end="")
    elif explain or role is not None:
        _print_text(plan.explain(role))
    elif json or format is Format.json:
        print(plan.to_json())
    elif format is Format.markdown:
        print(plan.to_markdown())
    elif format is Format.csv:
        print(plan.to_csv(), end="")
    else:
        _print_table(plan)


def _print_table(plan: Plan) -> None:
    """Fit the terminal, 100 columns where there is none."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        print(plan)
    else:
        console.print(plan)


def _print_text(text: str) -> None:
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


@app.command("layout")
def layout_command(
    notation: Annotated[str, typer.Argument(metavar="LAYOUT", help="dense, 64e8a, 128e8a4g1s, dense@512+32e2a@256, …")],
    width: Annotated[int, typer.Option("--width", help="Residual width d.")],
    expert_width: Annotated[
        int | None, typer.Option("--expert-width", help="Width of one expert (dense: of the FFN).")
    ] = None,
    depth: Annotated[int, typer.Option("--depth", help="Layers, for the parameter counts.")] = 1,
    dense_layers: Annotated[
        int, typer.Option("--dense-layers", help="First layers dense at the same active width.")
    ] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What a layout means: active width, multiplier against a unit-expansion FFN, route scale, density, parameters.

    Example:  mue layout 128e8a4g1s --width 1024 --expert-width 512 --depth 32
    """
    if expert_width is None and notation.strip() == "dense":
        expert_width = width
    shape = ModelShape(width, depth, FeedForward.parse(notation, expert_width), dense_layers)
    block, parameters = shape.main, shape.parameters
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
    }
    if json:
        print(jsonlib.dumps(facts, indent=2))
        return
    print(f"{block}  at d = {width}" + (f", {depth} layers" if depth > 1 else ""))
    if block.groups:
        groups = f" in {len(block.groups)} groups" if len(block.groups) > 1 else ""
        shared = f", beside {sum(block.branches)} shared width" if block.branches else ""
        print(f"  {block.active} of {block.experts} experts{groups}{shared}; density a/N = {block.density:.6g}")
    print(f"  active width H = {block.active_width}   expansion H/d = {shape.expansion:.6g}")
    print(f"  multiplier A = d/H = {width / block.active_width:.6g}   (against a reference of unit expansion)")
    print(f"  route scale r = {block.route_scale}")
    print(f"  parameters {parameters.active:,} active, {parameters.total:,} total, without embeddings")


@app.command("check")
def check_command(
    axis: Annotated[
        list[str] | None, typer.Option("--axis", help="An axis to walk along; repeat for several. Default: all.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="MODULE:FUNCTION", help="Your own setup, build(plan) -> mue.Setup. Default: our LM."
        ),
    ] = None,
    rules: Annotated[str, typer.Option("--rules", help=f"Which rule set: {', '.join(CATALOG)}.")] = "complete_mue",
    steps: Annotated[int, typer.Option("--steps", min=1, help="AdamW steps to take at each point.")] = 4,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0.0, help="Largest slope on log axes that counts as flat.")
    ] = 0.3,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for check.json and check.png.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that a training setup follows its plan: activations, updates, realized lr, weight decay and eps, routing.

    Exit status 0 if all holds, 1 if something moves or is not as planned.

    Example:  mue check --axis width --axis active --out runs/check
    """
    _need_torch("mue check")
    from rich.console import Console

    from complete_mue.apply.axes import AXES, axis_points
    from complete_mue.apply.check_report import tables, write
    from complete_mue.apply.checks import check
    from complete_mue.models.setup import language_model_setup

    build = _named_function(model) if model else language_model_setup
    console, notes = Console(highlight=False, markup=False), Console(stderr=True, highlight=False)
    axes = axis or list(AXES)
    for name in axes:
        axis_points(name)
    with notes.status("checking") as status:
        result = check(build, axes, rules=rules, steps=steps, tolerance=tolerance, progress=status.update)
    if json:
        print(jsonlib.dumps(result.to_dict(), indent=2))
    else:
        for part in tables(result):
            console.print(part)
    if out is not None:
        for path in write(result, out):
            notes.print(f"wrote {path}")
    if not result.ok:
        raise typer.Exit(1)


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
    _need_torch("mue bench")
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


def _need_torch(command: str) -> None:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise MueError(f"{command} needs torch: install it with `pip install 'complete-mue[torch]'`")


def _named_function(name: str) -> Any:
    """`package.module:function`, imported from the working directory or the installed packages."""
    import importlib

    module, _, function = name.partition(":")
    if not module or not function:
        raise FileError(f"--model {name!r}: give MODULE:FUNCTION, such as my_package.training:build")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as problem:
        raise FileError(f"--model {name!r}: {problem}; give an importable MODULE:FUNCTION") from None


def main() -> None:
    """Entry point: our errors and usage errors become one line on stderr and status 2."""
    try:
        status = app(standalone_mode=False)
    except typer.Exit as leaving:
        status = leaving.exit_code
    except MueError as problem:
        status = _fail(str(problem))
    except (typer.Abort, KeyboardInterrupt):
        status = 130
    except UsageError as problem:
        context = getattr(problem, "ctx", None)
        status = _fail(f"{_message(problem)}  (see `{context.command_path if context else 'mue'} --help`)")
    except BrokenPipeError:  # the reader of our output left, as `head` does
        sys.stderr.close()
        status = 0
    except OSError as problem:
        status = _fail(str(FileError(f"{problem.filename or 'file'}: {problem.strerror or problem}")))
    sys.exit(status if isinstance(status, int) else 0)


def _message(problem: Exception) -> str:
    formatted = getattr(problem, "format_message", None)
    return str(formatted() if formatted else problem)


def _fail(message: str) -> int:
    print(f"mue: error: {' '.join(message.split())}", file=sys.stderr)
    return 2
