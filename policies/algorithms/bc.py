"""Behaviour cloning by flow matching or diffusion: chunks of actions (Chi et al. 2023, "Diffusion Policy").

`flow`: straight paths from noise to action, integrated by Euler's method (Lipman et al. 2023). `diffusion`: the network
predicts the action under a cosine noise schedule (Nichol & Dhariwal 2021), sampled by DDIM without noise (Song et al.
2021). `beso`: see `edm`. `regression`: the mean, for experts that are always of one mind. In every case the base is a
`Denoiser`: numpy data, and nobody who steers it needs its gradients.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from policies.learning import cosine, edm
from policies.learning.demonstrations import Demonstrations, Shown, demonstrations
from policies.learning.encoders import Encoders
from policies.learning.networks import Normalizer, Stateful, descend, mlp
from policies.models.chunking import ChunkPolicy, Denoiser, NoiseTable, Planner, Schedule, Steering
from policies.models.controller import Policy
from policies.models.denoiser import goal, guided
from policies.models.networks import Array
from policies.models.realtime import check as check_plan
from policies.models.realtime import planned
from policies.models.vision import EncoderConfig, ObservationEncoder
from sim import spec
from sim.tasks import Task, remembering

FREQUENCIES = 4  # of the time's embedding: sin and cos of pi 2^k t
SMALLEST = 1e-3  # of the noise schedule's signal, at its noisy end
STILL = 0.02  # of a picture's half width: a point that moves less counts as moving so much
KINDS = ("flow", "diffusion", "beso", "regression")


@dataclass
class BaseConfig(Shown):
    """The base policy and its demonstrations."""

    kind: str = "flow"  # or "diffusion", "beso", "regression": the mean of the chunks, whatever the noise
    denoise_steps: int = 5  # evaluations of the network per chunk
    hidden: list[int] = field(default_factory=lambda: [256, 256, 256])
    updates: int = 3000
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    ema_decay: float = 0.995  # kept of the averaged weights per update
    goal_jitter: float = 0.0  # of the goal in training, in its deviations: few goals are not learned by heart then
    goal_dropout: float = 0.0  # share of the training in which the goal is hidden
    guidance: float = 0.0  # how much the base overstates what its goal changes; needs goal_dropout
    sight: EncoderConfig = field(default_factory=EncoderConfig)  # of a task that shows pictures

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is not one of {', '.join(KINDS)}")
        for name in ("denoise_steps", "updates", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 <= self.ema_decay < 1.0:
            raise ValueError(f"needs 0 <= ema_decay < 1, got {self.ema_decay}")
        if not 0.0 <= self.goal_dropout < 1.0 or self.guidance < 0.0:
            raise ValueError(
                f"needs 0 <= goal_dropout < 1 and guidance >= 0, got {self.goal_dropout} and {self.guidance}"
            )
        if self.goal_jitter < 0.0:
            raise ValueError(f"goal_jitter must be zero or positive, got {self.goal_jitter}")
        if self.guidance > 0.0 and self.goal_dropout == 0.0:
            raise ValueError("guidance needs a base that can do without its goal: set goal_dropout, to 0.1 for example")


def embed(time: Tensor) -> Tensor:
    """(n,) in 0..1 -> (n, 1 + 2 FREQUENCIES)."""
    angles = math.pi * time[:, None] * 2.0 ** torch.arange(FREQUENCIES)
    return torch.cat([time[:, None], torch.sin(angles), torch.cos(angles)], -1)


def signal_share(time: Tensor) -> tuple[Tensor, Tensor]:
    """Of action and noise at `time` (0 the action, 1 the noise): the cosine schedule, whose squares add up to 1."""
    share = torch.cos(0.5 * math.pi * time).clamp_min(SMALLEST)
    return share, (1.0 - share**2).sqrt()


def schedule(kind: str, steps: int) -> Schedule:
    """The sampler's steps, from noise to action."""
    if kind == "beso":
        return edm.schedule(steps)
    if kind == "regression":
        nothing = np.zeros(1, np.float32)
        return Schedule(time=nothing, scale=nothing, keep=nothing, gain=nothing + 1, clip=False)
    if kind == "flow":
        time, one = np.arange(steps) / steps, np.ones(steps)
        rows = (time, one, one, one / steps)
    else:
        time = np.linspace(1.0, 0.0, steps + 1)
        share, noise = (v.numpy() for v in signal_share(torch.from_numpy(time)))
        noise[-1] = 0.0
        keep = noise[1:] / noise[:-1]
        rows = (time[:-1], np.ones(steps), keep, share[1:] - keep * share[:-1])
    when, scale, keep, gain = (row.astype(np.float32) for row in rows)
    return Schedule(when, scale, keep, gain, clip=kind == "diffusion")


