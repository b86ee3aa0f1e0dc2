"""`mue train` and `mue sample`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from complete_mue.cli.app import app, console, need_run, need_torch, print_text, warn
from complete_mue.cli.sweep_progress import bar, clock
from complete_mue.errors import RunError


@app.command("train")
def train_command(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE[:LAYOUT]", help="lm_tiny, lm_tiny:16e4a, dit_tiny, lm_proxy, …")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="budget.steps=300, seed=1, …; docs/train.md lists all."),
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="A tuned reference.toml to transfer from, written by `mue tune`.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's directory. Default: runs/NAME.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint in --out; you may leave out RECIPE.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start over in --out; files of an earlier run are moved to before-1/.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print shape, parameters, plan, memory and FLOPs; train nothing.")
    ] = False,
) -> None:
    """Train a language or diffusion model from a recipe.

    A recipe is a complete config; KEY=VALUE changes it. Ctrl-C and SIGTERM save a checkpoint first. --resume continues
    bit for bit, as if nothing had happened. On several GPUs start it with torchrun: only the first rank prints, and
    ranks that torchrun restarts continue.

    \b
    Examples:
      mue train lm_tiny:16e4a budget.steps=200 duration=fixed --out runs/moe
      torchrun --nproc-per-node 8 -m complete_mue train lm_large --resume \\
        task.source=DATA expert_parallel=8
    """
    need_torch("mue train")
    from complete_mue.lab.recipes import RECIPES, configured
    from complete_mue.lab.train.config import pinned, read_config

    if resume and restart:
        raise RunError("--resume continues and --restart starts over: give one of them")
    if recipe is not None and "=" in recipe:
        raise RunError(
            f"{recipe!r} without a recipe before it: name one, such as lm_tiny; a run that goes on as it was started "
            "takes --resume --out DIR alone"
        )
    if recipe is not None:
        config = configured(recipe, overrides or (), reference)
    elif (resume or restart) and out is not None and reference is None:
        config = read_config(out / "config.json")
        config = config.unpinned if restart else config
    else:
        raise RunError(f"no recipe: give one of {', '.join(RECIPES)}, or --resume --out DIR to continue a run")
    _ = config.plan, config.schedule  # what cannot be planned is refused before torch is loaded
    from complete_mue.lab.train.estimate import Machine, estimate
    from complete_mue.lab.train.loop import check_config, train_on_ranks
    from complete_mue.lab.train.parallel import check_dealing
    from complete_mue.lab.train.trainer import pick_device

    pick_device(config.device)
    first, ranks = os.environ.get("RANK", "0") == "0", int(os.environ.get("WORLD_SIZE", "1"))
    check_dealing(ranks, config.expert_parallel, config.shape)
    run = out or Path("runs") / config.name
    if dry_run:
        if resume:
            check_config(run, pinned(config), warn)
        if "RANK" not in os.environ:
            _dry_run(config)
        elif first:
            print(f"{config.name}\n{estimate(config, ranks, Machine()).memory()}")
        return
    with _progress(config, shown=first and sys.stderr.isatty()) as (report, said):
        result = train_on_ranks(config, run, resume=resume, restart=restart, report=report, warn=said)
    if first:
        together = f" on {ranks} ranks" if "RANK" in os.environ else ""
        loss = "" if result.loss is None else f", loss {result.loss:.4f}"
        print(f"{result.status} after {result.steps} steps{together}{loss}\nin {run}")
    if result.status != "finished":
        raise typer.Exit(3 if result.status == "diverged" else 130)


def _dry_run(config: Any) -> None:
    import torch

    from complete_mue.lab.train.flops import Cost
    from complete_mue.lab.train.task import build

    with torch.device("meta"):
        task = build(config)
    if task.warning:
        warn(task.warning)
    parameters = sum(p.numel() for p in task.model.parameters())
    cost, budget = Cost.of(config, task), config.budget
    total = cost.flops_per_token * budget.tokens
    print_text(f"{config.name}: {parameters:,} parameters, {budget.tokens:,} tokens in {budget.steps:,} steps")
    copies = " and the experts' bfloat16 copies" if cost.state_bytes > 16 * parameters else ""
    rows = config.rows // config.accumulate
    print_text(
        f"memory {cost.state_bytes / 2**30:.2g} GiB for float32 weights, gradients and moments{copies}; activations of "
        f"{rows * task.sequence:,} tokens ({config.accumulate} micro-batches of {rows} rows) come on top"
    )
    print_text(f"compute {cost.flops_per_token:.3g} FLOP per token, {total:.3g} FLOP in all")
    if task.steps is not None:
        short = "" if task.steps >= budget.steps else ": TOO FEW; give more data, fewer steps, or task.epochs=repeat"
        print_text(f"data {config.task.source} holds {task.steps:,} steps{short}")
    schedule = config.schedule
    print_text(f"schedule warmup {schedule.warmup}, decay {schedule.decay} of {schedule.steps} steps")
    print(config.plan)


@contextmanager
def _progress(config: Any, *, shown: bool) -> Iterator[tuple[Callable[[dict[str, Any]], None], Callable[[str], None]]]:
    """A bar with loss, time left, tokens per second and utilisation; a line per report where it is not shown."""
    from rich.live import Live

    steps = config.budget.steps
    if not shown:
        yield (
            lambda line: _say(f"step {line['step'] + 1}/{steps}  {_facts(line)}"),
            lambda text: _say(f"warning: {text}"),
        )
        return
    notes = console(stderr=True, soft_wrap=True)
    with Live(_live(config.name, 0, steps), console=notes, refresh_per_second=4) as view:
        yield (
            lambda line: view.update(_live(config.name, line["step"] + 1, steps, _facts(line))),
            lambda text: notes.print(f"warning: {text}"),
        )


def _say(text: str) -> None:
    """A line on stderr; if its reader has left, the run goes on without a word."""
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _live(name: str, step: int, steps: int, facts: str = "") -> Any:
    """One line of any terminal."""
    from rich.text import Text

    return Text(f"{name} {bar(step / steps)} {step}/{steps}  {facts}", no_wrap=True, overflow="ellipsis")


def _facts(line: dict[str, Any]) -> str:
    """What matters most first: a narrow terminal cuts off the end."""
    parts = [f"loss {line['loss']:.4f}"]
    if "seconds_left" in line:
        parts.append(f"{clock(line['seconds_left'])} left")
    if "tokens_per_second" in line:
        parts.append(f"{line['tokens_per_second']:,.0f} tokens/s")
    if "mfu" in line:
        parts.append(f"MFU {line['mfu']:.1%}")
    return "  ".join(parts)


@app.command("sample")
def sample_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")],
    prompt: Annotated[str, typer.Option(help="Text to continue, or a caption to draw.")] = "",
    count: Annotated[
        int | None, typer.Option(min=1, help="Tokens to write (default 200) or pictures to draw (16).")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Text: 0 always takes the likeliest token. Default: 0.8.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Pictures: solver steps. Default: 30.")] = None,
    guidance: Annotated[
        float | None, typer.Option(help="Pictures: strength of guidance; 1 is none. Default: 2.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Another seed gives another sample.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Pictures: a .png; video: a .gif or .mp4. Default: in RUN.")] = None,
    autoencoder: Annotated[
        str | None, typer.Option(help="Where to find the autoencoder now, if its latents were cached.")
    ] = None,
    text_encoder: Annotated[
        str | None, typer.Option(help="Where to find the text encoder now, if its features were cached.")
    ] = None,
) -> None:
    """Write text or draw pictures with a trained model.

    A language model writes text; a diffusion model draws a grid of pictures, or a GIF or MP4 of video.

    Example:  mue sample runs/lm_tiny-dense --prompt "def main(" --count 200
    """
    for option, value in (("--temperature", temperature), ("--guidance", guidance)):
        if value is not None and not math.isfinite(value):
            raise RunError(f"{option} {value}: give a finite number")
    need_torch("mue sample")
    text = type(need_run(run).task).__name__ == "TextTask"
    pictures = {
        "--steps": steps, "--guidance": guidance, "--out": out, "--autoencoder": autoencoder,
        "--text-encoder": text_encoder,
    }  # fmt: skip
    others = pictures if text else {"--temperature": temperature}
    if given := [option for option, value in others.items() if value is not None]:
        raise RunError(f"{run} {'writes text, on stdout' if text else 'draws'}: leave out {', '.join(given)}")
    from complete_mue.lab.train.sample import draw_pictures, load_run, write_text
    from complete_mue.lab.train.trainer import pick_device

    place = pick_device(device)
    config, model, _ = load_run(run, warn)
    model = model.to(place)
    if text:
        warmth = 0.8 if temperature is None else temperature
        print(write_text(config, model, prompt or "\n", count or 200, warmth, seed))
        return
    path = draw_pictures(
        config, model, prompt, count or 16, out or run / "sample", steps=steps or 30,
        guidance=2.0 if guidance is None else guidance, seed=seed, autoencoder=autoencoder, text_encoder=text_encoder,
    )  # fmt: skip
    print(f"wrote {path}")
