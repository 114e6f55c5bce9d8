"""The settings of a task, as policy files tell them to others."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from sim.tasks import PLACE, Task
from sim.tasks.abilities import judged


def places_of(task: Task) -> tuple[str, ...]:
    """The settings of a task that say where something lies on this machine, as the command line has them."""
    config: Any = getattr(task, "config", None)
    fields = dataclasses.fields(config) if dataclasses.is_dataclass(config) else ()
    return tuple(f"task.{f.name}" for f in fields if f.metadata.get(PLACE))


def recorded(task: Task) -> dict[str, Any]:
    """The settings of a task as its policy files tell them: how it is judged, not how it was practised.

    Of what lies on this machine, the last part of the path.
    """
    config: Any = getattr(judged(task), "config", None)
    if not dataclasses.is_dataclass(config):
        return {}
    made = dataclasses.asdict(config)  # type: ignore[arg-type]
    return made | {name: os.path.basename(made[name]) for name in made if f"task.{name}" in places_of(task)}
