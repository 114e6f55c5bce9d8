"""Episodes of a policy under an intervener's eyes, and the loop around them that interactive learners share.

Demonstrations, cloning, then control step by control step: the policy plans chunks, the intervener sees what it wants
to do next and acts in its place or not. A chunk is dropped when it is interrupted. What an episode teaches is known at
its end. Everything is decided by the seed and the intervener; a scripted one continues exactly from a checkpoint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.algorithms import LearningError
from policies.learning.chunk_rollout import ChunkRewards, ChunkRollout
from policies.learning.demonstrations import Demonstrations
from policies.learning.interveners import Intervener, Opening, action_of
from policies.learning.online import REPORT, TRAINING, OnlineFinetuning
from policies.models.chunking import Base
from policies.models.networks import Array
from sim.env import NoExpertError, stream
from sim.rollout import Episode
from sim.tasks import Task

if TYPE_CHECKING:
    from deploy.policy_file import PolicyFile

RECENT = 100  # episodes that the rates of the metrics are over
See = Callable[[Mapping[str, Array]], Array]
STEPWISE = ChunkRewards(success=1.0, step=0.0, gamma=0.5, n_step=1)  # one transition per control step


@dataclass
class InterventionEpisode:
    """One episode of n steps."""

    seen: Array  # (n + 1, o), the last one after the last step
    action: Array  # (n, k) executed, [-1, 1]
    told: Array  # (n, k) that the intervener thinks right; NaN where it did not say
    taken: NDArray[np.bool_]  # (n,) whether it was the intervener that acted
    success: bool
    lost: bool

    @classmethod
    def shown(cls, episode: Episode, task: Task, see: See) -> InterventionEpisode:
        """A demonstration, in which nobody intervened; after its last step it is where it was before it."""
        seen, action = see(episode.signals), action_of(task.commands, episode.commands)
        said, taken = np.full_like(action, np.nan), np.zeros(len(action), bool)
        return cls(np.concatenate([seen, seen[-1:]]), action, said, taken, episode.succeeded, lost=False)

    @property
    def begins(self) -> NDArray[np.bool_]:
        """(n,) whether the intervener takes over in this step."""
        return np.asarray(self.taken & ~np.concatenate([[False], self.taken[:-1]]))


class InteractiveLearner(Protocol):
    """What learns."""

    def plan(self, base: Base, observation: Array) -> Array:
        """Chunks (n, horizon * actions) in [-1, 1] for observations (n, o)."""

    def hear(self, lesson: InterventionEpisode) -> None:
        """Keep what an episode teaches."""

    def improve(self) -> dict[str, float]:
        """Learn, after a control step in every scene; metrics, or none."""


@dataclass
class _Row:
    """The open episode of one scene."""

    seen: list[Array]
    action: list[Array]
    told: list[Array]
    taken: list[bool]


class InterventionRollout:
    """`num` scenes in which a policy acts and an intervener watches."""

    def __init__(
        self,
        task: Task,
        seed: int,
        num: int,
        horizon: int,
        opening: Opening,
        see: See | None = None,
        judge: PolicyFile | None = None,
        workers: int = 1,
    ) -> None:
        """`see`, `judge` and `workers` are those of `ChunkRollout`."""
        self.task, self.num, self.horizon = task, num, horizon
        self.scenes = ChunkRollout(task, seed, num, 1, STEPWISE, see, judge=judge, workers=workers)
        self.intervener: Intervener = opening(self.scenes.env)
        self.plans = np.zeros((num, horizon, self.scenes.actions), np.float32)
        self.left = np.zeros(num, np.int64)  # actions of the plan still to be executed
        self.rows = [_Row([], [], [], []) for _ in range(num)]
        self.labels = self.interventions = 0  # states in which the intervener said what is right; times it took over
        self.recent: list[tuple[bool, int, int]] = []  # of the newest episodes: success, steps taken, steps

    def step(self, base: Base, pupil: InteractiveLearner) -> list[InterventionEpisode]:
        """One control step in every scene; the episodes that end with it."""
        scenes, signals = self.scenes, self.scenes.env.observe()
        if len(empty := np.flatnonzero(self.left == 0)):
            planned = pupil.plan(base, scenes.seen[empty])
            self.plans[empty], self.left[empty] = planned.reshape(len(empty), self.horizon, -1), self.horizon
        wanted = self.plans[np.arange(self.num), self.horizon - self.left]
        begun = np.array([not row.action for row in self.rows])
        taken, told = self.intervener.decide(signals, wanted, begun)
        action = np.where(taken[:, None], told, wanted)
        self.left = np.where(taken, 0, self.left - 1)
        for k, row in enumerate(self.rows):
            scenes.plan(k, np.zeros(0, np.float32), action[k])
            self.interventions += bool(taken[k]) and not (row.taken and row.taken[-1])
            row.seen.append(scenes.seen[k])
            row.action.append(action[k])
            row.told.append(told[k])
            row.taken.append(bool(taken[k]))
        self.labels += int((np.isfinite(told).all(axis=1) if self.intervener.advises else taken).sum())
        numbers = scenes.numbers.copy()
        made = scenes.step()  # one transition per scene
        over = np.flatnonzero(scenes.numbers != numbers)
        return [self._end(int(k), made[k].next_x, made[k].reward > 0.0, made[k].discount == 0.0) for k in over]

    def _end(self, k: int, last: Array, success: bool, decided: bool) -> InterventionEpisode:
        row, self.rows[k], self.left[k] = self.rows[k], _Row([], [], [], []), 0
        seen, action, told = (np.stack(values) for values in ([*row.seen, last], row.action, row.told))
        taken = np.array(row.taken)
        self.recent = [*self.recent, (success, int(taken.sum()), len(taken))][-RECENT:]
        return InterventionEpisode(seen, action, told, taken, success, decided and not success)

    def metrics(self) -> dict[str, float]:
        """What the intervener had to do so far, and lately; "success" is the policy's own, without help."""
        found = {"labels": float(self.labels), "interventions": float(self.interventions)}
        if self.recent:
            done, taken, steps = np.array(self.recent, float).T
            found |= {"success": float((done * (taken == 0.0)).mean()), "success_with_help": float(done.mean())}
            found["intervention_rate"] = float(taken.sum() / steps.sum())  # share of the steps
        return self.scenes.rates() | found

    def state_dict(self) -> dict[str, Any]:
        return {
            "labels": self.labels,
            "interventions": self.interventions,
            "recent": list(self.recent),
            "scenes": self.scenes.state_dict(),
            "intervener": self.intervener.state_dict(),
            "plans": self.plans.copy(),
            "left": self.left.copy(),
            "rows": [{name: list(values) for name, values in vars(row).items()} for row in self.rows],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.scenes.load_state_dict(state["scenes"])
        self.intervener.load_state_dict(state["intervener"])
        self.plans, self.left = state["plans"].copy(), state["left"].copy()
        self.rows = [_Row(**{name: list(values) for name, values in row.items()}) for row in state["rows"]]
        self.labels, self.interventions = int(state["labels"]), int(state["interventions"])
        self.recent = [(bool(a), int(b), int(c)) for a, b, c in state["recent"]]

    def close(self) -> None:
        """Free scenes and intervener."""
        self.intervener.close()
        self.scenes.close()


class Supervision(OnlineFinetuning):
    """Base and scenes of one run in which somebody intervenes."""

    config: Any

    def __init__(self, task: Task, config: Any, seed: int, device: str = "cpu") -> None:
        """`config` has `base`, `total_steps`, `num_envs` and `workers`."""
        super().__init__(task, config, seed, device)
        self.lessons: InterventionRollout | None = None
        self.metrics: dict[str, float] = {}  # the learner's newest

    def refine(self, data: Demonstrations, updates: int) -> dict[str, float]:
        """Train the base on, as it was trained at first; metrics."""
        clone, config = self.cloning, self.config.base
        clone.config, clone.done = dataclasses.replace(config, updates=updates), 0
        (metrics,) = clone.learn(data, report=updates)
        clone.config, clone.done = config, config.updates
        self.__dict__.pop("base", None)
        return metrics

    def teach(self, pupil: InteractiveLearner, opening: Opening) -> Iterator[dict[str, float]]:
        """The first fifth of the progress bar is the base. LearningError when nobody can intervene."""
        config = self.config
        for row in self.begin():
            self.metrics = {"loss": row["loss"]}
            yield row
        own = stream(self.seed, TRAINING)
        rest = (opening, self.see, self.judge, config.workers)
        lessons = InterventionRollout(self.task, own, config.num_envs, config.base.horizon, *rest)
        self.lessons = lessons
        if self._resumed is not None:
            lessons.load_state_dict(self._resumed)
        try:
            while self.env_steps < config.total_steps:
                for lesson in lessons.step(self.base, pupil):
                    pupil.hear(lesson)
                self.env_steps += config.num_envs
                self.metrics = pupil.improve() or self.metrics
                if self.env_steps % (REPORT * config.num_envs) == 0 or self.env_steps >= config.total_steps:
                    done = 0.2 + 0.8 * min(1.0, self.env_steps / config.total_steps)
                    yield {"progress": done, "env_steps": float(self.env_steps), **self.metrics, **lessons.metrics()}
        except NoExpertError as error:
            raise LearningError(
                f"{error}; a human can intervene: algorithm=hg_dagger algorithm.intervener=keyboard"
            ) from error
        finally:
            lessons.close()

    def state_dict(self) -> dict[str, Any]:
        lessons = None if self.lessons is None else self.lessons.state_dict()
        return {**super().state_dict(), "scenes": lessons, "metrics": dict(self.metrics)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.metrics = dict(state["metrics"])
