"""What a student learns by trial once it was taught: `ppo`, near to what its lessons made of it.

Imitation alone leaves it where the teacher would be if it had to act on what the student knows; playing for the result
it learns to play with what it has. A Lagrange multiplier keeps its actions near to those that it was taught
(`algorithm.bound`), or it forgets them before its critic knows anything.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from policies.algorithms.ppo import PpoConfig
from policies.algorithms.ppo.fused import Fused
from sim.tasks import Task

if TYPE_CHECKING:
    from policies.algorithms.student import StudentConfig

CRITIC_ALONE = 40  # iterations


def practising(task: Task, config: StudentConfig, seed: int, practised: Task, taught: bytes) -> Fused:
    """A learner that goes on from the student in this policy file; `practised` as in `Fused`."""
    settings = {f.name: getattr(config, f.name) for f in fields(PpoConfig)}
    del settings["critic_hidden"]  # the student's had nothing to judge: it is as large as ppo's own
    settings |= {
        "total_steps": config.practice_steps,
        "learning_rate": config.practice_rate,
        "final_learning_rate": 0.1 * config.practice_rate,
        "start": "the student",
        "bound": config.practice_bound,
        "critic_alone": CRITIC_ALONE,
        "league": False,
    }
    return Fused(task, PpoConfig(**settings), seed, practised, content=taught)
