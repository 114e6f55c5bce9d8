"""EXPO: reinforcement learning that edits the chunks of a frozen base (Dong et al. 2025, arXiv 2507.07986).

The base proposes a few chunks, an actor that sees the observation and a chunk edits each a little, and the critics of
(observation, executed chunk) choose among all of them, in the scenes and in their own targets. Demonstrations are part
of each batch. Residual learning is the case of one chunk that is always edited (Johannink et al. 2019; arXiv
2509.19301). Three things differ from the paper. The first proposal is the base's most likely chunk. The base is not
trained any further, so that its proposals for a state are drawn once, when the state is stored. And a Gaussian prior
over edits takes the place of the entropy, as in `steering`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from policies.learning.actor_critic import (
    Actor,
    ActorCriticConfig,
    ActorTrainer,
    Critics,
    executed,
    judges,
    memory,
    set_rate,
)
from policies.learning.base import Served
from policies.learning.buffers import ReplayBuffer
from policies.learning.chunk_rollout import Transition
from policies.learning.networks import Normalizer
from policies.learning.online import OnlineFinetuning, OnlineLearner
from policies.models.action_selection import BestOfN, CriticEnsemble, ResidualEdit
from policies.models.chunking import Base, NoiseTable
from policies.models.controller import Policy
from policies.models.networks import Array
from sim.tasks import Task

DRAWN = 16  # chunks of the base that the critics choose from, in the baseline
ROWS = 64  # of the exported table of noise


@dataclass
class ExpoConfig(ActorCriticConfig):
    """Settings of EXPO. What the actor chooses is an edit."""

    magnitude: float = 0.5
    prior_std: float = 0.2
    critic_updates: int = 2  # per chunk
    actor_updates: int = 1
    candidates: int = 2  # chunks that the base proposes, its most likely one first
    noise_std: float = 0.6  # of its noise for the others
    same_edit: bool = False  # one edit for all actions of a chunk
    shown: float = 0.25  # share of the demonstrations in each batch
    every_step: bool = False  # transitions from within chunks, too

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates < 1 or self.noise_std < 0.0:
            raise ValueError(f"needs candidates >= 1 and noise_std >= 0, got {self.candidates} and {self.noise_std}")


@dataclass
class ResidualConfig(ExpoConfig):
    """Settings of residual learning: the base's most likely chunk, edited."""

    candidates: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates != 1:
            raise ValueError(f"residual learning edits one chunk, not candidates={self.candidates}; see algorithm=expo")


