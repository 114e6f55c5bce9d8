"""Eyes that are learned offline and then left as they are (FastRLAP, Stachowicz et al. 2023, arXiv 2304.09831).

Actor, critics and values learn from recordings alone, see `policies.learning.offline`, and what they ask of pictures
trains the encoder. They are not used any further: whoever practises sees the numbers that the encoder makes of
pictures, and keeps those in memory in the place of pictures.

Slow laps say little of what a picture shows: values differ little along them. With `auxiliary` a perceptron must also
tell from the encoder's numbers what is privileged (how far walls are, say), which only recordings of a simulator, or of
a better equipped robot, have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.learning.actor_critic import Actor, ActorCriticConfig, ActorTrainer, Critics, executed
from policies.learning.chunk_rollout import ChunkRewards, Transition
from policies.learning.demonstrations import Demonstrations, privileged
from policies.learning.encoders import SHARP, Encoders
from policies.learning.networks import Normalizer, Stateful, mlp
from policies.learning.offline import Pretraining, offline
from policies.learning.online import transitions
from policies.models.vision import EncoderConfig
from sim import spec
from sim.rollout import Episode
from sim.tasks import Task


@dataclass
class EyesConfig(Pretraining):
    """Settings of eyes that are learned offline."""

    pretrain: str = "iql"
    demonstrations: str = ""  # folder of a dataset; without one the task's expert shows, where practice never is
    episodes: int = 20
    corruption: float = 0.0  # of the expert who shows: pictures from beside the way, too
    auxiliary: float = 0.0  # weight of the loss by which what is privileged follows from what eyes find
    batch_size: int = 64
    hidden: list[int] = field(default_factory=lambda: [64, 64])
    learning_rate: float = 5e-4
    sight: EncoderConfig = field(default_factory=EncoderConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.episodes < 1 or self.batch_size < 1:
            raise ValueError(f"needs episodes >= 1 and batch_size >= 1, got {self.episodes} and {self.batch_size}")
        if self.corruption < 0.0 or self.auxiliary < 0.0:
            raise ValueError(f"corruption and auxiliary must be at least 0, got {self.corruption} and {self.auxiliary}")


@dataclass
class Record:
    """What was recorded: numbers, normalised (n, m), and pictures by name; and transitions between these moments."""

    measured: Tensor
    privileged: Tensor  # (n, p), normalised; none without `auxiliary`
    pictures: dict[str, Tensor]
    first: Tensor  # (k,) moments
    after: Tensor
    made: dict[str, Tensor]  # chunk (k, size), reward, discount and value (k, 1)


class Eyes(Stateful):
    """An encoder of a task's pictures, and who learns with it for chunks of `size` numbers."""

    state_parts: tuple[str, ...] = ("encoders", "usual", "training", "critics", "offline", "optimizer")
    state_values = ("done",)

    def __init__(self, task: Task, config: EyesConfig, size: int, generator: torch.Generator) -> None:
        self.task, self.config, self.generator = task, config, generator
        self.encoders = Encoders(spec.pictures(task.policy), config.sight, generator, SHARP)
        self.usual = Normalizer(spec.size(spec.numbers(task.policy)))
        observed = len(self.usual.shift) + self.encoders.size
        rates = {"learning_rate": config.learning_rate, "batch_size": config.batch_size}
        own = ActorCriticConfig(hidden=config.hidden, magnitude=1.0, prior_std=1.0, **rates)  # type: ignore[arg-type]
        self.training = ActorTrainer(Actor(own, observed, size, generator), own)
        self.critics = Critics(own, observed + size, generator, own.critics)
        self.offline = offline(config, self.training, self.critics, generator)
        self.optimizer = torch.optim.Adam(self.encoders.parameters(), config.learning_rate, fused=True)
        self.known = task.privileged if config.auxiliary else ()
        if config.auxiliary:
            if not self.known:
                raise ValueError(f"{task.name} knows nothing privileged: set eyes.auxiliary=0")
            size = spec.size(self.known)
            self.likely = Normalizer(size)
            self.telling = mlp([self.encoders.size, *config.hidden, size], generator)
            self.optimizer.add_param_group({"params": [*self.telling.parameters()]})
            self.state_parts += ("likely", "telling")
        self.done = 0  # updates

    @property
    def finished(self) -> bool:
        """Whether they are left as they are from now on."""
        return self.done >= self.config.offline_updates

    def learn(
        self, episodes: Sequence[Episode], rewards: ChunkRewards, horizon: int, report: int = 100
    ) -> Iterator[dict[str, float]]:
        """The updates that are left; yields the metrics of every `report`-th."""
        record = self._record(episodes, rewards, horizon)
        while not self.finished:
            metrics = self._update(record)
            self.done += 1
            if self.done % report == 0 or self.finished:
                yield {name: float(value) for name, value in metrics.items()}

    def _record(self, episodes: Sequence[Episode], rewards: ChunkRewards, horizon: int) -> Record:
        shown = Demonstrations.of([*episodes], self.task, horizon)
        if self.done == 0:
            self.usual.update(torch.from_numpy(shown.observation))
        made: list[Transition] = []
        begun = 0
        for episode in episodes:
            data = Demonstrations.of([episode], self.task, horizon)
            moments = np.arange(begun, begun + len(data.chunk), dtype=np.float32)[:, None]
            begun += len(moments)
            success = int(episode.success.argmax()) if episode.succeeded else None
            numbered = Demonstrations(moments, data.chunk)  # which moment it was, in the place of what was seen
            made += transitions(numbered, success, rewards, horizon, episode.reward)
        first, after = (torch.tensor([int(getattr(t, name)[0]) for t in made]) for name in ("x", "next_x"))
        value = torch.tensor([[t.value] for t in made], dtype=torch.float32)
        pictures = {name: torch.from_numpy(some) for name, some in shown.pictures.items()}
        measured = self.usual(torch.from_numpy(shown.observation))
        privileged = self._privileged(episodes) if self.known else measured[:, :0]
        return Record(measured, privileged, pictures, first, after, {**executed(made), "value": value})

    def _privileged(self, episodes: Sequence[Episode]) -> Tensor:
        """What only recordings know (n, p), normalised. LearningError where they do not know it."""
        told = torch.from_numpy(privileged(episodes, self.known, "algorithm.base.eyes.auxiliary"))
        if self.done == 0:
            self.likely.update(told)
        return self.likely(told)

    def _update(self, record: Record) -> dict[str, Tensor]:
        """One of those who learn, and one of the encoder along what their losses ask of its numbers together."""
        some = torch.randint(len(record.first), (self.config.batch_size,), generator=self.generator)
        looked = self._seen(record.pictures, record.first[some])
        with torch.no_grad():
            following = self._seen(record.pictures, record.after[some])
        x = torch.cat([record.measured[record.first[some]], looked.detach()], -1).requires_grad_()
        batch = {name: values[some] for name, values in record.made.items()}
        batch |= {"x": x, "next_x": torch.cat([record.measured[record.after[some]], following], -1)}
        metrics = self.offline.update({**batch, "w": batch["chunk"]})
        assert x.grad is not None
        self.optimizer.zero_grad()
        asked = x.grad[:, -looked.shape[1] :]
        if self.known:
            missed = (self.telling(looked) - record.privileged[record.first[some]]).square().mean()
            metrics = {**metrics, "untold": missed.detach()}
            torch.autograd.backward([looked, self.config.auxiliary * missed], [asked, None])
        else:
            looked.backward(asked)
        self.optimizer.step()
        return metrics

    def _seen(self, pictures: Mapping[str, Tensor], moments: Tensor) -> Tensor:
        """What is found in the pictures of these moments, moved at random."""
        found: Tensor = self.encoders(
            self.encoders.moved({name: some[moments] for name, some in pictures.items()}, self.generator)
        )
        return found

    @torch.no_grad()
    def look(self, pictures: Mapping[str, Any]) -> Tensor:
        """What they find in pictures (n, height, width, 3), as they are: (n, size)."""
        found: Tensor = self.encoders({name: torch.from_numpy(some) for name, some in pictures.items()})
        return found
