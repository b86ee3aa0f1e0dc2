"""The role probe: each role's hyperparameters scanned alone around the plan's value.

A transfer may fail for one tensor and hold for all others. Scanning the global learning rate then shows a small drift
with no cause; scanning one role at a time names the tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from complete_mue.errors import RunError, one_of
from complete_mue.lab.data.shard_folder import holds_features
from complete_mue.lab.sweep.figures import SEEDS, Span, scan_of
from complete_mue.lab.sweep.grid import Sweep, Target
from complete_mue.lab.train.config import PictureTask, RunConfig, override
from complete_mue.layout import FeedForward, Role
from complete_mue.layout.tensors import VECTOR_ROLES, block_roles
from complete_mue.rules import DEFAULT_RULES

_TOGETHER = f"{Role.NORM}+{Role.FINAL_NORM}"
_EVERYWHERE = {Role.EMBEDDING, Role.ATTENTION_IN, Role.ATTENTION_OUT, Role.NORM, Role.FINAL_NORM, Role.READOUT}


def role_sweep(
    base: RunConfig,
    scale: str,
    targets: Sequence[str],
    *,
    roles: Sequence[str] | None = None,
    hypers: Sequence[str] | None = None,
    rules: Sequence[str] = (DEFAULT_RULES,),
    seeds: Sequence[int] | None = None,
    span: Span | None = None,
    per_octave: int | None = None,
) -> Sweep:
    """Scans of single ``roles`` (``embedding+readout`` for several together; default: each of the model's) on
    ``targets``: layouts such as ``64e2a``, or changes of the reference's config such as ``shape.width=512``."""
    if not targets:
        raise RunError("no target: name what to probe with --target, such as --target 64e2a")
    probed = tuple(target_of(base, text) for text in targets)
    found = roles_of(probed)
    wanted = tuple(roles or _apart(found))
    for role in "+".join(wanted).split("+"):
        one_of("role", role, found, RunError)
    names = [f"{role}.{hyper}" for hyper in hypers or ("lr",) for role in wanted if _fits(role, hyper, bool(roles))]
    scans = tuple(scan_of(name, base, scale, 2 if span is None else span, per_octave) for name in names)
    made = (Target("dense", None, base, scanned="dense" in targets), *(one for one in probed if one.name != "dense"))
    return Sweep(
        "roles", "Roles, one at a time", "experts per active one", scale, made, scans, tuple(rules),
        tuple(seeds or SEEDS[scale]),
    )  # fmt: skip


def target_of(base: RunConfig, text: str) -> Target:
    """``64e2a`` (experts an eighth of the width wide), ``64e2a@16``, ``KEY=VALUE,KEY=VALUE``, or a layout and then
    changes: ``64e2a@16,router.score=softmax``; under its own text."""
    first, *rest = text.split(",")
    if "=" in first:
        first, rest = "dense", [first, *rest]
    block = base.shape.main if first == "dense" else FeedForward.parse(first, base.shape.width // 8)
    shape = dataclasses.replace(base.shape, feed_forward=block)
    config = override(dataclasses.replace(base, shape=shape), *rest)
    block = config.shape.main
    return Target(text, 1 / block.density if block.groups else None, config)


def roles_of(targets: Sequence[Target]) -> tuple[str, ...]:
    """The roles that the targets' models have, in the plan's order; told by the config, since models need torch."""
    found = set().union(*(_roles(target.config) for target in targets))
    return tuple(role.value for role in Role if role in found)


def _roles(config: RunConfig) -> set[Role]:
    found = _EVERYWHERE | {role for kind in config.shape.kinds for role in block_roles(kind)}
    if config.router.logit_bias and Role.ROUTER in found:
        found.add(Role.BIAS)
    if isinstance(config.task, PictureTask):
        found.add(Role.MODULATION)
        if holds_features(Path(config.task.source)):
            from complete_mue.lab.data.features import FeatureManifest

            if len(FeatureManifest.read(config.task.source).text_shape) == 2:
                found.add(Role.BIAS)  # a vector in place of captions' features, where there is no text
    return found


def _apart(found: Sequence[str]) -> list[str]:
    """Each role alone; all norms together, which are few and alike."""
    alone = [role for role in found if role not in (Role.NORM, Role.FINAL_NORM)]
    return [*alone, _TOGETHER] if {Role.NORM, Role.FINAL_NORM} <= set(found) else alone


def _fits(roles: str, hyper: str, asked: bool) -> bool:
    """Norms and biases have a learning rate alone: left out elsewhere, unless asked for by name, which is an error."""
    return asked or hyper == "lr" or not any(Role.parse(role) in VECTOR_ROLES for role in roles.split("+"))
