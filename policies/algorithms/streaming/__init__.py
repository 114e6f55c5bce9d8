"""Streaming: learning from each step as it happens, batch of one, nothing kept: Stream AC(lambda) with ObGD.

For machines without memory for a replay, such as a microcontroller (`deploy.hil learn=true` is the same there), and for
what it is worth to learn without end. One environment; where steps are cheap, `ppo` and `sac` learn far faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from policies.algorithms.streaming.actor import StreamedActor
from policies.algorithms.streaming.stream_ac import Rules, StreamAC
from policies.models.controller import FeaturePolicy
from sim.spec import pictures
from sim.tasks import Task, initial_action
from sim.vec_env import Observation
from sim.vec_world import vector_env


@dataclass
class StreamingConfig:
    """Settings of streaming. Those of learning are the paper's."""

    total_steps: int = 500_000  # environment steps in all
    gamma: float = 0.99
    trace: float = 0.8  # lambda, of the eligibility traces
    learning_rate: float = 1.0  # which ObGD bounds
    actor_kappa: float = 3.0  # how much a step of the actor is bounded
    critic_kappa: float = 2.0
    entropy: float = 0.01  # weight
    sparsity: float = 0.9  # share of the weights into each unit that begin as zero
    initial_std: float = 0.3  # of the exploration; the paper's is 0.69
    hidden: list[int] = field(default_factory=lambda: [128, 128])  # of the actor and of the critic
    easy: float = 0.9  # share of episodes with an easier start, where the task has easier ones
    report_every: int = 1000  # steps between yields

    def __post_init__(self) -> None:
        if self.total_steps < 1 or self.report_every < 1 or min(self.hidden, default=0) < 1:
            raise ValueError(
                f"needs total_steps, report_every and layers of at least 1, got {self.total_steps}, "
                f"{self.report_every} and {self.hidden}"
            )
        for name in ("gamma", "trace", "sparsity", "easy"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be within 0..1, got {getattr(self, name)}")
        for name in ("learning_rate", "actor_kappa", "critic_kappa", "initial_std"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")

    def rules(self) -> Rules:
        """Of the learner. Its mean begins at the task's initial action."""
        return Rules(
            gamma=self.gamma,
            trace=self.trace,
            learning_rate=self.learning_rate,
            actor_kappa=self.actor_kappa,
            critic_kappa=self.critic_kappa,
            entropy=self.entropy,
            sparsity=self.sparsity,
            initial_std=self.initial_std,
            still=True,
        )


class Streaming:
    """See the module."""

    Config = StreamingConfig
    needs: tuple[type, ...] = ()
    takes: tuple[str, ...] = ()

    def __init__(self, task: Task, config: StreamingConfig, seed: int, device: str = "cpu") -> None:
        if device != "cpu":
            raise ValueError("streaming learns from one step at a time, on the CPU: device=cpu")
        if seen := pictures(task.policy):
            raise ValueError(f"streaming learns from numbers; {task.name} shows pictures ({seen[0].name})")
        self.task, self.config, self.rng = task, config, np.random.default_rng(seed)
        self.env = vector_env(task, 1, seed, device, (1.0, 1.0), config.easy)
        actions = self.env.action_size
        self.learner = StreamAC(self.env.feature_size, actions, config.hidden, self.rng, config.rules())
        self.learner.actor.weights[-1][:actions] = initial_action(task)
        self.done = 0
        self._seen = self._look(self.env.observation)

    def _look(self, observation: Observation) -> np.ndarray[Any, np.dtype[np.float64]]:
        return self.learner.see(self.env.features(observation)[0].double().numpy())

    def learn(self) -> Iterator[dict[str, float]]:
        """Step by step to the end of the budget; a yield every `report_every` steps."""
        config, learner = self.config, self.learner
        rewards, errors = [], []
        while self.done < config.total_steps:
            mean, std = learner.distribution(self._seen)
            action = mean + std * self.rng.standard_normal(len(mean))
            step = self.env.step(torch.from_numpy(action[None]).float())
            reward, lost, ended = float(step.reward), bool(step.terminated), bool(step.done)
            then = self._look(step.final_observation if ended else step.observation)
            errors.append(abs(learner.learn(self._seen, action, reward, then, lost, ended)))
            rewards.append(reward)
            self._seen = self._look(step.observation) if ended else then
            self.done += 1
            if self.done % config.report_every == 0 or self.done == config.total_steps:
                progress = {"progress": self.done / config.total_steps, "env_steps": float(self.done)}
                yield progress | {"reward": float(np.mean(rewards)), "loss": float(np.mean(errors))}
                rewards, errors = [], []

    def controller(self) -> FeaturePolicy:
        """The mean."""
        return FeaturePolicy.from_task(self.task, StreamedActor.of(self.learner))

    def dump_to(self, folder: Path) -> None:
        self.env.dump_dir = folder

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next steps depend on."""
        parts = {"env": self.env.state_dict(), "learner": self.learner.state_dict()}
        return parts | {"rng": self.rng.bit_generator.state, "done": self.done, "seen": self._seen.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of the same task and settings."""
        self.env.load_state_dict(state["env"])
        self.learner.load_state_dict(state["learner"])
        self.rng.bit_generator.state = state["rng"]
        self.done, self._seen = int(state["done"]), np.array(state["seen"])
