"""A few real transitions among many simulated ones: dynamics-aware hybrid offline-and-online learning.

H2O (Niu et al. 2022, arXiv 2206.13464). Two discriminators tell real transitions from simulated ones, one by (s, a, s')
and one by (s, a): their difference is how much likelier s' is in reality. Simulated transitions count as much in the
critics' loss, at most once; and the critics think the less of them the less likely they are. What differs from the
paper: the gap of a transition is that of its own s', not of some drawn around it; and discriminators see s' - s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from policies.algorithms import LearningError
from policies.algorithms.sac.earlier import digest
from policies.algorithms.sac.torch_path import TorchPath
from policies.collect import stored
from policies.learning.buffers import Batch, ReplayBuffer
from policies.learning.networks import Normalizer, Stateful, descend, mlp
from policies.models.controller import normalised
from sim import spec
from sim.rollout import Episode
from sim.tasks import Task, has_own_world
from sim.vec_env import Observation

if TYPE_CHECKING:
    from policies.algorithms.sac import SacConfig

SIMULATED, REAL, LAST = 0.0, 1.0, 2.0  # where a transition comes from; LAST: real, what followed is not known
ALL = 2**31  # episodes
HIDDEN = 64  # units in each of two layers of a discriminator
BLUR = 0.1  # standard deviation of the noise on what it sees, in that of the signals: few transitions are soon known
LEAST, FURTHEST = -10.0, 10.0  # logarithms of the smallest importance, and of the largest gap; the paper's


class Gap(Stateful):
    """How much likelier what followed is in reality than in simulation."""

    state_parts = ("whole", "before", "optimizer", "usual")

    def __init__(self, observed: int, actions: int, rate: float, weights: torch.Generator, device: str) -> None:
        def discriminator(inputs: int) -> torch.nn.Sequential:
            return mlp([inputs, HIDDEN, HIDDEN, 1], weights, "relu", 0.01).to(device)

        self.whole, self.before = discriminator(2 * observed + actions), discriminator(observed + actions)
        parameters = [*self.whole.parameters(), *self.before.parameters()]
        self.optimizer = torch.optim.AdamW(parameters, rate, fused=True)
        self.usual = Normalizer(observed, device)  # of changes, which are small beside what they change

    def _logits(self, x: Tensor, action: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Of being real (b,), by all that is known and by what came before."""
        seen = torch.cat([x, action], -1)
        return self.whole(torch.cat([seen, change], -1))[:, 0], self.before(seen)[:, 0]

    @torch.no_grad()
    def likelier(self, x: Tensor, action: Tensor, next_x: Tensor) -> Tensor:
        """The logarithm of p(s' | s, a) in reality over that in simulation (b,), of normalised x and actions."""
        whole, before = self._logits(x, action, self.usual(next_x - x))
        return whole - before

    def learn(self, x: Tensor, action: Tensor, next_x: Tensor, real: Tensor, generator: torch.Generator) -> Tensor:
        """One step of both discriminators, real (b,) or not, each kind counting half; their loss."""
        self.usual.update(next_x - x)
        seen = (
            part + BLUR * torch.randn(part.shape, generator=generator, device=part.device)
            for part in (x, action, self.usual(next_x - x))
        )
        counts = torch.where(real, 0.5 / real.sum().clamp_min(1), 0.5 / (~real).sum().clamp_min(1))
        losses = [
            (counts * functional.binary_cross_entropy_with_logits(logit, real.float(), reduction="none")).sum()
            for logit in self._logits(*seen)
        ]
        loss = losses[0] + losses[1]
        descend(self.optimizer, loss)
        return loss.detach()


def check(task: Task, config: SacConfig) -> None:
    """ValueError for what does not go with real transitions."""
    if not has_own_world(task) or spec.pictures(task.policy):
        raise ValueError(f"algorithm.real_data takes tasks with a world of their own and no pictures, not {task.name}")
    for name, usual in (("n_step", 1), ("earlier", []), ("residual", 0.0)):
        if getattr(config, name) != usual:
            raise ValueError(f"algorithm.real_data goes with {name}={usual} only, got {getattr(config, name)}")


