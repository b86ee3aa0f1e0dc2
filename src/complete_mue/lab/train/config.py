"""A run as data: what is trained, on what, how. Recipes return one of these; the command line overrides single keys."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from complete_mue.errors import FileError, RunError, nearest, one_of
from complete_mue.lab.data.digest import picture_identity, text_identity
from complete_mue.lab.nn.router_config import RouterConfig
from complete_mue.lab.train.schedule import Schedule
from complete_mue.layout import Budget, FeedForward, ModelShape, Reference
from complete_mue.layout.numbers import count, real
from complete_mue.layout.reference import reference_from
from complete_mue.plan.plan import Plan
from complete_mue.plan.transfer import transfer
from complete_mue.rules import DEFAULT_RULES, Rules
from complete_mue.storage import read_json


@dataclass(frozen=True)
class TextTask:
    """Next-token prediction. ``source`` is ``stdlib`` (Python's own sources, bytes) or a prepared folder; ``data`` says
    what it must hold (data/digest.py), and is filled in when a run starts.
    """

    source: str = "stdlib"
    sequence: int = 256
    z_loss: float = 0.0
    epochs: str = "single"
    data: str = ""

    def __post_init__(self) -> None:
        count("task.sequence", self.sequence)
        real("task.z_loss", self.z_loss, positive=False)
        _check_data(self.source, self.epochs, self.data)

    def tokens_per_row(self) -> int:
        """Tokens that one row of a batch counts for."""
        return self.sequence


@dataclass(frozen=True)
class PictureTask:
    """Flow matching on captioned pictures.

    ``source`` is ``scenes``, ``shapes`` (simpler), ``sprites`` (video), captioned images (a folder, a .tar or a folder
    of them, an .npz), or a folder of cached features, whose latents ``size`` and ``frames`` then describe.
    ``data`` says what the source must hold, as of TextTask.
    """

    source: str = "scenes"
    size: int = 32
    frames: int = 1
    patch: int = 4
    text_length: int = 64
    text_dropout: float = 0.1
    epochs: str = "single"
    data: str = ""

    def __post_init__(self) -> None:
        for name in ("size", "frames", "patch", "text_length"):
            count(f"task.{name}", getattr(self, name))
        if self.size % self.patch:
            raise RunError(f"task.patch = {self.patch} must divide task.size = {self.size}")
        _check_data(self.source, self.epochs, self.data)
        if real("task.text_dropout", self.text_dropout, positive=False) >= 1:
            raise RunError(f"task.text_dropout = {self.text_dropout}: give a number from 0 up to, not including, 1")

    def tokens_per_row(self) -> int:
        """Patches of one picture or clip."""
        return (self.size // self.patch) ** 2 * self.frames


def _check_data(source: str, epochs: str, data: str) -> None:
    if not isinstance(source, str) or not source or "\0" in source:
        raise RunError(f"task.source = {source!r}: give the name of a built-in source, or a path")
    one_of("task.epochs", epochs, ("single", "repeat"), RunError)
    if not isinstance(data, str):
        raise RunError(f"task.data = {data!r}: leave it out, or give what `mue data show` says of a folder")


_CHOICES = {
    "betas": ("transfer", "hold"), "duration": ("scaled", "fixed"), "precision": ("float32", "bfloat16"),
    "attention": ("auto", "cudnn", "flash"),
}  # fmt: skip


@dataclass(frozen=True)
class RunConfig:
    """Everything a run depends on."""

    name: str
    task: TextTask | PictureTask
    reference: Reference
    shape: ModelShape
    budget: Budget
    rules: str = DEFAULT_RULES
    betas: Literal["transfer", "hold"] = "transfer"
    duration: Literal["scaled", "fixed"] = "scaled"  # whether lr follows the number of steps, as of ``Rules``
    warmup: float = 0.04
    clip: float | None = 1.0
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    accumulate: int = 1  # micro-batches of a step
    recompute: int = 0  # layers, from the first, whose activations are computed twice to save memory
    attention: Literal["auto", "cudnn", "flash"] = "auto"  # which CUDA kernel is asked first
    expert_parallel: int = 1  # ranks that the experts of a layer are dealt out over
    seed: int = 0
    device: str = "auto"
    qk_norm: bool = False
    router: RouterConfig = field(default_factory=lambda: RouterConfig(selection_bias=True))
    bias_rate: float | None = None  # of loss-free balancing; none: by the run's length, see balance_rate
    log_every: int = 10
    checkpoint_every: int = 100
    keep: int = 2
    wandb: str = ""  # a project at Weights & Biases; empty for none

    def __post_init__(self) -> None:
        for name in ("accumulate", "expert_parallel", "log_every", "checkpoint_every", "keep"):
            count(name, getattr(self, name))
        if self.clip is not None:
            real("clip", self.clip)
        if self.bias_rate is not None:
            real("bias_rate", self.bias_rate, positive=False)
        count("seed", self.seed, least=0)
        for name in ("name", "device", "rules"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise RunError(f"{name} = {getattr(self, name)!r}: give a name")
        if not isinstance(self.wandb, str):
            raise RunError(f"wandb = {self.wandb!r}: give a project's name, or nothing for none")
        for name in ("compile", "qk_norm"):
            if not isinstance(getattr(self, name), bool):
                raise RunError(f"{name} = {getattr(self, name)!r}: give true or false")
        for name, allowed in _CHOICES.items():
            one_of(name, getattr(self, name), allowed, RunError)
        if real("warmup", self.warmup, positive=False) >= 1:
            raise RunError(f"warmup = {self.warmup}: give a fraction of the steps, from 0 up to, not including, 1")
        count("recompute", self.recompute, least=0, most=self.shape.depth)
        if self.budget.batch_tokens % (self.task.tokens_per_row() * self.accumulate):
            raise RunError(
                f"budget.batch_tokens = {self.budget.batch_tokens} is not a whole number of rows: give a multiple of "
                f"{self.task.tokens_per_row()} tokens per row times accumulate = {self.accumulate}"
            )

    @cached_property
    def plan(self) -> Plan:
        """The hyperparameters, from the reference; never typed in."""
        rules = Rules(self.rules, duration=self.duration)
        return transfer(self.reference, self.shape, self.budget, rules=rules, betas=self.betas)

    @property
    def schedule(self) -> Schedule:
        """Warmup-stable-decay over the budget's steps."""
        return Schedule.wsd(self.budget.steps, self.warmup)

    @property
    def balance_rate(self) -> float:
        """How far an expert's selection bias moves per step; 0 where biases do not balance the load.

        Sigmoid scores lie between 0 and 1, and routers part them within a few steps. Moving by 6 / steps makes up for
        a difference of 0.5 in a twelfth of a run. Slower, a short run leaves most experts idle for much of it; faster
        than 0.01, the load jitters.
        """
        if not self.router.selection_bias:
            return 0.0
        if self.bias_rate is not None:
            return self.bias_rate
        return 1e-3 if self.router.score == "softmax" else min(max(1e-3, 6 / self.budget.steps), 1e-2)

    @property
    def rows(self) -> int:
        """Rows of one optimizer step."""
        return self.budget.batch_tokens // self.task.tokens_per_row()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for the run's directory and for comparison."""
        return {"task_kind": type(self.task).__name__, **_plain(self)}

    @property
    def fingerprint(self) -> str:
        """Changes with anything that changes the run's numbers: of the data, where that is known, with what it holds
        and not with where it lies.
        """
        data = {key: value for key, value in self.to_dict().items() if key not in _NO_NUMBERS}
        held = data["task"].pop("data")
        data["task"]["source"] = held or self.task.source
        later = (
            (data["router"], "logit_bias", False),
            (data["reference"], "attention_scale", None),
            (data, "duration", "scaled"),
        )
        for part, key, before in later:
            if part[key] == before:  # records older than this key are of the same run
                del part[key]
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def unpinned(self) -> RunConfig:
        """The same, without saying what the data holds: as in older records, which name it by path alone."""
        return dataclasses.replace(self, task=dataclasses.replace(self.task, data=""))

    def is_known_as(self, fingerprint: str) -> bool:
        """Whether a record with this fingerprint is of this config, also an older one."""
        return fingerprint in (self.fingerprint, self.unpinned.fingerprint)


_NO_NUMBERS = ("log_every", "checkpoint_every", "keep", "name", "device", "recompute", "expert_parallel", "wandb")


def identity(task: TextTask | PictureTask) -> str:
    """What the task's source holds now."""
    return text_identity(task.source) if isinstance(task, TextTask) else picture_identity(task.source)


def pinned(config: RunConfig) -> RunConfig:
    """The config with what its data holds; where it says that already, and the data is another, that is an error."""
    task, found = config.task, identity(config.task)
    if task.data not in ("", found):
        raise RunError(
            f"task.source = {task.source}: holds {found}, and the config was started with {task.data}: the data was "
            "replaced; put it back, or start over with the new data in a directory of its own"
        )
    return dataclasses.replace(config, task=dataclasses.replace(task, data=found))


def refuse_other_data(where: str, config: RunConfig, known: str) -> None:
    """Refuse to go on with other data than ``where``'s, whose records say that it was ``known``."""
    if known and config.task.data not in ("", known):
        raise RunError(
            f"{where} was trained on other data: on {known}, and {config.task.source} now holds {config.task.data}; "
            "put the data back, or give the new run a directory of its own"
        )


def differences(config: RunConfig, known: RunConfig) -> list[str]:
    """Where two configs give other numbers, key by key: ``budget.steps = 300, not 20``."""
    ours, theirs = _flat(config.to_dict()), _flat(known.to_dict())
    keys = [key for key in ours | theirs if key.split(".")[0] not in _NO_NUMBERS and ours.get(key) != theirs.get(key)]
    return [f"{key} = {ours.get(key)}, not {theirs.get(key)}" for key in keys]


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in data.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, FeedForward):
        return value.with_widths
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def override(config: RunConfig, *assignments: str) -> RunConfig:
    """A config with some keys changed: ``budget.steps=300``, ``shape.feed_forward=8e2a@64``, ``compile=true``.

    All of them together make the new config, so their order does not matter.
    """
    changes: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise RunError(f"override {assignment!r}: write key=value, such as budget.steps=300")
        *parents, last = key.strip().split(".")
        at = changes
        for parent in parents:
            at = at.setdefault(parent, {})
            if not isinstance(at, dict):
                raise RunError(f"override {key!r}: {parent!r} is given as a whole and in parts; give one of them")
        at[last] = text.strip()
    return _changed(config, changes, "")


