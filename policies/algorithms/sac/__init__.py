"""SAC: soft actor-critic (Haarnoja et al. 2018), off-policy, with an asymmetric ensemble of critics; TD3 as a setting.

The actor sees the task's features as the robot senses them; the critics see them without noise and delay, and the
privileged signals.

Two paths with one meaning: `fused`, without torch, for small networks of numbers; and `torch`, for pictures, large
networks and GPUs. The first keeps rewards as they were weighed when they were earned, the second their terms, so that
under a curriculum old experience is judged anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from policies.learning import cosine
from policies.learning.state_estimation import StateEstimation
from policies.models.controller import FeaturePolicy
from policies.models.vision import EncoderConfig
from sim.spec import pictures
from sim.tasks import Task, has_own_world

PATHS = ("auto", "fused", "torch")
LARGEST = 512  # units of a hidden layer for which the fused kernels are made


@dataclass
class SacConfig:
    """Settings of SAC. `deterministic` makes it TD3 (Fujimoto et al. 2018)."""

    path: str = "auto"  # fused | torch | auto: fused when task, networks and device allow it
    total_steps: int = 4_000_000  # environment steps in all
    num_envs: int = 32
    parts: int = 0  # of each batch, that learners share: see `policies.learning.parallel`; 0: 1 each
    workers: int = 1  # processes that step worlds of others, such as Meta-World; 0: one per core, if worth it
    warmup_steps: int = 10_000  # environment steps before the first update
    capacity: int = 1_000_000
    batch_size: int = 256
    earlier: list[str] = field(default_factory=list)  # folders of earlier runs of this task, to learn from them, too
    earlier_share: float = 0.5  # of each batch that is theirs
    real_data: str = ""  # folder of a dataset of the real robot (`policies.collect`), mixed with what is simulated
    real_share: float = 0.5  # of each batch that is real
    real_penalty: float = 0.01  # weight of thinking less of what hardly happens in reality
    residual: float = 0.0  # share of the commands' range by which the task's own controller is corrected; 0: no such
    updates_per_step: int = 1  # gradient steps per control step of all environments
    actor_every: int = 2  # critic updates per actor update
    n_step: int = 1  # steps of reward before the critic's estimate; more are biased by old actions
    gamma: float = 0.98
    tau: float = 0.005  # share of the critic that its target takes over per update
    critics: int = 2
    target_critics: int = 2  # random subset whose minimum is the target
    layer_norm: bool = True
    learning_rate: float = 1e-3  # at the start; a cosine leads to the final one
    final_learning_rate: float = 1e-4
    reward_scale: float = 0.1
    initial_alpha: float = 0.02  # weight of the entropy
    target_entropy: float = -2.0  # per action
    initial_std: float = 0.15  # of the exploration, before squashing
    deterministic: bool = False
    exploration: float = 0.1  # standard deviation of TD3's exploration
    smoothing: float = 0.1  # of TD3's target actions, clipped at twice that
    correlation: float = 0.0  # of the exploration with that of the step before
    mirrors: bool = True  # fused path: learn in all mirror images of a task at once, if it declares some
    hidden: list[int] = field(default_factory=lambda: [64, 64])
    critic_hidden: list[int] = field(default_factory=lambda: [256, 128])
    activation: str = "relu"
    sight: EncoderConfig = field(default_factory=EncoderConfig)  # of pictures, where there are any
    estimator: StateEstimation = field(default_factory=StateEstimation)  # of them, which learns before, if it does
    lengths: list[float] = field(default_factory=lambda: [0.1, 0.5])  # of the episodes, as shares of the task's
    easy: float = 0.9  # share of episodes with an easier start, at first
    final_easy: float = 0.5  # and at the end
    linger: int = 0  # control steps after success, in a world of its own: what follows it is seen, not guessed
    success_reward: float = 0.0  # more for every step that counts as success, in a world of its own
    averaged: float = 0.1  # share of the training, at its end, over which the policy that is kept is averaged
    report_every: int = 200  # control steps between yields
    evaluate_every: int = 0  # control steps between measurements; 0: at the end, by torch at every tenth report, too
    evaluation_episodes: int = 100

    def __post_init__(self) -> None:
        if self.path not in PATHS:
            raise ValueError(f"algorithm.path {self.path!r} is not one of {', '.join(PATHS)}")
        for name in ("num_envs", "batch_size", "updates_per_step", "actor_every", "n_step", "critics", "report_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.parts <= self.batch_size:
            raise ValueError(f"parts of a batch must be in 0..{self.batch_size} (batch_size), got {self.parts}")
        if self.parts > 1 and (self.workers != 1 or self.real_data):
            raise ValueError(f"algorithm.parts={self.parts} does not go with algorithm.workers, nor with real_data")
        if not 1 <= self.target_critics <= self.critics:
            raise ValueError(f"target_critics must be in 1..{self.critics} (critics), got {self.target_critics}")
        if min(self.total_steps, self.capacity) < self.n_step * self.num_envs:
            raise ValueError(f"total_steps and capacity must hold {self.n_step} steps of {self.num_envs} environments")
        if self.evaluate_every < 0:
            raise ValueError(f"evaluate_every must be at least 0, got {self.evaluate_every}")
        if self.linger < 0:
            raise ValueError(f"linger must be at least 0, got {self.linger}")
        if not 0.0 <= self.averaged <= 1.0:
            raise ValueError(f"averaged must be within 0..1, got {self.averaged}")
        for name in ("earlier_share", "real_share"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be between 0 and 1, got {getattr(self, name)}")
        if not 0.0 <= self.residual <= 1.0:
            raise ValueError(f"residual must be between 0 and 1, got {self.residual}")
        if not self.real_penalty >= 0.0:
            raise ValueError(f"real_penalty must be at least 0, got {self.real_penalty}")
        if self.estimator.updates and (self.real_data or self.residual or self.earlier or self.parts > 1):
            raise ValueError(
                "algorithm.estimator.updates does not go with algorithm.real_data, residual, earlier or parts: "
                "set those to their defaults, or it to 0"
            )
        if not -1.0 < self.correlation < 1.0:
            raise ValueError(f"correlation must be between -1 and 1, got {self.correlation}")
        if len(self.lengths) != 2:
            raise ValueError(f"lengths are two shares, of the shortest and the longest episode, got {self.lengths}")
        if not 0.0 < self.gamma < 1.0:
            raise ValueError(f"gamma must be between 0 and 1, got {self.gamma}")

    @property
    def old(self) -> int:
        """How many transitions of each batch are of earlier runs."""
        return round(self.earlier_share * self.batch_size) if self.earlier else 0

    @property
    def iterations(self) -> int:
        """Control steps of all environments in all."""
        return self.total_steps // self.num_envs

    def rate(self, done: float) -> float:
        """The learning rate when so much of the training is done, 0..1."""
        return cosine(done, self.learning_rate, self.final_learning_rate)

    def easy_share(self, done: float) -> float:
        """The share of easier starts then."""
        return self.easy + done * (self.final_easy - self.easy)

    def averages(self, iteration: int) -> float:
        """How much the policy after so many control steps counts in the average: its inverse is how many there are."""
        first = self.iterations - max(1, round(self.averaged * self.iterations))
        return 1.0 / max(1, iteration - first)


def beyond(task: Task, config: SacConfig, device: str) -> str:
    """Why the fused path cannot do it, in words; empty if it can."""
    if device != "cpu":
        return f"device={device}"
    if pictures(task.policy) and not config.estimator.updates:
        return "pictures"
    if config.parts > 1:
        return f"algorithm.parts={config.parts}"
    if config.real_data or config.residual:
        return "algorithm.real_data" if config.real_data else "algorithm.residual"
    if max(*config.hidden, *config.critic_hidden) > LARGEST:
        return f"layers of more than {LARGEST} units"
    return ""


class Sac:
    """See the module."""

    Config: type[SacConfig] = SacConfig
    needs: tuple[type, ...] = ()
    takes: tuple[str, ...] = ("agents", "learners")

    def __init__(self, task: Task, config: SacConfig, seed: int, device: str = "cpu") -> None:
        self.task, self.config = task, config
        if (config.linger or config.success_reward) and not has_own_world(task):
            raise ValueError(f"linger and success_reward are for worlds of a task's own, which {task.name} has not")
        self.path: Any = self._path(seed, device)

    def _path(self, seed: int, device: str) -> Any:
        """The one that is asked for, or fits."""
        task, config = self.task, self.config
        why = beyond(task, config, device)
        if config.path == "fused" and why:
            raise ValueError(f"algorithm.path=fused does not do {why}; use algorithm.path=torch")
        if config.estimator.updates:
            return self._estimated(seed, device)
        if config.real_data:
            from policies.algorithms.sac.reality import MixedPath

            return MixedPath(task, config, seed, device)
        if config.residual:
            from policies.algorithms.sac.corrected import CorrectedPath

            return CorrectedPath(task, config, seed, device)
        if config.path == "torch" or why:
            from policies.algorithms.sac.torch_path import TorchPath

            return TorchPath(task, config, seed, device)
        from policies.algorithms.sac.fused import Fused

        return Fused(task, config, seed)

    def _estimated(self, seed: int, device: str) -> Any:
        """The one that is told by an encoder of pictures."""
        task, config = self.task, self.config
        if not has_own_world(task) or not pictures(task.policy):
            raise ValueError(
                f"algorithm.estimator.updates tells what is in pictures, and {task.name} shows none: set it to 0"
            )
        if why := beyond(task, config, device) or "algorithm.path=torch" * (config.path == "torch"):
            raise ValueError(f"algorithm.estimator.updates does not go with {why}: numbers are learned without torch")
        from policies.algorithms.sac.estimated import EstimatedPath

        return EstimatedPath(task, config, seed)

    def learn(self) -> Iterator[dict[str, float]]:
        """Train to the end of the budget; a yield every `report_every` control steps."""
        yield from self.path.learn()

    def controller(self) -> FeaturePolicy:
        """The policy without exploration."""
        made: FeaturePolicy = self.path.controller()
        return made

    def provenance(self) -> dict[str, Any]:
        """Of the experience of earlier runs, or of the real robot."""
        told: dict[str, Any] = {}
        if self.config.earlier:
            told["earlier"] = {"share": self.config.earlier_share, "sha256": [*self.path.earlier]}
        if self.config.real_data:
            told["real_data"] = {"share": self.config.real_share, "sha256": self.path.real_digest}
        return told

    def dump_to(self, folder: Path) -> None:
        self.path.dump_to(folder)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next steps depend on, the replay included."""
        state: dict[str, Any] = self.path.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of the same task and settings."""
        self.path.load_state_dict(state)
