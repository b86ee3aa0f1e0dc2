"""The training loop: steps, metrics, checkpoints, signals. A run that is cut short resumes bit for bit."""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from complete_mue.errors import FileError, MueError, RunError
from complete_mue.lab.train import checkpoint
from complete_mue.lab.train.checkpoint_folder import refuse_obstacles
from complete_mue.lab.train.config import RunConfig, differences, pinned, read_config, refuse_other_data
from complete_mue.lab.train.flops import Meter
from complete_mue.lab.train.parallel import ALONE, Ranks, launched
from complete_mue.lab.train.run_folder import Metrics, read_metrics, set_aside, with_loss
from complete_mue.lab.train.schedule import last_window
from complete_mue.lab.train.trainer import Step, Trainer, pick_device
from complete_mue.layout.numbers import count
from complete_mue.storage import exclusive, read_json, refuse_links, write_json

__all__ = ["Result", "divergence", "last_window_loss", "repeated", "train"]


@dataclass(frozen=True)
class Result:
    """How a run ended: ``finished``, ``interrupted`` or ``diverged``; the loss is the mean over the last window."""

    status: str
    steps: int
    loss: float | None


Report = Callable[[dict[str, Any]], None]


def train(config: RunConfig, run: Path, *, resume: bool = False, restart: bool = False,
          report: Report = lambda line: None, warn: Callable[[str], None] = lambda text: None, ranks: Ranks = ALONE,
          device: torch.device | None = None) -> Result:  # fmt: skip
    """Train a config in a directory. ``resume`` continues from the newest sound checkpoint; ``restart`` starts over,
    with the files of an earlier run set aside.

    Of several ``ranks`` all call this; the first keeps the directory's records, and knows the loss.
    """
    try:
        return _train(pinned(config), run, resume, restart, report, warn, ranks, device)
    except BrokenPipeError:  # whoever listened to the report is gone
        raise
    except OSError as problem:
        raise RunError(
            f"{problem.filename or run}: {problem.strerror or problem}; fix that (a full disk, a folder that cannot "
            "be written) and resume: what was saved is kept"
        ) from None


# -- on all ranks that torchrun started: each has a GPU of its own, and ranks started again go on ---------------------


def train_on_ranks(
    config: RunConfig, run: Path, *, resume: bool, restart: bool, report: Report, warn: Callable[[str], None]
) -> Result:
    """Train on this rank together with the others; ``report`` is called on the first."""
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    if (resume or again) and (ended := divergence(run, config)) is not None:
        # torchrun counts a divergence as a failure and starts the ranks again: they must not repeat it.
        warn(repeated(run, ended, config))
        return ended
    device = local_device(config.device)
    with launched(config.expert_parallel, device) as ranks:
        return train(
            config, run, resume=resume or (restart and again), restart=restart and not again, report=report, warn=warn,
            ranks=ranks, device=device,
        )  # fmt: skip


def local_device(name: str) -> torch.device:
    """Each rank its own GPU of its machine."""
    device = pick_device(name)
    local = os.environ.get("LOCAL_RANK")
    return torch.device("cuda", int(local)) if device.type == "cuda" and local is not None else device


def _train(
    config: RunConfig, run: Path, resume: bool, restart: bool, report: Report, warn: Callable[[str], None],
    ranks: Ranks, device: torch.device | None,
) -> Result:  # fmt: skip
    if resume and (ended := divergence(run, config)) is not None:
        warn(repeated(run, ended, config))
        return ended
    with exclusive(run, "the run") if ranks.first else contextlib.nullcontext():
        if restart:
            if ranks.first:
                set_aside(run, warn)
            ranks.wait()
        if ranks.first:
            refuse_links(run, ("checkpoints", "tensorboard", "wandb"))
        refuse_obstacles(run)
        if not resume and checkpoint.Checkpoint.listed(run):
            raise RunError(
                f"{run} holds checkpoints already: resume that run (--resume), start over (--restart), or give "
                "another directory"
            )
        if resume:
            check_config(run, config, warn if ranks.first else lambda text: None)
        trainer = Trainer(config, device or pick_device(config.device), ranks=ranks)
        trainer.task.check_holds(config.budget)
        if trainer.task.warning and ranks.first:
            warn(trainer.task.warning)
        start = checkpoint.load_newest(run, config, trainer.model, trainer.optimizer, warn, ranks)
        if resume and not start and ranks.first:
            left = " and ".join(name for name in ("config.json", "metrics.jsonl") if (run / name).exists())
            but = f"; it holds {left} of an earlier run, but no checkpoint" if left else ""
            warn(f"nothing to resume in {run}: starting at step 1{but}")
        trainer.start()
        with _signals() as stopped:
            if not ranks.first:
                result = _steps(trainer, run, start, None, report, stopped)
                ranks.wait()  # for the record: torchrun ends all ranks as soon as one leaves with a failure
                return result
            write_json(run / "config.json", config.to_dict())
            write_json(run / "plan.json", trainer.plan.to_dict())
            with contextlib.closing(Metrics(run, start, config, warn)) as metrics:
                result = _steps(trainer, run, start, metrics, report, stopped)
        if start == config.budget.steps and (known := _recorded(run, config, "finished")) is not None:
            result = known  # what is left of the metrics may say less than they did then
        elif result.status == "finished" and result.loss is None:
            window = last_window(result.steps)
            warn(f"{run / 'metrics.jsonl'} lacks some of the last {window} steps: the run's loss is not known")
        write_json(run / "result.json", {**asdict(result), "fingerprint": config.fingerprint})
        if result.status == "diverged":
            warn(f"the loss is not finite from step {result.steps} on; {advice(config)}")
        ranks.wait()
        return result