def _changed(value: Any, changes: dict[str, Any], prefix: str) -> Any:
    names = [entry.name for entry in dataclasses.fields(value)]
    new: dict[str, Any] = {}
    for name, change in changes.items():
        key = f"{prefix}{name}"
        if name not in names:
            raise RunError(f"override {key!r}: no key {name!r}{nearest(name, names)}; keys here are {', '.join(names)}")
        current = getattr(value, name)
        if isinstance(value, ModelShape) and name == "feed_forward" and isinstance(change, str):
            width = _parse(value.width, changes["width"], "shape.width") if "width" in changes else value.width
            new[name] = FeedForward.within(width, change)
        elif not isinstance(change, dict):
            new[name] = _parse(current, change, key)
        elif dataclasses.is_dataclass(current):
            new[name] = _changed(current, change, f"{key}.")
        else:
            raise RunError(f"override {key!r}: {name!r} has no keys below it")
    return dataclasses.replace(value, **new)


def _parse(current: Any, text: str, key: str) -> Any:
    if dataclasses.is_dataclass(current):
        raise RunError(f"override {key!r}: give one of its keys, such as {key}.{dataclasses.fields(current)[0].name}")
    words = {"true": True, "false": False, "none": None}
    if isinstance(current, bool):
        if words.get(text.lower()) is None:
            raise RunError(f"override {key}={text}: give true or false")
        return words[text.lower()]
    if isinstance(current, Mapping | list | tuple):
        raise RunError(f"override {key!r}: a table or list; write it in a recipe of your own")
    if isinstance(current, str):
        return text
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def read_config(path: Path) -> RunConfig:
    """A run's config.json back as a config."""
    data = read_json(path, "run's config", "give the directory of a run")
    try:
        kind = {"TextTask": TextTask, "PictureTask": PictureTask}[data.pop("task_kind")]
        given = data.pop("reference")
        return RunConfig(
            task=kind(**data.pop("task")),
            reference=reference_from(given, _shape(given["shape"])),
            shape=_shape(data.pop("shape")),
            budget=Budget(**data.pop("budget")),
            router=RouterConfig(**data.pop("router")),
            **data,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise FileError(f"{path} is no run's config ({type(problem).__name__}: {problem})") from None


def _shape(data: dict[str, Any]) -> ModelShape:
    blocks = data["feed_forward"]
    parsed = tuple(map(FeedForward.parse, blocks)) if isinstance(blocks, list) else FeedForward.parse(blocks)
    return ModelShape(**{**data, "feed_forward": parsed})
