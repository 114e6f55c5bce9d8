"""The parts of a rollout on the torch path: each some rows of the worlds, with random numbers of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from policies.learning.buffers import Batch, RolloutBuffer
from policies.learning.networks import merged, moments
from policies.learning.parallel.learners import Learners
from sim.tasks import Task
from sim.vec_world import vector_env

if TYPE_CHECKING:
    from policies.algorithms.ppo import PpoConfig


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
        self.buffer = RolloutBuffer(config.rollout_steps)

    def state_dict(self) -> dict[str, Any]:
        """All that the next rollout depends on."""
        return {"env": self.env.state_dict(), "generator": self.generator.get_state(), "wander": self.wander.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        self.env.load_state_dict(state["env"])
        self.wander = torch.as_tensor(state["wander"], device=self.device).clone()
        self.generator.set_state(torch.as_tensor(state["generator"], dtype=torch.uint8).cpu())


def dump_to(folder: Path, parts: list[Part], numbers: range) -> None:
    """Have flights that diverge described there; `numbers` are the parts'."""
    for number, part in zip(numbers, parts, strict=True):
        part.env.dump_dir = folder / f"part_{number}" if part.env.together > 1 else folder


def saved(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The parts in the state of a path; of one before there were parts, its only one."""
    parts: list[Mapping[str, Any]] = [*state.get("parts", [state])]
    return parts


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
