"""PPO without torch: rollouts, losses and their gradients as compiled loops; see `policies.learning.fused`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from deploy.policy_file import PolicyFile
from deploy.trust.content import content_of
from policies.algorithms.ppo.league import League
from policies.algorithms.ppo.tutor import Heard, Lesson, Scripted, Tutor
from policies.learning.fused import parallel, surrogate, work_queue
from policies.learning.fused.measure import measured
from policies.learning.fused.moments import Moments, adapt, smallest_std
from policies.learning.fused.network import Perceptron, room, vectors
from policies.learning.fused.parallel import PARTS
from policies.learning.fused.recurrent import Recurrent
from policies.learning.fused.stepped import Hearing, Stepped, rollouts
from policies.learning.fused.symmetry import (
    Symmetric,
    alike,
    beside,
    constant,
    privileged_images,
    task_images,
    trained,
)
from policies.models.controller import FeaturePolicy, Policy
from policies.models.networks import Layer, Network
from policies.models.networks.feed_forward import Mlp
from policies.models.networks.gru import Gru
from policies.models.reading import network_of
from sim.randomize import Array
from sim.simulation.draws import Practice
from sim.spec import size
from sim.tasks import Task, initial_action
from sim.tasks.abilities import has_places

if TYPE_CHECKING:
    from policies.algorithms.ppo import PpoConfig

LATEST_EVERY = 10  # iterations after which a league plays with the learner as it is
PULL_RATE, PULL_MOST = 0.1, 1e3  # per iteration
PARTS_OF_STATE = ("rollouts", "actor", "critic", "seen", "judged", "value")
FAILED = "a thread that helps with the update has failed; what it said is above"


def _chosen(values: Array, samples: int, rows: NDArray[np.int64]) -> Array:
    """Some of the samples, each of whole vectors (vectors, LANES)."""
    found: Array = values.reshape(samples, -1, values.shape[-1])[rows].reshape(-1, values.shape[-1])
    return found


class Fused:
    """The path without torch."""

    def __init__(
        self,
        task: Task,
        config: PpoConfig,
        seed: int,
        practised: Task | None = None,
        lesson: Lesson | None = None,
        content: bytes = b"",
    ) -> None:
        """`practised`: the task as it is learned, if that differs from how it is measured; `lesson`: a `tutor` is given
        to `hear` before the training begins; `content`: of the policy file that `config.start` names, where
        it is none.
        """
        self.all_count = not has_places(task)
        if config.threads > PARTS:
            raise ValueError(
                f"algorithm.threads must be at most {PARTS}, got {config.threads}: there is no more to share"
            )
        self.task, self.config, self.seed = task, config, seed
        self.practice = Practice(config.length_shares(0.0), config.easy)
        how = config.num_envs, config.rollout_steps, seed, self.practice, config.correlation
        self.league = League(task, seed) if config.league and not practised else None
        self.lesson = lesson or Lesson()
        self.heard: Heard | None = None
        self.pull = 1.0  # weight of the squared difference from `start`, where that is bounded
        self.told = told = size(task.privileged) if self.lesson.estimate else 0  # numbers that an actor estimates
        learned = practised or (self.league.training() if self.league else task)
        hears = bool(lesson or config.bound)
        self.rollouts = rollouts(learned, *how, config.workers, more=told, told=hears, staggered=config.staggered)
        weights, order = np.random.SeedSequence(seed).spawn(2)
        rng, self.rng = np.random.default_rng(weights), np.random.default_rng(order)
        self.actions = size(task.commands)
        self.outputs = self.actions + told  # what an actor tells of what is privileged comes behind what it does
        self.outs = outs = vectors(self.outputs)
        first = math.atanh(initial_action(task))
        layers, rows = [self.rollouts.features, *config.hidden, self.outputs], (config.num_envs, config.rollout_steps)
        self.recurrent = config.network == "gru"
        self.actor: Perceptron = (
            Recurrent(layers, rng, *rows, 0.01, first, more=outs)
            if self.recurrent
            else Perceptron(layers, config.activation, rng, 0.01, first, more=outs)
        )
        layers = [self.rollouts.judged, *config.critic_hidden, 1]
        self.critic = Perceptron(layers, config.activation, rng)
        found = task_images(task) if config.mirrors else None
        content = content or (content_of(config.start) if config.start else b"")
        begun = PolicyFile.from_bytes(content, config.start) if content else None
        self.start = network_of(begun, task, content) if begun else None
        if self.start and found and not alike(self.start, found[0], found[2]):
            raise ValueError(f"{config.start} was learned without the task's mirrors: set algorithm.mirrors=false")
        self.symmetry: list[Symmetric] = []
        if found:
            seen, judged, actions = found
            if told:
                actions = beside(actions, privileged_images(task))
            self.symmetry = [Symmetric(self.actor, seen, actions), Symmetric(self.critic, judged, constant(1, judged))]
        if self.start:
            self.actor.put(self.start, np.zeros(self.rollouts.features), np.ones(self.rollouts.features))
        self.average = self.actor.net.weights.copy()  # which is kept
        self.log_std = self.actor.net.weights[self.actor.extra :].reshape(-1)[: self.actions]
        self.log_std[:] = math.log(config.initial_std)
        self.std = room(3 * outs)  # its logarithm, where there is an action, its inverse
        self.tried = self.std[outs : 2 * outs].reshape(-1)[: self.actions]
        self.tried[:] = 1.0
        images = [found[0], found[1]] if found else [None, None]
        self.seen = Moments(self.rollouts.features, smallest_std(task), images=images[0])
        self.judged = Moments(self.rollouts.judged, np.full(self.rollouts.judged, 1e-3), images=images[1])
        self.value = Moments(1, np.full(1, 1e-3), kept=config.value_memory)
        self.queue = work_queue.empty()
        self.scratches = [(self.actor.scratch(), self.critic.scratch()) for _ in range(config.threads)]
        scales, count = (self.seen.scale, self.judged.scale), config.num_envs * config.rollout_steps
        orders = config.units * config.epochs
        self.work = parallel.learning(
            self.rollouts.samples, self.actor, self.critic, scales, self.std, orders, count // config.units
        )
        gradients = self.work.actor_gradients[0], self.work.critic_gradients[0]
        both = itertools.zip_longest((self.actor, self.critic), self.symmetry, gradients)
        self.learners = [trained(network, symmetric, gradient) for network, symmetric, gradient in both]
        self.iterations = config.iterations
        self.iteration = 0
        if config.bound and begun:
            self.hear(Tutor([begun], task, config.num_envs))

    def hear(self, tutor: Tutor | Scripted) -> None:
        """Learn from it, as the lesson says."""
        self.heard = Heard(tutor, self.lesson)
        self.listen(self.heard)

    def listen(self, hearing: Hearing) -> None:
        """Tell it of each step; only where there is more than a compiled loop."""
        assert isinstance(self.rollouts, Stepped)
        self.rollouts.hearing = hearing

    def go_on_in(self, task: Task, seed: int) -> None:
        """Practise in another task with the same signals from now on."""
        before, config = self.rollouts, self.config
        assert isinstance(before, Stepped)
        how = config.num_envs, config.rollout_steps, seed, self.practice, config.correlation
        made = Stepped(task, *how, config.workers, more=self.told, told=len(before.samples.wanted) > 0)
        made.samples, made.hearing, made.steps = before.samples, before.hearing, before.steps
        made.dump_dir, self.rollouts = before.dump_dir, made
        if self.actor.net.state is not None:
            self.actor.net.state[:] = 0.0
        if self.heard:
            self.heard.begin(np.ones(config.num_envs, bool))

    def learn(self) -> Iterator[dict[str, float]]:
        """Train to the end of the budget; one yield per rollout and its update."""
        with work_queue.helper_threads(self.queue, self.config.threads - 1, self._help):
            yield from self._learn()

    def _help(self, number: int) -> None:
        flight = self.rollouts.flight(self.actor, self.seen.scale, self.std)
        parallel.help(self.queue, flight, self.work, *self.learners, self.scratches[number])

    def _learn(self) -> Iterator[dict[str, float]]:
        every = self.config.evaluate_every
        while self.iteration < self.iterations:
            done = self.iteration / self.iterations
            self.practice.easy, self.practice.lengths = self.config.easy_share(done), self.config.length_shares(done)
            self._heed(done)
            self._refresh()
            self._meet()
            metrics = self._collect()
            if self.iteration == 0:
                self._learn_scales()
                if self.start:
                    self.actor.put(self.start, self.seen.mean, self.seen.std)
            self._tell()
            before, usual = self.actor.state_dict(), self.seen.usual
            metrics |= self._update()
            if self.iteration < self.config.critic_alone:
                self.actor.load_state_dict(before)
            if self.start:  # what it begins with does not change with what is usual
                adapt(self.actor, usual, self.seen.usual)
            self.iteration += 1
            self.average += np.float32(self.config.averages(self.iteration)) * (self.actor.net.weights - self.average)
            metrics["progress"] = self.iteration / self.iterations
            if self.league:
                metrics |= {f"points_{name}": points for name, points in self.league.points().items()}
            metrics["env_steps"] = float(self.rollouts.steps)
            if self.iteration == self.iterations or (every and self.iteration % every == 0):
                first = self.iteration * self.config.evaluation_episodes
                metrics |= measured(*(self.task, self.controller(), self.seed, first, self.config.evaluation_episodes))
            yield metrics

    def _heed(self, done: float) -> None:
        """How the tutor counts when so much of the training is done."""
        if not self.heard:
            return
        lesson, columns, heed = self.lesson, self.heard.tutor.columns, self.rollouts.samples.heed.reshape(-1)
        self.heard.guided = round(lesson.guided_share(done) * self.config.num_envs)
        heed[columns] = self.pull if self.config.bound else lesson.weight(done)
        heed[self.actions : self.outputs] = lesson.estimate / max(1, self.told)
        # While it is taught, what the tutor knows is not also learned by trial.
        self.tried[columns] = not lesson.taught(done)

    def _tell(self) -> None:
        """What is privileged, and normalised: what an actor that estimates it should have said."""
        if self.told:
            samples, count = self.rollouts.samples, self.config.num_envs * self.config.rollout_steps
            columns = slice(self.rollouts.features, self.rollouts.features + self.told)
            rows = samples.judged.reshape(len(samples.value), -1)[:count, columns]
            usual = (rows - self.judged.mean[columns]) / self.judged.std[columns]
            samples.wanted.reshape(count, -1)[:, self.actions : self.outputs] = np.tanh(usual)

    def _meet(self) -> None:
        """Tell the league how good the learner is by now."""
        keep = self.iteration % self.config.league_every == 0
        if self.league and self.league.itself and (keep or self.iteration % LATEST_EVERY == 0):
            self.league.meet(self._controller(self.actor.net.weights), keep, self.rollouts.steps)

    def snapshots(self) -> dict[int, Policy]:
        """The learner as it was, if it learns in a league."""
        return self.league.snapshots() if self.league else {}

    def _collect(self) -> dict[str, float]:
        if self.actor.net.before is not None:
            self.actor.net.before[:] = self.actor.net.state
        how = self.actor, self.seen.scale, self.std, self.scratches[0][0], self.queue
        metrics = self.rollouts.collect(*how)
        if self.heard is None:
            return metrics
        error, bound = self.heard.mean_error(), self.config.bound
        if not bound:
            return metrics | {"imitation_error": error}
        # A Lagrange multiplier: it grows while the bound is broken (PPO-Lagrangian, Ray et al. 2019).
        self.pull *= math.exp(PULL_RATE * min(1.0, error / bound**2 - 1.0))
        self.pull = min(PULL_MOST, max(1.0 / PULL_MOST, self.pull))
        return metrics | {"change": math.sqrt(error), "pull": self.pull}

    def _refresh(self) -> None:
        """After a change of the log standard deviations."""
        np.maximum(self.log_std, math.log(self.config.min_std), out=self.log_std)
        self.std[: self.outs].reshape(-1)[: self.actions] = self.log_std
        self.std[2 * self.outs :].reshape(-1)[: self.actions] = np.exp(-self.log_std) * self.tried

    def _learn_scales(self) -> None:
        samples, counted = self.rollouts.samples, self.rollouts.counted
        for moments, values in ((self.seen, samples.seen), (self.judged, samples.judged)):
            moments.learn(values if self.all_count else _chosen(values, len(samples.value), counted), len(counted))

    def _judge(self) -> None:
        """The values of all samples, the advantages and targets."""
        samples, config, n = self.rollouts.samples, self.config, self.config.num_envs
        steps, done = config.rollout_steps, self.iteration / self.iterations
        bounds = np.linspace(0, (steps + 1) * n, PARTS + 1).astype(int)
        ranges = [*itertools.pairwise(bounds), *self.rollouts.final_ranges()]
        self.work.ranges[: len(ranges)] = ranges
        self._set_loss()
        if not parallel.value(self.queue, True, len(ranges), self.work, self.scratches[0][1]):
            raise RuntimeError(FAILED)
        surrogate.advantages(samples, steps, n, np.float32(config.discount(done)), np.float32(config.gae_lambda))

    def _set_loss(self) -> None:
        self.work.numbers[:4] = self.config.clip, self.config.entropy, self.value.mean[0], self.value.std[0]

    def _update(self) -> dict[str, float]:
        config, samples, counted = self.config, self.rollouts.samples, self.rollouts.counted
        if len(counted) < config.minibatches:  # nobody was there
            return {}
        self._judge()
        advantage, meant = samples.advantage, samples.advantage[counted]
        advantage[:] = (advantage - meant.mean()) / (meant.std() + 1e-8)
        self._rescale_value(samples.target[counted])
        self._set_loss()
        units = config.units if self.all_count else len(counted)
        one = np.linspace(0, units, config.minibatches + 1).astype(int)
        bounds = np.concatenate([one[:1], *(epoch * units + one[1:] for epoch in range(config.epochs))])
        for epoch in range(config.epochs):
            order = self.rng.permutation(units)
            self.work.order[epoch * units : (epoch + 1) * units] = order if self.all_count else counted[order]
        before, rate = self.work.std[: self.outs].sum(), config.rate(self.iteration / self.iterations)
        steps, least = self.actor.steps, np.float32(math.log(config.min_std))
        if not parallel.improve(
            *(self.queue, True, bounds, steps, rate, config.gradient_clip, least, self.work, *self.learners),
            self.scratches[0],
        ):
            raise RuntimeError(FAILED)
        self.actor.steps = self.critic.steps = steps + len(bounds) - 1
        self._learn_scales()
        last = (bounds[-1] - bounds[-2]) * self.work.unit  # samples of the last minibatch
        kl, value_loss, clipped, policy_loss = (self.work.metrics.sum(axis=0) / last).tolist()
        total = policy_loss + value_loss - config.entropy * float(before)
        std = float(np.exp(self.log_std).mean())
        return {"loss": total, "value_loss": value_loss, "kl": kl, "clipped": clipped, "std": std}

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
        return self._controller(self.average)

    def _controller(self, weights: Array) -> FeaturePolicy:
        layers = self.actor.matrices(weights)
        weight, bias = layers[0]
        scaled = weight / self.seen.std
        layers[0] = scaled.astype(np.float32), (bias - scaled @ self.seen.mean).astype(np.float32)
        layers[-1] = layers[-1][0][: self.actions], layers[-1][1][: self.actions]
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
            "league": self.league.state_dict() if self.league else {},
            "pull": self.pull,
            "tutor": self.heard.tutor.state_dict() if self.heard else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        for name in PARTS_OF_STATE:
            getattr(self, name).load_state_dict(state[name])
        if self.league:
            self.league.load_state_dict(state["league"], self.controller())
        if self.heard:
            self.heard.tutor.load_state_dict(state["tutor"])
        self.pull = float(state["pull"])
        self.average[:], self.iteration = state["average"], int(state["iteration"])
        self.rng.bit_generator.state = state["rng"]
