"""SAC without torch: rollouts, a compact replay, losses and their gradients as compiled loops.

See `policies.learning.fused`. Environments are flown `ROUND` control steps at a time, then come as many updates as
belong to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from policies.algorithms import LearningError
from policies.algorithms.sac.earlier import check_same, contract, digest, read
from policies.learning.fused import off_policy, work_queue
from policies.learning.fused.measure import measured
from policies.learning.fused.moments import SMALLEST, Moments, Usual, adapt, smallest_std
from policies.learning.fused.network import Perceptron, room, vectors
from policies.learning.fused.off_policy import Batch, Learner, Rules
from policies.learning.fused.replay import Replay, checked
from policies.learning.fused.stepped import rollouts
from policies.learning.fused.surrogate import Scale
from policies.learning.fused.symmetry import Images, Symmetric, beside, constant, task_images, trained
from policies.models.controller import FeaturePolicy
from policies.models.networks.feed_forward import Mlp
from sim.engines.vector.streams import QUANTILES, streams
from sim.simulation.draws import Practice
from sim.spec import size
from sim.tasks import Task, has_own_world, initial_action

if TYPE_CHECKING:
    from policies.algorithms.sac import SacConfig

ROUND = 4  # control steps between updates
DRAWING = int.from_bytes(b"drawing")
SMALLEST_ACTION = 0.01  # standard deviation of an action that is divided by
COUNTS = ("iteration", "gradient_steps", "adapted", "seed")


class Fused:
    """The path without torch."""

    def __init__(self, task: Task, config: SacConfig, seed: int) -> None:
        self.task, self.config, self.seed = task, config, seed
        shortest, longest = config.lengths
        self.practice = Practice((shortest, longest), config.easy)
        how = config.num_envs, ROUND, seed, self.practice, config.correlation
        self.rollouts = rollouts(task, *how, config.workers, config.linger, config.success_reward)
        self.actions, features, judged = size(task.commands), self.rollouts.features, self.rollouts.judged
        least = 1 if has_own_world(task) else max(1, round(shortest * task.episode_steps))
        fewest = (config.n_step + ROUND + 2) * config.num_envs
        if config.capacity < fewest:
            raise ValueError(f"algorithm.capacity must be at least {fewest}, got {config.capacity}")
        capacity = max(fewest, min(config.capacity, config.total_steps))
        self.contract, wide = contract(task, config), vectors(self.actions + judged) + vectors(features)
        earlier = [self._earlier(run, wide) for run in config.earlier]
        self.earlier = [digest(state) for state in earlier]
        shape = self.actions, judged, features
        self.replay = Replay(capacity, config.num_envs, least, *shape, earlier, config.old)
        self.replay.recall(config.n_step, config.gamma)
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        self.actor = self._make_actor(rng)
        self.critics = [self._make_critic(rng) for _ in range(config.critics)]
        found = task_images(task) if config.mirrors else None
        symmetric = self._mirrored(*found) if found else [None] * (1 + config.critics)
        self.average = self.actor.net.weights.copy()  # which is kept
        self.target_actor, self.target_critics = self._make_actor(rng), [self._make_critic(rng) for _ in self.critics]
        for target, source in zip((self.target_actor, *self.target_critics), (self.actor, *self.critics), strict=True):
            target.net.weights[:] = source.net.weights
        seen_images, judged_images, action_images = found or (None, None, None)
        smallest = smallest_std(task)
        self.seen = Moments(features, smallest, images=seen_images)  # fixed after the warm-up
        smallest = np.concatenate([smallest, np.full(judged - features, SMALLEST)])
        self.queue = work_queue.empty()
        self.moments = (
            Moments(self.actions, np.full(self.actions, SMALLEST_ACTION), images=action_images),
            Moments(judged, smallest, images=judged_images),
        )
        self.usual = Usual(np.zeros(self.actions + judged), np.ones(self.actions + judged))
        wide = vectors(self.actions + judged)
        self.scales = self.seen.scale, Scale(room(wide), room(wide) + np.float32(1.0))  # of the actor, of the critics
        self.adapted = 0  # after how many steps
        self.log_alpha = np.array([math.log(config.initial_alpha), 0.0, 0.0])  # and Adam's moments
        std, outs = room(3 * vectors(self.actions)), vectors(self.actions)
        for part, value in enumerate((math.log(config.exploration), 1.0, 1.0 / config.exploration)):
            std[part * outs : (part + 1) * outs].reshape(-1)[: self.actions] = value
        self.std = std
        n, count = config.batch_size, self.actions
        floats = (np.zeros(n, np.float32), np.zeros(n, np.float32))
        noises = (np.zeros((n, count), np.float32), np.zeros((n, count), np.float32))
        places = (np.zeros(n, np.int64), np.zeros(n, np.int64))
        self.batch = Batch(*places, *floats, *noises, np.zeros(n, np.float32))
        judges = 1 if config.deterministic else config.critics
        self.rules = Rules(
            actions=count,
            squashed=not config.deterministic,
            smoothing=np.float32(config.smoothing),
            judges=judges,
            some=config.target_critics,
            actor_every=config.actor_every,
            n_step=config.n_step,
            gamma=np.float32(config.gamma),
            tau=np.float32(config.tau),
            reward_scale=np.float32(config.reward_scale),
            wanted=-config.target_entropy * count,
            alpha_rate=config.learning_rate,
        )
        actor, *critics = map(trained, (self.actor, *self.critics), symmetric)
        followers = tuple(critic.net for critic in self.target_critics)
        self.learner = Learner(actor, tuple(critics), self.target_actor.net, followers, self.log_alpha)
        self.scratches = self.actor.scratch(), self.critics[0].scratch()
        self.gate, self.push = room(config.critic_hidden[0] * outs), room(64 * outs)
        self.stream = streams(seed, np.zeros(1, np.int64), DRAWING)
        self.iteration = self.gradient_steps = 0

    def _earlier(self, run: str, wide: int) -> dict[str, Any]:
        """The replay of that run, with so many vectors in a row."""
        state = read(run, "fused", self.contract)
        try:
            return checked(state, wide, self.config.n_step)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"algorithm.earlier: {run} cannot be used: {error}") from error

    def _make_actor(self, rng: np.random.Generator) -> Perceptron:
        """Features to the actions before squashing and, unless deterministic, their log standard deviations."""
        config, actions = self.config, self.actions
        outputs = actions if config.deterministic else 2 * actions
        layers = [self.rollouts.features, *config.hidden, outputs]
        actor = Perceptron(layers, config.activation, rng, 0.01, math.log(config.initial_std))
        actor.views()[-1][1][:actions] = math.atanh(initial_action(self.task))  # fly the initial action at first
        return actor

    def _make_critic(self, rng: np.random.Generator) -> Perceptron:
        sizes = [self.actions + self.rollouts.judged, *self.config.critic_hidden, 1]
        return Perceptron(sizes, "relu", rng, layer_norm=self.config.layer_norm)

    def _mirrored(self, seen: Images, judged: Images, actions: Images) -> list[Symmetric | None]:
        """Of the actor and the critics."""
        said = actions
        if not self.config.deterministic:
            said = beside(actions, Images(actions.places, np.ones_like(actions.signs)))
        both = beside(actions, judged)
        return [
            Symmetric(self.actor, seen, said),
            *(Symmetric(critic, both, constant(1, judged)) for critic in self.critics),
        ]

    def learn(self) -> Iterator[dict[str, float]]:
        """Train to the end of the budget; a yield about every `report_every` control steps."""
        config, every = self.config, self.config.report_every
        metrics: dict[str, float] = {}
        while self.iteration < config.iterations:
            metrics |= self._act()
            if self.rollouts.steps > config.warmup_steps and self.replay.enough(config.n_step):
                metrics |= self._update(ROUND * config.updates_per_step)
            self.average += np.float32(config.averages(self.iteration)) * (self.actor.net.weights - self.average)
            last = self.iteration >= config.iterations
            if last or self.iteration // every > (self.iteration - ROUND) // every:
                metrics["progress"] = self.done
                metrics["env_steps"] = float(self.rollouts.steps)
                if last or self._due(every):
                    kept, episodes = self.controller(), config.evaluation_episodes
                    metrics |= measured(self.task, kept, self.seed, self.iteration * episodes, episodes)
                yield metrics
                metrics = {}

    def _due(self, every: int) -> bool:
        """Whether it is measured with this report, which comes `every` so many control steps."""
        between = self.config.evaluate_every
        return bool(between) and self.iteration // between > max(0, self.iteration - every) // between

    def _act(self) -> dict[str, float]:
        """Some control steps of all environments into the replay."""
        config = self.config
        self.practice.easy = config.easy_share(self.done)
        squashed = not config.deterministic
        metrics = self.rollouts.collect(self.actor, self.scales[0], self.std, self.scratches[0], self.queue, squashed)
        samples, count = self.rollouts.samples, config.num_envs * ROUND
        if self.rollouts.steps <= config.warmup_steps or self.iteration == 0:
            self.seen.learn(samples.seen, count)
        for part, found in zip(self.moments, (samples.action, samples.judged), strict=True):
            part.learn(found, count)
        if self.rollouts.steps >= 2 * self.adapted:
            self._adapt()
        self.replay.add(self.rollouts.samples, ROUND)
        self.iteration += ROUND
        return metrics

    def _adapt(self) -> None:
        """Normalise what the critics see by what has been usual since this was done last; they say the same."""
        before, pairs = self.usual, zip(*(part.usual for part in self.moments), strict=True)
        self.adapted, self.usual = self.rollouts.steps, Usual(*map(np.concatenate, pairs))
        for critic in (*self.critics, *self.target_critics):
            adapt(critic, before, self.usual)
        for part in self.moments:
            part.count = 0
        self._apply()

    def _apply(self) -> None:
        count, scale = len(self.usual.mean), self.scales[1]
        scale.mean.reshape(-1)[:count], scale.factor.reshape(-1)[:count] = self.usual.mean, 1.0 / self.usual.std

    def _update(self, count: int) -> dict[str, float]:
        """So many gradient steps."""
        config, metrics = self.config, np.zeros(3)
        off_policy.improve(
            *(count, self.gradient_steps, self.replay.written, config.rate(self.done), self.learner),
            *(self.replay.stored, self.scales, self.rules, self.batch, self.scratches, self.gate, self.push),
            *(self.stream, QUANTILES, metrics),
        )
        self.gradient_steps += count
        if not np.isfinite(metrics).all():
            raise LearningError(
                f"after {self.gradient_steps} gradient steps the critics' loss is {metrics[0]}, their word "
                f"for the actor {metrics[2]}; lower algorithm.learning_rate"
            )
        found = {"loss": float(metrics[0]), "value": float(metrics[2])}
        return found if config.deterministic else found | {"alpha": math.exp(self.log_alpha[0])}

    @property
    def done(self) -> float:
        """Share of the training."""
        return min(1.0, self.iteration / self.config.iterations)

    def controller(self) -> FeaturePolicy:
        """The policy without exploration."""
        layers = self.actor.matrices(self.average)
        weight, bias = layers[0]
        scaled = weight / self.seen.std
        layers[0] = scaled.astype(np.float32), (bias - scaled @ self.seen.mean).astype(np.float32)
        weight, bias = layers[-1]
        layers[-1] = weight[: self.actions], bias[: self.actions]
        return FeaturePolicy.from_task(self.task, Mlp(layers, self.config.activation))

    def dump_to(self, folder: Path) -> None:
        self.rollouts.dump_dir = folder

    def _parts(self) -> dict[str, Any]:
        """What has a state of its own."""
        ensembles = {f"critic{k}": critic for k, critic in enumerate(self.critics)}
        ensembles |= {f"target_critic{k}": critic for k, critic in enumerate(self.target_critics)}
        named = {
            "rollouts": self.rollouts,
            "replay": self.replay,
            "seen": self.seen,
            "actions": self.moments[0],
            "judged": self.moments[1],
            "actor": self.actor,
        }
        return named | {"target_actor": self.target_actor} | ensembles

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next steps depend on, the replay included."""
        arrays = {name: getattr(self, name).copy() for name in ("average", "log_alpha", "stream")}
        arrays |= {"mean": self.usual.mean, "std": self.usual.std}
        counts = {name: getattr(self, name) for name in COUNTS} | {"contract": self.contract, "earlier": self.earlier}
        return {name: part.state_dict() for name, part in self._parts().items()} | arrays | counts

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        check_same(state["earlier"], self.earlier)
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        for name in ("average", "log_alpha", "stream"):
            getattr(self, name)[...] = state[name]
        self.usual = Usual(np.array(state["mean"]), np.array(state["std"]))
        for name in COUNTS:
            setattr(self, name, int(state[name]))
        self._apply()
