"""Reinforcement learning of a policy that sees, is told in words, and says action tokens (VLA-RL, arXiv 2505.18719).

A clone practises in the task's own scenes: it draws chunks from its own distribution, and PPO makes those likelier that
were worth more than a critic expected who sees where things are, or (`advantage=grpo`) more than others from the same
beginning. What is exported is the running average of its weights. A clone that has not converged makes this look good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from policies.algorithms import LearningError
from policies.algorithms.vla import Vla, VlaConfig
from policies.algorithms.vla.heads import TokenHead
from policies.algorithms.vla_rl.critic import Critic, explained
from policies.algorithms.vla_rl.curriculum import Curriculum
from policies.algorithms.vla_rl.exploration import blurred
from policies.algorithms.vla_rl.improvement import Improvement
from policies.algorithms.vla_rl.insight import Insight, unseen
from policies.algorithms.vla_rl.localisation import Localisation
from policies.algorithms.vla_rl.practice import Chunks, Practice, Speak
from policies.algorithms.vla_rl.progress import HAND, Progress
from policies.algorithms.vla_rl.returns import estimated, grouped, levelled, rewarded
from policies.algorithms.vla_rl.start import take
from policies.learning.demonstrations import demonstrated
from policies.learning.networks import Stateful
from policies.learning.vla.kinds import controller_of, final
from policies.learning.vla.memory import enough
from policies.learning.vla.shown import Sentences
from policies.models.controller import Policy
from policies.models.networks import Array
from policies.models.tokens.bins import BinTokens
from sim.env import make_env, stream
from sim.tasks.abilities import HasWords

SPEAKING = int.from_bytes(b"speaking")  # mixed into the seed of the episodes
ADVANTAGES = ("gae", "grpo")
CLONING = 0.2  # of the progress, where a clone is made first


@dataclass
class VlaRlConfig:
    """Settings."""

    start: str = ""  # folder, or checkpoint, of a run of vla to begin with; none: it clones first, as `clone` says
    clone: VlaConfig = field(default_factory=VlaConfig)
    iterations: int = 260
    episodes: int = 96  # per iteration
    num_envs: int = 16  # scenes flown together
    temperature: float = 0.6  # that practice draws tokens at
    blur: list[float] = field(default_factory=lambda: [2.0])  # deviation, in bins: one, or one per number of an action
    advantage: str = "gae"  # gae, with a critic, or grpo, within groups of episodes from the same beginning
    group: int = 6  # episodes from the same beginning, of grpo
    progress: float = 0.5  # weight of the process reward; 0: success alone
    kept: bool = False  # how far a task was done counts at the end, too: failing near is better than far
    astray: float = 0.0  # m, up to which hands are off in what the process reward learns from demonstrations
    gamma: float = 0.97  # per chunk
    gae_lambda: float = 0.9
    curriculum: bool = True  # what is always done, or never, is practised seldom; with `kept` what fails more, more
    critic_hidden: list[int] = field(default_factory=lambda: [128, 128])
    critic_learning_rate: float = 1e-3
    critic_passes: int = 12  # per iteration
    critic_alone: int = 2  # iterations at the beginning in which only the critic learns, of gae
    shares: int = 0  # of each batch, that learners have; 0: 1 each
    epochs: int = 2  # passes over the chunks of an iteration
    localisation: int = 20  # updates per iteration by which a localiser learns on; 0: it does not
    batch_size: int = 256
    learning_rate: float = 5e-5  # at first; a tenth of it in the end, and less or more by target_kl
    target_kl: float = 0.02  # nats per chunk between before and after an iteration
    clip: float = 0.2
    clip_above: float = 0.28
    entropy: float = 0.0  # weight of the entropy bonus
    anchor: float = 0.02  # weight of the divergence from the clone
    ema_decay: float = 0.99  # kept of the averaged weights per minibatch

    def __post_init__(self) -> None:
        counts = ("iterations", "episodes", "num_envs", "critic_passes", "epochs", "batch_size")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.shares <= self.batch_size:
            raise ValueError(f"shares of a batch must be in 0..{self.batch_size} (batch_size), got {self.shares}")
        if self.clone.shares:
            raise ValueError("set algorithm.shares, which is the clone's, too, not algorithm.clone.shares")
        if self.advantage not in ADVANTAGES:
            raise ValueError(f"advantage {self.advantage!r} is not one of {', '.join(ADVANTAGES)}")
        if self.advantage == "grpo" and not 2 <= self.group <= self.episodes:
            raise ValueError(f"a group is two episodes at least, and not more than {self.episodes}, got {self.group}")
        if self.kept and (self.advantage == "grpo" or not self.progress):
            raise ValueError("kept=true is of the process reward, which advantage=grpo and progress=0 do without")
        for name in ("temperature", "learning_rate", "critic_learning_rate", "target_kl", "clip", "clip_above"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("progress", "astray", "entropy", "anchor", "critic_alone", "localisation"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("gamma", "gae_lambda", "ema_decay"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be within 0..1, got {getattr(self, name)}")


class VlaRl(Stateful):
    """A clone that practises."""

    Config = VlaRlConfig
    needs: tuple[type, ...] = (HasWords,)
    takes: tuple[str, ...] = ("tokens", "learners")
    cut_by = "shares"
    state_parts = ("cloning", "improvement", "insight", "potential", "critic", "curriculum", "localisation")
    state_values = ("seed", "iteration", "env_steps", "ready", "started")

    def __init__(self, task: HasWords, config: VlaRlConfig, seed: int, device: str = "cpu") -> None:
        self.task, self.config, self.seed = task, config, seed
        self.cloning = Vla(task, replace(config.clone, shares=config.shares), seed, device)
        self.learners = self.cloning.learners
        self.started = ""  # SHA-256 of the checkpoint that it began with
        if config.start:
            self.started = take(self.cloning.average, config.start)
            self.cloning.done = config.clone.updates
            self.cloning.forget()
        self.generator = torch.Generator().manual_seed(seed)
        head = self.cloning.head
        if not isinstance(head, TokenHead):
            raise ValueError("vla_rl practises what says tokens: algorithm.clone.head=tokens; dsrl steers a flow")
        tokens = head.tokens
        if not isinstance(tokens, BinTokens):
            raise ValueError("vla_rl tries neighbouring bins, which FAST tokens have not: algorithm.clone.tokens=bins")
        blur = blurred(tokens, config.blur)
        self.improvement = Improvement(self.cloning.average, config, blur, self.learners)
        self.insight = Insight(task)
        if config.astray and HAND not in (s.name for s in self.insight.signals):
            raise ValueError(f"astray leads a {HAND} astray, and {task.name} has none: set algorithm.astray=0")
        self.potential = Progress(self.insight.size, self.generator)
        judged = self.insight.size + len(task.instructions) + 1
        self.critic = Critic(judged, config.critic_hidden, config.critic_learning_rate, self.generator)
        self.curriculum = Curriculum(task, stream(seed, SPEAKING), not config.curriculum, config.kept)
        self.localisation = Localisation(task, self.insight, self.improvement, config, self.generator)
        said = [instructions.learned for instructions in task.instructions]
        self.sentences = Sentences.of(self.cloning.encoder, said, self.cloning.told.shape[0])
        self.iteration = self.env_steps = 0
        self.ready = False  # the clone is there, and what is usual and progress are known

    def learn(self) -> Iterator[dict[str, float]]:
        config, begun = self.config, 0.0 if self.config.start else CLONING
        if self.cloning.done < config.clone.updates:
            for metrics in self.cloning.learn():
                yield {**metrics, "progress": begun * metrics["progress"]}
        if not self.ready:
            self._prepare()
        rows = min(config.num_envs, config.episodes)
        with closing(make_env(self.task, rows, stream(self.seed, SPEAKING))) as env:
            practice = Practice(self.task, env, self.insight, config.clone.horizon)
            while self.learners.more(self.iteration < config.iterations):
                metrics = self._iterate(practice)
                self.iteration += 1
                done = begun + (1.0 - begun) * self.iteration / config.iterations
                yield {"progress": done, "env_steps": float(self.env_steps), **metrics}
        if not self.learners.first:
            return
        if told := final(self.task, self.controller(), config.clone.pretrained, self.seed):
            yield {"progress": 1.0, "env_steps": float(self.env_steps), **told}

    def stage(self) -> str:
        """See `policies.algorithms.HasStages`."""
        return self.cloning.stage() if self.cloning.done < self.config.clone.updates else "it practises"

    def _prepare(self) -> None:
        """What is usual of what critics see, and how far a task is done, as demonstrations have it."""
        shown = self.cloning.shown or demonstrated(unseen(self.task), self.config.clone, self.seed)
        self.cloning.shown = []
        self.insight.learn(shown)
        if self.config.progress > 0.0:
            self.potential.learn(shown, self.insight, self.generator, self.config.astray)
        self.improvement.begin()
        self.ready = True

    def _iterate(self, practice: Practice) -> dict[str, float]:
        """Practise once, and learn from it."""
        config = self.config
        grouped_by = config.group if config.advantage == "grpo" else 1
        drawn = self.curriculum.draw(max(1, config.episodes // grouped_by))
        numbers = np.repeat([number for number, _ in drawn], grouped_by)
        things = np.repeat([thing for _, thing in drawn], grouped_by)
        asked = torch.from_numpy(np.array([thing for _, thing in drawn]))
        said = self.sentences.choose(asked, self.generator).repeat_interleave(grouped_by)
        chunks = practice(numbers.tolist(), self._speaker(said))
        # Before anything is summed: whether and how often that is done depends on what was practised.
        practised = chunks.numbers, chunks.tokens, chunks.logs, torch.from_numpy(chunks.success)
        self.learners.agree(practised)
        self.env_steps += chunks.steps
        rates = self.curriculum.learn(things, chunks.success)
        if config.advantage == "grpo":
            advantage, metrics = self._compared(chunks, grouped_by)
        else:
            advantage, metrics = self._expected(chunks, torch.from_numpy(things))
        metrics |= {"success": float(np.mean([*rates.values()])), **self._named(rates)}
        counted, done = advantage != 0.0, self.iteration / config.iterations
        if counted.any():
            kept = chunks if counted.all() else chunks.some(counted)
            told = said[kept.episode]
            with enough():
                metrics |= self.improvement.step(kept, self.sentences, told, advantage[counted], done, self.generator)
        # Last: whoever is judged sees what he saw as he spoke.
        return metrics | self.localisation.learn(chunks, torch.from_numpy(things), done)

    def _speaker(self, said: Tensor) -> Speak:
        """What the policy says in episodes that are told these sentences (episodes,)."""
        policy, config = self.improvement.policy, self.config
        with torch.no_grad():
            told = policy.tell(*self.sentences.at(said))
        hold = config.clone.horizon // config.clone.parts

        @torch.no_grad()
        def speak(
            episodes: NDArray[np.int64], numbers: Tensor, pictures: Mapping[str, Tensor]
        ) -> tuple[Tensor, Tensor, Array]:
            with enough("num_envs"):
                prefix = policy.encode(told.at(episodes), numbers, pictures)
                spoken = policy.generate(prefix, config.temperature, self.generator, self.improvement.blur)
            chunk = policy.detokenise(spoken.tokens)[0].reshape(len(episodes), config.clone.parts, -1)
            return spoken.tokens, spoken.log_probability.sum(1), chunk.repeat(hold, axis=1)

        return speak

    def _expected(self, chunks: Chunks, things: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Advantages (n,) over what the critic expected, none while only it learns; and how well it did."""
        config, last = self.config, chunks.last
        x, thing = self.insight(chunks.seen), things[chunks.episode]
        potential = self.potential(x) if config.progress > 0.0 else torch.zeros(len(x))
        success = last & torch.from_numpy(chunks.success)[chunks.episode]
        reward = rewarded(success, potential, last, config.progress, config.gamma, config.kept)
        asked = torch.nn.functional.one_hot(thing, len(self.task.instructions))
        judged = torch.cat([x, asked, chunks.passed[:, None]], 1)
        value = self.critic(judged)
        advantage = estimated(reward, value, last, config.gamma, config.gae_lambda)
        target = value + advantage
        metrics = {"explained_variance": explained(target, value), "reward": float(reward.mean())}
        self.critic.fit(judged, target, config.critic_passes, self.generator)
        if self.iteration < config.critic_alone:
            return torch.zeros(len(x)), metrics
        return levelled(advantage, thing), metrics

    def _compared(self, chunks: Chunks, size: int) -> tuple[Tensor, dict[str, float]]:
        """Advantages (n,) of episodes within their group; and the share of groups that say something."""
        success = torch.from_numpy(chunks.success)
        group = torch.arange(len(success)) // size
        advantage = grouped(success, chunks.counts, group, self.config.gamma)
        telling = (advantage.view(-1, size) != 0.0).any(1).float().mean()
        return advantage[chunks.episode], {"groups": float(telling), "reward": float(success.float().mean())}

    def _named(self, rates: Mapping[int, float]) -> dict[str, float]:
        """The success in each thing that was asked for, by its task's name."""
        tasks = [instructions.task.rpartition("/")[2] for instructions in self.task.instructions]
        return {f"success_{tasks[thing]}": rate for thing, rate in rates.items()}

    def controller(self) -> Policy:
        average = self.improvement.average if self.ready else self.cloning.average
        return controller_of(self.task, self.cloning.encoder, average, self.config.clone.horizon)

    def baselines(self) -> dict[str, Policy]:
        """The clone."""
        return {"clone": self.cloning.controller()}

    def provenance(self) -> dict[str, Any]:
        """Of the run that it began with."""
        return {"start": {"sha256": self.started}} if self.started else {}

    def dump_to(self, folder: Path) -> None:
        """Nothing is dumped: a scene that is not finite ends its episode."""

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["started"] != self.started:
            raise LearningError(f"{self.config.start or 'no checkpoint'} is not what this run began with")
        super().load_state_dict(state)
        self.generator.set_state(state["generator"])
