"""The torch path of analytic policy gradients: any network, any differentiable reward, optionally a critic.

The same meaning as `policies.algorithms.apg.fused`, which is tens of times faster for the declared costs and the
built-in networks. Here a task may also define `reward(signals)`, a torch function from name -> (m, k) to (m,), larger
is better, in place of its costs; its signals may be late or lost; and `algorithm.network` may be "module:Class", a
`torch.nn.Module` made by `Class(inputs, outputs)` that maps features (n, inputs) to actions (n, outputs) in [-1, 1].

With `critic` the loss is the discounted cost of the window plus the discounted value of its last state, learned from
noise-free features and the task's privileged signals: SHAC (Xu et al. 2022, arXiv 2204.07137).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.algorithms.apg import MEASURED, ApgConfig, cost_weights
from policies.algorithms.apg.autograd import Adam, Array, Physics, Step, from_lanes, host, make_policy, named, to_lanes
from policies.algorithms.apg.critic import CRITIC_RATE, Critic, View
from policies.algorithms.apg.fused_batch import Vehicles
from policies.algorithms.apg.fused_network import Layout
from policies.algorithms.apg.fused_plan import HUGE, TAPS, load_dynamics, make_plan
from policies.models.networks import Network
from sim.channel import Channel
from sim.engines.vector.simd import LANES
from sim.spec import slices
from sim.tasks import EngineTask, reward_of
from sim.terms import lost


class Sensing:
    """What the policy sees of signals that are late, lost, or noisy targets: the environment's channel."""

    def __init__(self, task: EngineTask, num: int, seed: int, device: str) -> None:
        self.sizes = {s.name: s.size for s in task.policy}
        self.channel = Channel(task.policy, num, task.rate_hz, device)
        self.rng = np.random.default_rng(seed)
        self.generator = torch.Generator(device)
        self.generator.manual_seed(seed)

    def __call__(self, truth: Mapping[str, Tensor], fresh: Tensor | None) -> dict[str, Tensor]:
        """The delivered signals name -> (n, k); `fresh` are the rows (count,) whose episode begins."""
        values = torch.cat([truth[name] for name in self.sizes], -1)
        got = self.channel.send(values, self.generator)
        if fresh is not None and len(fresh):
            drawn = {
                k: torch.from_numpy(v).to(values.device) for k, v in self.channel.draw(self.rng, len(fresh)).items()
            }
            got = got.index_copy(0, fresh, self.channel.begin(fresh, drawn, values[fresh], self.generator))
        return named(self.sizes, got)

    def cut(self) -> None:
        """Let no gradient pass to what was sent before."""
        self.channel.buffer, self.channel.last = self.channel.buffer.detach(), self.channel.last.detach()

    def state_dict(self) -> dict[str, Any]:
        noise = self.generator.get_state()
        return {"channel": self.channel.state_dict(), "rng": self.rng.bit_generator.state, "noise": noise}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.channel.load_state_dict(state["channel"])
        self.rng.bit_generator.state = state["rng"]
        self.generator.set_state(torch.as_tensor(state["noise"], dtype=torch.uint8).cpu())


def late_or_noisy(task: EngineTask) -> bool:
    """Whether a policy signal has an imperfection that the fused trainer's vehicles do not simulate."""
    measured = load_dynamics(task.engine).SIGNALS
    return any(
        s.delay_range() != (0.0, 0.0)
        or s.dropout_probability() > 0.0
        or (s.name not in measured and (s.noise_std() > 0.0 or s.bias_std() > 0.0))
        for s in task.policy
    )


@dataclass
class Window:
    """What happened in a window of T steps. `known`: noise-free signals, state, targets, history, and what a critic may
    see: name -> (T + 1, n, k). `actions` (T + 1, n, k) begin with the one before the window.
    """

    known: dict[str, Tensor]
    actions: Tensor
    applied: Tensor  # (T, n, k), the delayed commands
    alive: Tensor  # (n,) bool: not in a block with a state that was not finite
    broken: int  # such blocks


