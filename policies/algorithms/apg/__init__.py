"""Analytic policy gradients: the derivative of the cost through the physics, over short windows.

Two paths with one meaning. *fused* (`fused.py`): rollout and adjoint in one Numba kernel, no torch, for the declared
costs and features. *torch* (`torch_path.py`): any network and reward, the engine's step as one autograd function,
optionally a critic that sees the privileged signals at the window's end (SHAC, Xu et al. 2022, arXiv 2204.07137).
Tasks with a world of their own that can be differentiated (`worlds.py`) take a path of theirs, with torch.

Per update: fly `window` steps from where the vehicles are, average the costs, go backwards, one Adam step. Vehicles
carry on from window to window and are drawn anew when lost or after `episode_windows`. Budget and learning rate
schedule are fixed in advance: stopping at the first good evaluation picks a lucky moment of an oscillating policy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar

import numpy as np

from policies.algorithms.apg import fused, fused_plan
from policies.algorithms.apg import fused_network as network
from policies.algorithms.apg.fused_batch import Vehicles
from policies.models.controller import FeaturePolicy
from policies.models.networks import Network
from policies.models.networks.feed_forward import Mlp
from policies.models.networks.gru import Gru
from sim.engines.vector.blocks import from_lanes
from sim.engines.vector.simd import LANES
from sim.randomize import Array
from sim.tasks import EngineTask, reward_of
from sim.tasks.abilities import Differentiable, rehearsable

PATHS = ("auto", "fused", "torch")
NETWORKS = ("mlp", "gru")
MEASURED = 64  # vehicles flown to report the success rate while training


@dataclass
class ApgConfig:
    """Settings of apg."""

    path: str = "auto"  # fused | torch | auto: fused when the task and engine allow it, torch in worlds of tasks' own
    network: str = "gru"  # mlp | gru | module:Class, on the torch path
    hidden: list[int] = field(default_factory=lambda: [16, 16])  # gru: encoder and recurrent state; mlp: layers
    updates: int = 1000
    num_envs: int = 16
    window: int = 128  # control steps
    episode_windows: int = 4
    learning_rate: float = 1e-2
    final_learning_rate: float = 3e-4  # reached exponentially
    beta1: float = 0.9
    beta2: float = 0.99
    gradient_clip: float = 0.3  # norm of the whole gradient
    adjoint_clip: float = 200.0  # norm of one vehicle's state adjoint, times vehicles and steps
    adjoint_power: float = 0.0  # that limit is divided by (agility / 300 rad/s^2) to this power, for each vehicle
    critic: bool = False  # torch path: value of the window's last state, from privileged signals
    gamma: float = 0.99  # of the critic
    solo: int = 0  # in worlds of tasks' own: updates before, in which a robot learns with nobody else
    ahead: int = 0  # in worlds of tasks' own: control steps at a window's end that are looked at, but not learned

    def __post_init__(self) -> None:
        if self.path not in PATHS:
            raise ValueError(f"algorithm.path {self.path!r} is not one of {', '.join(PATHS)}")
        if self.network not in NETWORKS and ":" not in self.network:
            raise ValueError(f"algorithm.network {self.network!r} is not one of {', '.join(NETWORKS)}, or module:Class")
        if self.network == "gru" and len(self.hidden) != 2:
            raise ValueError(f"a gru takes two sizes in algorithm.hidden (encoder, state), got {self.hidden}")
        if self.updates < 1 or self.window < 1 or self.num_envs < 1 or self.episode_windows < 1:
            raise ValueError("algorithm.updates, window, num_envs and episode_windows must be at least 1")
        if self.num_envs % LANES:
            raise ValueError(f"algorithm.num_envs must be a multiple of {LANES}, got {self.num_envs}")
        if self.solo < 0:
            raise ValueError(f"algorithm.solo must be 0 or more updates, got {self.solo}")
        if self.adjoint_power < 0.0:
            raise ValueError(f"algorithm.adjoint_power must be 0 or more, got {self.adjoint_power}")
        if self.final_learning_rate == 0.0:
            raise ValueError("algorithm.final_learning_rate is reached exponentially: it must be positive, got 0")

    def rate(self, update: int) -> float:
        """The learning rate of that update."""
        decay = math.log(self.final_learning_rate / self.learning_rate)
        return self.learning_rate * math.exp(decay * update / self.updates)

    def metrics(self, update: int, loss: float, norm: float, lost: int) -> dict[str, float]:
        """What every path tells after so many updates."""
        return {
            "progress": update / self.updates,
            "env_steps": float(update * self.num_envs * self.window),
            "loss": loss,
            "gradient_norm": norm,
            "learning_rate": self.rate(update - 1),
            "lost": float(lost),
        }


def cost_weights(task: EngineTask, env_steps: int) -> Array:
    """The weight of each cost after that many environment steps: its own, or what the curriculum says."""
    planned = {item.name: item.weight(env_steps) for item in task.curriculum}
    return np.array([planned.get(cost.name, cost.weight) for cost in task.costs], np.float32)


def make_layout(config: ApgConfig, features: int, actions: int) -> network.Layout:
    """Rows and weights of the configured network."""
    if config.network == "gru":
        return network.gru_layout(features, config.hidden[0], config.hidden[1], actions)
    return network.mlp_layout(features, tuple(config.hidden), actions)


def to_network(config: ApgConfig, layout: network.Layout, weights: np.ndarray[Any, Any]) -> Network:
    """The network of a flat weight vector, as a controller holds it."""
    layers = network.matrices(layout, weights)
    if config.network == "gru":
        (encoder, inward, recurrent, output) = layers
        return Gru(encoder, inward[0], recurrent[0], inward[1], recurrent[1], output)
    return Mlp(layers, "tanh")


class Fused:
    """The path without torch."""

    def __init__(self, task: EngineTask, config: ApgConfig, seed: int) -> None:
        self.task, self.config = task, config
        self.plan = fused_plan.make_plan(task)
        self.layout = make_layout(config, len(self.plan.feature_row), self.plan.actions)
        self.kernel = fused.window_kernel(task.engine, config.network)
        weights_seed, vehicles_seed, self.measure_seed = np.random.SeedSequence(seed).spawn(3)
        self.weights = network.initial_weights(
            self.layout, np.random.default_rng(weights_seed), output_scale=0.1, bias=task.initial_action
        )
        self.gradient = np.zeros_like(self.weights)
        self.first, self.second = np.zeros_like(self.weights), np.zeros_like(self.weights)
        self.vehicles = self._vehicles(config.num_envs, vehicles_seed)
        self.tape = fused_plan.make_tape(self.plan, self.layout, self.vehicles.dynamics.STATE_ROWS, config.window)
        self.update = 0
        self.lost = 0

    def _vehicles(self, num: int, seed: np.random.SeedSequence) -> Vehicles:
        return Vehicles(self.task, self.plan, self.layout, num, self.config.window, seed, self.config.adjoint_power)

    def window(self, vehicles: Vehicles, learn: bool = True) -> tuple[np.ndarray[Any, Any], int]:
        """Fly one window; with `learn`, add to the gradient. Returns the mean unweighted costs and the lost blocks."""
        totals = np.zeros(len(self.task.costs), np.float32)
        lost = self.kernel(
            self.plan, self.layout, vehicles.batch, self.tape, self.weights, self.gradient, totals,
            self.config.window, np.float32(vehicles.dt), np.float32(self.config.adjoint_clip),
            vehicles.prepare(), learn,
        )  # fmt: skip
        return totals / (vehicles.num * self.config.window), lost

    def learn(self) -> Iterator[dict[str, float]]:
        """Train to the end of the budget."""
        c = self.config
        interval, measure = max(1, c.updates // 100), max(1, c.updates // 5)
        while self.update < c.updates:
            self.plan.cost_weight[:] = cost_weights(self.task, self.update * c.num_envs * c.window)
            costs, _ = self.window(self.vehicles)
            rate = c.rate(self.update)
            self.update += 1
            norm = fused.adam(
                self.weights, self.gradient, self.first, self.second,
                self.update, rate, c.beta1, c.beta2, c.gradient_clip,
            )  # fmt: skip
            self.lost += self.vehicles.after_window(c.episode_windows * c.window)
            if self.update % interval == 0 or self.update == c.updates:
                metrics = c.metrics(self.update, float(costs @ self.plan.cost_weight), float(norm), self.lost)
                metrics["diverged"] = float(self.vehicles.diverged)
                metrics |= {f"cost/{c.name}": float(v) for c, v in zip(self.task.costs, costs, strict=True)}
                if self.update % measure < interval:
                    metrics["success"] = self.measure()
                yield metrics

    def measure(self) -> float:
        """Success rate of the present policy on MEASURED fresh vehicles of the task, over whole episodes."""
        vehicles = self._vehicles(LANES, self.measure_seed)
        steps = -(-self.task.episode_steps // self.config.window)
        rounds = [self._episode(vehicles, steps) for _ in range(MEASURED // LANES)]
        return float(np.mean(rounds))

    def _episode(self, vehicles: Vehicles, windows: int) -> float:
        vehicles.restart(np.ones(vehicles.num, bool))
        pieces: list[dict[str, Any]] = []
        with np.errstate(all="ignore"):
            for _ in range(windows):
                self.window(vehicles, learn=False)
                states = self.tape.state[1:]
                flat = from_lanes(states, len(states) * LANES)
                signals = self.vehicles.dynamics.signals_of(flat)
                time = (vehicles.age[None, :] + 1 + np.arange(len(states))[:, None]) * vehicles.dt
                motion = np.tile(vehicles.motion, (len(states), 1, 1))
                signals |= self.task.reference(motion, time.reshape(-1).astype(np.float32))
                pieces.append({k: v.reshape(len(states), LANES, -1) for k, v in signals.items()})
                action = self.tape.applied.transpose(0, 2, 1)
                pieces[-1][self.task.commands[0].name] = action
                vehicles.age += self.config.window
            flight = {k: np.concatenate([p[k] for p in pieces])[: self.task.episode_steps] for k in pieces[0]}
            return float(self.task.score(flight)["success"].mean())

    def dump_to(self, folder: Path) -> None:
        self.vehicles.dump_dir = folder

    def network(self) -> Network:
        """What has been learned so far."""
        return to_network(self.config, self.layout, self.weights)

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact continuation needs."""
        arrays = {name: getattr(self, name).copy() for name in ("weights", "first", "second")}
        return {**arrays, "vehicles": self.vehicles.state_dict(), "update": self.update, "lost": self.lost}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        for name in ("weights", "first", "second"):
            getattr(self, name)[...] = state[name]
        self.vehicles.load_state_dict(state["vehicles"])
        self.update, self.lost = int(state["update"]), int(state["lost"])


