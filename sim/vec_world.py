"""Any task as a batch of torch tensors, for learners that act step by step: `VecEnv`, or that over its own world."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sim.env import (
    TRAINING,
    Env,
    carried_out,
    episode_numbers,
    for_whole_worlds,
    make_env,
    replay,
    saves,
    stream,
    worker_metrics,
    workers_for,
)
from sim.randomize import Array
from sim.rollout import rollout
from sim.spec import Group, limits, numbers, pictures, size, tokens, unpack
from sim.tasks import OwnWorld, Task, agents_of, features_of, has_own_world
from sim.vec_env import Observation, Step, VecEnv


class WorldVecEnv:
    """`num_envs` rows of a task that brings its own physics; see `sim.vec_env.VecEnv`, whose place it takes.

    Features are the task's, else the policy's numbers, one after the other; a critic sees the privileged signals, too.
    Pictures stay as they are, uint8, beside them. An episode is cut off `linger` steps after success, not lost: what
    its last state is worth goes on counting, whatever the sign of the rewards. Every step that counts as success brings
    `success_reward` more. Raises ValueError for a policy that is told tokens.
    """

    term_names = ("reward", "success")
    easy = 1.0  # starts are the world's own
    lengths = (1.0, 1.0)
    dump_dir: Path | None = None
    together = 1

    def __init__(
        self,
        task: OwnWorld,
        num_envs: int,
        seed: int = 0,
        device: str = "cpu",
        linger: int = 0,
        success_reward: float = 0.0,
        workers: int = 1,
    ) -> None:
        if told := tokens(task.policy):
            raise ValueError(
                f"{task.name} tells its policy tokens ({told[0].name}); this algorithm learns from numbers and pictures"
            )
        self.task, self.num_envs, self.device, self._seed, self.linger = task, num_envs, device, seed, linger
        self.success_reward, self._workers = success_reward, workers
        self.action_size = size(task.commands)
        self._low, high = limits(task.commands)
        self._range = high - self._low
        self._features = features_of(task)
        self.world = self._opened()
        self.total_steps = 0
        self._numbers, self._following = episode_numbers(task, num_envs), num_envs // agents_of(task)
        self._sent: list[list[Array]] = [[] for _ in range(num_envs)]  # actions of the open episodes
        self._return, self._length = np.zeros(num_envs, np.float32), np.zeros(num_envs, np.int64)
        self._since = np.full(num_envs, -1)  # steps since success
        self.world.reset(range(num_envs), self._numbers.tolist())
        self.observation = self._look()
        self.feature_size = self.features(self.observation).shape[-1]
        self.critic_size = self.critic_features(self.observation).shape[-1]

    def seed(self, seed: int) -> None:
        """Other episodes; takes effect with the next `reset`."""
        if seed != self._seed:
            self._seed = seed
            self.world.close()
            self.world = self._opened()
        self._following = 0

    def _opened(self) -> Env:
        own = stream(self._seed, TRAINING)
        made = make_env(self.task, self.num_envs, own, several=True, workers=self._workers)
        self._saved = saves(made)
        return made

    def worker_metrics(self) -> dict[str, float]:
        """What there is to tell of its workers."""
        return worker_metrics(self.world)

    def reset(self, mask: Tensor | None = None) -> Observation:
        """Begin the next episodes where `mask` (n,) bool is set (None: everywhere); the observation of all."""
        asked = np.ones(self.num_envs, bool) if mask is None else mask.cpu().numpy()
        rows = np.flatnonzero(for_whole_worlds(agents_of(self.task), asked))
        if len(rows):
            self._begin(rows)
        return self.observation

    def render(self, row: int, height: int, width: int) -> NDArray[np.uint8]:
        """A picture for people."""
        return self.world.render(row, height, width)

    def _look(self) -> Observation:
        return self._observation(self.world.observe())

    def _observation(self, seen: Mapping[str, Array]) -> Observation:
        def named(group: Group) -> dict[str, Tensor]:
            flat = {s.name: np.nan_to_num(seen[s.name].reshape(self.num_envs, -1)) for s in group}
            return {name: torch.from_numpy(value.astype(np.float32)).to(self.device) for name, value in flat.items()}

        policy, nothing = named(numbers(self.task.policy)), torch.zeros((self.num_envs, 0), device=self.device)
        shown = {s.name: self._tensor(seen[s.name]) for s in pictures(self.task.policy)}
        privileged = named(self.task.privileged)
        return Observation(policy=policy, truth=policy, privileged=privileged, pictures=shown, history=nothing)

    def features(self, observation: Observation) -> Tensor:
        """What the policy's network sees of the numbers, (n, feature_size)."""
        found = [feature.evaluate(observation["policy"]) for feature in self._features]
        return torch.cat([observation["history"], *found], -1)  # a policy may see pictures alone

    def critic_features(self, observation: Observation) -> Tensor:
        """What a critic may see, (n, critic_size)."""
        return torch.cat([self.features(observation), *observation["privileged"].values()], -1)

    def reward_weights(self) -> dict[str, float]:
        """The coefficient of each reward term."""
        return {"reward": 1.0, "success": self.success_reward}

    def _commands(self, action: Array) -> dict[str, Array]:
        """Commands by name (n, *shape) for actions (n, k) in [-1, 1]."""
        return unpack(self.task.commands, self._low + 0.5 * (action + np.float32(1.0)) * self._range)

    def step(self, action: Tensor) -> Step:
        """Advance one control step under `action` (n, k) in [-1, 1]. Whose episode ended begins the next one."""
        told = action.detach().clamp(-1.0, 1.0).cpu().numpy()
        if not self._saved:
            for row in range(self.num_envs):
                self._sent[row].append(told[row].copy())
        self._length += 1
        outcome = self.world.step(self._commands(told))
        self.total_steps += self.num_envs * self.together
        reward = np.nan_to_num(outcome.reward).astype(np.float32)
        done = outcome.success.astype(np.float32)
        gained = reward + np.float32(self.success_reward) * done
        self._return = self._return + gained
        length = self._length.copy()
        self._since = self._since + (outcome.success | (self._since >= 0))
        over = (self._since >= self.linger) | outcome.terminated | (length >= self.task.episode_steps)
        over = for_whole_worlds(agents_of(self.task), over)
        truncated = over & ~outcome.terminated
        final = self.observation = self._look()
        info = {"episode_return": self._tensor(self._return), "episode_length": self._tensor(length)}
        ended = np.flatnonzero(over)
        if len(ended):
            self._begin(ended)
        terms = {"reward": self._tensor(reward), "success": self._tensor(done)}
        lost, late = self._tensor(outcome.terminated), self._tensor(truncated)
        return Step(self.observation, self._tensor(gained), terms, lost, late, final, info)

    def _begin(self, rows: NDArray[np.int64]) -> None:
        self._numbers[rows] = episode_numbers(self.task, len(rows), self._following)
        self._following += len(rows) // agents_of(self.task)
        for row in rows:
            self._sent[row] = []
        self._length[rows] = 0
        begun = np.isin(np.arange(self.num_envs), rows)
        self._return, self._since = np.where(begun, np.float32(0.0), self._return), np.where(begun, -1, self._since)
        self.world.reset(rows.tolist(), self._numbers[rows].tolist())
        self.observation = self._look()

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.array(values)).to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Numbers of the open episodes, and the world; if it cannot be saved, what was sent, to do it again."""
        sent = [np.stack(row) if row else np.zeros((0, self.action_size), np.float32) for row in self._sent]
        counts = {"following": self._following, "total_steps": self.total_steps, "seed": self._seed}
        now = {"numbers": self._numbers.copy(), "return": self._return.copy(), "since": self._since.copy()}
        world = {"world": self._saved.state_dict()} if self._saved else {"sent": sent}
        return {**counts, **now, "length": self._length.copy(), **world}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the `state_dict` of an environment with the same arguments."""
        if len(state["numbers"]) != self.num_envs:
            raise ValueError(f"the saved state has {len(state['numbers'])} environments, this one has {self.num_envs}")
        self.seed(int(state["seed"]))
        self._following, self.total_steps = int(state["following"]), int(state["total_steps"])
        self._numbers, self._return = np.array(state["numbers"]), np.array(state["return"], np.float32)
        self._since, self._length = np.array(state["since"]), np.array(state["length"])
        if self._saved:
            self._saved.load_state_dict(state["world"])
            self.observation = self._look()
            return
        self._sent = [[*np.asarray(row, np.float32)] for row in state["sent"]]
        for _ in replay(self.world, self._numbers.tolist(), self._sent, self._commands):
            pass
        self.observation = self._look()

    def fly(self, act: Callable[[Observation], Tensor]) -> dict[str, Array]:
        """One episode in every environment, in the place of its own: the task's scores, name -> (n,)."""
        task, scores = self.task, dict[int, list[dict[str, Array]]]()
        worlds = range(self.num_envs // agents_of(task))

        def commands(signals: Mapping[str, Array], numbers: Array, begun: Array) -> dict[str, Array]:
            del numbers, begun
            return self._commands(act(self._observation(signals)).clamp(-1.0, 1.0).cpu().numpy())

        for episode in rollout(task, self.world, commands, worlds, truth=True):
            scores.setdefault(episode.number, []).append(task.score(episode.flight()))
        return {name: np.concatenate([one[name] for k in worlds for one in scores[k]]) for name in scores[0][0]}


AnyVecEnv = VecEnv | WorldVecEnv


def vector_env(
    task: Task,
    num_envs: int,
    seed: int,
    device: str = "cpu",
    lengths: tuple[float, float] = (1.0, 1.0),
    easy: float = 0.0,
    linger: int = 0,
    success_reward: float = 0.0,
    workers: int = 1,
) -> AnyVecEnv:
    """A task for a learner; `lengths` and `easy` are for those of our engines, the rest for other worlds."""
    if has_own_world(task):
        return WorldVecEnv(task, num_envs, seed, device, linger, success_reward, workers)
    workers_for(task, num_envs, workers)
    return VecEnv(carried_out(task), num_envs, task.engine, seed, device, lengths=lengths, easy=easy)
