"""Encoders that learn from recordings to tell what is privileged in pictures, and then stay as they are.

Whoever tries for himself learns soon from numbers that say how far walls are, and slowly from pixels. A recording of a
simulator, or of a better equipped robot, holds both, whoever drove it: state estimation by regression, before any
reward is seen. Here are the settings; `learner` needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class StateEstimation:
    """Settings of an encoder that learns by regression, before anything else."""

    updates: int = 0  # 0: none; the encoder learns with the actor
    demonstrations: str = ""  # folder of a dataset; without one the task's expert shows, where practice never is
    episodes: int = 200
    corruption: float = 1.0  # of the expert who shows: pictures from beside the way, too
    batch_size: int = 256
    hidden: list[int] = field(default_factory=lambda: [128, 128])  # of the perceptron behind the convolutions
    learning_rate: float = 2e-3  # at the start; a cosine leads to a fiftieth

    def __post_init__(self) -> None:
        if self.updates < 0 or self.episodes < 1 or self.batch_size < 1:
            raise ValueError(
                "needs algorithm.estimator.updates >= 0, episodes >= 1 and batch_size >= 1, got "
                f"{self.updates}, {self.episodes} and {self.batch_size}"
            )
        if not (self.learning_rate > 0.0 and self.corruption >= 0.0):
            raise ValueError(
                "needs algorithm.estimator.learning_rate > 0 and corruption >= 0, got "
                f"{self.learning_rate:g} and {self.corruption:g}"
            )