class Differentiated:
    """The path with torch. `Fused` in `policies.algorithms.apg` has the same attributes and metrics."""

    def __init__(self, task: EngineTask, config: ApgConfig, seed: int, device: str) -> None:
        if device != "cpu":
            raise ValueError(
                f"apg differentiates the {task.engine} engine on the CPU only, got device={device}; use device=cpu"
            )
        self.task, self.config, self.device = task, config, device
        weights_seed, vehicles_seed, self.measure_seed = np.random.SeedSequence(seed).spawn(3)
        self.dynamics = load_dynamics(task.engine)
        self.measured = {name: where.stop - where.start for name, where in self.dynamics.SIGNALS.items()}
        self.sensed = late_or_noisy(task)
        perfect = copy.copy(task)  # `Sensing` makes their signals imperfect where the vehicles do not
        perfect.policy = tuple(replace(s, imperfections=()) for s in task.policy)
        self.flown_task = perfect if self.sensed else task
        bare = copy.copy(perfect)  # what the fused trainer's tables cannot express does not matter here
        bare.features, bare.costs = (), ()
        self.plan = make_plan(bare)
        sizes = {s.name: s.size for s in task.policy} | {"history": task.history * self.plan.actions}
        features = sum(sizes[f.signal] for f in task.features)
        rng = np.random.default_rng(weights_seed)
        self.policy = make_policy(config, features, self.plan.actions, rng, task.initial_action).to(device)
        self.adam = Adam(self.policy.parameters())
        self.vehicles, self.sensing = self._vehicles(config.num_envs, vehicles_seed)
        self.centre, self.half = (
            torch.from_numpy(v).to(device) for v in (self.plan.command_centre, self.plan.command_half)
        )
        self.reward = reward_of(task)
        self.critic: Critic | None = None
        if config.critic:
            inputs = features + sum(s.size for s in task.privileged)
            self.critic = Critic(inputs, config.gamma, int(rng.integers(2**31)), device)
        self.critic_loss = math.nan
        self.update = 0
        self.lost = 0

    def _vehicles(self, num: int, seed: np.random.SeedSequence) -> tuple[Vehicles, Sensing | None]:
        layout = Layout((), 0, 0, 0, 0, 0, self.policy.state_size, 0, 0)
        vehicles = Vehicles(
            self.flown_task, self.plan, layout, num, self.config.window, seed, self.config.adjoint_power
        )
        noise = int(seed.generate_state(1)[0])
        return vehicles, Sensing(self.task, num, noise, self.device) if self.sensed else None

    def _tensor(self, lanes: Array) -> Tensor:
        return torch.from_numpy(from_lanes(lanes)).to(self.device)

    def _perceived(self, vehicles: Vehicles, offset: int) -> tuple[Tensor, list[dict[str, Tensor]]]:
        """Sensor noise and bias (T, n, m), and the targets at the window's T + 1 instants, name -> (n, k)."""
        batch, window = vehicles.batch, self.config.window
        lanes = len(batch.state)
        turn = (offset + window * np.arange(lanes) + np.arange(window)[:, None]) % len(batch.noise)  # as the kernel
        noise = self._tensor(batch.noise[turn]) + self._tensor(batch.bias)
        exogenous = self._tensor(batch.exogenous.reshape(lanes, window + 1, -1, LANES).swapaxes(0, 1))
        sizes = {s.name: s.size for s in self.task.policy if s.name not in self.dynamics.SIGNALS}
        return noise, [named(sizes, now) for now in exogenous]

    def window(self, vehicles: Vehicles, sensing: Sensing | None = None) -> Window:
        """Fly one window, differentiably unless gradients are off; the vehicles end where it ends."""
        batch, window, history = vehicles.batch, self.config.window, self.plan.history
        noise, targets = self._perceived(vehicles, vehicles.prepare())
        physics = Physics(self.task.engine, batch.parameters, vehicles.dt, self._limit(vehicles))
        taps = self._tensor(batch.taps)[:, :, None]
        begin = batch.state.copy()
        if torch.is_grad_enabled():  # a NaN would reach the gradient
            physics.alive &= (np.abs(begin) < HUGE).all(axis=1, keepdims=True)
            begin = np.where(physics.alive, begin, self.dynamics.REST[:, None])
        state = torch.from_numpy(begin).to(self.device)
        signals = np.empty((len(begin), self.plan.signals, LANES), np.float32)
        physics.sense(begin, signals)
        sensed, hidden = self._tensor(signals), self._tensor(batch.hidden)[:, : self.policy.state_size]
        actions = list(torch.split(self._tensor(batch.past), self.plan.actions, -1))  # oldest first
        slots = len(actions)
        states, signals_at, applied = [state], [sensed], []
        fresh = torch.from_numpy(np.flatnonzero(vehicles.age == 0)).to(self.device)
        for t in range(window):
            seen = sensed if sensing else sensed + noise[t]
            values = named(self.measured, seen) | targets[t]
            if sensing:
                values = sensing(values, fresh if t == 0 else None)
            if history:
                values["history"] = torch.cat(actions[: -history - 1 : -1], -1)
            features = torch.cat([f.evaluate(values) for f in self.task.features], -1)
            action, hidden = self.policy(features, hidden)
            actions.append(action)
            delayed = (taps * torch.stack(actions[: -TAPS - 1 : -1], 1)).sum(1)
            applied.append(self.centre + self.half * delayed)
            state, sensed = Step.apply(state, applied[-1], physics)  # type: ignore[no-untyped-call]
            states.append(state)
            signals_at.append(sensed)
        if sensing:
            sensing.cut()
        done = torch.stack(actions)
        known = self._known(vehicles, states, signals_at, targets)
        if history:
            known["history"] = torch.cat([done[slots - 1 - k : slots + window - k] for k in range(history)], -1)
        self._leave(vehicles, physics, state, hidden, actions[-slots:])
        whole = physics.alive.all(axis=(1, 2))
        alive = torch.from_numpy(np.repeat(whole, LANES)).to(self.device)
        return Window(known, done[slots - 1 :], torch.stack(applied), alive, int((~whole).sum()))

    def _limit(self, vehicles: Vehicles) -> Array:
        limit: Array = self.config.adjoint_clip / (vehicles.num * self.config.window) * vehicles.batch.leeway
        return limit

    def _known(
        self, vehicles: Vehicles, states: list[Tensor], signals: list[Tensor], targets: list[dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Everything but the history of `Window.known`."""
        rows = torch.stack(states).transpose(-1, -2).flatten(1, 2)
        measured = torch.stack(signals)
        known = {name: rows[..., where] for name, where in self.dynamics.STATE.items()}
        known |= {name: measured[..., where] for name, where in self.dynamics.SIGNALS.items()}
        known |= {name: torch.stack([now[name] for now in targets]) for name in targets[0]}
        visible = [s.name for s in self.task.privileged if s.name in vehicles.parameters]
        constant = {name: torch.from_numpy(vehicles.parameters[name].copy()).to(self.device) for name in visible}
        taps = self._tensor(vehicles.batch.taps)
        constant["delay"] = taps @ torch.arange(TAPS, dtype=taps.dtype, device=taps.device)[:, None]
        return known | {name: value.expand(len(states), -1, -1) for name, value in constant.items()}

    def _leave(self, vehicles: Vehicles, physics: Physics, state: Tensor, hidden: Tensor, past: list[Tensor]) -> None:
        """Carry the window's end over to the next one, without gradients; what was not finite is lost."""
        batch = vehicles.batch
        batch.state[...] = np.where(physics.alive, host(state), np.nan)
        batch.past[...] = to_lanes(host(torch.cat(past, -1)))
        if self.policy.state_size:
            batch.hidden[...] = to_lanes(host(hidden))

    def costs(self, flown: Window) -> tuple[Tensor, Tensor]:
        """The cost of each step (T, n), and the mean of each declared cost, unweighted (costs,)."""
        values = {name: value[1:] for name, value in flown.known.items()}
        values["action"], values["action_change"] = flown.actions[1:], flown.actions.diff(dim=0)
        each = torch.stack([cost.evaluate(values) for cost in self.task.costs])  # (costs, T, n)
        if self.reward is not None:
            total = -self.reward({name: value.flatten(0, 1) for name, value in values.items()}).reshape(each.shape[1:])
        else:
            weights = cost_weights(self.task, self.update * self.config.num_envs * self.config.window)
            total = torch.tensordot(torch.from_numpy(weights).to(self.device), each, 1)
        return torch.where(flown.alive, total, 0.0), torch.where(flown.alive, each.detach(), 0.0).mean((1, 2))

    def view(self, flown: Window) -> View:
        """What the critic sees, noise-free, and which vehicles do not count any more."""
        features = [f.evaluate(flown.known) for f in self.task.features]
        seen = torch.cat([*features, *(flown.known[s.name] for s in self.task.privileged)], -1)
        with torch.no_grad():
            beyond = lost(self.task.bounds, flown.known) | ~flown.alive
        return View(seen, beyond.cummax(0).values)

    def loss(self, cost: Tensor, view: View | None = None) -> Tensor:
        """The mean of the costs (T, n); with a critic's view of the window: discounted, plus the value of its end."""
        if self.critic is None or view is None:
            return cost.mean()
        discount = self.critic.gamma ** torch.arange(len(cost) + 1, device=self.device)
        end = torch.where(view.gone[-1], 0.0, self.critic.value(view.features[-1]))
        return ((discount[:-1, None] * cost).sum() + discount[-1] * end.sum()) / cost.numel()

    def gradient(self) -> tuple[Window, Tensor, Tensor, View | None]:
        """Fly a window and leave the gradient of its loss in the policy's parameters.

        Returns the window, its costs (T, n) and their means, and what the critic saw.
        """
        flown = self.window(self.vehicles, self.sensing)
        cost, means = self.costs(flown)
        view = None
        if self.critic is not None:
            view = self.view(flown)
            if not bool(view.gone.all()):
                self.critic.normalizer.update(view.features[~view.gone])
        self.loss(cost, view).backward()
        return flown, cost.detach(), means, view

    def learn(self) -> Iterator[dict[str, float]]:
        """Train to the end of the budget."""
        c = self.config
        interval, measure = max(1, c.updates // 100), max(1, c.updates // 5)
        while self.update < c.updates:
            _, cost, means, view = self.gradient()
            rate = c.rate(self.update)
            norm = self.adam.step(rate, c.beta1, c.beta2, c.gradient_clip)
            if self.critic is not None and view is not None and not bool(view.gone[:-1].all()):
                view.features = view.features.detach()
                self.critic_loss = self.critic.learn(view, cost, CRITIC_RATE * rate / c.learning_rate)
            self.update += 1
            self.lost += self.vehicles.after_window(c.episode_windows * c.window)
            if self.update % interval == 0 or self.update == c.updates:
                metrics = c.metrics(self.update, float(cost.mean()), norm, self.lost)
                metrics["diverged"] = float(self.vehicles.diverged)
                metrics |= {f"cost/{c.name}": float(v) for c, v in zip(self.task.costs, means, strict=True)}
                if self.critic is not None:
                    metrics["critic_loss"] = self.critic_loss
                if self.update % measure < interval:
                    metrics["success"] = self.measure()
                yield metrics

    @torch.no_grad()
    def measure(self) -> float:
        """Success rate of the present policy on MEASURED vehicles, over whole episodes of the task."""
        vehicles, sensing = self._vehicles(MEASURED, self.measure_seed)
        pieces: list[dict[str, Array]] = []
        commands = slices(self.task.commands)
        for _ in range(-(-self.task.episode_steps // self.config.window)):
            flown = self.window(vehicles, sensing)
            piece = {s.name: host(flown.known[s.name][1:]) for s in self.task.policy}
            pieces.append(piece | {name: host(flown.applied[..., where]) for name, where in commands.items()})
            vehicles.age += self.config.window
        flight = {name: np.concatenate([p[name] for p in pieces])[: self.task.episode_steps] for name in pieces[0]}
        with np.errstate(all="ignore"):
            return float(self.task.score(flight)["success"].mean())

    def dump_to(self, folder: Path) -> None:
        self.vehicles.dump_dir = folder

    def network(self) -> Network:
        """What has been learned so far."""
        found: Network = self.policy.network()
        return found

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact continuation needs."""
        parts: dict[str, Any] = {
            "policy": copy.deepcopy(dict(self.policy.state_dict())),
            "adam": self.adam.state_dict(),
        }
        parts |= {"vehicles": self.vehicles.state_dict(), "update": self.update, "lost": self.lost}
        for name in ("critic", "sensing"):
            part = getattr(self, name)
            parts[name] = part.state_dict() if part is not None else None
        return parts

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        for name in ("policy", "adam", "vehicles", "critic", "sensing"):
            part = getattr(self, name)
            if part is not None:
                part.load_state_dict(state[name])
        self.update, self.lost = int(state["update"]), int(state["lost"])
