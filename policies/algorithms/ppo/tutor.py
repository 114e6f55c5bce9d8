"""Who knows more than the learner and says what it would do; and how much that counts in the course of a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.policy_file import PolicyFile
from policies.learning import exponential
from policies.learning.interveners import action_of
from policies.models.controller import normalised
from policies.models.networks import Array
from sim import spec
from sim.env import expert_of
from sim.tasks import Task
from sim.tasks.abilities import check_expert


@dataclass(frozen=True)
class Lesson:
    """How a tutor is heard."""

    guided: float = 0.0  # share of the training in which it acts in fewer and fewer rows
    alone: float = 0.0  # share of the training in which what it knows is learned from it alone
    first: float = 0.0  # weight of the squared difference from it until then
    last: float = 0.0  # and at the end, reached exponentially
    reward: float = 0.0  # per squared difference, taken from the reward: what helps to know what it knows is good
    held: float = 0.0  # share of the training in which the layers that act on what is tracked stay as they are
    estimate: float = 0.0  # weight of the error by which the actor's memory tells what is privileged

    def guided_share(self, done: float) -> float:
        """The share of the rows in which it acts, when so much of the training is done."""
        return max(0.0, 1.0 - done / self.guided) if self.guided else 0.0

    def taught(self, done: float) -> bool:
        """Whether what it knows is learned from it alone then."""
        return done < self.alone

    def weight(self, done: float) -> float:
        """Of the squared difference then."""
        if self.taught(done) or not self.last:
            return self.first
        return exponential((done - self.alone) / (1.0 - self.alone), self.first, self.last)


def _seen(policy: PolicyFile, signals: Mapping[str, Array], names: Mapping[str, str]) -> dict[str, Array]:
    """What it sees of the signals, some of which go by other names."""
    return {s.name: signals[names.get(s.name, s.name)] for s in policy.inputs}


def answer(
    policy: PolicyFile, signals: Mapping[str, Array], names: Mapping[str, str] | None = None
) -> dict[str, Array]:
    """What a policy that remembers nothing commands in any number of rows; `names` as those of a `Tutor`."""
    seen = _seen(policy, signals, names or {})
    policy.reset(len(next(iter(seen.values()))))
    return policy.step(seen)


class Tutor:
    """Policy files for the same robot, which may see what is privileged, and command a part of it each.

    `names`: of what they see the signals that it is taken from, where these are called otherwise.
    """

    def __init__(
        self, policies: Sequence[PolicyFile], task: Task, rows: int, names: Mapping[str, str] | None = None
    ) -> None:
        """ValueError when the task lacks what they see, or does not take what they command."""
        self.policies, self.names = [*policies], dict(names or {})
        known = {s.name: s.shape for s in (*task.policy, *task.privileged)}
        taken, where = {s.name: s for s in task.commands}, spec.slices(task.commands)
        self.columns: list[int] = []
        for policy in policies:
            for signal in policy.inputs:
                if known.get(self.names.get(signal.name, signal.name)) != signal.shape:
                    raise ValueError(
                        f"{policy.path} sees {signal.name!r} of shape {signal.shape}, which {task.name} lacks"
                    )
            for signal in policy.outputs:
                if taken.get(signal.name) != signal:
                    raise ValueError(f"{policy.path} commands {signal.name!r} in another way than {task.name}")
                self.columns += range(*where[signal.name].indices(1 << 30))
            if policy.rate_hz != task.rate_hz:
                raise ValueError(f"{policy.path} runs at {policy.rate_hz:g} Hz, {task.name} at {task.rate_hz:g} Hz")
            policy.reset(rows)

    def begin(self, rows: NDArray[np.bool_]) -> None:
        """New episodes where `rows` (n,) is set: they forget the old ones."""
        for policy in self.policies:
            policy.restart(rows)

    def act(self, signals: Mapping[str, Array]) -> Array:
        """Their actions (n, columns) in [-1, 1]; they see of the signals (n, *shape) what they need."""
        actions = [normalised(p.outputs, p.step(_seen(p, signals, self.names))) for p in self.policies]
        action: Array = np.clip(np.concatenate(actions, axis=1), -1.0, 1.0)
        return action

    def state_dict(self) -> dict[str, Any]:
        """What they remember."""
        return {str(k): policy.states() for k, policy in enumerate(self.policies)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        for k, policy in enumerate(self.policies):
            policy.put({name: np.asarray(value) for name, value in state.get(str(k), {}).items()})


def tutored(contents: Mapping[str, bytes], task: Task, names: Mapping[str, str]) -> Callable[[int], Tutor]:
    """Makes tutors for a number of rows, each with policies (by path) of its own: they may remember."""
    return lambda rows: Tutor([PolicyFile.from_bytes(one, path) for path, one in contents.items()], task, rows, names)


class Scripted:
    """A task's scripted expert as a tutor: it is told what is privileged, commands everything and remembers nothing."""

    def __init__(self, task: Task) -> None:
        """NoExpertError where the task has none, or none with its settings."""
        self.task, self.expert = task, expert_of(task)
        check_expert(task)
        self.columns = list(range(spec.size(task.commands)))

    def begin(self, rows: NDArray[np.bool_]) -> None:
        """It remembers nothing."""

    def act(self, signals: Mapping[str, Array]) -> Array:
        """Its actions (n, k) in [-1, 1] for signals (n, *shape)."""
        return action_of(self.task.commands, self.expert.expert(signals))

    def state_dict(self) -> dict[str, Any]:
        """There is none."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is none."""


class Heard:
    """A tutor whom an actor hears as it acts; see `policies.learning.fused.stepped.Hearing`."""

    def __init__(self, tutor: Tutor | Scripted, lesson: Lesson) -> None:
        self.tutor, self.lesson = tutor, lesson
        self.guided = 0  # in so many rows, the first ones, the tutor acts
        self.error, self.steps = 0.0, 0  # squared differences from the tutor, summed, and of how many steps

    def hear(self, signals: Mapping[str, Array], action: Array, wander: Array, wanted: Array) -> Array:
        columns, count = self.tutor.columns, self.guided
        told = self.tutor.act(signals)
        wanted[:, columns] = told
        apart = np.square(action[:, columns] - wander[:, columns] - told)
        self.error, self.steps = self.error + float(apart.mean()), self.steps + 1
        action[:count, columns] = told[:count] + wander[:count, columns]
        taken: Array = self.lesson.reward * apart.sum(axis=1)
        return taken

    def begin(self, rows: NDArray[np.bool_]) -> None:
        self.tutor.begin(rows)

    def mean_error(self) -> float:
        """Of all steps since it was asked last."""
        error, self.error, self.steps = self.error / max(1, self.steps), 0.0, 0
        return error