class Expo(OnlineLearner):
    """An actor that edits what a base proposes which was cloned before; see `policies.learning.online`."""

    Config: type[ExpoConfig] = ExpoConfig
    state_parts = ("run", "training", "critics", "memory")
    unedited = True  # the base's own chunks are candidates, too

    def __init__(self, task: Task, config: ExpoConfig, seed: int, device: str = "cpu") -> None:
        self.run = OnlineFinetuning(task, config, seed, device)
        self.run.believe(config.success)
        self.run.look_within(config.every_step)
        self.task, self.config, self.generator = self.run.task, config, self.run.generator
        self.cloning = self.run.cloning
        if isinstance(self.cloning, Served):
            raise ValueError(
                "edited chunks are put into a file with their base, not with one on a server; see algorithm=dsrl"
            )
        self.size, observed = self.cloning.size, self.cloning.observed
        self.edits = self.cloning.actions if config.same_edit else self.size
        self.training = ActorTrainer(Actor(config, observed + self.size, self.edits, self.generator), config)
        self.critics = Critics(config, observed + self.size, self.generator, config.critics)
        self.memory = memory(config.capacity, config.shown)

    def learn(self) -> Iterator[dict[str, float]]:
        yield from self.run.learn(self)

    def choose(self, base: Base, observation: Array, blind: bool) -> tuple[Array, Array]:
        proposed = self._propose(base, observation)
        x = self.cloning.see(observation)
        with torch.no_grad():
            options = self._options(x, torch.from_numpy(proposed))
            count = options.shape[1]
            if blind or count == 1:
                best = torch.randint(count, (len(x),), generator=self.generator)
            else:
                best = self.critics.believed(_beside(x, options)).view(-1, count).argmax(1)
        return proposed, options[torch.arange(len(x)), best].numpy()

    def _propose(self, base: Base, observation: Array) -> Array:
        """The base's chunks (n, candidates * size)."""
        n, candidates = len(observation), self.config.candidates
        noise = self.config.noise_std * torch.randn(n, candidates, base.noise_size, generator=self.generator)
        noise[:, 0] = 0.0
        seen = np.repeat(observation, candidates, axis=0)
        return base.sample(seen, noise.view(len(seen), -1).numpy()).reshape(n, -1)

    def _options(self, x: Tensor, proposed: Tensor) -> Tensor:
        """All candidates (n, count, size), for what is seen (n, o) and proposed (n, candidates * size)."""
        chunk = proposed.view(len(x), -1, self.size)
        noise = torch.randn(chunk.numel() // self.size, self.edits, generator=self.generator)
        edit, _ = self.training.actor.sample(_beside(x, chunk), noise)
        edited = self._edited(chunk, edit.view(*chunk.shape[:2], -1))
        return torch.cat([chunk, edited], 1) if self.unedited else edited

    def _edited(self, chunk: Tensor, edit: Tensor) -> Tensor:
        return (chunk + edit.tile(self.size // self.edits)).clamp(-1.0, 1.0)

    def keep(self, transition: Transition) -> None:
        begun = len(transition.choice) > 0  # within a chunk nothing was proposed
        proposed = transition.choice[None] if begun else self._propose(self.run.base, transition.x[None])
        self._store(self.memory, [transition], proposed)

    def _store(self, replay: ReplayBuffer, made: list[Transition], proposed: Array) -> None:
        x, next_x = (np.stack([getattr(t, name) for t in made]) for name in ("x", "next_x"))
        following = torch.from_numpy(self._propose(self.run.base, next_x))
        seen = {"x": self.cloning.see(x), "next_x": self.cloning.see(next_x)}
        replay.add(**seen, proposed=torch.from_numpy(proposed), next_proposed=following, **executed(made))

    def prepare(self, updates: int) -> None:
        if self.memory.prior is not None:
            made = self.run.transitions()
            self._store(self.memory.prior, made, self._propose(self.run.base, np.stack([t.x for t in made])))
        for _ in range(updates // self.config.critic_updates):
            self._update_critics()

    def update(self) -> dict[str, float]:
        config = self.config
        set_rate(config.rate(self.run.env_steps), self.training, self.critics)
        loss, batch = self._update_critics()
        x, chunk = batch["x"][-config.batch_size :], batch["proposed"][-config.batch_size :, : self.size]
        seen = torch.cat([x, chunk], -1)

        def believed(edit: Tensor) -> Tensor:
            return self.critics.believed(torch.cat([x, self._edited(chunk, edit)], -1))

        weight = config.prior_weight(self.run.env_steps)
        for _ in range(config.actor_updates):
            noise = torch.randn(len(x), self.edits, generator=self.generator)
            metrics = self.training.climb(seen, noise, believed, weight)
        return {"loss": float(loss), **{name: float(value) for name, value in metrics.items()}}

    def _update_critics(self) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The last update's loss, and the batches."""
        batch = self.memory.sample(self.config.critic_updates * self.config.batch_size, self.generator)
        return self.critics.fit(torch.cat([batch["x"], batch["chunk"]], -1), self._targets(batch)), batch

    @torch.no_grad()
    def _targets(self, batch: Mapping[str, Tensor]) -> Tensor:
        options = self._options(batch["next_x"], batch["next_proposed"])
        value = self.critics.lowest(_beside(batch["next_x"], options), self.generator)
        best = value.view(options.shape[:2]).amax(1)
        return batch["reward"][:, 0] + batch["discount"][:, 0] * best

    def controller(self) -> Policy:
        """The averaged actor's mean edit; the critics choose among the candidates."""
        edited = ResidualEdit(self.training.mean(self._inputs()), self.config.magnitude, self.size // self.edits)
        count = self.config.candidates
        planner = BestOfN(self._judges(), count, edited) if self.unedited else edited
        return self.cloning.controller(self._drawn(count), planner)

    def baselines(self) -> dict[str, Policy]:
        """Without the actor: random noise, none; the critics' choice among the base's chunks."""
        controller, size = self.cloning.controller, self.size
        made: dict[str, Policy] = {"random noise": controller(NoiseTable.normal(size))}
        made["no noise"] = controller(NoiseTable.none(size))
        if self.unedited:
            made[f"best of {DRAWN}"] = controller(self._drawn(DRAWN), BestOfN(self._judges(), DRAWN))
        return made

    def _drawn(self, count: int) -> NoiseTable:
        """Noise for so many candidates, none for the first."""
        if count == 1:
            return NoiseTable.none(self.size)
        drawn = NoiseTable.normal(count * self.size, ROWS, self.config.noise_std)
        drawn.table[:, : self.size] = 0.0
        return drawn

    def _judges(self) -> CriticEnsemble:
        return judges(self.critics, self.cloning.normalizer)

    def _inputs(self) -> Normalizer:
        """Of what the actor takes: the observation's, and none of the chunk."""
        return self.cloning.normalizer.wider(self.size)


class Residual(Expo):
    """The base's most likely chunk, always edited."""

    Config = ResidualConfig
    unedited = False


def _beside(x: Tensor, options: Tensor) -> Tensor:
    """What is seen (n, o) beside each option (n, count, k): (n * count, o + k)."""
    return torch.cat([x[:, None].expand(-1, options.shape[1], -1), options], -1).flatten(0, 1)
