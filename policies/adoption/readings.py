"""What else a description could mean: one thing in it read otherwise, as it is often mistaken."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from policies.adoption.contract import Contract
from policies.adoption.description import Action, Description, History, Normalisation, Term

FACTORS = (0.25, 4.0)  # usual scales of others are 0.05, 0.25 and 2
DEGREES = 180.0 / math.pi
AXES = (1.0, -1.0, -1.0)  # forward, left, up <-> forward, right, down
HELD = 2, 4  # control steps


class Reading(NamedTuple):
    """A description that differs in one thing."""

    name: str
    advice: str  # what to write, if it is the right one
    description: Description
    every: int = 1  # control steps for which each action is held


def readings(described: Description, contract: Contract) -> Iterator[Reading]:
    """What else a description could mean, the likeliest mistakes first."""
    yield from _joints(described, contract)
    yield from _histories(described)
    for k, term in enumerate(described.observation):
        for name, advice, changed in _terms(term, contract):
            yield Reading(f"observation[{k}] {term.label}: {name}", advice, _with_term(described, k, changed))
    yield from _exchanges(described, contract)
    if described.normalisation.mean:
        bare = dataclasses.replace(described, normalisation=Normalisation(clip=described.normalisation.clip))
        yield Reading("normalisation: none", "leave mean and std out: the network has its own", bare)
    for name, advice, action in _actions(described.action, contract):
        yield Reading(f"action: {name}", advice, dataclasses.replace(described, action=action))
    for steps in HELD:
        slower = f"the rate is {contract.rate_hz / steps:g} Hz: say it, in task_settings too"
        yield Reading(f"rate: every action held for {steps} steps", slower, described, steps)


def _terms(term: Term, contract: Contract) -> Iterator[tuple[str, str, Term]]:
    """Other scales, units and signs of a term."""
    if not term.signals:
        return
    for factor, why in ((FACTORS[0], ""), (FACTORS[1], ""), (DEGREES, " (degrees)"), (1.0 / DEGREES, " (radians)")):
        if not why or _turns(term, contract):
            yield f"scale x {factor:.3g}{why}", *_scaled(term, (factor,))
    yield "sign", *_scaled(term, (-1.0,))
    if sum(s.size for s in contract.inputs if s.name in term.signals) == len(AXES) and term.elements is None:
        yield "axes forward, right, down", *_scaled(term, AXES)
    if set(term.offset) != {0.0}:
        yield "no offset", "leave offset out", dataclasses.replace(term, offset=(0.0,))


def _scaled(term: Term, factors: tuple[float, ...]) -> tuple[str, Term]:
    """The advice, and the term with its scale times these: one for all, or one for each number."""
    size = max(len(term.scale), len(factors))
    each = [np.broadcast_to(numbers, (size,)) for numbers in (term.scale, factors)]
    scale = tuple(float(number) for number in each[0] * each[1])
    return f"scale: {_said(scale)}", dataclasses.replace(term, scale=scale)


def _said(numbers: tuple[float, ...]) -> str:
    """As YAML takes them."""
    texts = [f"{number:.4g}" for number in numbers]
    return texts[0] if len(set(texts)) == 1 else f"[{', '.join(texts)}]"


def _turns(term: Term, contract: Contract) -> bool:
    units = {s.name: s.unit for s in contract.inputs}
    return all(units[name] in ("rad", "rad/s") for name in term.signals)


def _with_term(described: Description, index: int, term: Term) -> Description:
    terms = list(described.observation)
    terms[index] = term
    return dataclasses.replace(described, observation=tuple(terms))


def _exchanges(described: Description, contract: Contract) -> Iterator[Reading]:
    """Two terms of the same length, each in the place of the other."""
    sizes = {s.name: s.size for s in contract.inputs}
    lengths = [
        (len(t.elements) if t.elements else sum(sizes[name] for name in t.signals), t.history)
        for t in described.observation
    ]
    for (i, one), (j, two) in itertools.combinations(enumerate(described.observation), 2):
        if lengths[i] == lengths[j] and one.signals and two.signals:
            changed = _with_term(_with_term(described, i, two), j, one)
            what = f"observation: {one.label} and {two.label} exchanged"
            yield Reading(what, f"{two.label} comes as number {i}, {one.label} as number {j}", changed)


def _histories(described: Description) -> Iterator[Reading]:
    if all(term.history == 1 for term in described.observation):
        return
    history = described.history
    for key, value in (
        ("order", "frame" if history.order == "term" else "term"),
        ("newest", "first" if history.newest == "last" else "last"),
        ("start", "zero" if history.start == "first" else "first"),
    ):
        other: History = dataclasses.replace(history, **{key: value})
        changed = dataclasses.replace(described, history=other)
        yield Reading(f"history: {key} {value}", f"history: {{{key}: {value}}}", changed)


def _actions(action: Action, contract: Contract) -> Iterator[tuple[str, str, Action]]:
    """Other scales, offsets and squashes of the action."""
    if action.means != "range":
        for factor in (*FACTORS, -1.0):
            scale = tuple(factor * s for s in action.scale)
            yield f"scale x {factor:g}", f"scale: {_said(scale)}", dataclasses.replace(action, scale=scale)
    if action.means == "position":
        pose = tuple(float(v) for v in contract.zeros[action.command])
        if action.elements is not None:
            size = len(pose)
            pose = tuple(pose[k] for k in contract.places(action.command, action.elements, size, "action.elements"))
        if set(action.offset) != {0.0}:
            yield "no offset", "leave offset out", dataclasses.replace(action, offset=(0.0,))
        yield "offset where the joints begin", f"offset: {_said(pose)}", dataclasses.replace(action, offset=pose)
    squash = "none" if action.squash == "tanh" else "tanh"
    yield f"squash {squash}", f"squash: {squash}", dataclasses.replace(action, squash=squash)


def _orders(names: tuple[str, ...], robot: tuple[str, ...]) -> dict[str, list[int]]:
    """Orders that others put the same elements in: place -> which of `names`. `robot`: as our robot has them."""
    ours = list(range(len(names)))
    found = {"reversed": ours[::-1]}
    if {*names} == {*robot}:
        found = {"as the robot has them": [names.index(name) for name in robot], **found}
    found["sorted by name"] = sorted(ours, key=lambda k: names[k])
    if len(ours) == 4:  # rotors: from front-right, back-right, back-left, front-left
        found |= {
            "the other way round": [0, 3, 2, 1],
            "from the back left": [2, 3, 0, 1],
            "pairs crossed": [0, 2, 1, 3],
        }
    legs = _legs(names)
    if legs > 1:
        each = len(ours) // legs
        grid = np.array(ours).reshape(legs, each)
        found["joint by joint, leg within it"] = grid.T.reshape(-1).tolist()
        inverse = np.array(ours).reshape(each, legs)
        found["leg by leg, joint within it"] = inverse.T.reshape(-1).tolist()
        if legs % 2 == 0:
            swapped = [leg ^ 1 for leg in range(legs)]
            found["left and right exchanged"] = grid[swapped].reshape(-1).tolist()
            found["front and back exchanged"] = np.roll(grid, legs // 2, axis=0).reshape(-1).tolist()
    different = {tuple(order): name for name, order in reversed(found.items()) if order != ours}
    return {name: list(order) for order, name in reversed(different.items())}


def _legs(names: tuple[str, ...]) -> int:
    """Of how many limbs with as many joints each these are, as far as the number tells: 4, or 2."""
    return next((legs for legs in (4, 2) if len(names) % legs == 0 and len(names) >= 2 * legs > 4), 1)


def _joints(described: Description, contract: Contract) -> Iterator[Reading]:
    """The elements in other orders: of what is commanded, of what is seen, and of both."""
    command = described.action.command
    size = next(s.size for s in contract.outputs if s.name == command)
    names = contract.elements.get(command) or tuple(map(str, range(size)))
    seen = [k for k, t in enumerate(described.observation) if contract.elements.get(t.label) == names]
    for name, order in _orders(tuple(map(str, described.action.elements or names)), names).items():
        acts = dataclasses.replace(described, action=_reordered(described.action, names, order))
        advice = f"elements: [{', '.join(str(e) for e in acts.action.elements or ())}]"
        yield Reading(f"action: elements {name}", advice, acts)
        both, sees = acts, described
        for k in seen:
            term = _reordered(described.observation[k], names, order)
            both, sees = _with_term(both, k, term), _with_term(sees, k, term)
        if seen:
            yield Reading(f"observation: elements {name}", advice, sees)
            yield Reading(f"action and observation: elements {name}", advice, both)


def _reordered(thing: Any, names: tuple[str, ...], order: list[int]) -> Any:
    """A term or action whose elements stand in another order; its other lists are the network's, and stay."""
    before = thing.elements or (names if not all(n.isdecimal() for n in names) else tuple(range(len(names))))
    return thing if len(before) != len(order) else dataclasses.replace(thing, elements=tuple(before[k] for k in order))
