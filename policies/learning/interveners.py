"""Who watches a policy at work and takes over: the task's expert by a rule, or a human (`policies.teleop.session`).

The rule needs nothing but an expert, so that it holds for every task that has one: the expert takes over after its
action and the executed one have been apart for a while, keeps what it took for a while, and gives it back. So the last
action before an intervention is one that it objected to. RLIF's own rule (Luo et al. 2023) asks for a critic of the
expert's, which scripts do not have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.models.controller import normalised
from policies.models.networks import Array
from sim.env import Env, expert_of
from sim.spec import Group
from sim.tasks import Task

EXPERT = "expert"


@dataclass
class Watch:
    """Settings of the intervener."""

    intervener: str = EXPERT  # or a human with keyboard, /dev/input/js0, ros2
    threshold: float = 0.25  # apart: root of the mean squared difference of actions in [-1, 1]
    patience: float = 0.1  # s apart before it takes over
    hold: float = 0.25  # s that it keeps what it took

    def __post_init__(self) -> None:
        if not self.threshold > 0.0 or self.patience < 0.0 or self.hold < 0.0:
            raise ValueError(
                "needs threshold > 0, patience >= 0 and hold >= 0, "
                f"got {self.threshold}, {self.patience} and {self.hold}"
            )


class Intervener(Protocol):
    """Watches scenes, all of them at every control step."""

    advises: bool  # it is asked in every state; else what it says costs somebody's time only where it acts

    def decide(
        self, signals: Mapping[str, Array], wanted: Array, begun: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], Array]:
        """Which scenes are its own in this step (n,), and the actions (n, k) in [-1, 1] that it thinks right.

        `signals` (n, *shape) are noise-free, `wanted` (n, k) is the policy's action, `begun` (n,) marks new episodes.
        NaN is an action that it does not say: in scenes that are not its own it need not.
        """

    def state_dict(self) -> dict[str, Any]:
        """What an exact continuation needs."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""

    def close(self) -> None:
        """Free what it holds."""


Opening = Callable[[Env], Intervener]  # for the scenes that it shall watch


def action_of(commands: Group, values: Mapping[str, Array]) -> Array:
    """Actions (n, k) in [-1, 1] for commands by name, cut off at their limits."""
    return normalised(commands, values).clip(-1.0, 1.0)


class Expert:
    """The task's expert, by the rule of this file."""

    advises = False

    def __init__(self, task: Task, watch: Watch, num: int) -> None:
        self.task, self.threshold = task, watch.threshold
        self.patience = max(1, round(watch.patience * task.rate_hz))  # steps
        self.hold = max(1, round(watch.hold * task.rate_hz))
        self.apart = np.zeros(num, np.int64)  # steps in a row that were executed so
        self.left = np.zeros(num, np.int64)  # steps until it gives back

    def decide(
        self, signals: Mapping[str, Array], wanted: Array, begun: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], Array]:
        told = action_of(self.task.commands, expert_of(self.task).expert(signals))
        away = np.sqrt(np.square(told - wanted).mean(axis=1))  # NaN is neither far nor near: nobody takes over
        self.apart[begun] = self.left[begun] = 0
        self.left = np.where(self.apart >= self.patience, self.hold, self.left)
        taken = (self.left > 0) & np.isfinite(away)
        self.apart = np.where(~taken & (away > self.threshold), self.apart + 1, 0)
        self.left = np.maximum(self.left - 1, 0)
        return taken, told

    def state_dict(self) -> dict[str, Any]:
        return {"apart": self.apart.copy(), "left": self.left.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.apart, self.left = state["apart"].copy(), state["left"].copy()

    def close(self) -> None:
        """Nothing is held."""


class Adviser:
    """The task's expert as DAgger asks it: it says what is right in every state, and acts in a random `share`."""

    advises = True

    def __init__(self, task: Task, share: float, seed: int) -> None:
        self.task, self.share = task, share
        self._rng = np.random.default_rng(seed)

    def decide(
        self, signals: Mapping[str, Array], wanted: Array, begun: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], Array]:
        told = action_of(self.task.commands, expert_of(self.task).expert(signals))
        taken = (self._rng.random(len(told)) < self.share) & np.isfinite(told).all(axis=1)
        return taken, told

    def state_dict(self) -> dict[str, Any]:
        return {"share": self.share, "rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.share, self._rng.bit_generator.state = float(state["share"]), state["rng"]

    def close(self) -> None:
        """Nothing is held."""


def opening(task: Task, watch: Watch, num_envs: int) -> Opening:
    """Whom the settings name. A human has two hands: ValueError for more than one scene, or for no such device."""
    if watch.intervener == EXPERT:
        return lambda env: Expert(task, watch, env.num)
    from policies.teleop.session import Human, Settings

    if num_envs != 1:
        raise ValueError(f"intervener={watch.intervener} watches one scene, not num_envs={num_envs}")
    settings = Settings(device=watch.intervener)
    return functools.partial(Human.open, task, settings, watch.hold)