def check(task: Task, device: str) -> None:
    """ValueError unless the CPU is to learn it, on one thread from then on."""
    if device != "cpu":
        raise ValueError("this algorithm learns on the CPU: its scenes and its small networks are there")
    torch.set_num_threads(1)  # small matrices: threads cost more than they bring


class Cloning(Stateful):
    """Trains a base on demonstrations; with `delay`, one that goes on from up to so many actions of a chunk."""

    provenance: dict[str, Any] = {}  # of a base that comes from elsewhere
    words = 0  # numbers of what is seen, after those measured, that say what it was told
    state_parts: tuple[str, ...] = ("network", "average", "normalizer", "optimizer")
    state_values = ("done",)

    def __init__(self, task: Task, config: BaseConfig, generator: torch.Generator, delay: int = 0) -> None:
        self.task, self.config, self.generator = task, config, generator
        self.eyes = Encoders(spec.pictures(task.policy), config.sight, generator)
        if self.eyes.size:
            self.state_parts += ("eyes", "average_eyes")
        self.measured = spec.size(spec.numbers(task.policy))
        self.actions, self.observed = spec.size(task.commands), self.measured + self.eyes.size
        self.size, self.delay = self.actions * config.horizon, delay
        self.goal = goal(task, self.observed)
        if config.goal_dropout > 0.0 and not self.goal.any():
            raise ValueError(f"the policy of {task.name} is told no goal that could be dropped: set goal_dropout=0")
        told = (
            self.observed,
            int(config.goal_dropout > 0.0),
            delay * self.actions,
            delay,
            self.size,
            1 + 2 * FREQUENCIES,
        )
        self.parts = np.cumsum(told)  # of what the network is told: see `_told`; then noise and time
        sizes = [int(self.parts[-1]), *config.hidden, self.size]
        self.network = silu(mlp(sizes, generator, last_gain=0.1))
        self.average, self.average_eyes = copy.deepcopy((self.network, self.eyes))
        self.normalizer = Normalizer(self.observed)
        self.optimizer = torch.optim.AdamW(
            self._weights(), config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        self.done = 0

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to learn."""
        return self.done >= self.config.updates

    def learn(self, data: Demonstrations, report: int = 100) -> Iterator[dict[str, float]]:
        """The updates that are left; yields the mean loss of every `report`."""
        if self.done == 0:
            measured = Normalizer(self.measured)
            measured.update(torch.from_numpy(data.observation))
            self.normalizer = measured.wider(self.eyes.size)
        shown = self._tensors(data)
        total = torch.zeros(())
        while self.done < self.config.updates:
            for group in self.optimizer.param_groups:
                group["lr"] = cosine(self.done / self.config.updates, self.config.learning_rate, 0.0)
            loss = self._loss(*self._batch(*shown))
            descend(self.optimizer, loss)
            self.done += 1
            with torch.no_grad():
                rate = max(1.0 - self.config.ema_decay, 1.0 / self.done)
                torch._foreach_lerp_(self._averages(), self._weights(), rate)
            if self.done == self.config.updates and data.pictures:
                self._settle(shown[1])
            total += loss.detach()
            if self.done % report == 0 or self.done == self.config.updates:
                yield {"loss": float(total) / report}
                total = torch.zeros(())

    def _tensors(self, data: Demonstrations) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """What was measured, normalised; pictures; chunks."""
        shift, std = self.normalizer.shift[: self.measured], self.normalizer.std[: self.measured]
        pictures = {name: torch.from_numpy(some) for name, some in data.pictures.items()}
        return (torch.from_numpy(data.observation) - shift) / std, pictures, torch.from_numpy(data.chunk)

    def _batch(self, measured: Tensor, pictures: Mapping[str, Tensor], chunk: Tensor) -> tuple[Tensor, Tensor]:
        """What is seen and the chunks. Pictures are dear: each serves several draws of noise."""
        draws = self.config.sight.draws if pictures else 1
        index = torch.randint(len(measured), (max(1, self.config.batch_size // draws),), generator=self.generator)
        if not pictures:
            return measured[index], chunk[index]
        moved = self.eyes.moved({name: some[index] for name, some in pictures.items()}, self.generator)
        seen = torch.cat([measured[index], self.eyes(moved)], -1)
        return seen.repeat(draws, 1), chunk[index].repeat(draws, 1)

    @torch.no_grad()
    def _settle(self, pictures: Mapping[str, Tensor]) -> None:
        """From now on points are normalised like what is measured; the averaged network makes of them what it did."""
        count = len(next(iter(pictures.values())))
        pieces = [slice(k, k + self.config.batch_size) for k in range(0, count, self.config.batch_size)]
        points = torch.cat([self.average_eyes({name: some[k] for name, some in pictures.items()}) for k in pieces])
        mean, std = points.mean(0), points.std(0, unbiased=False).clamp_min(STILL)
        weight, bias, *_ = self.average.parameters()
        bias.add_(weight[:, self.measured : self.observed] @ mean)
        weight[:, self.measured : self.observed].mul_(std)
        before = self.normalizer.state_dict()
        for name, value in (("mean", mean), ("variance", std**2)):
            before[name][self.measured :] = value
        self.normalizer.load_state_dict(before)

    def _weights(self) -> list[Tensor]:
        return [*self.network.parameters(), *self.eyes.parameters()]

    def _averages(self) -> list[Tensor]:
        return [*self.average.parameters(), *self.average_eyes.parameters()]

    def _loss(self, seen: Tensor, chunk: Tensor) -> Tensor:
        time = torch.rand(len(seen), generator=self.generator)
        noise = torch.randn(chunk.shape, generator=self.generator)
        if self.config.kind == "regression":
            x, wanted, time = torch.zeros_like(chunk), chunk, torch.zeros_like(time)
        elif self.config.kind == "flow":
            x, wanted = torch.lerp(noise, chunk, time[:, None]), chunk - noise
        elif self.config.kind == "beso":
            x, wanted, time = edm.noised(chunk, noise, time)
        else:
            share, rest = signal_share(time)
            x, wanted = share[:, None] * chunk + rest[:, None] * noise, chunk
        return nn.functional.mse_loss(self.network(torch.cat([self._told(seen, chunk), x, embed(time)], -1)), wanted)

    def _told(self, seen: Tensor, chunk: Tensor) -> Tensor:
        """What is seen, the goal or that it is hidden, some of the first actions or none, and which of them."""
        which = torch.from_numpy(self.goal)
        if self.config.goal_jitter > 0.0:
            seen = seen + self.config.goal_jitter * which * torch.randn(seen.shape, generator=self.generator)
        told = [seen]
        if self.config.goal_dropout > 0.0:
            hidden = torch.rand(len(seen), 1, generator=self.generator) < self.config.goal_dropout
            told = [seen.masked_fill(hidden & which, 0.0), hidden]
        if self.delay:
            given = torch.arange(self.delay) < torch.randint(self.delay + 1, (len(seen), 1), generator=self.generator)
            told += [chunk[:, : self.delay * self.actions] * given.repeat_interleave(self.actions, 1), given]
        return torch.cat(told, -1)

    def see(self, observation: Array) -> Tensor:
        """What learners that improve the base see of an observation (n, o)."""
        return self.normalizer(torch.from_numpy(observation))

    def denoiser(self, delay: int = 0) -> Denoiser:
        """The averaged network and its sampler; told, after the observation, `delay` actions and whether there are."""
        steps = schedule(self.config.kind, self.config.denoise_steps)
        first, *layers = (layer for layer in self.average if isinstance(layer, nn.Linear))
        weight, bias = (p.detach().numpy() for p in (first.weight, first.bias))
        see, hides, given, counts, look, tell = np.split(weight, self.parts[:-1], axis=1)
        see, bias = self.normalizer.fold(see, bias)
        timed = embed(torch.from_numpy(steps.time)).numpy() @ tell.T + bias
        rest = [(p.weight.detach().numpy().copy(), p.bias.detach().numpy().copy()) for p in layers]
        unseen = see @ np.where(self.goal, self.normalizer.shift.numpy(), np.float32(0.0)) + hides.sum(axis=1)
        if delay:
            count = counts[:, :delay].sum(axis=1, keepdims=True)
            see = np.concatenate([see, given[:, : delay * self.actions], count], axis=1)
        eye = ObservationEncoder(self.task.policy, self.average_eyes.exported()) if self.eyes.size else None
        timed = timed.astype(np.float32)
        moments = (self.normalizer.shift.numpy().copy(), self.normalizer.std.numpy().copy())
        base = Denoiser(self.config.horizon, self.actions, steps, see, look.copy(), timed, rest, eye, *moments)
        if self.config.guidance == 0.0:
            return base
        return guided(base, np.flatnonzero(self.goal), unseen, self.config.guidance)

    @property
    def noise(self) -> tuple[int, int]:
        """Rows and columns of what a chunk is made of."""
        return self.config.horizon, self.actions

    def controller(self, chosen: Steering | NoiseTable, planner: Planner | None = None) -> Policy:
        """Of the base, whose plans are carried out to their end, with that noise."""
        return ChunkPolicy.from_task(self.task, self.denoiser(), chosen, self.config.horizon, planner)


def silu(network: nn.Sequential) -> nn.Sequential:
    """The same layers with SiLU between them."""
    return nn.Sequential(*(layer if isinstance(layer, nn.Linear) else nn.SiLU() for layer in network))


@dataclass
class BcConfig(BaseConfig):
    """Of cloning alone."""

    noise: str = "normal"  # of the exported policy: "normal", or "none", its most likely chunk
    replan: int = 0  # control steps between two plans; 0: as many as a plan allows
    delay: int = 0  # actions of the old plan that are executed while a new one is worked out: real-time chunking

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise not in ("normal", "none"):
            raise ValueError(f"noise {self.noise!r} is not one of normal, none")
        check_plan(self.horizon, self.steps_between, self.delay)

    @property
    def steps_between(self) -> int:
        """Control steps between two plans."""
        return self.replan or self.horizon - self.delay


class Bc:
    """Behaviour cloning: the base alone."""

    Config = BcConfig
    needs: tuple[type, ...] = ()
    takes: tuple[str, ...] = ()

    def __init__(self, task: Task, config: BcConfig, seed: int, device: str = "cpu") -> None:
        check(task, device)
        self.task, self.config, self.seed = remembering(task), config, seed
        self.cloning = Cloning(self.task, config, torch.Generator().manual_seed(seed), config.delay)

    def learn(self) -> Iterator[dict[str, float]]:
        for metrics in self.cloning.learn(demonstrations(self.task, self.config, self.seed)):
            yield {"progress": self.cloning.done / self.config.updates, "env_steps": 0.0, **metrics}

    def controller(self) -> Policy:
        base = self.cloning.denoiser(self.config.delay)
        drawn = (
            NoiseTable.normal(base.noise_size) if self.config.noise == "normal" else NoiseTable.none(base.noise_size)
        )
        return planned(self.task, base, drawn, self.config.steps_between, self.config.delay)

    def dump_to(self, folder: Path) -> None:
        """Nothing is flown."""

    def state_dict(self) -> dict[str, Any]:
        generator = self.cloning.generator.get_state()
        return {"seed": self.seed, "cloning": self.cloning.state_dict(), "generator": generator}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seed = int(state["seed"])
        self.cloning.load_state_dict(state["cloning"])
        self.cloning.generator.set_state(state["generator"])
