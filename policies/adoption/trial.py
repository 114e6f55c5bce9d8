"""Is the description right? The policy flies (or walks) as described, and with one thing read otherwise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.trust.contract import FEWEST_STEPS
from policies.adoption.adopted import AdoptedPolicy
from policies.adoption.contract import Contract
from policies.adoption.description import Action, Description, History, Normalisation, Term
from policies.adoption.fields import DescriptionError
from policies.models.controller import Array
from policies.runner.report import table
from sim.env import make_env, together
from sim.rollout import Episode, rollout
from sim.tasks import Task

DECLARED = "as described"
# Standard errors, from which on it is no luck: of the difference over the same episodes, or of how many are better
# (returns of a policy that falls sooner or later have long tails).
ERRORS = 3.0
GAIN = 0.25  # of the described reading's return: what a wrong reading costs is more than a poor policy's luck
FACTORS = (0.25, 4.0)  # usual scales of others are 0.05, 0.25 and 2
DEGREES = 180.0 / math.pi


@dataclass
class Tried:
    """One reading, and what came of it."""

    name: str
    advice: str  # what to write, if it is the right one
    returns: NDArray[np.float64]  # (episodes,)
    success: NDArray[np.bool_]  # (episodes,)
    steps: NDArray[np.int64]  # (episodes,), until the end


def episodes_of(policy: AdoptedPolicy, task: Task, episodes: int, seed: int) -> list[Episode]:
    """Episodes 0, 1, ... of the task, as in training, in the order of their numbers."""
    num = min(episodes, together(task))
    env = make_env(task, num, seed)
    state = policy.initial_state(num)

    def act(signals: Mapping[str, Any], _: Any, begun: Any) -> Mapping[str, Any]:
        nonlocal state
        fresh = policy.initial_state(num)
        now = {name: np.where(begun[:, None], fresh[name], value) for name, value in state.items()}
        seen = {s.name: np.nan_to_num(np.asarray(signals[s.name], np.float32)) for s in policy.inputs}
        with np.errstate(over="ignore", invalid="ignore"):  # a wrong reading may lead anywhere
            commands, state = policy.act(seen, now)
        return {name: np.nan_to_num(value) for name, value in commands.items()}

    try:
        return sorted(rollout(task, env, act, range(episodes)), key=lambda episode: episode.number)
    finally:
        env.close()


def flight(policy: AdoptedPolicy, seed: int) -> dict[str, Array] | None:
    """Signals of an episode, for test vectors; None where there is no simulator, or it ended at once."""
    task = policy.contract.made
    if task is None:
        return None
    (episode,) = episodes_of(policy, task, 1, seed)
    return episode.signals if len(episode.reward) >= FEWEST_STEPS else None


def compare(policy: AdoptedPolicy, episodes: int, seed: int) -> list[Tried]:
    """The policy as described, then every other reading, on the same episodes. ValueError without a simulator."""
    task = policy.contract.made
    if task is None:
        raise ValueError("check=true needs a task of ours to try it in: the description declares its own robot")
    found = [_tried(DECLARED, "", policy, task, episodes, seed)]
    for name, advice, description in readings(policy.description, policy.contract):
        try:
            other = AdoptedPolicy(description, policy.contract, policy.network)
        except DescriptionError:  # it does not fit the network
            continue
        found.append(_tried(name, advice, other, task, episodes, seed))
    return found


def _tried(name: str, advice: str, policy: AdoptedPolicy, task: Task, episodes: int, seed: int) -> Tried:
    flown = episodes_of(policy, task, episodes, seed)
    returns = np.array([e.reward.sum() for e in flown], np.float64)
    success, steps = np.array([e.succeeded for e in flown]), np.array([len(e.reward) for e in flown])
    return Tried(name, advice, returns, success, steps)


def readings(described: Description, contract: Contract) -> Iterator[tuple[str, str, Description]]:
    """What else a description could mean: its name, what to write then, and it."""
    yield from _joints(described, contract)
    yield from _histories(described)
    for k, term in enumerate(described.observation):
        for factor, why in ((FACTORS[0], ""), (FACTORS[1], ""), (DEGREES, " (degrees)"), (1.0 / DEGREES, " (radians)")):
            if term.signals and (not why or _turns(term, contract)):
                scale = tuple(factor * s for s in term.scale)
                what = f"observation[{k}] {term.label}: scale x {factor:.3g}{why}"
                yield what, f"scale: {scale[0]:.4g}", _with_term(described, k, dataclasses.replace(term, scale=scale))
        if set(term.offset) != {0.0}:
            bare = dataclasses.replace(term, offset=(0.0,))
            yield f"observation[{k}] {term.label}: no offset", "leave offset out", _with_term(described, k, bare)
    if described.normalisation.mean:
        clip = Normalisation(clip=described.normalisation.clip)
        changed = dataclasses.replace(described, normalisation=clip)
        yield "normalisation: none", "leave mean and std out: the network has its own", changed
    yield from _actions(described)


def _turns(term: Term, contract: Contract) -> bool:
    units = {s.name: s.unit for s in contract.inputs}
    return all(units[name] in ("rad", "rad/s") for name in term.signals)


def _with_term(described: Description, index: int, term: Term) -> Description:
    terms = list(described.observation)
    terms[index] = term
    return dataclasses.replace(described, observation=tuple(terms))


def _histories(described: Description) -> Iterator[tuple[str, str, Description]]:
    if all(term.history == 1 for term in described.observation):
        return
    history = described.history
    for key, value in (
        ("order", "frame" if history.order == "term" else "term"),
        ("newest", "first" if history.newest == "last" else "last"),
        ("start", "zero" if history.start == "first" else "first"),
    ):
        changed: History = dataclasses.replace(history, **{key: value})
        yield f"history: {key} {value}", f"history: {{{key}: {value}}}", dataclasses.replace(described, history=changed)


def _actions(described: Description) -> Iterator[tuple[str, str, Description]]:
    action = described.action
    changes: list[tuple[str, Action]] = []
    if action.means != "range":
        for factor in FACTORS:
            scale = tuple(factor * s for s in action.scale)
            changes.append((f"scale x {factor:g}", dataclasses.replace(action, scale=scale)))
    if action.squash == "tanh":
        changes.append(("squash none", dataclasses.replace(action, squash="none")))
    else:
        changes.append(("squash tanh", dataclasses.replace(action, squash="tanh")))
    for what, changed in changes:
        yield (
            f"action: {what}",
            f"action: {what.replace(' x', ': times')}",
            dataclasses.replace(described, action=changed),
        )


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


def _joints(described: Description, contract: Contract) -> Iterator[tuple[str, str, Description]]:
    """The elements in other orders: of what is commanded, of what is seen, and of both."""
    command = described.action.command
    size = next(s.size for s in contract.outputs if s.name == command)
    names = contract.elements.get(command) or tuple(map(str, range(size)))
    seen = [k for k, t in enumerate(described.observation) if contract.elements.get(t.label) == names]
    for name, order in _orders(tuple(map(str, described.action.elements or names)), names).items():
        acts = dataclasses.replace(described, action=_reordered(described.action, names, order))
        advice = f"elements: [{', '.join(str(e) for e in acts.action.elements or ())}]"
        yield f"action: elements {name}", advice, acts
        both, sees = acts, described
        for k in seen:
            term = _reordered(described.observation[k], names, order)
            both, sees = _with_term(both, k, term), _with_term(sees, k, term)
        if seen:
            yield f"observation: elements {name}", advice, sees
            yield f"action and observation: elements {name}", advice, both


def _reordered(thing: Any, names: tuple[str, ...], order: list[int]) -> Any:
    """A term or action whose elements stand in another order; its other lists are the network's, and stay."""
    before = thing.elements or (names if not all(n.isdecimal() for n in names) else tuple(range(len(names))))
    return thing if len(before) != len(order) else dataclasses.replace(thing, elements=tuple(before[k] for k in order))


