"""The parts of a rollout on the torch path: each some rows of the worlds, with random numbers of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from policies.algorithms.ppo.torch_mirrors import Equivariant
from policies.learning.buffers import Batch, RolloutBuffer
from policies.learning.networks import Normalizer, Stateful, merged, moments
from policies.learning.parallel.learners import Learners
from sim.randomize import Array
from sim.tasks import Task
from sim.vec_env import Observation
from sim.vec_world import AnyVecEnv, vector_env

if TYPE_CHECKING:
    from policies.algorithms.ppo import PpoConfig
    from policies.algorithms.ppo.tutor import Tutor


class Part:
    """Its worlds, and what is remembered of them from one rollout to the next."""

    def __init__(self, task: Task, config: PpoConfig, seed: int, device: str, parts: int) -> None:
        """`seed`: of this one of `parts`."""
        rows, self.device = config.num_envs // parts, device
        how = rows, seed, device, config.length_shares(0.0), config.easy
        self.env = vector_env(task, *how, workers=config.workers if parts == 1 else 1)
        self.env.together = parts
        self.generator = torch.Generator(device)  # exploration and minibatches
        self.generator.manual_seed(seed)
        self.wander = torch.zeros((rows, self.env.action_size), device=device)  # what was explored last
        self.state = torch.zeros((rows, 0), device=device)  # of an actor that remembers
        self.tutor: Tutor | None = None  # of its rows
        self.buffer = RolloutBuffer(config.rollout_steps)

    def state_dict(self) -> dict[str, Any]:
        """All that the next rollout depends on."""
        now: dict[str, Any] = {"wander": self.wander.clone(), "state": self.state.clone()}
        now |= {"tutor": self.tutor.state_dict()} if self.tutor else {}
        return {"env": self.env.state_dict(), "generator": self.generator.get_state(), **now}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        self.env.load_state_dict(state["env"])
        self.wander = torch.as_tensor(state["wander"], device=self.device).clone()
        self.state = torch.as_tensor(state.get("state", self.state), device=self.device).clone()
        self.generator.set_state(torch.as_tensor(state["generator"], dtype=torch.uint8).cpu())
        if self.tutor and "tutor" in state:
            self.tutor.load_state_dict(state["tutor"])


class Rollout(NamedTuple):
    """Of a part, still (T, n, .)."""

    data: Batch  # "advantage" is not normalised
    reward: Tensor
    counted: Tensor  # bool: somebody was there
    ended: list[Tensor]  # returns and lengths (., 2) of episodes


class Whole(NamedTuple):
    """What is known of the rollouts of all parts together."""

    counts: list[int]  # samples of each part
    target: Tensor  # moments of the value's targets
    mean: Tensor  # of the advantages
    std: Tensor
    metrics: dict[str, float]


def whole(learners: Learners, made: list[Rollout]) -> Whole:
    """Of all parts, given mine."""
    told = []
    for part in made:
        ended = torch.cat([*part.ended, part.reward.new_zeros((0, 2))]).double()
        episodes = torch.cat([torch.tensor([len(ended)], device=ended.device), ended.sum(0)])
        numbers = [moments(value[part.counted][:, None]) for value in (part.data["target"], part.data["advantage"])]
        told.append(torch.cat([*numbers, moments(part.reward[part.counted][:, None]), episodes]))
    everywhere = learners.all(told)
    target, advantage, reward = (merged(everywhere[:, k : k + 3]) for k in (0, 3, 6))
    metrics = {"reward": float(reward[1])}
    episodes, *sums = everywhere[:, 9:].sum(0).tolist()
    if episodes:
        metrics |= {"episode_return": sums[0] / episodes, "episode_length": sums[1] / episodes}
    if learners.parts == 1:
        own = made[0].data["advantage"][made[0].counted]
        mean, std = own.mean(), own.std()
    else:
        mean, std = advantage[1].float(), (advantage[2] * advantage[0] / (advantage[0] - 1.0)).sqrt().float()
    return Whole(everywhere[:, 0].int().tolist(), target, mean, std, metrics)


def drawn(counts: list[int], minibatches: int, k: int) -> list[int]:
    """How many samples of each part the k-th of so many minibatches has, as torch's `chunk` cuts them."""
    sizes = [-(-count // minibatches) for count in counts]
    return [max(0, min(size, count - k * size)) for size, count in zip(sizes, counts, strict=True)]


class Parted(Stateful, ABC):
    """PPO on the torch path, whatever its networks: what is done with the parts of a rollout, and with their sums."""

    state_parts: tuple[str, ...] = (
        *("actor", "average", "critic", "optimizer"),
        *("actor_norm", "critic_norm", "value_norm"),
    )
    state_values = ("iteration",)
    task: Task
    config: PpoConfig
    device: str
    learners: Learners
    parts: list[Part]  # mine
    env: AnyVecEnv  # of the first of them
    actor: Any
    average: Any
    critic: nn.Sequential
    log_std: nn.Parameter
    shared: int  # points of pictures that the critic sees, too
    optimizer: torch.optim.Optimizer
    actor_norm: Normalizer
    critic_norm: Normalizer
    value_norm: Normalizer
    mirrors: Sequence[Equivariant] = ()
    iterations: int
    iteration: int

    @abstractmethod
    def _collect(self) -> tuple[list[Batch], dict[str, float]]:
        """A rollout of each of my parts, and what all say about the episodes that ended."""

    @abstractmethod
    def _update(self, data: list[Batch]) -> dict[str, float]:
        """Learn from that."""

    @abstractmethod
    def evaluate(self, episodes: int, seed: int) -> dict[str, Array]:
        """The task's scores (episodes x agents,) of the policy without exploration, on starts of their own."""

    @property
    def done(self) -> float:
        """The share of the training."""
        return self.iteration / self.iterations

    def learn(self) -> Iterator[dict[str, float]]:
        """Train to the end of the budget; one yield per rollout and its update."""
        every = self.config.evaluate_every
        while self.learners.more(self.iteration < self.iterations, self._states):
            self._set_schedule()
            data, metrics = self._collect()
            metrics |= self._update(data)
            self.iteration += 1
            share = self.config.averages(self.iteration)
            torch._foreach_lerp_([*self.average.parameters()], [*self.actor.parameters()], share)
            metrics["progress"] = self.done
            metrics |= {"env_steps": float(self.env.total_steps), **self.env.worker_metrics()}
            due = self.iteration == self.iterations or (every and self.iteration % every == 0)
            if due and self.learners.first:
                scores = self.evaluate(self.config.evaluation_episodes, seed=self.iteration)
                metrics["success"] = float(scores["success"].mean())
            yield metrics

    def _set_schedule(self) -> None:
        config = self.config
        for part in self.parts:
            part.env.easy, part.env.lengths = config.easy_share(self.done), config.length_shares(self.done)
        for group in self.optimizer.param_groups:
            group["lr"] = config.rate(self.done)

    @torch.no_grad()
    def _judged(self, observation: Observation) -> Tensor:
        """What the critic sees (n, .)."""
        seen = self.env.critic_features(observation)
        return torch.cat([seen, self.actor.encoders(observation["pictures"])], -1) if self.shared else seen

    def value(self, critic_features: Tensor) -> Tensor:
        """The critic's estimate (...,) of the discounted sum of rewards."""
        return self.value_norm.invert(self.critic(self.critic_norm(critic_features))).squeeze(-1)

    def _learn_scales(self, seen: list[tuple[Tensor, Tensor]]) -> None:
        """What is usual of what actor and critic see, given that of my parts."""
        norms, width = (self.actor_norm, self.critic_norm), seen[0][0].shape[-1]
        told = self.learners.all([torch.cat([moments(x), moments(c)]) for x, c in seen])
        for norm, samples in zip(norms, told.tensor_split([1 + 2 * width], 1), strict=True):
            norm.take(merged(samples))
        for mirror, norm in zip(self.mirrors, norms, strict=False):
            mirror.normalise(norm)

    @torch.no_grad()
    def _rescale_value(self, told: Tensor) -> None:
        """What is usual of the value (moments), and the last layer so that it says the same.

        PopArt, van Hasselt et al. 2016.
        """
        norm, (weight, bias) = self.value_norm, [*self.critic.parameters()][-2:]
        shift, std = norm.shift.clone(), norm.std.clone()
        norm.take(told)
        weight.mul_(std / norm.std)
        bias.copy_((std * bias + shift - norm.shift) / norm.std)

    def dump_to(self, folder: Path) -> None:
        """Have flights that diverge described there."""
        for number, part in zip(self.learners.mine, self.parts, strict=True):
            part.env.dump_dir = folder / f"part_{number}" if part.env.together > 1 else folder

    def _states(self) -> list[dict[str, Any]]:
        return [part.state_dict() for part in self.parts]

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next iterations depend on."""
        now = {"log_std": self.log_std.detach().clone(), "parts": self.learners.states(self._states())}
        return super().state_dict() | now

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of the same task and settings."""
        super().load_state_dict(state)
        with torch.no_grad():
            self.log_std.copy_(torch.as_tensor(state["log_std"], device=self.device))
        parts = state.get("parts", [state])  # of a run before there were parts: its only one
        if len(parts) == 1 and "tutor" in state:  # where it was kept before
            parts = [parts[0] | {"tutor": state["tutor"]}]
        for number, part in zip(self.learners.mine, self.parts, strict=True):
            part.load_state_dict(parts[number])
