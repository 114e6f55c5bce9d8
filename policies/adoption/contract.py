"""Which signals and commands a description speaks of: those of a task of ours, or those that it declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from deploy.drivers.tasks import LONGEST
from policies.adoption.description import Action, Description, Term, spread
from policies.adoption.fields import DescriptionError
from policies.models.networks import Array
from sim import spec
from sim.registry import names_from
from sim.spec import Group
from sim.tasks import Task
from sim.tasks import make as make_task
from sim.tasks.abilities import joints_of
from sim.tasks.recorded import recorded
from sim.terms import HISTORY


@dataclass(frozen=True)
class Contract:
    """What a controller is told and what it commands."""

    task: str
    robot: str
    rate_hz: float
    inputs: Group
    outputs: Group
    elements: dict[str, tuple[str, ...]]  # signal or command -> the names of its numbers
    zeros: dict[str, Array] = field(default_factory=dict)  # command -> where zero puts the joints
    hidden: tuple[str, ...] = ()  # what no robot senses
    settings: dict[str, Any] = field(default_factory=dict)
    envelope: dict[str, float] = field(default_factory=dict)
    made: Task | None = None  # the task, where it is one of ours

    def places(self, name: str, wanted: tuple[str | int, ...] | None, size: int, where: str) -> list[int]:
        """Where these elements stand in a signal or command; all, in its order, for None."""
        if wanted is None:
            return list(range(size))
        names, found = self.elements.get(name, ()), []
        for one in wanted:
            if isinstance(one, str) and one in names:
                found.append(names.index(one))
            elif isinstance(one, int) and 0 <= one < size:
                found.append(one)
            else:
                known = ", ".join(names) if names else f"numbers from 0 to {size - 1} (its elements have no names)"
                raise DescriptionError(f"{where}: {name} has no element {one!r:.80}; it has: {known}")
        if twice := [k for k in found if found.count(k) > 1]:
            raise DescriptionError(f"{where}: element {twice[0]} of {name} is named twice")
        return found


def contract_of(
    description: Description, typed: Mapping[str, Any] | None = None, task: str = "", pictures: bool = False
) -> Contract:
    """Of the description; `task` and `typed`, settings of it, are what a person said. DescriptionError, ValueError.

    What the description names is looked up in our tables only; a person may name a module, or a robot's file.
    """
    told = description.declared
    if task and task != description.task:
        raise DescriptionError(f"task: is {description.task or 'missing'!r}, not {task!r}")
    if told is not None:
        for group in (told.signals, told.commands):
            spec.slices(group)
        return Contract("adopted", told.robot, told.rate_hz, told.signals, told.commands, told.elements)
    settings = {**description.task_settings, **(typed or {})}
    with names_from(description.path, task, *(v for v in (typed or {}).values() if isinstance(v, str))):
        made: Task = make_task(description.task, **settings)
    if made.episode_steps > LONGEST * made.rate_hz:
        raise DescriptionError(
            f"task_settings: an episode lasts {made.episode_steps / made.rate_hz:.4g} s, at most {LONGEST:g} do"
        )
    if description.trained_hz is not None and abs(description.trained_hz - made.rate_hz) > 1e-3 * made.rate_hz:
        raise DescriptionError(
            f"rate_hz: the policy was trained at {description.trained_hz:.4g} Hz, {made.name} runs at "
            f"{made.rate_hz:.4g}: say it in task_settings, where the task has a rate"
        )
    contract = of_task(made, pictures)
    if unknown := [name for name in description.estimated if name not in contract.hidden]:
        raise DescriptionError(
            f"estimated: {unknown[0]!r:.80}: what {made.name} knows and no policy is told: {', '.join(contract.hidden)}"
        )
    more = tuple(s for s in made.privileged if s.name in description.estimated)
    hidden = tuple(name for name in contract.hidden if name not in description.estimated)
    return replace(contract, inputs=(*contract.inputs, *more), hidden=hidden)


def of_task(task: Task, pictures: bool = False) -> Contract:
    """Of a task of ours; ValueError where its policies see more than numbers, and `pictures` where those may be."""
    seen = spec.pictures(task.policy) if pictures else ()
    if more := [s.name for s in task.policy if s not in (*spec.numbers(task.policy), *seen)]:
        raise ValueError(
            f"task {task.name} shows its policy more than numbers ({more[0]}): it adopts no policy of this kind"
        )
    joints = joints_of(task)
    return Contract(
        task.name,
        task.robot.name,
        task.rate_hz,
        tuple(s for s in task.policy if s.name != HISTORY),
        task.commands,
        joints.elements() if joints else {},
        {s.name: np.asarray(joints.zero(s.name), np.float32) for s in task.commands} if joints else {},
        tuple(s.name for s in task.privileged),
        recorded(task),
        dict(task.envelope),
        task,
    )


@dataclass(frozen=True)
class Piece:
    """A term, resolved: which numbers of which signals it reads, and its constants, one for each of them."""

    term: Term
    size: int
    places: tuple[int, ...] | None  # None: all of them, in order
    offset: Array
    scale: Array


def pieces_of(description: Description, contract: Contract, actions: int) -> list[Piece]:
    """The terms in their order; `actions`: how many numbers the network returns."""
    sizes = {s.name: s.size for s in contract.inputs}
    return [
        _piece(term, contract, sizes, actions, f"observation[{k}]") for k, term in enumerate(description.observation)
    ]


def _piece(term: Term, contract: Contract, sizes: Mapping[str, int], actions: int, where: str) -> Piece:
    for name in (*term.signals, *filter(None, [term.minus])):
        if name not in sizes:
            sensed = "no policy is told it, unless `estimated` names it; " if name in contract.hidden else ""
            raise DescriptionError(f"{where}.signal: {name!r}: {sensed}there are: {', '.join(sizes)}")
    whole = sum(sizes[name] for name in term.signals) if term.signals else len(term.constant) or actions
    places = None
    if term.elements is not None:
        if len(term.signals) > 1:
            raise DescriptionError(f"{where}.elements: goes with one signal; make a term of each")
        name = term.signals[0] if term.signals else term.label
        places = tuple(contract.places(name, term.elements, whole, f"{where}.elements"))
    size = whole if places is None else len(places)
    if term.minus is not None and whole % sizes[term.minus]:
        raise DescriptionError(f"{where}.minus: {sizes[term.minus]} numbers do not repeat into {whole}")
    offset, scale = (spread(getattr(term, key), size, f"{where}.{key}") for key in ("offset", "scale"))
    return Piece(term, size, None if places == tuple(range(whole)) else places, offset, scale)


@dataclass(frozen=True)
class Response:
    """The actions, resolved: the commands in [-1, 1] of their range are action[order] * gain + bias."""

    order: list[int]  # for each number of the commands, which number of the network's action it is
    gain: Array
    bias: Array


def response_of(actions: Sequence[Action], contract: Contract) -> Response:
    """What the network's action does: each of `actions` takes its numbers of it, in this order.

    DescriptionError where that is not said of each number of the commands.
    """
    known, told = [s.name for s in contract.outputs], [action.command for action in actions]
    for k, name in enumerate(told):
        if name not in known or name in told[:k]:
            where = "action.command" if len(actions) == 1 else f"action[{k}].command"
            twice = "is told twice" if name in known else f"the commands are: {', '.join(known)}"
            raise DescriptionError(f"{where}: {name!r}: {twice}")
    if missing := [name for name in known if name not in told]:
        raise DescriptionError(f"action: says nothing of the command {missing[0]!r}")
    begins, parts = 0, dict[str, Response]()
    for k, action in enumerate(actions):
        where = "action" if len(actions) == 1 else f"action[{k}]"
        part = _response(action, contract, where)
        parts[action.command] = Response([begins + number for number in part.order], part.gain, part.bias)
        begins += len(part.order)
    found = [parts[name] for name in known]
    return Response(
        [number for part in found for number in part.order],
        np.concatenate([part.gain for part in found]),
        np.concatenate([part.bias for part in found]),
    )


def _response(action: Action, contract: Contract, where: str) -> Response:
    """Of one command; `order` is that within its own numbers of the action."""
    (signal,) = (s for s in contract.outputs if s.name == action.command)
    size = signal.size
    places = contract.places(action.command, action.elements, size, f"{where}.elements")
    if len(places) != size:
        raise DescriptionError(
            f"{where}.elements: names {len(places)} of the {size} of {action.command}; needs them all"
        )
    order = [places.index(k) for k in range(size)]
    low, high = spec.limits((signal,))
    half = np.float32(0.5) * (high - low)
    if action.means == "range":
        return Response(order, np.ones(size, np.float32), np.zeros(size, np.float32))
    scale, offset = (spread(getattr(action, key), size, f"{where}.{key}")[order] for key in ("scale", "offset"))
    if action.means == "position":
        if action.command not in contract.zeros:
            raise DescriptionError(f"{where}.means: position is for joints of a task of ours; {action.command}: value")
        offset = offset - contract.zeros[action.command]
    return Response(order, scale / half, (offset - low) / half - np.float32(1.0))