class Apg:
    """Analytic policy gradients on one task; see the module's docstring."""

    Config = ApgConfig
    needs: tuple[type | UnionType, ...] = (Differentiable,)
    takes: tuple[str, ...] = ("agents",)
    recipes: ClassVar = {
        "high": {"algorithm.updates": 8000},
        "robust": {"algorithm.updates": 8000, "algorithm.hidden": [32, 32]},
    }

    def __init__(self, task: Any, config: ApgConfig, seed: int, device: str = "cpu") -> None:
        self.task = task
        own = rehearsable(task)
        if config.solo and (own is None or config.network not in NETWORKS):
            raise ValueError("algorithm.solo needs a task with its own world, and mlp or gru; set it to 0")
        if own is not None:
            if device != "cpu" or config.critic:
                raise ValueError(f"apg learns {task.name} with device=cpu, without algorithm.critic")
            if config.adjoint_power:
                raise ValueError(
                    f"algorithm.adjoint_power is not for tasks with a world of their own, as {task.name}: set it to 0"
                )
            if config.path == "fused":
                if config.network not in NETWORKS:
                    raise ValueError("algorithm.path=fused takes mlp or gru; use algorithm.path=torch")
                from policies.algorithms.apg.fused_worlds import FusedWorlds

                self.path: Any = FusedWorlds(own, config, seed)
                return
            from policies.algorithms.apg.worlds import Worlds

            self.path = Worlds(own, config, seed)
            return
        path = config.path
        beyond = device != "cpu" or config.critic or config.network not in NETWORKS or reward_of(task) is not None
        if path == "auto":
            path = "torch" if beyond else "fused"
        if path == "fused":
            if beyond:
                raise ValueError(
                    "algorithm.path=fused runs on the CPU, with the task's costs, mlp or gru and no critic; "
                    "use algorithm.path=torch"
                )
            self.path = Fused(task, config, seed)
        else:
            from policies.algorithms.apg.torch_path import Differentiated

            self.path = Differentiated(task, config, seed, device)

    def learn(self) -> Iterator[dict[str, float]]:
        yield from self.path.learn()

    def controller(self) -> FeaturePolicy:
        return FeaturePolicy.from_task(self.task, self.path.network())

    def dump_to(self, folder: Path) -> None:
        self.path.dump_to(folder)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.path.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.path.load_state_dict(state)
