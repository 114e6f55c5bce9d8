"""Teacher and student: who senses what the robot senses learns from one who knows more.

First somebody learns the same task who is told where everything is (or `teacher` is a policy file that did). The
student, who remembers, acts in the task and is drawn towards what the teacher would do in its place (DAgger, Ross et
al. 2011), then tries for itself, too, more and more loosely bound to the teacher (as in "Learning Robot Soccer from
Egocentric Vision", Tirumala et al. 2024, arXiv 2405.02425). What the teacher does not command, such as where a camera
looks, is tried from the beginning: what is good for the task is rewarded, and what helps to know the teacher's answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from deploy.policy_file import PolicyFile
from deploy.trust.content import content_of
from policies.algorithms import Algorithm, algorithm_for, recipes_of
from policies.algorithms.ppo import PpoConfig, beyond
from policies.algorithms.ppo.fused import Fused
from policies.algorithms.ppo.league import League
from policies.algorithms.ppo.torch_recurrent import TorchRecurrent
from policies.algorithms.ppo.tutor import Lesson, Tutor
from policies.models.controller import Array, FeaturePolicy
from policies.models.export import to_bytes
from policies.models.rounding import halved
from policies.models.vision import EncoderConfig
from sim import tasks
from sim.tasks import HasTeacher, Task

SHARE = 0.3  # of the progress that is shown, for a teacher that is learned first


@dataclass
class StudentConfig(PpoConfig):
    """Settings of student: those of PPO, by which it learns, and of its lessons."""

    teacher: str = ""  # a policy file; empty: one is learned first
    teacher_steps: int = 0  # environment steps of that; 0: as its task's recipe says
    network: str = "gru"
    hidden: list[int] = field(default_factory=lambda: [128, 64])
    sight: EncoderConfig = field(default_factory=lambda: EncoderConfig(head="flat"))
    inherit: bool = True  # a tracking_gru begins with the teacher's network as its head, which acts on what it tracks
    held: float = 0.75  # share of the training in which that stays as it is, while the memory learns
    guided: float = 0.05  # share of the training in which the teacher acts in fewer and fewer rows
    alone: float = 0.5  # share of the training in which what the teacher knows is learned from it alone
    imitation: float = 1.0  # weight of the squared difference from the teacher until then
    final_imitation: float = 0.05  # and at the end
    imitation_reward: float = 0.1  # per squared difference, taken from the reward
    estimation: float = 1.0  # weight of the error by which the student's memory tells what is privileged

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.remembers:
            raise ValueError(
                f"a student remembers: algorithm.network must be gru or tracking_gru, got {self.network!r}"
            )
        for name in ("guided", "alone", "held"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"algorithm.{name} is a share of the training, 0..1, got {getattr(self, name)}")
        if not 0.0 <= self.final_imitation <= self.imitation or min(self.imitation_reward, self.estimation) < 0.0:
            raise ValueError(
                "needs 0 <= final_imitation <= imitation, imitation_reward >= 0 and estimation >= 0, got "
                f"{self.final_imitation}, {self.imitation}, {self.imitation_reward} and {self.estimation}"
            )
        if self.teacher_steps < 0:
            raise ValueError(f"algorithm.teacher_steps must not be negative, got {self.teacher_steps}")

    def lesson(self) -> Lesson:
        """How the teacher is heard."""
        weights = self.imitation, self.final_imitation, self.imitation_reward
        inherits = self.network == "tracking_gru" and self.inherit
        return Lesson(self.guided, self.alone, *weights, self.held if inherits else 0.0, self.estimation)


class Student:
    """See the module."""

    Config = StudentConfig
    needs: tuple[type, ...] = (HasTeacher,)
    takes: tuple[str, ...] = ("agents",)

    def __init__(self, task: Any, config: StudentConfig, seed: int, device: str = "cpu") -> None:
        self.task, self.config, self.seed, self.device = task, config, seed, device
        self.content = b""  # the policy file of the teacher that the student has
        self.before = 0.0  # environment steps of its training
        self.league = League(task, seed, {"teacher": self._play}, itself=False) if config.league else None
        practised = self.league.training() if self.league else task
        fused = config.path != "torch" and not beyond(task, config, device)
        how = task, config, seed
        self.student: Fused | TorchRecurrent = (
            Fused(*how, practised, config.lesson())
            if fused
            else TorchRecurrent(*how, device, practised, config.lesson())
        )
        self.teacher = None if config.teacher else self._learner(task.teacher_task())
        if config.teacher:
            self._meet(content_of(config.teacher), config.teacher)

    def _learner(self, task: Task) -> Algorithm:
        """Who learns first what the student is to do, as the recipe for this task says."""
        kind = algorithm_for(task.algorithm, task)
        recipe = {**recipes_of(kind), **tasks.recipes_of(type(task), task.algorithm)}
        settings = {name.removeprefix("algorithm."): value for name, value in recipe.get("default", {}).items()}
        settings |= {"total_steps": self.config.teacher_steps} if self.config.teacher_steps else {}
        made: Algorithm = kind(task, kind.Config(**settings), self.seed, device=self.device)
        return made

    def _meet(self, content: bytes, path: str = "the teacher") -> None:
        """Begin to learn from the teacher in this policy file, who plays against the student, too."""
        policy, self._rival = (PolicyFile.from_bytes(content, path) for _ in range(2))
        if self.league and policy.state:
            raise ValueError(f"{path} remembers: no opponent can, yet; set algorithm.league=false")
        self.student.hear(Tutor(policy, self.task, self.config.num_envs))
        self.content = content
        if isinstance(self.student, TorchRecurrent) and self.config.network == "tracking_gru" and self.config.inherit:
            self.student.begin_with(policy, content, self.task.teacher_task())

    def _play(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        """What the teacher does as an opponent; what it does not command is zero."""
        rival = self._rival
        rival.reset(len(signals[rival.inputs[0].name]))
        told = rival.step(signals)
        return {s.name: told.get(s.name, np.zeros((rival.n, *s.shape), np.float32)) for s in self.task.commands}

    def learn(self) -> Iterator[dict[str, float]]:
        """The teacher's training, if it has to learn first, then the student's."""
        if self.teacher and not self.content:
            for metrics in self.teacher.learn():
                self.before = metrics["env_steps"]
                same = ("loss", "reward", "env_steps")
                shown = {name if name in same else f"teacher_{name}": value for name, value in metrics.items()}
                yield {**shown, "progress": SHARE * metrics["progress"]}
            self._meet(to_bytes(self.teacher.controller(), "the teacher"))
        begins = SHARE if self.teacher else 0.0
        for metrics in self.student.learn():
            points = {f"points_{name}": points for name, points in self.league.points().items()} if self.league else {}
            done = {"progress": begins + (1.0 - begins) * metrics["progress"]}
            yield {**metrics, **points, **done, "env_steps": self.before + metrics["env_steps"]}

    def controller(self) -> FeaturePolicy:
        """The student, who knows nothing as long as the teacher learns."""
        made = self.student.controller()
        return halved(made) if self.config.float16 else made

    def dump_to(self, folder: Path) -> None:
        for learner in (self.teacher, self.student):
            if learner:
                learner.dump_to(folder)

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact continuation needs."""
        return {
            "content": np.frombuffer(self.content, np.uint8),
            "teacher": self.teacher.state_dict() if self.teacher and not self.content else {},
            "student": self.student.state_dict(),
            "league": self.league.state_dict() if self.league else {},
            "before": self.before,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of the same task and settings."""
        self.before = float(state["before"])
        if len(state["content"]):
            self._meet(np.asarray(state["content"], np.uint8).tobytes())
        elif self.teacher:
            self.teacher.load_state_dict(state["teacher"])
        if self.league:
            self.league.load_state_dict(state["league"])
        self.student.load_state_dict(state["student"])