class MixedPath(TorchPath):
    """SAC's path through torch, with transitions of a dataset (`policies.collect`) in each batch."""

    state_parts: tuple[str, ...] = (*TorchPath.state_parts, "gap")

    def __init__(self, task: Task, config: SacConfig, seed: int, device: str = "cpu") -> None:
        check(task, config)
        super().__init__(task, config, seed, device)
        episodes = stored(task, config.real_data, ALL)
        parts = [self._transitions(episode) for episode in episodes]
        rows = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        if not (rows["origin"] == REAL).any():
            raise ValueError(f"algorithm.real_data: the episodes of {config.real_data} have one frame each")
        real = ReplayBuffer(len(rows["origin"]))
        real.add(**rows)
        self.buffer.prior, self.buffer.prior_share = real, config.real_share
        self.real_digest = digest({name: value.cpu().numpy() for name, value in rows.items()})
        weights = torch.Generator()
        weights.manual_seed(seed + 1)
        self.gap = Gap(self.env.feature_size, self.env.action_size, config.learning_rate, weights, device)
        self._likelier = torch.zeros(0, device=device)  # of the batch that is learned from

    def _transitions(self, episode: Episode) -> Batch:
        """Those of an episode. One that ends early without success is lost; else its last frame tells nothing."""
        folder, task = self.config.real_data, self.task
        if lacking := [s.name for s in task.privileged if s.name not in episode.signals]:
            raise ValueError(f"algorithm.real_data: {folder} lacks {lacking[0]!r}, which critics of {task.name} see")
        steps = len(episode.reward)
        lost = not episode.succeeded and steps < task.episode_steps

        def named(group: spec.Group) -> dict[str, Tensor]:
            flat = {s.name: episode.signals[s.name].reshape(steps, -1).astype(np.float32) for s in group}
            return {name: torch.from_numpy(value).to(self.device) for name, value in flat.items()}

        policy, nothing = named(task.policy), torch.zeros((steps, 0), device=self.device)
        seen = Observation(policy=policy, truth=policy, privileged=named(task.privileged), pictures={}, history=nothing)
        x, c = self.env.features(seen), self.env.critic_features(seen)
        action = torch.from_numpy(np.clip(normalised(task.commands, episode.commands), -1.0, 1.0)).to(self.device)
        kept = steps if lost else steps - 1
        after = torch.arange(1, kept + 1, device=self.device).clamp_max(steps - 1)
        terms = np.stack([episode.reward, episode.success], axis=1).astype(np.float32)
        end = torch.zeros(kept, dtype=torch.bool, device=self.device)
        end[kept - 1 :] = lost
        origin = torch.full((kept,), REAL, device=self.device)
        origin[end] = LAST
        rows = {"x": x[:kept], "c": c[:kept], "action": action[:kept], "next_x": x[after], "next_c": c[after]}
        rows["terms"] = torch.from_numpy(terms).to(self.device)[:kept]
        return {**rows, "lost": end, "done": end.clone(), "origin": origin}

    def _keep(self, before: Observation, made: Batch) -> None:
        super()._keep(before, made | {"origin": torch.full_like(made["action"][:, 0], SIMULATED)})

    def _importance(self, batch: Batch) -> Tensor | float:
        """How much transitions count (b,); and the discriminators learn."""
        x, next_x = self.seen_norm(batch["x"]), self.seen_norm(batch["next_x"])
        action, known = self.action_norm(batch["action"]), batch["origin"] < LAST
        parts = x[known], action[known], next_x[known]
        self.gap.learn(*parts, batch["origin"][known] == REAL, self.generator)
        simulated = batch["origin"] == SIMULATED
        self._likelier = self.gap.likelier(x, action, next_x)
        return torch.where(simulated, self._likelier.clamp(LEAST, 0.0).exp(), 1.0)

    def _critic_regulariser(self, batch: Batch, values: Tensor) -> Tensor | float:
        """By how much critics think more of simulated transitions, the unlikely ones above all, than of real ones."""
        simulated = batch["origin"] == SIMULATED
        if simulated.all() or not simulated.any():
            return 0.0
        far = (-self._likelier[simulated]).clamp(math.exp(LEAST), FURTHEST)
        thought = torch.logsumexp(values[:, simulated] + (far / far.sum()).log(), 1)
        return self.config.real_penalty * (thought - values[:, ~simulated].mean(1)).sum()

    def _update(self) -> dict[str, Tensor]:
        metrics = super()._update()
        return metrics | {"likelier": self._likelier.mean()}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"real_data": self.real_digest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """LearningError unless the run goes on with the data with which it began."""
        if str(state["real_data"]) != self.real_digest:
            raise LearningError("algorithm.real_data has changed since this run began: it cannot go on exactly")
        super().load_state_dict(state)
