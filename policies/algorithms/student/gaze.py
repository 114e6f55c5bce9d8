"""Where to look, learned before a student learns it: what lets the teacher win who knows only what was seen.

The teacher plays on what a memory that forgets nothing knows (`sim.tasks.soccer.tracker`); `ppo` learns to turn the
camera, told the same. Nothing rewards seeing anything: winning is rewarded, and that the teacher does what it would
do if it knew everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.policy_file import PolicyFile
from policies.algorithms.ppo import PpoConfig
from policies.algorithms.ppo.fused import Fused
from policies.algorithms.ppo.tutor import answer
from policies.models.controller import FeaturePolicy, normalised
from policies.models.networks import Array
from sim.env import LooksAround

DOUBT = 0.1  # reward per squared difference, in actions, from what the teacher would do if it knew everything


class Gaze:
    """Learns to look in the task of a student who has such a teacher."""

    def __init__(self, task: LooksAround, teacher: PolicyFile, steps: int, threads: int, seed: int) -> None:
        """ValueError for a teacher who remembers: it has one memory, and here it plays many games at a time."""
        if teacher.state:
            raise ValueError(f"{teacher.path} remembers, and cannot teach where to look: set algorithm.gaze_steps=0")
        self.teacher, self.names = teacher, task.remembered
        config = PpoConfig(
            threads=threads,
            total_steps=steps,
            num_envs=1024,
            rollout_steps=32,
            minibatches=16,
            epochs=4,
            gamma=0.95,
            hidden=[64, 64],
            critic_hidden=[64, 64],
            initial_std=0.5,
            min_std=0.15,
            correlation=0.8,
            learning_rate=1e-3,
            final_learning_rate=1e-4,
            lengths=[1.0, 1.0],
            evaluate_every=0,
        )
        self.learner = Fused(task.gaze_task(self.hands), config, seed)
        self.learner.listen(self)

    def hands(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        """What the teacher does on what is remembered."""
        return answer(self.teacher, signals, self.names)

    def hear(self, signals: Mapping[str, Array], action: Array, wander: Array, wanted: Array) -> Array:
        """See `policies.learning.fused.stepped.Hearing`."""
        told = (answer(self.teacher, signals, names) for names in (self.names, {}))
        does, would = (np.clip(normalised(self.teacher.outputs, one), -1.0, 1.0) for one in told)
        doubt: Array = np.float32(DOUBT) * np.square(does - would).sum(axis=1)
        return doubt

    def begin(self, rows: NDArray[np.bool_]) -> None:
        """Nothing is remembered."""

    def learn(self) -> Iterator[dict[str, float]]:
        """Train to the end."""
        yield from self.learner.learn()

    def controller(self) -> FeaturePolicy:
        """Who looks."""
        return self.learner.controller()

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact continuation needs."""
        return self.learner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        self.learner.load_state_dict(state)
