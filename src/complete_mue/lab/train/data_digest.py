"""A config says what its data holds, not only where it lies: data that is replaced under a run is noticed."""

from __future__ import annotations

import dataclasses

from complete_mue.errors import RunError
from complete_mue.lab.data.digest import picture_identity, text_identity
from complete_mue.lab.train.config import PictureTask, RunConfig, TextTask


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
