"""`mue eval`, `mue export` and `mue speedup`."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from complete_mue.cli.app import app, console, need_run, need_torch, warn
from complete_mue.errors import RunError
from complete_mue.storage import make_folder, refuse_links, write_json

STOCK = "hf:"
Opened = Callable[[Path], tuple[Any, dict[str, str]]]
_MODEL = ("checkpoint", "--out", "--device", "--precision", "--batch-tokens")
_WAYS = {  # beside scoring with the harness, and what each takes
    "--requests-out": ("--data", "--tasks", "--shots", "--limit"),
    "--requests": _MODEL,
    "--answers": ("--data", "--tasks", "--out", "--json"),
    "--held-out": (*_MODEL, "--source", "--json"),
}


@app.command("eval")
def eval_command(
    ctx: typer.Context,
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|hf:PATH", help="A language model's run directory, or a Hugging Face model's folder."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the evaluation sets: NAME.jsonl or NAME.jsonl.xz.")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="Only these tasks, such as mmlu,arc_easy.")] = None,
    shots: Annotated[int, typer.Option(min=0, help="Examples before each question.")] = 5,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N questions of each task.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results. Default: RUN/eval.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str, typer.Option(help="auto (the run's own on CUDA), float32 or bfloat16.")] = "auto",
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens per batch. Default: 65536 on CUDA, 4096 on CPU.")
    ] = None,
    held_out: Annotated[
        bool,
        typer.Option("--held-out", help="Measure the loss on held-out text or pictures; writes OUT/held_out.json."),
    ] = False,
    source: Annotated[
        str | None, typer.Option(help="--held-out of a diffusion model: pictures that it has not seen.")
    ] = None,
    requests_out: Annotated[
        Path | None, typer.Option(help="Write the questions to a file; no model is needed.")
    ] = None,
    requests: Annotated[
        Path | None, typer.Option(help="Answer a file of questions, without the harness; writes OUT/answers.jsonl.xz.")
    ] = None,
    answers: Annotated[Path | None, typer.Option(help="Score a file of answers; no model is needed.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="hf: run the code in the model's folder.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a language model on the paper's 13 tasks.

    Uses lm-evaluation-harness and local files. Finished tasks are kept: run the same command again to continue.

    \b
    Examples:
      mue eval runs/moe --data evals --tasks arc_easy,piqa --limit 100
      mue eval runs/moe --held-out
      mue eval runs/dit --held-out --source unseen.npz

    If the model is on a machine without the harness, write the questions here, answer them there, and score them here:

    \b
      mue eval --data evals --requests-out q.xz
      mue eval runs/moe --requests q.xz
      mue eval --data evals --answers answers.jsonl.xz --out results
    """
    _refuse_unused(ctx)
    need_torch("mue eval")
    if held_out and checkpoint is not None and checkpoint.startswith(STOCK):
        raise RunError(f"{checkpoint} with --held-out: only our runs know their held-out text; give a run's directory")
    if source is not None and not held_out:
        raise RunError("--source is for --held-out: add it, or leave --source out")
    names = None if tasks is None else tasks.split(",")

    def opened(run: Path) -> tuple[Any, dict[str, str]]:
        from complete_mue.lab.evals.run import open_run

        return open_run(run, device=device, precision=precision, batch_tokens=batch_tokens, warn=warn)

    with _progress() as (progress, said):
        if requests_out is not None:
            _ask(requests_out, _given(data, "--data"), names, shots, limit, said)
            return
        if requests is not None:
            _answer(Path(_given(checkpoint, "a run's directory")), requests, out, opened, progress)
            return
        report: Any
        if held_out:
            run = Path(_given(checkpoint, "a run's directory"))
            if type(need_run(run).task).__name__ == "PictureTask":
                if precision != "auto" or batch_tokens is not None:
                    raise RunError(f"{run} draws pictures: leave out --precision, --batch-tokens")
                report = _held_out_flow(run, out, source, device, progress)
            elif source is not None:
                raise RunError(f"{run} writes text, whose held-out part is in its data: leave out --source")
            else:
                report = _held_out(run, out, opened, progress)
        elif answers is not None:
            from complete_mue.lab.evals.run import evaluate_answers

            report = evaluate_answers(answers, _given(data, "--data"), _given(out, "--out"), names, said)
        else:
            from complete_mue.lab.evals.harness import adapter, need_harness, stock_adapter
            from complete_mue.lab.evals.run import Settings, evaluate_model, folder_checksum
            from complete_mue.lab.evals.tasks import select

            given = _given(checkpoint, "a run's directory or hf:PATH")
            settings = Settings(_given(data, "--data"), shots, limit)
            need_harness()
            chosen, folder = select(names), Path(given.removeprefix(STOCK))
            if given.startswith(STOCK):
                if not folder.is_dir():
                    raise RunError(f"{given}: no such folder; give a Hugging Face model's folder after {STOCK}")
                lm = stock_adapter(str(folder), device, trust_remote_code)
                model = {"name": str(folder), "weights": folder_checksum(folder)}
            else:
                scorer, model = opened(folder)
                lm = adapter(scorer, progress)
            report = evaluate_model(lambda task: lm, model, chosen, settings, _place(out, folder), said)
    print(jsonlib.dumps(report.to_dict(), indent=2) if json else report.to_text())


