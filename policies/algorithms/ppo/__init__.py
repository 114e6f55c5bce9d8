"""PPO: proximal policy optimisation (Schulman et al. 2017), vectorised, with an asymmetric critic.

For engines without gradients. The actor sees the task's features as the robot senses them; the critic sees them without
noise and delay, and the privileged signals. Both inputs and the value target are normalised by running statistics; the
actor's are folded into its first layer when it becomes a controller. The policy that is kept is an average over the
end of the training.

Two paths with one meaning: `fused`, without torch, for small networks of numbers; and `torch`, for pictures, large
networks and GPUs. Both learn perceptrons, and gated units that remember.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from policies.learning import exponential
from policies.models.controller import FeaturePolicy, Policy
from policies.models.rounding import halved
from policies.models.vision import EncoderConfig
from sim.env import NoExpertError
from sim.spec import pictures
from sim.tasks import Task
from sim.tasks.abilities import has_places

PATHS = ("auto", "fused", "torch")
NETWORKS = ("mlp", "gru", "tracking_gru")
LARGEST = 512  # units of a hidden layer for which the fused kernels are made


@dataclass
class PpoConfig:
    """Settings of PPO."""

    path: str = "auto"  # fused | torch | auto: fused when task, networks and device allow it
    threads: int = 1  # at most 4, of the fused path and of recurrent networks; they change no result
    total_steps: int = 12_000_000  # environment steps in all
    num_envs: int = 256
    parts: int = 0  # of rollouts and minibatches, that learners share: see `policies.learning.parallel`; 0: 1 each
    workers: int = 1  # processes that step worlds of others, such as Meta-World; 0: one per core, if worth it
    rollout_steps: int = 16  # control steps of each environment per iteration
    epochs: int = 2  # passes over each rollout
    minibatches: int = 4  # per pass
    gamma: float = 0.98  # at the start
    final_gamma: float = 0.0  # in the last third; 0: the same
    gae_lambda: float = 0.95
    clip: float = 0.2
    learning_rate: float = 3e-3  # at the start
    final_learning_rate: float = 3e-5  # reached exponentially
    entropy: float = 0.0  # weight of the entropy bonus
    gradient_clip: float = 1.0  # norm of the actor's gradient, and of the critic's
    network: str = "mlp"  # of the actor: mlp | gru, which remembers | tracking_gru, which remembers where things are
    hidden: list[int] = field(default_factory=lambda: [64, 64])  # mlp: layers; others: encoder and recurrent state
    head: list[int] = field(default_factory=lambda: [64])  # tracking_gru: layers from what is remembered to actions
    critic_hidden: list[int] = field(default_factory=lambda: [128, 128])  # it must see the cliff coming
    activation: str = "tanh"  # of perceptrons
    sight: EncoderConfig = field(default_factory=EncoderConfig)  # of pictures, where there are any; nothing moves them
    initial_std: float = 0.25  # of the exploration, in actions
    min_std: float = 0.02
    correlation: float = 0.5  # of the exploration with that of the step before
    mirrors: bool = True  # learn in all mirror images of a task at once, if it declares some
    value_memory: float = 0.98  # share of what is known of the value's mean and spread that an iteration keeps
    averaged: float = 0.1  # share of the training, at its end, over which the policy that is kept is averaged
    start: str = ""  # a policy file of this task and network to go on from; of the fused path
    bound: float = 0.0  # by which actions may change from what `start` does (root mean square); 0: as much as they like
    imitation: float = 0.0  # weight of the squared difference from what the task's expert does, of the fused path
    final_imitation: float = 0.0  # and at the end, reached exponentially; 0: the same
    alone: float = 0.0  # share of the training in which the expert's actions are learned from it alone
    alone_rate: float = 0.0  # the learning rate there; 0: as everywhere
    guided: float = 0.0  # share of the training in which it acts in fewer and fewer rows
    critic_alone: int = 0  # iterations at the beginning in which only the critic learns: with a `start` it knows less
    league: bool = False  # games are learned against the learner as it is and was, and against scripted opponents
    league_every: int = 50  # iterations from one snapshot of the learner to the next
    lengths: list[float] = field(default_factory=lambda: [0.1, 0.5])  # of the episodes, as shares of the task's, first
    final_lengths: list[float] = field(default_factory=list)  # and at the end; empty: the same
    staggered: bool = False  # in a world of the task's own the first episodes end at different times
    easy: float = 0.9  # share of episodes with an easier start, at first
    final_easy: float = 0.3  # and at the end
    float16: bool = False  # the file's weights are rounded to float16: half its size
    evaluate_every: int = 500  # iterations between evaluations; 0: only the last
    evaluation_episodes: int = 100

    def __post_init__(self) -> None:
        if self.path not in PATHS:
            raise ValueError(f"algorithm.path {self.path!r} is not one of {', '.join(PATHS)}")
        if self.network not in NETWORKS:
            raise ValueError(f"algorithm.network {self.network!r} is not one of {', '.join(NETWORKS)}")
        if self.remembers and len(self.hidden) != 2:
            raise ValueError(
                f"a {self.network} takes two sizes in algorithm.hidden (encoder, state), got {self.hidden}"
            )
        counts = ("total_steps", "num_envs", "rollout_steps", "epochs", "minibatches", "evaluation_episodes")
        for name in (*counts, "threads", "league_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.parts < 0 or self.num_envs % (self.parts or 1):
            raise ValueError(f"num_envs must be a multiple of parts, got {self.num_envs} and {self.parts}")
        if self.critic_alone < 0:
            raise ValueError(f"critic_alone must not be negative, got {self.critic_alone}")
        if not 0.0 <= self.bound <= 2.0 or (self.bound and not self.start):
            raise ValueError(f"algorithm.bound is 0..2, of what algorithm.start does, got {self.bound}, {self.start!r}")
        if not 0.0 <= self.final_imitation <= self.imitation:
            raise ValueError(
                "needs 0 <= algorithm.final_imitation <= imitation, got "
                f"{self.final_imitation:g} and {self.imitation:g}"
            )
        if not 0.0 <= self.alone_rate < math.inf:
            raise ValueError(f"algorithm.alone_rate must not be negative, and finite, got {self.alone_rate:g}")
        if not (0.0 <= self.guided <= 1.0 and 0.0 <= self.alone <= 1.0):
            raise ValueError(
                f"algorithm.guided and alone are shares of the training, 0..1, got {self.guided:g} and {self.alone:g}"
            )
        if self.minibatches > (units := self.units // (self.parts or 1)):
            what = "rows" if self.remembers else "samples"
            raise ValueError(f"{units} {what} do not make {self.minibatches} minibatches")
        if not (0.0 < self.gamma < 1.0 and 0.0 <= self.final_gamma < 1.0):
            raise ValueError(
                f"gamma must be between 0 and 1, final_gamma too or 0, got {self.gamma} and {self.final_gamma}"
            )
        for name in ("gae_lambda", "value_memory", "averaged"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be within 0..1, got {getattr(self, name)}")
        if not -1.0 < self.correlation < 1.0:
            raise ValueError(f"correlation must be between -1 and 1, got {self.correlation}")
        if not 0.0 < self.final_learning_rate <= self.learning_rate:
            raise ValueError(
                "needs 0 < final_learning_rate <= learning_rate, got "
                f"{self.final_learning_rate} and {self.learning_rate}"
            )
        if len(self.lengths) != 2 or len(self.final_lengths) not in (0, 2):
            raise ValueError(
                "lengths and final_lengths are two shares each, of the shortest and the longest episode, got "
                f"{self.lengths} and {self.final_lengths}"
            )
        if not 0.0 < self.min_std <= self.initial_std:
            raise ValueError(f"needs 0 < min_std <= initial_std, got {self.min_std} and {self.initial_std}")

    @property
    def remembers(self) -> bool:
        """Whether the actor has a state."""
        return self.network != "mlp"

    @property
    def units(self) -> int:
        """How many things minibatches are drawn from: samples, or the rows of a rollout, each with all its steps."""
        return self.num_envs * (1 if self.remembers else self.rollout_steps)

    @property
    def iterations(self) -> int:
        """How many there are in all."""
        return max(1, self.total_steps // (self.num_envs * self.rollout_steps))

    def rate(self, done: float) -> float:
        """The learning rate when so much of the training is done, 0..1."""
        if self.alone_rate and done < self.alone:
            return self.alone_rate
        return exponential(done, self.learning_rate, self.final_learning_rate)

    def discount(self, done: float) -> float:
        """Gamma then: one minus it falls exponentially in the middle third."""
        middle = min(1.0, max(0.0, 3.0 * done - 1.0))
        return 1.0 - exponential(middle, 1.0 - self.gamma, 1.0 - (self.final_gamma or self.gamma))

    def easy_share(self, done: float) -> float:
        """The share of easier starts then."""
        return self.easy + done * (self.final_easy - self.easy)

    def length_shares(self, done: float) -> tuple[float, float]:
        """Of the shortest and the longest episode then."""
        pairs = zip(self.lengths, self.final_lengths or self.lengths, strict=True)
        shortest, longest = (first + done * (last - first) for first, last in pairs)
        return shortest, longest

    def averages(self, iteration: int) -> float:
        """How much the policy after so many iterations counts in the average: its inverse is how many there are."""
        first = self.iterations - max(1, round(self.averaged * self.iterations))
        return 1.0 / max(1, iteration - first)


def beyond(task: Task, config: PpoConfig, device: str) -> str:
    """Why the fused path cannot do it, in words; empty if it can."""
    if device != "cpu":
        return f"device={device}"
    if pictures(task.policy):
        return "pictures"
    if config.parts > 1:
        return f"algorithm.parts={config.parts}"
    if config.network == "tracking_gru":
        return "algorithm.network=tracking_gru"
    if max(*config.hidden, *config.critic_hidden) > LARGEST:
        return f"layers of more than {LARGEST} units"
    return ""


class Ppo:
    """See the module."""

    Config = PpoConfig
    needs: tuple[type, ...] = ()
    takes: tuple[str, ...] = ("agents", "places", "learners")

    def __init__(self, task: Task, config: PpoConfig, seed: int, device: str = "cpu") -> None:
        self.task, self.config = task, config
        why = beyond(task, config, device)
        if has_places(task) and config.remembers:
            raise ValueError(
                f"algorithm.network={config.network} learns whole episodes of a row: {task.name}'s agents come and go, "
                "set algorithm.network=mlp"
            )
        if config.league and (config.path == "torch" or why):
            raise ValueError(f"algorithm.league is learned by the fused path only: {why or 'not algorithm.path=torch'}")
        if config.start and (config.path == "torch" or why):
            raise ValueError(f"algorithm.start goes with the fused path only: {why or 'not algorithm.path=torch'}")
        if config.path == "fused" and why:
            raise ValueError(f"algorithm.path=fused does not do {why}; use algorithm.path=torch")
        torch = config.path == "torch" or bool(why)
        if config.parts > 1 and config.workers != 1:
            raise ValueError(f"algorithm.parts={config.parts} does not go with algorithm.workers={config.workers}")
        told = [name for name in ("final_imitation", "alone", "alone_rate", "guided") if getattr(config, name)]
        if told and not config.imitation:
            raise ValueError(f"algorithm.{told[0]} goes with algorithm.imitation, which is 0: set it, or this to 0")
        if config.imitation and (torch or config.bound):
            other = why or ("algorithm.path=torch" if torch else "algorithm.bound")
            raise ValueError(f"algorithm.imitation goes with the fused path only, and not with {other}")
        if torch and config.remembers:
            from policies.algorithms.ppo.torch_recurrent import TorchRecurrent

            self.path: Any = TorchRecurrent(task, config, seed, device)
        elif torch:
            from policies.algorithms.ppo.torch_path import TorchPath

            self.path = TorchPath(task, config, seed, device)
        else:
            from policies.algorithms.ppo.fused import Fused
            from policies.algorithms.ppo.tutor import Lesson, Scripted

            lesson = Lesson(config.guided, config.alone, config.imitation, config.final_imitation)
            self.path = Fused(task, config, seed, lesson=lesson if config.imitation else None)
            if config.imitation:
                try:
                    self.path.hear(Scripted(task))
                except NoExpertError as error:
                    raise NoExpertError(f"{error}; or learn without it: algorithm.imitation=0") from error

    def learn(self) -> Iterator[dict[str, float]]:
        """Train to the end of the budget; one yield per rollout and its update."""
        yield from self.path.learn()

    def controller(self) -> FeaturePolicy:
        """The policy without exploration, its normaliser folded into the first layer."""
        made: FeaturePolicy = self.path.controller()
        return halved(made) if self.config.float16 else made

    def snapshots(self) -> dict[int, Policy]:
        """What it was, where it learns in a league; see `policies.algorithms.HasSnapshots`."""
        kept: dict[int, Policy] = self.path.snapshots() if self.config.league else {}
        return kept

    def rivals(self) -> dict[str, bytes]:
        """Nobody: all against whom it learns are there anyway."""
        return {}

    def dump_to(self, folder: Path) -> None:
        self.path.dump_to(folder)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next iterations depend on."""
        state: dict[str, Any] = self.path.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of the same task and settings."""
        self.path.load_state_dict(state)