def check_config(run: Path, config: RunConfig, warn: Callable[[str], None]) -> None:
    """Refuse to continue with another config than the directory's, and say where they differ."""
    if not checkpoint.Checkpoint.listed(run):
        return
    with contextlib.suppress(FileError):  # without a sound config.json, each checkpoint knows its config's fingerprint
        known = read_config(run / "config.json")
        if not known.task.data:
            warn(f"{run} is an older run, which does not name its data: continuing with {config.task.data}")
        refuse_other_data(str(run), config, known.task.data)
        if not config.is_known_as(known.fingerprint):
            found = differences(config, known)
            more = f" and {len(found) - 4} more" if len(found) > 4 else ""
            raise RunError(
                f"{run} belongs to another config ({'; '.join(found[:4])}{more}): `mue train --resume --out {run}` "
                "continues it, or give the new run a directory of its own"
            )


def divergence(run: Path, config: RunConfig) -> Result | None:
    """How this very config ended in the directory, if it diverged there: continued, it would only do so again."""
    return _recorded(run, config, "diverged")


def _recorded(run: Path, config: RunConfig, status: str) -> Result | None:
    """What result.json says of this very config, if it ended so."""
    with contextlib.suppress(MueError):
        record = read_json(run / "result.json", "result")
        if record.get("status") == status and pinned(config).is_known_as(str(record.get("fingerprint"))):
            loss = record.get("loss")
            return Result(
                status, count("steps", record.get("steps"), least=0), loss if isinstance(loss, float) else None
            )
    return None


def repeated(run: Path, ended: Result, config: RunConfig) -> str:
    """What to say instead of diverging once more."""
    return (
        f"{run} diverged at step {ended.steps} with this very config and would again, so nothing was trained: "
        f"{advice(config)}. Give it a directory of its own, or remove {run / 'result.json'} to try once more"
    )


def advice(config: RunConfig) -> str:
    """What to try with a config that diverged, the likeliest first."""
    lr = config.reference.hyper.lr
    steps = [f"a smaller learning rate, such as reference.hyper.lr={lr / 4:.2g} (it is {lr:.2g})"]
    if config.clip is None or config.clip > 1:
        steps.append(f"clip=1 (it is {'off' if config.clip is None else config.clip})")
    if config.warmup < 0.04:
        steps.append(f"a longer warmup, such as warmup=0.04 (it is {config.warmup:g})")
    if not config.qk_norm:
        steps.append("qk_norm=true, which keeps attention logits from growing")
    if config.precision != "float32":
        steps.append(f"precision=float32 (it is {config.precision})")
    return f"try {', then '.join(steps)}; the losses and gradient norms on the way are in metrics.jsonl"


def _steps(
    trainer: Trainer, run: Path, start: int, metrics: Metrics | None, report: Report, stopped: list[int]
) -> Result:
    config, steps, ranks = trainer.config, trainer.config.budget.steps, trainer.ranks
    meter, pending = Meter(config, trainer.task, trainer.device, ranks.world), list[Step]()
    for number in range(start, steps):
        logged, last = number % config.log_every == 0, number + 1 == steps
        pending.append(trainer.step(number, detailed=logged))
        leaving = ranks.any(bool(stopped))
        saving = (number + 1) % config.checkpoint_every == 0 or last or leaving
        if logged or saving:
            lines = _lines(pending)  # waits for the device
            lines[-1] |= {"lr": trainer.plan.hyper.lr * trainer.schedule.factor(number)}
            lines[-1] |= pending[-1].details() | meter.read(number + 1)
            pending.clear()
            if metrics is not None:
                metrics.write([_finite(line) for line in lines])
                report(lines[-1])
            broken = next((line["step"] for line in lines if not math.isfinite(line["loss"])), None)
            if broken is not None:
                return Result("diverged", broken, None)
        if saving:
            checkpoint.save(run, number + 1, config, trainer.model, trainer.optimizer, trainer.masters, ranks)
        if leaving and not last:
            return Result("interrupted", number + 1, None)
    return Result("finished", steps, last_window_loss(run, steps) if ranks.first else None)


def _lines(steps: list[Step]) -> list[dict[str, Any]]:
    """Loss and gradient norm of some steps, read from the device at once."""
    losses = torch.stack([step.loss for step in steps]).tolist()
    norms = [step.norm for step in steps if step.norm is not None]
    lines = [{"step": step.number, "loss": loss} for step, loss in zip(steps, losses, strict=True)]
    if norms:
        for line, norm in zip(lines, torch.stack(norms).tolist(), strict=True):
            line["grad_norm"] = norm
    return lines


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGTERM and Ctrl-C ask the loop to save and leave after the step; a second Ctrl-C ends it at once."""
    caught: list[int] = []

    def note(number: int, frame: Any) -> None:
        if caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        caught.append(number)

    try:
        old = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not the main thread: signals are somebody else's
        yield caught
        return
    try:
        yield caught
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def last_window_loss(run: Path, steps: int) -> float | None:
    """Mean training loss over the last window: with single-epoch data, an unbiased held-out loss. With gaps, None."""
    window = last_window(steps)
    losses = [line["loss"] for line in with_loss(read_metrics(run)) if steps - window <= line["step"] < steps]
    return sum(losses) / window if len(losses) == window else None


def _finite(line: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: what is not finite becomes null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
