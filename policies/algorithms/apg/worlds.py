"""Analytic policy gradients where a task brings a world of its own that differentiates what it costs.

The world says how the cost of a window changes with every command; what the robot senses is taken as it is, so that the
gradient does not pass through the sensors (as of depth in Zhang et al. 2024, arXiv 2407.10648). Commands of the last
`ahead` steps of a window do not learn: most of what follows from them is not in it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.algorithms.apg import MEASURED, ApgConfig
from policies.algorithms.apg.autograd import Adam, Array, host, make_policy
from policies.learning.fused.measure import measured
from policies.models.controller import FeaturePolicy, Network
from sim.env import stream
from sim.spec import limits, numbers, pictures, size, unpack
from sim.tasks import features_of, initial_action
from sim.tasks.abilities import HasRehearsal

TRAINING = int.from_bytes(b"training")  # mixed into the seed: other episodes than evaluation's


class Worlds:
    """The path of tasks with worlds of their own. `Fused` in `policies.algorithms.apg` has the same metrics."""

    def __init__(self, task: HasRehearsal, config: ApgConfig, seed: int) -> None:
        if pictures(task.policy):
            raise ValueError(f"apg takes numbers, but {task.name} shows pictures")
        if not 0 <= config.ahead < config.window:
            raise ValueError(f"algorithm.ahead must be within 0..window - 1, got {config.ahead} of {config.window}")
        self.task, self.config, self.seed = task, config, seed
        self.world = task.rehearsal(config.num_envs, stream(seed, TRAINING), config.window)
        self.low, high = limits(task.commands)
        self.half = np.float32(0.5) * (high - self.low)
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        features, actions = self._features().shape[1], size(task.commands)
        self.policy = make_policy(config, features, actions, rng, initial_action(task))
        self.adam = Adam(self.policy.parameters())
        self.hidden = torch.zeros(config.num_envs, self.policy.state_size)
        self.update = self.lost = 0

    def _features(self) -> Tensor:
        seen = self.world.observe()
        flat = {s.name: seen[s.name].reshape(self.world.num, -1) for s in numbers(self.task.policy)}
        found = [feature.evaluate(flat) for feature in features_of(self.task)]
        return torch.from_numpy(np.nan_to_num(np.concatenate(found, axis=1, dtype=np.float32)))

    def window(self) -> tuple[Array, float]:
        """Drive one window and leave its gradient in the policy's parameters: costs (T, n), and how many count."""
        config, hidden, actions = self.config, self.hidden, []
        for t in range(config.window):
            with torch.set_grad_enabled(t < config.window - config.ahead):
                action, hidden = self.policy(self._features(), hidden)
            actions.append(action)
            self.world.step(unpack(self.task.commands, self.low + (host(action) + np.float32(1.0)) * self.half))
        self.hidden = hidden.detach()
        cost, counts = self.world.costs()
        learning = counts[: config.window - config.ahead]
        slope = self.world.gradient(config.adjoint_clip)[: len(learning)] * self.half * learning[:, :, None]
        total = max(1, int(learning.sum()))
        slope = np.nan_to_num(slope / np.float32(total))
        (torch.stack(actions[: len(learning)]) * torch.from_numpy(slope)).sum().backward()
        return cost, float(counts.mean())

    def _controller(self) -> FeaturePolicy:
        return FeaturePolicy.from_task(self.task, self.network())

    def learn(self) -> Iterator[dict[str, float]]:
        """Train to the end of the budget."""
        c = self.config
        decay = math.log(c.final_learning_rate / c.learning_rate)
        interval, measure = max(1, c.updates // 100), max(1, c.updates // 5)
        while self.update < c.updates:
            cost, counting = self.window()
            rate = c.learning_rate * math.exp(decay * self.update / c.updates)
            norm = self.adam.step(rate, c.beta1, c.beta2, c.gradient_clip)
            self.update += 1
            lost, over = self.world.go_on(c.episode_windows * c.window)
            self.lost += lost
            self.hidden[torch.from_numpy(over)] = 0.0
            if self.update % interval == 0 or self.update == c.updates:
                metrics = {
                    "progress": self.update / c.updates,
                    "env_steps": float(self.update * c.num_envs * c.window),
                    "loss": float(cost.mean()),
                    "gradient_norm": norm,
                    "learning_rate": rate,
                    "lost": float(self.lost),
                    "driving": counting,
                }
                if self.update % measure < interval:
                    first = self.update * MEASURED
                    metrics |= measured(self.task, self._controller(), self.seed, first, MEASURED)
                yield metrics

    def dump_to(self, folder: Path) -> None:
        """Nothing is written: the world itself says who is lost."""

    def network(self) -> Network:
        """What has been learned so far."""
        found: Network = self.policy.network()
        return found

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact continuation needs."""
        parts = {"policy": copy.deepcopy(dict(self.policy.state_dict())), "hidden": self.hidden.clone()}
        kept = {"adam": self.adam.state_dict(), "world": self.world.state_dict()}
        return {**parts, **kept, "update": self.update, "lost": self.lost}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        for name in ("policy", "adam", "world"):
            getattr(self, name).load_state_dict(state[name])
        self.hidden = torch.as_tensor(state["hidden"]).clone()
        self.update, self.lost = int(state["update"]), int(state["lost"])