def _refuse_unused(ctx: typer.Context) -> None:
    """Options that the asked way of evaluating would not read."""
    source = {option.opts[0]: ctx.get_parameter_source(str(option.name)) for option in ctx.command.params}
    given = [option for option, where in source.items() if where is not None and where.name == "COMMANDLINE"]
    for way, takes in _WAYS.items():
        if way in given:
            if unused := [option for option in given if option not in (way, *takes)]:
                names = ["RUN" if option == "checkpoint" else option for option in unused]
                raise RunError(f"with {way} some options would be ignored: leave out {', '.join(names)}")
            return


def _given(value: Any, what: str) -> Any:
    if value is None:
        raise RunError(f"give {what} (see `mue eval --help`)")
    return value


def _place(out: Path | None, folder: Path) -> Path:
    """Where results go: what was asked for, else into the model's own folder."""
    if out is None:
        refuse_links(folder, ("eval",))
    return out or folder / "eval"


def _ask(
    path: Path, data: Path, names: list[str] | None, shots: int, limit: int | None, said: Callable[[str], None]
) -> None:
    from complete_mue.lab.evals.harness import need_harness
    from complete_mue.lab.evals.requests import build, write_requests
    from complete_mue.lab.evals.tasks import select

    need_harness()
    built = []
    for task in select(names):
        said(f"{task.title}: {shots}-shot")
        built.append(build(task, data, shots, limit))
    write_requests(path, {"shots": shots, "limit": limit}, built)
    print(f"{sum(len(task.questions) for task in built):,} questions of {len(built)} tasks in {path}")


def _answer(run: Path, requests: Path, out: Path | None, opened: Opened, progress: Any) -> None:
    if str(run).startswith(STOCK):
        raise RunError(f"{run} with --requests: only our runs can answer without the harness; leave --requests out")
    need_run(run)
    from complete_mue.lab.evals.requests import answer_requests

    path = _place(out, run) / "answers.jsonl.xz"
    answer_requests(requests, path, *opened(run), progress)
    print(f"answers in {path}")


def _held_out(run: Path, out: Path | None, opened: Opened, progress: Any) -> Any:
    from complete_mue.lab.evals.held_out import held_out_loss

    folder, (scorer, model) = _place(out, run), opened(run)
    found = held_out_loss(need_run(run), scorer, model["step"], progress("held-out text"))
    make_folder(folder)
    write_json(folder / "held_out.json", {"model": model, **found.to_dict()})
    return found


def _held_out_flow(run: Path, out: Path | None, source: str | None, device: str, progress: Any) -> Any:
    from complete_mue.lab.evals.held_out import held_out_flow
    from complete_mue.lab.train.sample import load_run
    from complete_mue.lab.train.trainer import pick_device

    folder, place = _place(out, run), pick_device(device)
    config, model, step = load_run(run, warn)
    found = held_out_flow(config, model.to(place), step, source, progress("held-out pictures"))
    make_folder(folder)
    write_json(folder / "held_out.json", {"model": {"name": config.name, "step": step}, **found.to_dict()})
    return found


@contextmanager
def _progress() -> Iterator[tuple[Callable[[str], Callable[[int, int], None]], Callable[[str], None]]]:
    """A bar of questions answered, and a line per task, on stderr."""
    import sys

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    notes = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notes, disable=not sys.stderr.isatty(), transient=True) as bar:

        def progress(what: str) -> Callable[[int, int], None]:
            for earlier in bar.task_ids:
                bar.remove_task(earlier)
            task = bar.add_task(what, total=None)
            return lambda done, total: bar.update(task, completed=done, total=total)

        yield progress, notes.print


@app.command("export")
def export_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A language model's run directory.")],
    hf: Annotated[Path, typer.Option(help="A new folder for the Hugging Face model.")],
) -> None:
    """Write a language model as a Hugging Face folder.

    It holds safetensors, config, tokenizer and modeling code; the plan's multipliers are folded into the weights. Load
    it with AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True).

    Example:  mue export runs/moe --hf exported/moe
    """
    need_torch("mue export")
    need_run(run)
    from complete_mue.lab.train.huggingface import export_huggingface

    print(f"wrote {export_huggingface(run, hf, warn)}")


@app.command("speedup")
def speedup_command(
    reference: Annotated[Path, typer.Argument(metavar="RUN_A", help="The baseline, such as the dense run.")],
    target: Annotated[Path, typer.Argument(metavar="RUN_B", help="The run to compare with it, such as the MoE.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the JSON and pictures. Default: RUN_B.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare two runs: how many steps each takes to the same loss.

    Prints the steps of RUN_A divided by the steps of RUN_B to the same smoothed loss, in the stable phases of both.

    Example:  mue speedup runs/dense runs/moe
    """
    need_torch("mue speedup")
    from complete_mue.lab.evals.speedup import compare, draw, to_dict, to_text

    found = compare(reference, target)
    folder = out or target
    make_folder(folder)
    write_json(folder / "speedup.json", to_dict(found))
    ratio, loss = draw(found, folder / "speedup.svg")
    print(jsonlib.dumps(to_dict(found), indent=2) if json else to_text(found))
    if not json:
        print(f"wrote {folder / 'speedup.json'}, {ratio} and {loss}")
