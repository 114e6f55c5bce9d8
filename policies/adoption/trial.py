"""Is the description right? The policy flies (or walks) as described, and with one thing read otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from deploy.trust.contract import FEWEST_STEPS
from policies.adoption.contract import Contract
from policies.adoption.description import Description
from policies.adoption.fields import DescriptionError
from policies.adoption.readings import Reading
from policies.models.controller import Policy
from policies.models.networks import Array
from policies.runner.report import table
from sim.env import make_env, together
from sim.rollout import Episode, rollout
from sim.tasks import Task

DECLARED = "as described"
# Standard errors, from which on it is no luck: of the difference over the same episodes, or of how many are better
# (returns of a policy that falls sooner or later have long tails).
ERRORS = 3.0
GAIN = 0.25  # of the described reading's return: what a wrong reading costs is more than a poor policy's luck


class Adopted(Policy, Protocol):
    """A foreign policy that can be read otherwise."""

    @property
    def description(self) -> Description: ...

    @property
    def contract(self) -> Contract: ...

    def readings(self) -> Iterator[Reading]:
        """What else its description could mean."""

    def otherwise(self, description: Any) -> Adopted:
        """The same, read otherwise; DescriptionError where that does not fit."""


@dataclass
class Tried:
    """One reading, and what came of it."""

    name: str
    advice: str  # what to write, if it is the right one
    returns: NDArray[np.float64]  # (episodes,)
    success: NDArray[np.bool_]  # (episodes,)
    steps: NDArray[np.int64]  # (episodes,), until the end


def episodes_of(policy: Adopted, task: Task, episodes: int, seed: int, every: int = 1) -> list[Episode]:
    """Episodes 0, 1, ... of the task, as in training, in this order. Each action is held for `every` steps."""
    num = min(episodes, together(task))
    env = make_env(task, num, seed)
    state = policy.initial_state(num)
    age, held = np.zeros(num, np.int64), dict[str, Array]()

    def act(signals: Mapping[str, Any], _: Any, begun: Any) -> Mapping[str, Any]:
        nonlocal state, age, held
        age = np.where(begun, 0, age + 1)
        waits = (age % every > 0)[:, None]
        fresh = policy.initial_state(num)
        now = {name: np.where(begun[:, None], fresh[name], value) for name, value in state.items()}
        seen = {s.name: np.nan_to_num(np.asarray(signals[s.name], s.dtype)) for s in policy.inputs}
        with np.errstate(over="ignore", invalid="ignore"):  # a wrong reading may lead anywhere
            commands, after = policy.act(seen, now)
        state = {name: np.where(waits, now[name], value) for name, value in after.items()}
        held = {name: np.where(waits, held.get(name, 0.0), np.nan_to_num(value)) for name, value in commands.items()}
        return held

    try:
        return sorted(rollout(task, env, act, range(episodes)), key=lambda episode: episode.number)
    finally:
        env.close()


def flight(policy: Adopted, seed: int) -> dict[str, Array] | None:
    """Signals of an episode, for test vectors; None where there is no simulator, or it ended at once."""
    task = policy.contract.made
    if task is None:
        return None
    (episode,) = episodes_of(policy, task, 1, seed)
    return episode.signals if len(episode.reward) >= FEWEST_STEPS else None


def compare(policy: Adopted, episodes: int, seed: int) -> list[Tried]:
    """The policy as described, then every other reading, on the same episodes. ValueError without a simulator."""
    task = policy.contract.made
    if task is None:
        raise ValueError("check=true needs a task of ours to try it in: the description declares its own robot")
    found = [_tried(Reading(DECLARED, "", policy.description), policy, task, episodes, seed)]
    for reading in policy.readings():
        try:
            other = policy.otherwise(reading.description)
        except DescriptionError:  # it does not fit the network
            continue
        found.append(_tried(reading, other, task, episodes, seed))
    return found


def _tried(reading: Reading, policy: Adopted, task: Task, episodes: int, seed: int) -> Tried:
    flown = episodes_of(policy, task, episodes, seed, reading.every)
    returns = np.array([e.reward.sum() for e in flown], np.float64)
    success, steps = np.array([e.succeeded for e in flown]), np.array([len(e.reward) for e in flown])
    return Tried(reading.name, reading.advice, returns, success, steps)


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