def clearly_better(tried: list[Tried]) -> Tried | None:
    """The best of the readings that beat the described one beyond luck, if any does."""
    described, found = tried[0], []
    usual = abs(float(described.returns.mean()))
    for other in tried[1:]:
        apart = other.returns - described.returns
        error = float(apart.std(ddof=1)) / math.sqrt(len(apart)) if len(apart) > 1 else math.inf
        more = 0.5 * float(np.sign(apart).sum()) / (0.5 * math.sqrt(len(apart)))
        lucky = apart.mean() <= ERRORS * error and more < ERRORS
        if not lucky and apart.mean() > max(GAIN * usual, 0.0):
            found.append(other)
    return max(found, key=lambda other: float(other.returns.mean()), default=None)


def text(tried: list[Tried]) -> str:
    """A table: what was tried, the best first after what is described."""
    rows = [["reading", "return", "change", "success", "steps"]]
    base = float(tried[0].returns.mean())
    ordered = [tried[0], *sorted(tried[1:], key=lambda t: -float(t.returns.mean()))]
    for each in ordered:
        mean = float(each.returns.mean())
        change = "" if each is tried[0] else f"{mean - base:+.3g}"
        rows.append(
            [each.name, f"{mean:.4g}", change, f"{100 * each.success.mean():.0f} %", f"{each.steps.mean():.0f}"]
        )
    return table(rows)
