"""Teacher and student: who senses what the robot senses learns from one who knows more.

First somebody learns the same task who is told where everything is (or `teacher` is a policy file that did). Where a
robot looks as it chooses somebody else learns that for the teacher (`gaze`). Where it sees pictures a detector learns
what is in them (`policies.learning.detection`), and the student is told what such a detector tells, with the errors
that this one was measured to have; in the end, what it really tells.

The student, who remembers, acts in the task and is drawn towards what the teacher would do in its place (DAgger, Ross
et al. 2011), then tries for itself, too, more and more loosely bound to the teacher (as in "Learning Robot Soccer from
Egocentric Vision", Tirumala et al. 2024, arXiv 2405.02425). What nobody commands who teaches is tried from the
beginning: what is good for the task is rewarded, and what helps to know the teacher's answer. In the end the student
practises (`practice`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploy.policy_file import PolicyFile
from deploy.trust.content import content_of
from policies.algorithms import Algorithm, algorithm_for, recipes_of
from policies.algorithms.ppo import PpoConfig, beyond
from policies.algorithms.ppo.fused import Fused
from policies.algorithms.ppo.league import League, network_state, with_weights
from policies.algorithms.ppo.tutor import Lesson, Tutor, answer, tutored
from policies.algorithms.student.gaze import Gaze
from policies.algorithms.student.practice import practising
from policies.models.controller import FeaturePolicy, Policy
from policies.models.export import to_bytes
from policies.models.networks import Array
from policies.models.rounding import halved
from policies.models.vision import EncoderConfig
from sim import tasks
from sim.env import looks_around
from sim.spec import pictures, size
from sim.tasks import HasTeacher, Task

if TYPE_CHECKING:
    from policies.algorithms.ppo.torch_recurrent import TorchRecurrent
    from policies.algorithms.student.eyes import Eyes

# Shares of the progress that is shown, of what comes before the student's own training.
TEACHER, GAZE, EYES = 0.3, 0.05, 0.15
SEES = ("encoder", "detector")


@dataclass
class StudentConfig(PpoConfig):
    """Settings of student: those of PPO, by which it learns, and of its lessons."""

    teacher: str = ""  # a policy file; empty: one is learned first
    teacher_steps: int = 0  # environment steps of that; 0: as its task's recipe says
    gaze_steps: int = 3_000_000  # of who learns where to look, if the task's robot looks; 0: the student tries that
    eyes: str = "encoder"  # of pictures: encoder, learned with the rest | detector, learned before
    detector_steps: int = 400_000  # pictures that a detector learns from
    watching: float = 0.1  # share of its lessons, or its practice, at the end, in which it is told what that tells
    network: str = "gru"
    hidden: list[int] = field(default_factory=lambda: [128, 64])
    sight: EncoderConfig = field(default_factory=lambda: EncoderConfig(head="flat"))
    inherit: bool = True  # a tracking_gru begins with the teacher's network as its head, which acts on what it tracks
    held: float = 0.75  # share of the training in which that stays as it is, while the memory learns
    guided: float = 0.05  # share of the training in which the teacher acts in fewer and fewer rows
    practice_steps: int = 0  # of `ppo` once it was taught, near to what it does then; of the compiled path
    practice_rate: float = 2e-4  # its learning rate at the start; at the end it is a tenth of that
    practice_bound: float = 0.2  # by which actions may change (root mean square); 0: as much as they like
    snapshots: int = 0  # of what it was, evenly over its lessons and practice, for the league's table at the end
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
        if self.eyes not in SEES:
            raise ValueError(f"algorithm.eyes {self.eyes!r} is not one of {', '.join(SEES)}")
        if self.gaze_steps < 0 or self.detector_steps < 1000:
            raise ValueError(
                "needs algorithm.gaze_steps >= 0 and detector_steps >= 1000, got "
                f"{self.gaze_steps} and {self.detector_steps}"
            )
        besides = self.league or self.eyes == "detector" or self.practice_steps or self.snapshots
        if self.parts > 1 and (not self.teacher or besides or self.workers != 1):
            raise ValueError(
                f"algorithm.parts={self.parts} cut a student's lessons alone: they go with algorithm.teacher=FILE, "
                "eyes=encoder, league=false, practice_steps=0, snapshots=0 and workers=1"
            )
        if self.bound:
            raise ValueError("algorithm.bound is ppo's: a student's practice has algorithm.practice_bound")
        if self.practice_steps < 0 or not 0.0 < self.practice_rate < np.inf or not 0.0 <= self.practice_bound <= 2.0:
            raise ValueError(
                "needs algorithm.practice_steps >= 0, practice_rate > 0, finite, and practice_bound within 0..2, got "
                f"{self.practice_steps}, {self.practice_rate:g} and {self.practice_bound:g}"
            )
        if self.snapshots < 0 or (self.snapshots and self.network != "gru"):
            raise ValueError(
                "needs algorithm.snapshots >= 0, and 0 where algorithm.network is not gru, got "
                f"{self.snapshots} and {self.network!r}"
            )
        for name in ("held", "watching"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"algorithm.{name} is a share of the training, 0..1, got {getattr(self, name)}")
        if min(self.imitation_reward, self.estimation) < 0.0:
            raise ValueError(
                "needs algorithm.imitation_reward >= 0 and estimation >= 0, got "
                f"{self.imitation_reward} and {self.estimation}"
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
    takes: tuple[str, ...] = ("agents", "learners")

    def __init__(self, task: Any, config: StudentConfig, seed: int, device: str = "cpu") -> None:
        self.task, self.config, self.seed, self.device = task, config, seed, device
        self.content = b""  # the policy file of the teacher that the student has
        self.looks = b""  # and of who looks for it
        self.before = 0.0  # environment steps of the training of all others that is over
        self.reached = 0.0  # of that which is not
        self.gaze: Gaze | None = None
        self.eyes: Eyes | None = None
        self._watches, self._dumps = False, Path()
        self._make_eyes()
        learned = self.eyes.task if self.eyes else task
        self.league = self._league(learned) if config.league else None
        self.student: Fused | TorchRecurrent = self._pupil(learned)
        self.taught = b""  # the student as its lessons left it, and
        self.practice: Fused | None = None  # its practice, which goes on from there
        self.past: dict[int, FeaturePolicy] = {}  # what it was, by the environment steps of everybody until then
        self.teacher = None if config.teacher else self._learner(task.teacher_task())
        if config.teacher:
            self._meet(content_of(config.teacher), config.teacher)

    def _make_eyes(self) -> None:
        if self.config.eyes == "detector" and pictures(self.task.policy):
            from policies.algorithms.student.eyes import Eyes

            settings = self.config.network, self.config.detector_steps, self.seed, self.config.threads
            self.eyes = Eyes(self.task, *settings)

    def _league(self, task: Task) -> League:
        """Scripted opponents, and the teacher."""
        return League(task, self.seed, {"teacher": self._play}, itself=False)

    def _practised(self, task: Task) -> Task:
        """This task as it is learned: against the league, if there is one."""
        return self.league.training() if self.league else task

    def _pupil(self, task: Task) -> Fused | TorchRecurrent:
        """Who learns this task."""
        practised, how = self._practised(task), (task, self.config, self.seed)
        if self.config.path != "torch" and not (why := beyond(task, self.config, self.device)):
            return Fused(*how, practised, self.config.lesson())
        if self.config.path == "fused":
            raise ValueError(f"algorithm.path=fused does not do {why}; use algorithm.path=torch")
        from policies.algorithms.ppo.torch_recurrent import TorchRecurrent

        return TorchRecurrent(*how, self.device, practised, self.config.lesson())

    def _learner(self, task: Task) -> Algorithm:
        """Who learns first what the student is to do, as the recipe for this task says."""
        kind = algorithm_for(task.algorithm, task)
        recipe = {**recipes_of(kind), **tasks.recipes_of(type(task), task.algorithm)}
        settings = {name.removeprefix("algorithm."): value for name, value in recipe.get("default", {}).items()}
        settings |= {"total_steps": self.config.teacher_steps} if self.config.teacher_steps else {}
        made: Algorithm = kind(task, kind.Config(**settings), self.seed, device=self.device)
        return made

    def _meet(self, content: bytes, path: str = "the teacher") -> None:
        """Have the teacher in this policy file, who plays against the student, too."""
        teacher, self._rival = (PolicyFile.from_bytes(content, path) for _ in range(2))
        if self.league and teacher.state:
            raise ValueError(f"{path} remembers: no opponent can, yet; set algorithm.league=false")
        self.content = content
        commanded = Tutor([teacher], self.student.task, 1).columns  # says what does not fit
        if self._gazes and len(commanded) < size(self.task.commands):
            if self.config.parts > 1:
                raise ValueError(f"algorithm.parts={self.config.parts}: nobody learns to look first, set gaze_steps=0")
            self.gaze = Gaze(self.task, teacher, self.config.gaze_steps, self.config.threads, self.seed)
        else:
            self._listen()

    def _listen(self) -> None:
        """Begin to learn from the teacher, and from who looks."""
        contents, names = {self.config.teacher or "the teacher": self.content}, dict[str, str]()
        if self.looks:
            contents["who looks"], names = self.looks, self.task.remembered
        student, tutor = self.student, tutored(contents, self.student.task, names)
        if isinstance(student, Fused):
            return student.hear(tutor(self.config.num_envs))
        student.hear(tutor)
        if self.config.network == "tracking_gru" and self.config.inherit:
            student.begin_with(tutor(1).policies[0], self.content, self.task.teacher_task())

    def _play(self, signals: Mapping[str, Array]) -> dict[str, Array]:
        """What the teacher does as an opponent; what it does not command is zero."""
        told, rows = answer(self._rival, signals), len(next(iter(signals.values())))
        return {s.name: told.get(s.name, np.zeros((rows, *s.shape), np.float32)) for s in self.task.commands}

    def learn(self) -> Iterator[dict[str, float]]:
        """The training of all who have to learn before the student, then the student's."""
        begins = 0.0
        if self.teacher:
            if not self.content:
                yield from self._shown(self.teacher.learn(), "teacher", begins, TEACHER)
                self._meet(to_bytes(self.teacher.controller(), "the teacher"))
            begins += TEACHER
        if self.gaze:
            if not self.looks:
                self.gaze.learner.dump_to(self._dumps)
                yield from self._shown(self.gaze.learn(), "gaze", begins, GAZE)
                self.looks = to_bytes(self.gaze.controller(), "who looks")
                self._listen()
            begins += GAZE
        if self.eyes:
            if not self.eyes.over:
                yield from self._shown(self.eyes.learn(), "detector", begins, EYES)
                self._open_eyes()
            begins += EYES
        lessons = 1.0
        if self._practises:
            lessons = self.config.total_steps / (self.config.total_steps + self.config.practice_steps)
        if not self.practice:
            yield from self._learned(begins, 0.0, lessons)
            if self._practises:
                self._practise(to_bytes(self.student.controller(), "the student"))
        if self.practice:
            yield from self._learned(begins, lessons, 1.0 - lessons)

    def stage(self) -> str:
        """See `policies.algorithms.HasStages`."""
        if self.teacher and not self.content:
            return "its teacher learns"
        if self.gaze and not self.looks:
            return "who looks for it learns"
        if self.eyes and not self.eyes.over:
            return "its detector learns; the games that were under way are played again first"
        return "it practises" if self.practice else "it learns from its teacher"

    @property
    def _trained(self) -> Fused | TorchRecurrent:
        """The student as it learns now: from its lessons, or from its practice."""
        return self.practice or self.student

    @property
    def _practises(self) -> bool:
        """Whether it does after its lessons."""
        return isinstance(self.student, Fused) and self.config.practice_steps > 0

    def _learned(self, begins: float, first: float, share: float) -> Iterator[dict[str, float]]:
        """The metrics of a part of the student's own training, this `share` of it after the `first`.

        `begins`: the progress until then of all who learn before. The last part ends with what the detector tells.
        """
        last = self.practice or not self._practises
        self._trained.dump_to(self._dumps)
        for metrics in self._trained.learn():
            self.reached = metrics["env_steps"]
            points = {f"points_{name}": points for name, points in self.league.points().items()} if self.league else {}
            own = first + share * metrics["progress"]
            if last and not self._watches and metrics["progress"] >= 1.0 - self.config.watching:
                self._watch()
            self._remember(own)
            done = {"progress": begins + own * (1.0 - begins), "env_steps": self.before + self.reached}
            yield {**metrics, **points, **done}
        self.before, self.reached = self.before + self.reached, 0.0

    def _remember(self, own: float) -> None:
        """Keep what it is now, if it is time to; `own` is the share of its training that is over."""
        learner, kept = self._trained, len(self.past)
        if kept < self.config.snapshots and own >= kept / self.config.snapshots and isinstance(learner, Fused):
            self.past[int(self.before + self.reached)] = learner.controller()

    def _practise(self, taught: bytes) -> None:
        """Go on by trial from what was taught."""
        self.taught, task = taught, self.student.task
        self.practice = practising(task, self.config, self.seed, self._practised(task), taught)

    @property
    def _gazes(self) -> bool:
        return bool(looks_around(self.task) and self.config.gaze_steps)

    def _shown(
        self, learning: Iterator[dict[str, float]], who: str, begins: float, share: float
    ) -> Iterator[dict[str, float]]:
        """The metrics of somebody who learns before the student does."""
        same = ("loss", "reward")
        for metrics in learning:
            self.reached = metrics["env_steps"]
            shown = {name if name in same else f"{who}_{name}": value for name, value in metrics.items()}
            steps = {"env_steps": self.before + self.reached}
            yield {**shown, **steps, "progress": begins + share * metrics["progress"]}
        self.before, self.reached = self.before + self.reached, 0.0

    def _open_eyes(self) -> None:
        """Learn with the errors that the detector was measured to have."""
        assert self.eyes is not None
        self.eyes.task.errors = self.eyes.learner.errors
        if self.league:
            self.league = self._league(self.eyes.task)
        self.student = self._pupil(self.eyes.task)
        self._listen()

    def _watch(self) -> None:
        """Be told what the detector tells, from pictures, from now on; with torch it goes on as it did."""
        learner = self._trained
        if self.eyes and isinstance(learner, Fused):
            self._watches = True
            learner.go_on_in(self.eyes.watching(self.league), self.seed + 1)

    def controller(self) -> FeaturePolicy:
        """The student, who knows nothing as long as others learn."""
        made = self._seeing(self._trained.controller())
        return halved(made) if self.config.float16 else made

    def _seeing(self, told: FeaturePolicy) -> FeaturePolicy:
        """The policy of the task itself, of what learns from what a detector tells."""
        return self.eyes.before(told) if self.eyes else told

    def snapshots(self) -> dict[int, Policy]:
        """What it was, with `algorithm.snapshots`; see `policies.algorithms.HasSnapshots`."""
        return {steps: self._seeing(policy) for steps, policy in self.past.items()}

    def rivals(self) -> dict[str, bytes]:
        """Its teacher."""
        return {"teacher": self.content}

    def dump_to(self, folder: Path) -> None:
        self._dumps = folder  # those who are made later are told then
        if self.teacher:
            self.teacher.dump_to(folder)

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact continuation needs."""
        return {
            "content": np.frombuffer(self.content, np.uint8),
            "looks": np.frombuffer(self.looks, np.uint8),
            "teacher": self.teacher.state_dict() if self.teacher and not self.content else {},
            "gaze": self.gaze.state_dict() if self.gaze and not self.looks else {},
            "eyes": self.eyes.state_dict() if self.eyes else {},
            "watches": self._watches,
            "taught": np.frombuffer(self.taught, np.uint8),
            "student": self._trained.state_dict(),
            "past": {str(steps): network_state(policy.network) for steps, policy in self.past.items()},
            "league": self.league.state_dict() if self.league else {},
            "seed": self.seed,
            "before": self.before,
            "reached": self.reached,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from one of the same task and settings."""
        self.before, self.reached = float(state["before"]), float(state["reached"])
        if int(state["seed"]) != self.seed:  # of those who are made later
            self.seed = int(state["seed"])
            self._make_eyes()
        content, looks, taught = (bytes(np.asarray(state[name], np.uint8)) for name in ("content", "looks", "taught"))
        if content:
            self._meet(content)
        elif self.teacher:
            self.teacher.load_state_dict(state["teacher"])
        if looks:
            self.looks = looks
            self._listen()
        elif self.gaze:
            self.gaze.load_state_dict(state["gaze"])
        if self.league:
            self.league.load_state_dict(state["league"])
        if self.eyes:
            self.eyes.load_state_dict(state["eyes"])
            if self.eyes.over:
                self._open_eyes()
        if taught:
            self._practise(taught)
        if state["watches"]:
            self._watch()
        self._trained.load_state_dict(state["student"])
        if state["past"]:
            like = self._trained.controller()
            self.past = {int(steps): with_weights(like, arrays) for steps, arrays in state["past"].items()}
