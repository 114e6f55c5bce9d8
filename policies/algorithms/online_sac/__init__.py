"""Online SAC: learning where the robot is. Its control loop drives and tells; this process learns, and sends policies.

    python -m policies.train task=car_race algorithm=online_sac algorithm.robot="driver=ros2 recovery=true"

After FastRLAP (Stachowicz et al. 2023, arXiv 2304.09831): nothing waits for anything. The robot explores with the
policy that it has, a new one comes every few seconds, and its reward is worked out from what it senses. The same
command drives a simulated robot by the clock. When this process dies the robot gets its safe command, and writes what
was not kept; `resume=` goes on with that.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deploy.remote.online import Layout
from deploy.safety.recovery import CRASHED, STUCK
from policies.algorithms.online_sac.robot import SILENCE, Pairs, RobotProcess, Told, left_behind
from policies.algorithms.sac import Sac, SacConfig
from policies.algorithms.sac.torch_path import TorchPath, follow
from policies.learning import SCORE
from policies.learning.buffers import Batch
from policies.learning.fused.squashed import LOG_STD
from policies.models.controller import normalised
from policies.models.export import to_bytes
from policies.models.networks import Array
from sim.spec import pictures, slices, unpack
from sim.tasks import features_of
from sim.tasks.abilities import HasSensedReward

WAIT = 0.02  # s for a control step, when there is nothing to learn
USUAL = 256  # transitions whose exploration is told to the robot


@dataclass
class OnlineSacConfig(SacConfig):
    """Settings of online_sac."""

    robot: str = "driver=simulated"  # settings of deploy.run for the robot: driver=ros2 recovery=true limits=my.toml
    total_steps: int = 12_000  # of the robot: ten minutes at 20 Hz
    num_envs: int = 1  # robots
    warmup_steps: int = 400
    capacity: int = 100_000
    updates_per_step: int = 4  # at most: as many as this computer manages
    actor_every: int = 2
    critics: int = 4
    correlation: float = 0.8
    hidden: list[int] = field(default_factory=lambda: [128, 128])
    critic_hidden: list[int] = field(default_factory=lambda: [128, 128])
    learning_rate: float = 3e-4
    final_learning_rate: float = 3e-4
    initial_std: float = 0.5
    reward_scale: float = 1.0
    gamma: float = 0.99
    send_every: float = 2.0  # s between policies that are sent
    report_every: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_step != 1:
            raise ValueError(f"online_sac takes transitions one by one: n_step must be 1, got {self.n_step}")
        if self.earlier or self.real_data:
            raise ValueError("online_sac learns from this robot alone: algorithm.earlier, real_data must be empty")
        if self.parts > 1:
            raise ValueError("online_sac learns in one process, beside its robot: set algorithm.parts=1")
        if self.residual:
            raise ValueError("online_sac corrects no other controller: algorithm.residual must be 0")
        if self.estimator.updates:
            raise ValueError("online_sac learns from what the robot senses: algorithm.estimator.updates must be 0")
        if not self.send_every > 0.0:
            raise ValueError(f"send_every must be positive, got {self.send_every}")


class OnlinePath(TorchPath):
    """SAC, whose transitions come from a robot's control loop. Critics know nothing more than the robot does."""

    state_values: tuple[str, ...] = (*TorchPath.state_values, "known", "session")
    task: Any

    def __init__(self, task: Any, config: OnlineSacConfig, seed: int, device: str = "cpu") -> None:
        if seen := pictures(task.policy):
            raise ValueError(f"{task.name} sees pictures ({seen[0].name}), of which a robot tells nothing")
        super().__init__(task, config, seed, device)
        self.config: OnlineSacConfig = config
        self.layout = Layout(task.policy, task.commands)
        self.pairs = Pairs(self.layout)
        self.folder = Path()  # for what the robot does when nobody learns; where there is none, a temporary one
        self.known = 0  # robot steps of this session that are in the state
        self.session = 0  # how many robot processes there were
        self._saved = 0  # of them, those in the last checkpoint
        self.debt = 0.0  # gradient steps that may be done
        self.unusable = self.human = self.shown = 0  # shown: flights whose scores were told
        self.robot: RobotProcess | None = None

    def dump_to(self, folder: Path) -> None:
        super().dump_to(folder)
        self.folder = folder.parent / "robot"

    def learn(self) -> Iterator[dict[str, float]]:
        """Until the robot has done so many steps; a yield every `report_every` of them."""
        if self.folder != Path():
            yield from self._learn()
            return
        with tempfile.TemporaryDirectory() as folder:
            self.folder = Path(folder)
            yield from self._learn()

    def _learn(self) -> Iterator[dict[str, float]]:
        config = self.config
        behind, last = left_behind(self.folder, self.layout, self.session, self.known)
        for rows in behind:
            self._take(rows)
        self.pairs.last, self.known, self._saved, self.session, self.shown = None, 0, 0, last + 1, 0
        settings = f"{config.robot} real_time=true" if "real_time=" not in config.robot else config.robot
        settings += f" episodes={config.num_envs}" if config.num_envs > 1 else ""
        robot = RobotProcess(settings, self._content(), self.folder, self.layout, self.session)
        self.robot, sent, heard, reported = robot, 0.0, time.monotonic(), self.iteration
        metrics: dict[str, Any] = {}
        rewards: list[float] = []
        try:
            while self.iteration < self.iterations:
                busy = self.debt >= 1.0 and self.env.total_steps > config.warmup_steps
                for rows in robot.steps(0.0 if busy else WAIT):
                    heard = time.monotonic()
                    rewards += self._take(rows)
                    self.known = robot.received
                if time.monotonic() - heard > SILENCE:
                    raise robot.lost(f"no control step came within {SILENCE:g} s")
                if busy and self.debt >= 1.0:
                    self._set_schedule()
                    metrics |= self._update()
                    self.debt -= 1.0
                    follow(self.average, self.actor, config.averages(self.iteration))
                if time.monotonic() - sent > config.send_every and self.env.total_steps:
                    robot.send(self._content(), self._std(), config.correlation)
                    sent = time.monotonic()
                if self.iteration - reported >= config.report_every or self.iteration >= self.iterations:
                    reported = self.iteration
                    yield {name: float(value) for name, value in (metrics | self._shown(robot, rewards)).items()}
                    metrics, rewards = {}, []
        finally:
            robot.close()
            self.robot = None

    def _shown(self, robot: RobotProcess, rewards: list[float]) -> dict[str, float]:
        """What there is to tell of the robot and of how far learning has come."""
        steps = max(1, self.env.total_steps - self.config.warmup_steps)
        last = robot.flights[-1] if robot.flights else {}
        flown = last.get("scores", {}) if len(robot.flights) > self.shown else {}  # told once; of a simulated robot
        self.shown = len(robot.flights)
        counts = {f"recovery_{name}": float(count) for name, count in last.get("recovery", {}).items()}
        return {
            "progress": self.iteration / self.iterations,
            "env_steps": float(self.env.total_steps),
            "reward": float(np.mean(rewards)) if rewards else 0.0,
            "updates_per_step": self.gradient_steps / steps,
            "unusable": float(self.unusable),
            "human": float(self.human),
            "flights": float(len(robot.flights)),
            **counts,
            **{SCORE + name: value for name, value in flown.items() if name != "success"},
        }

    def _content(self) -> bytes:
        """The policy file of now, of the actor and not of its average."""
        return to_bytes(self.policy_of(self.actor), "the policy")

    @torch.no_grad()
    def _std(self) -> float:
        """How much the actor explores, in the mean: the share of half the commands' ranges."""
        if self.config.deterministic or not self.buffer.size:
            return self.config.exploration if self.config.deterministic else self.config.initial_std
        count = min(USUAL, self.buffer.size)
        x = self.buffer.sample(count, self.generator)["x"]
        mean, log_std = self.actor(self.seen_norm(x), {}).chunk(2, -1)
        return float((log_std.clamp(*LOG_STD).exp() * (1.0 - torch.tanh(mean).square())).mean())

    def _take(self, rows: Array) -> list[float]:
        """A control step of all robots; rewards of the transitions that it completes."""
        told = self.pairs.add(rows)
        if told is None:
            return []
        self.env.total_steps += len(rows)
        made = self._transitions(told)
        count = len(made["x"])
        self.unusable += len(rows) - count
        self.human += int((told.marks["person"][told.usable] > 0.0).sum())
        if count:
            self.buffer.add(**made)
            self.debt = min(self.debt + self.config.updates_per_step * count, 10.0 * self.config.updates_per_step)
            self._learn_scales(made["x"], made["c"], made["action"])
        self.iteration += 1
        rewards: list[float] = made["terms"].sum(1).tolist()
        return rewards

    def _transitions(self, told: Told) -> Batch:
        """Those of the robots whose step can be used."""
        task, usable = self.task, told.usable
        x, after = self._features(told.signals[usable]), self._features(told.next_signals[usable])
        reward, success, lost = task.sensed_reward(unpack(task.policy, told.next_signals[usable]))
        state = told.next_marks["state"][usable]
        lost = lost | (state == CRASHED)
        over = lost | success | (state == STUCK)
        action = normalised(task.commands, unpack(task.commands, told.commands[usable])).clip(-1.0, 1.0)
        private = torch.zeros((len(x), self.env.critic_size - self.env.feature_size))
        return {
            "x": x,
            "c": torch.cat([x, private], 1),
            "action": torch.from_numpy(action.astype(np.float32)),
            "terms": torch.from_numpy(np.stack([reward, success], 1).astype(np.float32)),
            "next_x": after,
            "next_c": torch.cat([after, private], 1),
            "lost": torch.from_numpy(np.asarray(lost, bool)),
            "done": torch.from_numpy(np.asarray(over, bool)),
        }

    def _features(self, values: Array) -> Tensor:
        columns = slices(self.task.policy).items()
        flat = {name: torch.from_numpy(np.ascontiguousarray(values[:, at])) for name, at in columns}
        return torch.cat([feature.evaluate(flat) for feature in features_of(self.task)], -1)

    def state_dict(self) -> dict[str, Any]:
        """As the one of SAC. The robot may forget what the state before this one holds."""
        if self.robot:
            self.robot.kept(self._saved)
            self._saved = self.known
        return super().state_dict()


class OnlineSac(Sac):
    """See the module."""

    Config: type[SacConfig] = OnlineSacConfig
    needs: tuple[type, ...] = (HasSensedReward,)
    takes: tuple[str, ...] = ()

    def _path(self, seed: int, device: str) -> OnlinePath:
        config: Any = self.config
        if config.path == "fused" or device != "cpu":
            raise ValueError("online_sac learns by torch, on the CPU: algorithm.path=auto device=cpu")
        torch.set_num_threads(1)  # on two busy cores an update takes 7 times as long with two
        return OnlinePath(self.task, config, seed, device)
