"""PPO without torch: rollouts, losses and their gradients as compiled loops; see `policies.learning.fused`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from policies.learning.fused import recurrent, surrogate
from policies.learning.fused.collect import together
from policies.learning.fused.measure import success_rate
from policies.learning.fused.moments import Moments, smallest_std
from policies.learning.fused.network import Perceptron, room, vectors
from policies.learning.fused.recurrent import Recurrent
from policies.learning.fused.stepped import rollouts
from policies.learning.fused.surrogate import Loss
from policies.learning.fused.symmetry import Symmetric, constant, task_images
from policies.models.controller import FeaturePolicy, Gru, Layer, Mlp, Network
from sim.randomize import Array
from sim.simulation.draws import Practice
from sim.spec import size
from sim.tasks import Task, initial_action

if TYPE_CHECKING:
    from policies.algorithms.ppo import PpoConfig

PARTS_OF_STATE = ("rollouts", "actor", "critic", "seen", "judged", "value")
PARTS = 2  # of a minibatch, whose gradients are summed up apart, whether or not there is a thread for each


class Fused:
    """The path without torch."""

    def __init__(self, task: Task, config: PpoConfig, seed: int) -> None:
        self.task, self.config, self.seed = task, config, seed
        self.practice = Practice(config.length_shares(0.0), config.easy)
        how = config.num_envs, config.rollout_steps, seed, self.practice, config.correlation
        self.rollouts = rollouts(task, *how, config.workers)
        weights, order = np.random.SeedSequence(seed).spawn(2)
        rng, self.rng = np.random.default_rng(weights), np.random.default_rng(order)
        self.actions = size(task.commands)
        self.outs, outs = vectors(self.actions), vectors(self.actions)
        first = math.atanh(initial_action(task))
        layers, rows = [self.rollouts.features, *config.hidden, self.actions], (config.num_envs, config.rollout_steps)
        self.recurrent = config.network == "gru"
        self.actor: Perceptron = (
            Recurrent(layers, rng, *rows, 0.01, first, more=outs)
            if self.recurrent
            else Perceptron(layers, config.activation, rng, 0.01, first, more=outs)
        )
        layers = [self.rollouts.judged, *config.critic_hidden, 1]
        self.critic = Perceptron(layers, config.activation, rng)
        found = task_images(task) if config.mirrors else None
        self.symmetry: list[Symmetric] = []
        if found:
            seen, judged, actions = found
            self.symmetry = [Symmetric(self.actor, seen, actions), Symmetric(self.critic, judged, constant(1, judged))]
        self.average = self.actor.net.weights.copy()  # which is kept
        self.log_std = self.actor.net.weights[self.actor.extra :].reshape(-1)[: self.actions]
        self.log_std[:] = math.log(config.initial_std)
        self.std = room(3 * outs)  # its logarithm, where there is an action, its inverse
        self.std[outs : 2 * outs].reshape(-1)[: self.actions] = 1.0
        images = [found[0], found[1]] if found else [None, None]
        self.seen = Moments(self.rollouts.features, smallest_std(task), images=images[0])
        self.judged = Moments(self.rollouts.judged, np.full(self.rollouts.judged, 1e-3), images=images[1])
        self.value = Moments(1, np.full(1, 1e-3), kept=config.value_memory)
        self.pool = ThreadPoolExecutor(PARTS - 1) if config.threads > 1 else None
        self.scratches = [(self.actor.scratch(), self.critic.scratch()) for _ in range(PARTS)]
        self.gradients = [(room(self.actor.size), room(self.critic.size), np.zeros(4)) for _ in range(PARTS)]
        self.iterations = config.iterations
        self.iteration = 0

    def learn(self) -> Iterator[dict[str, float]]:
        """Train to the end of the budget; one yield per rollout and its update."""
        every = self.config.evaluate_every
        while self.iteration < self.iterations:
            done = self.iteration / self.iterations
            self.practice.easy, self.practice.lengths = self.config.easy_share(done), self.config.length_shares(done)
            self._refresh()
            scratches = [a for a, _ in self.scratches]
            self.actor.net.before[:] = self.actor.net.state
            metrics = self.rollouts.collect(self.actor, self.seen.scale, self.std, scratches, self.pool)
            if self.iteration == 0:
                self._learn_scales()
            metrics |= self._update()
            self.iteration += 1
            self.average += np.float32(self.config.averages(self.iteration)) * (self.actor.net.weights - self.average)
            metrics["progress"] = self.iteration / self.iterations
            metrics["env_steps"] = float(self.rollouts.steps)
            if self.iteration == self.iterations or (every and self.iteration % every == 0):
                first = self.iteration * self.config.evaluation_episodes
                metrics["success"] = success_rate(
                    *(self.task, self.controller(), self.seed, first, self.config.evaluation_episodes)
                )
            yield metrics

    def _refresh(self) -> None:
        """After a change of the log standard deviations."""
        np.maximum(self.log_std, math.log(self.config.min_std), out=self.log_std)
        self.std[: self.outs].reshape(-1)[: self.actions] = self.log_std
        self.std[2 * self.outs :].reshape(-1)[: self.actions] = np.exp(-self.log_std)

    def _learn_scales(self) -> None:
        samples, count = self.rollouts.samples, self.config.num_envs * self.config.rollout_steps
        self.seen.learn(samples.seen, count)
        self.judged.learn(samples.judged, count)

    def _judge(self) -> None:
        """The values of all samples, the advantages and targets."""
        samples, config, n = self.rollouts.samples, self.config, self.config.num_envs
        steps, loss, done = config.rollout_steps, self._loss(), self.iteration / self.iterations
        bounds = np.linspace(0, (steps + 1) * n, PARTS + 1).astype(int).tolist()

        def judge(part: int) -> None:
            ranges = [(bounds[part], bounds[part + 1]), *(self.rollouts.final_ranges() if part == 0 else ())]
            for first, last in ranges:
                scratch = self.scratches[part][1]
                surrogate.judge(samples, first, last, self.critic.net, self.judged.scale, loss, scratch)

        together(self.pool, judge, PARTS)
        surrogate.advantages(samples, steps, n, np.float32(config.discount(done)), np.float32(config.gae_lambda))

    def _loss(self) -> Loss:
        numbers = self.config.clip, self.config.entropy, self.value.mean[0], self.value.std[0]
        return Loss(*(np.float32(x) for x in numbers))

    def _update(self) -> dict[str, float]:
        config, samples = self.config, self.rollouts.samples
        self._judge()
        advantage = samples.advantage
        advantage[:] = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        self._rescale_value(samples.target)
        rate = config.rate(self.iteration / self.iterations)
        loss, scales = self._loss(), (self.seen.scale, self.judged.scale)
        metrics, spread = np.zeros(4), 0.0
        for _ in range(config.epochs):
            for rows in np.array_split(self.rng.permutation(config.units), config.minibatches):
                spread = float(self.log_std.sum())
                metrics = self._descend(rows, loss, scales, rate)
        self._learn_scales()
        kl, value_loss, clipped, policy_loss = metrics.tolist()
        total = policy_loss + value_loss - config.entropy * spread
        std = float(np.exp(self.log_std).mean())
        return {"loss": total, "value_loss": value_loss, "kl": kl, "clipped": clipped, "std": std}

    def _descend(self, rows: NDArray[np.int64], loss: Loss, scales: Any, rate: float) -> NDArray[np.float64]:
        """One gradient step; the metrics of the minibatch."""
        count = len(rows) * self.config.num_envs * self.config.rollout_steps // self.config.units  # samples
        parts, share = np.array_split(rows, PARTS), np.float32(1.0 / count)
        gradients = recurrent.gradients if self.recurrent else surrogate.gradients
        samples, actor, critic = self.rollouts.samples, self.actor, self.critic

        def differentiate(part: int) -> None:
            a, c, metrics = self.gradients[part]
            metrics[:] = 0.0
            gradients(
                *(parts[part], share, samples, actor.net, critic.net, scales, loss, self.std),
                *(a, a[actor.extra :], c, self.scratches[part], metrics),
            )

        together(self.pool, differentiate, PARTS)
        (a, c, metrics), others = self.gradients[0], self.gradients[1:]
        for more_a, more_c, more in others:
            a += more_a
            c += more_c
            metrics += more
            more_a[:], more_c[:] = 0.0, 0.0
        clip = self.config.gradient_clip
        for one, gradient in zip(self.symmetry, (a, c), strict=False):
            one.average(gradient)
        actor.descend(a, rate, clip)
        critic.descend(c, rate, clip)
        self._refresh()
        found: NDArray[np.float64] = metrics / count
        return found

    def _rescale_value(self, target: Array) -> None:
        """What is usual of the value, and the last layer so that it says the same (PopArt, van Hasselt et al. 2016)."""
        mean, std = self.value.mean.copy(), self.value.std.copy()
        self.value.add(target[:, None])
        weight, bias = self.critic.views()[-1]
        weight *= std / self.value.std
        bias[:] = (std * bias + mean - self.value.mean) / self.value.std
        self.critic.turn()

    def controller(self) -> FeaturePolicy:
        """The policy without exploration, its normaliser folded into the first layer."""
        layers = self.actor.matrices(self.average)
        weight, bias = layers[0]
        scaled = weight / self.seen.std
        layers[0] = scaled.astype(np.float32), (bias - scaled @ self.seen.mean).astype(np.float32)
        return FeaturePolicy.from_task(self.task, self._network(layers))

    def _network(self, layers: list[Layer]) -> Network:
        if not self.recurrent:
            return Mlp(layers, self.config.activation)
        encoder, inward, across, last = layers
        return Gru(encoder, inward[0], across[0], inward[1], across[1], last)

    def dump_to(self, folder: Path) -> None:
        self.rollouts.dump_dir = folder

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact continuation needs."""
        parts = {name: getattr(self, name).state_dict() for name in PARTS_OF_STATE}
        return {
            **parts,
            "average": self.average.copy(),
            "rng": self.rng.bit_generator.state,
            "iteration": self.iteration,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        for name in PARTS_OF_STATE:
            getattr(self, name).load_state_dict(state[name])
        self.average[:], self.iteration = state["average"], int(state["iteration"])
        self.rng.bit_generator.state = state["rng"]
