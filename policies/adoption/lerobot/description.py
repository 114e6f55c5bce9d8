"""What a policy of LeRobot is fed and what it commands, in YAML; see `policies.adoption.description`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from policies.adoption.contract import Contract
from policies.adoption.description import Action, Description, action, beginning, from_file, term
from policies.adoption.fields import DescriptionError, Fields
from policies.adoption.lerobot.folder import PLACE, STATE, Folder
from sim import spec
from sim.spec import Group, Signal

FEWEST, MOST = 1, 100  # evaluations of a network that takes noise away


@dataclass(frozen=True)
class PlanDescription(Description):
    """`observation` holds the terms of observation.state, then those of observation.environment_state.

    `action` is the first of `actions`, which take their numbers of the policy's action one after the other.
    """

    pictures: dict[str, str] = field(default_factory=dict)  # the policy's name -> the signal's
    actions: tuple[Action, ...] = ()
    steps: int = 0  # of the sampler; 0: as many as the file says


def read(path: str) -> PlanDescription:
    """The description in a file; DescriptionError names file and field."""
    return from_file(path, parse)


def parse(path: str, found: Any) -> PlanDescription:
    """The description that these values of a YAML file make."""
    fields = Fields("", found)
    sampler = fields.inner("sampler")
    steps = sampler.whole("steps", 0, FEWEST, MOST) if sampler.has("steps") else 0
    sampler.end()
    told = fields.raw("pictures") if fields.has("pictures") else {}
    if not isinstance(told, dict) or not all(isinstance(name, str) for pair in told.items() for name in pair):
        raise fields.error("pictures", "needs the policy's name and the signal of each: NAME: SIGNAL")
    terms = tuple(term(item) for item in fields.items("observation"))
    for k, one in enumerate(terms):
        if one.history != 1 or not (one.signals or one.constant):
            raise DescriptionError(f"observation[{k}]: LeRobot's policies take no history and no last_action as a term")
    actions = tuple(action(item) for item in fields.items("action"))
    for k, act in enumerate(actions):
        if act.initial != 0.0:
            raise DescriptionError(f"action[{k}].initial: these policies are not told their last action")
    made = PlanDescription(
        **beginning(path, fields), observation=terms, action=actions[0], pictures=told, actions=actions, steps=steps
    )
    fields.end()
    return made


def shown(description: PlanDescription, folder: Folder, contract: Contract) -> Group:
    """The pictures, in the policy's order. DescriptionError for one that is missing, unknown, or of another size."""
    if unknown := [name for name in description.pictures if name not in folder.pictures]:
        known = ", ".join(folder.pictures) or "none"
        raise DescriptionError(f"pictures: {unknown[0]!r:.80}: the policy's are: {known}")
    signals, found = {s.name: s for s in spec.pictures(contract.inputs)}, list[Signal]()
    for name, (height, width) in folder.pictures.items():
        if name not in description.pictures:
            raise DescriptionError(f"pictures: {name} is missing: which signal is it?")
        signal = signals.get(description.pictures[name])
        if signal is None:
            known = ", ".join(signals) or "none"
            raise DescriptionError(f"pictures.{name}: {description.pictures[name]!r:.80}: the pictures are: {known}")
        if signal.shape != (height, width, 3):
            raise DescriptionError(
                f"pictures.{name}: the policy takes {height} x {width}, {signal.name} has "
                f"{signal.shape[0]} x {signal.shape[1]}"
            )
        if signal in found:
            raise DescriptionError(f"pictures.{name}: {signal.name} is told twice; each camera goes once")
        found.append(signal)
    return tuple(found)


def told(folder: Folder) -> str:
    """The policy's numbers, for errors."""
    return " and ".join(f"{name} {folder.numbers[name]}" for name in (STATE, PLACE) if name in folder.numbers)
