"""How a student sees: by a detector that learns, before the student does, what is in pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from policies.algorithms import LearningError
from policies.learning.detection.learner import DetectorLearner
from policies.models.controller import FeaturePolicy
from policies.models.detector import DetectorEncoder
from policies.models.networks.gru import Gru
from sim.env import shows_things
from sim.spec import size
from sim.tasks import Task, with_opponents
from sim.tasks.soccer.detection import signals

if TYPE_CHECKING:
    from policies.algorithms.ppo.league import League

GAMES = 40  # unseen ones that judge a detector


class Eyes:
    """A detector, and the tasks in which a student is told what it tells. ValueError where no detector can learn."""

    def __init__(self, task: Any, network: str, steps: int, seed: int, threads: int = 1) -> None:
        """It learns from `steps` pictures, on so many threads, for a student with this kind of network."""
        if not shows_things(task):
            raise ValueError(f"nobody says what is in pictures of {task.name}: set algorithm.eyes=encoder")
        if network != "gru":
            raise ValueError("algorithm.eyes=detector goes with algorithm.network=gru")
        self.seen: Any = task
        self.task: Any = task.detector_task()
        self.learner = DetectorLearner(task, steps, GAMES, seed, threads)

    @property
    def over(self) -> bool:
        """Whether it has learned."""
        return self.learner.errors is not None

    def learn(self) -> Iterator[dict[str, float]]:
        """Train it, and measure its errors. LearningError where it learns too little for that."""
        yield from self.learner.learn()
        try:
            self.learner.judge()
        except ValueError as error:
            raise LearningError(
                f"{error}, after {self.learner.done} pictures: give algorithm.detector_steps more"
            ) from error

    def watching(self, league: League | None) -> Task:
        """What the student practises when it is told what is found in pictures."""
        made: Task = self.seen.recognised_by(self.learner.recognise)
        return with_opponents(made).against(league.opponent) if league else made

    def before(self, told: FeaturePolicy) -> FeaturePolicy:
        """The policy that takes pictures, of one that is told what the detector tells."""
        network = told.network
        assert isinstance(network, Gru)
        count = size(signals(self.seen.players))
        weight, bias = network.input  # what is told comes first; in the other one what is measured does
        moved = np.concatenate([weight[:, count:], weight[:, :count]], axis=1)
        encoder = DetectorEncoder(self.learner.network.exported(f"{self.seen.name}_detector"))
        (picture,) = self.learner.network.inputs
        return FeaturePolicy.from_task(
            self.seen, replace(network, input=(moved, bias)), encoders={picture.name: encoder}
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact continuation needs."""
        return self.learner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        self.learner.load_state_dict(state)
