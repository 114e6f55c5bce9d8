"""Learning from one's own successes: play, keep what succeeded, clone it, and play again with the clone.

For worlds in which an episode costs next to nothing, such as learned ones. Half of the episodes are played as the base
plays; in the others something is added to its actions, the same for a while, so that there are successes where it has
none. The demonstrations' successes stay a share of what is cloned. Expert iteration (Anthony et al. 2017) without a
search; filtered behaviour cloning. Settings in `SelfImitationConfig`; `policies.train_in_world` learns by it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from policies.algorithms.bc import Cloning, check
from policies.learning.base import Origin, origin
from policies.learning.demonstrations import Demonstrations, chunked, demonstrated
from policies.learning.online import TRAINING
from policies.models.chunking import NoiseTable
from policies.models.controller import Policy, normalised, physical
from policies.models.networks import Array
from sim import spec
from sim.env import make_env, stream
from sim.rollout import Episode
from sim.tasks import Task

Course = tuple[Array, Array]  # what was seen (n, o) and done (n, k) in [-1, 1], up to success


@dataclass
class SelfImitationConfig:
    """Settings of learning from one's own successes."""

    base: Origin = field(default_factory=Origin)  # who plays first
    iterations: int = 3  # of playing and cloning
    episodes: int = 600  # played in each
    num_envs: int = 200  # scenes played together
    updates: int = 800  # of cloning, in each; twice as many in the first, which begins anew
    added: float = 0.4  # deviation of what is added to actions, of their half range, in every second episode
    held: int = 8  # chunks for which it stays the same
    alike: int = 10  # successes at most that are kept of one beginning, the newest
    shown: float = 0.2  # share of the demonstrations' successes in what is cloned

    def __post_init__(self) -> None:
        for name in ("iterations", "episodes", "num_envs", "updates", "held", "alike"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_envs % 2 or self.episodes % self.num_envs:
            raise ValueError(
                f"num_envs is even, since every second scene is played as learned, and divides episodes, got "
                f"{self.num_envs} and {self.episodes}"
            )
        if self.added < 0.0 or not 0.0 < self.shown < 1.0:
            raise ValueError(f"needs added >= 0 and 0 < shown < 1, got {self.added} and {self.shown}")


class SelfImitation:
    """A clone of what succeeded, its own successes among it."""

    Config = SelfImitationConfig
    needs: tuple[type, ...] = ()
    takes: tuple[str, ...] = ()

    def __init__(self, task: Task, config: SelfImitationConfig, seed: int, device: str = "cpu") -> None:
        check(task, device)
        if spec.numbers(task.policy) != task.policy:
            raise ValueError(f"{task.name} shows pictures or is told words: own successes are kept as numbers")
        self.task, self.config, self.seed = task, config, seed
        self.generator = torch.Generator().manual_seed(seed)
        self.clone = origin(config.base, Cloning)(task, config.base, self.generator)
        self.given = self.clone
        self.iteration = 0  # that is being played or cloned; 0: nothing was played yet
        self.env_steps, self.success = 0, 0.0
        self.kept: list[Course] = []

    def provenance(self) -> dict[str, Any]:
        """Of the base, if it was given."""
        return self.given.provenance

    def learn(self) -> Iterator[dict[str, float]]:
        shown = demonstrated(self.task, self.config.base, self.seed)
        if self.iteration == 0 and not self.clone.finished:
            for metrics in self.clone.learn(Demonstrations.of(shown, self.task, self.config.base.horizon)):
                yield {"progress": 0.0, "env_steps": 0.0, **metrics}
        successes = [self._course(episode) for episode in shown if episode.succeeded]
        while self.iteration < self.config.iterations or not self.clone.finished:
            if self.iteration == 0 or self.clone.finished:
                self._play()
                self.iteration += 1
                before, self.clone = self.clone, self._another()
                if self.iteration > 1:  # it goes on from its own weights
                    self.clone.network.load_state_dict(before.network.state_dict())
            for metrics in self.clone.learn(self._data(successes)):
                done = self.iteration - 1 + self.clone.done / self.clone.config.updates
                progress = {"progress": done / self.config.iterations, "env_steps": float(self.env_steps)}
                yield {**progress, **metrics, "success": self.success, "kept": float(len(self.kept))}

    def _another(self) -> Cloning:
        """A clone that has learned nothing yet."""
        times = 2 if self.iteration == 1 else 1  # the first one has no weights to begin with
        updates = times * self.config.updates
        settings = dataclasses.replace(self.config.base, policy="", server="", updates=updates)
        return Cloning(self.task, settings, self.generator)

    def _course(self, episode: Episode) -> Course:
        end = int(episode.success.argmax()) + 1
        seen, action = spec.pack(self.task.policy, episode.signals), normalised(self.task.commands, episode.commands)
        return seen[:end], np.clip(action[:end], -1.0, 1.0).astype(np.float32)

    def _data(self, successes: list[Course]) -> Demonstrations:
        """What is cloned: the demonstrations' successes, repeated to their share, and own ones."""
        share, own = self.config.shown, len(self.kept)
        times = max(1, round(share / (1.0 - share) * own / len(successes)))
        courses = [*successes * times, *self.kept]
        chunks = [chunked(action, self.config.base.horizon) for _, action in courses]
        return Demonstrations(np.concatenate([seen for seen, _ in courses]), np.concatenate(chunks).astype(np.float32))

    def _play(self) -> None:
        """An iteration's episodes: whatever succeeded joins what is kept."""
        config, made, plain = self.config, list[Course](), list[bool]()
        num, own = config.num_envs, stream(self.seed, TRAINING)
        first = self.iteration * config.episodes
        with closing(make_env(self.task, num, own)) as env:
            for begun in range(first, first + config.episodes, num):
                rng = np.random.default_rng([own, begun])
                courses = self._block(env, range(begun, begun + num), rng)
                made += [course for course in courses if course is not None]
                plain += [course is not None for course in courses[::2]]
        self.success = float(np.mean(plain))
        alike: dict[bytes, list[Course]] = {}
        for course in [*self.kept, *made]:
            alike.setdefault(course[0][0].tobytes(), []).append(course)
        self.kept = [course for some in alike.values() for course in some[-config.alike :]]

    def _block(self, env: Any, numbers: range, rng: np.random.Generator) -> list[Course | None]:
        """Of these episodes, played together: what was seen and done, where it succeeded."""
        task, base, n = self.task, self.clone.denoiser(), len(numbers)
        horizon, k = base.horizon, spec.size(task.commands)
        wide = np.float32(self.config.added) * (np.arange(n) % 2)[:, None, None]
        env.reset(range(n), numbers)
        end, open_ = np.full(n, -1), np.ones(n, bool)
        seen, done = list[Array](), list[Array]()
        for step in range(task.episode_steps):
            seen.append(spec.pack(task.policy, env.observe()))
            if step % (horizon * self.config.held) == 0:
                added = wide * rng.standard_normal((n, 1, k))
            if step % horizon == 0:
                noise = rng.standard_normal((n, base.noise_size)).astype(np.float32)
                chunk = base.sample(seen[-1], noise).reshape(n, horizon, k)
                chunk = np.clip(chunk + added, -1.0, 1.0).astype(np.float32)
            done.append(chunk[:, step % horizon])
            outcome = env.step(physical(task.commands, done[-1]))
            self.env_steps += int(open_.sum())
            end[open_ & outcome.success] = step + 1
            open_ &= ~(outcome.success | outcome.terminated)
            if not open_.any():
                break
        all_seen, all_done = np.stack(seen, axis=1), np.stack(done, axis=1)
        return [(all_seen[row, :e], all_done[row, :e]) if e > 0 else None for row, e in enumerate(end)]

    def controller(self) -> Policy:
        return self.clone.controller(NoiseTable.normal(self.clone.denoiser().noise_size))

    def dump_to(self, folder: Path) -> None:
        """Nothing is dumped: what is not finite ends its episode."""

    def state_dict(self) -> dict[str, Any]:
        values = {"seed": self.seed, "iteration": self.iteration, "env_steps": self.env_steps, "success": self.success}
        courses = [[seen.copy(), done.copy()] for seen, done in self.kept]
        learner = {"clone": self.clone.state_dict(), "generator": self.generator.get_state()}
        return {**values, **learner, "kept": courses}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seed, self.iteration = int(state["seed"]), int(state["iteration"])
        self.env_steps, self.success = int(state["env_steps"]), float(state["success"])
        self.kept = [(seen.copy(), done.copy()) for seen, done in state["kept"]]
        if self.iteration:
            self.clone = self._another()
        self.clone.load_state_dict(state["clone"])
        self.generator.set_state(state["generator"])
