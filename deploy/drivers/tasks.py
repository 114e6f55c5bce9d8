"""The task that a policy file was made for: what the file says of it is a stranger's word."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from typing import Any

from deploy.policy_file import PolicyFile
from sim.registry import StrangerError, names_from
from sim.spec import ANY_ROBOT
from sim.tasks import IDENTITY, Task, task_class
from sim.tasks import make as make_task

LARGEST = 1e6  # of a number in a file's settings of its task
LONGEST = 3600.0  # s, of an episode


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a value of JSON is what a setting takes; NaN and endless texts never are."""
    if isinstance(annotation, types.UnionType):
        return any(_fits(value, kind) for kind in typing.get_args(annotation))
    if typing.get_origin(annotation) in (list, tuple):
        kind = typing.get_args(annotation)[0]
        return isinstance(value, list) and len(value) <= LARGEST and all(_fits(item, kind) for item in value)
    if annotation is float:
        return type(value) in (int, float) and abs(value) <= LARGEST
    if annotation is int:
        return type(value) is int and abs(value) <= LARGEST
    if annotation is str:
        return type(value) is str and len(value) <= LARGEST
    return type(value) is annotation or (value is None and annotation is type(None))


def _recorded(policy: PolicyFile, kind: Any) -> dict[str, Any]:
    """The settings of the task that the file holds. ValueError when one is not of its setting's type."""
    training = policy.metadata.get("training", {})
    found = training.get("task_config", {}) if isinstance(training, dict) else None
    if not isinstance(found, dict):
        raise ValueError("the settings of its task are malformed; export it again")
    hints = typing.get_type_hints(kind.Config)
    for name, value in found.items():
        if name in hints and not _fits(value, hints[name]):
            raise ValueError(f"the setting {name!r} of its task is {value!r:.80}, which it cannot be; export it again")
    return found


def _typed(settings: Mapping[str, Any], kind: Any) -> Mapping[str, Any]:
    """Settings that a person gave. ValueError when one is not of its setting's type."""
    hints = typing.get_type_hints(kind.Config)
    for name, value in settings.items():
        if name in hints and not _fits(value, hints[name]):
            raise ValueError(f"task.{name}={json.dumps(value):.80} is not of the type of that setting")
    return settings


def task_for(
    policy: PolicyFile,
    task: str | None = None,
    robot: str | None = None,
    transfer: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Task:
    """The task that the policy was trained for, with the settings stored in the file; or another one.

    What the file names is looked up in our tables only; `task`, `robot` and `settings`, which go before the file's, are
    a person's, and may name a module, or a file of a robot or panorama. Raises ValueError when task or robot differ
    from the policy's and `transfer` is false.
    """
    wanted = task or policy.task
    try:
        places = [value for value in (settings or {}).values() if isinstance(value, str)]
        with names_from(policy.path, task, robot, *places):
            kind = task_class(wanted)
            known = dict(_recorded(policy, kind)) if kind.name == policy.task else {}
            if transfer:
                known.pop(IDENTITY, None)
            known |= _typed(settings or {}, kind)
            made: Task = make_task(wanted, **known if robot is None else {**known, "robot": robot})
    except StrangerError:
        raise
    except (ValueError, ArithmeticError, TypeError) as error:
        raise ValueError(f"{policy.path}: {error}") from None
    if made.episode_steps > LONGEST * made.rate_hz:
        raise ValueError(
            f"{policy.path}: its task lasts {made.episode_steps / made.rate_hz:.4g} s, at most {LONGEST:g}"
        )
    for what, ours, theirs in (("task", policy.task, made.name), ("robot", policy.robot, made.robot.name)):
        if ours not in (theirs, ANY_ROBOT) and not transfer:
            raise ValueError(f"{policy.path} is for the {what} {ours!r}, not {theirs!r} (transfer=true flies it)")
    return made
