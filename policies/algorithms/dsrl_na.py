"""DSRL with noise aliasing: its critics judge what was executed, not the noise (Wagenmaker et al. 2025, DSRL-NA).

Different noises lead to the same chunk. Critics of (observation, chunk) learn from whatever was executed, of the
demonstrations too, for which nobody knows a noise; what they believe is distilled through the base's sampler into one
critic of (observation, noise), and the actor of `steering` climbs that. The noise that it is distilled on is half the
prior's, drawn once per state, and half the actor's, which the targets need anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from policies.algorithms.dsrl import Dsrl, DsrlConfig
from policies.learning.actor_critic import Critics, executed, memory, set_rate
from policies.learning.buffers import ReplayBuffer
from policies.learning.chunk_rollout import Transition
from policies.models.networks import Array
from sim.tasks import Task


@dataclass
class DsrlNaConfig(DsrlConfig):
    """Settings of DSRL-NA."""

    shown: float = 0.25  # share of the demonstrations in each batch
    hindsight: int = 0  # copies of each transition with another goal; see `policies.learning.hindsight`


class DsrlNa(Dsrl):
    """An actor that steers a base, learned from executed chunks."""

    Config = DsrlNaConfig
    state_parts = (*Dsrl.state_parts, "judges")
    config: DsrlNaConfig

    def __init__(self, task: Task, config: DsrlNaConfig, seed: int, device: str = "cpu") -> None:
        super().__init__(task, config, seed, device)
        self.judges = Critics(config, self.insight.judged + self.cloning.size, self.generator, config.critics)
        self.run.look_back(config.hindsight)

    def _judge(self) -> Critics:
        return Critics(self.config, self.insight.judged + self.size, self.generator, 1)

    def _remember(self) -> ReplayBuffer:
        return memory(self.config.capacity, self.config.shown)

    def keep(self, transition: Transition) -> None:
        self._store(self.memory, [transition])

    def _store(self, replay: ReplayBuffer, made: list[Transition]) -> None:
        """With one noise of the prior each, and what the base makes of it."""
        x, next_x = (np.stack([getattr(t, name) for t in made]) for name in ("x", "next_x"))
        w = self._drawn(len(made))
        chunks = torch.from_numpy(self.run.base.sample(self.insight.policy(x), self._whole(w.numpy())))
        seen, following = self.run.normalised(x), self.run.normalised(next_x)
        replay.add(x=seen, w=w, made=chunks, next_x=following, **executed(made))

    def prepare(self, updates: int) -> None:
        if self.memory.prior is not None:
            self._store(self.memory.prior, self.run.transitions())
        super().prepare(updates)

    def update(self) -> dict[str, float]:
        set_rate(self.config.rate(self.run.env_steps), self.judges)
        return super().update()

    def _update_critics(self) -> tuple[Tensor, Tensor]:
        """The last update's loss of the critics of chunks, and what learners saw in its batch (batch, o)."""
        config, policy, judge = self.config, self.insight.policy, self.insight.judge
        batch = self.memory.sample(config.critic_updates * config.batch_size, self.generator)
        x, next_x, n = batch["x"], batch["next_x"], len(batch["x"])
        with torch.no_grad():
            w, _ = self.training.actor.sample(policy(next_x), self._noise(n))
            made = torch.from_numpy(self.run.base.sample(self._raw(policy(next_x)), self._whole(w.numpy())))
            value = self.judges.lowest(torch.cat([judge(next_x), made], -1), self.generator)
        wanted = batch["reward"][:, 0] + batch["discount"][:, 0] * value
        loss = self.judges.fit(torch.cat([judge(x), batch["chunk"]], -1), wanted)
        some = torch.randperm(2 * n, generator=self.generator)[:n]
        seen = judge(torch.cat([x, next_x])[some])
        with torch.no_grad():
            value = self.judges.believed(torch.cat([seen, torch.cat([batch["made"], made])[some]], -1))
        self.critics.fit(torch.cat([seen, torch.cat([batch["w"], w])[some]], -1), value)
        return loss, x[-config.batch_size :]

    def _raw(self, x: Tensor) -> Array:
        raw: Array = self.cloning.normalizer.invert(x).numpy()
        return raw
