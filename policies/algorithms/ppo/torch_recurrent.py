"""PPO of an actor that remembers, with torch: gradients through the steps of a rollout. Any task, pictures included.

A tutor may say what it would do (DAgger, Ross et al. 2011): the actor is then also drawn towards that, on the states
that itself comes to.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from deploy.policy_file import PolicyFile
from policies.algorithms.ppo.recurrent_actor import RecurrentActor
from policies.algorithms.ppo.torch_parts import Part, Parted, Rollout, drawn, whole
from policies.algorithms.ppo.torch_path import smallest_std
from policies.algorithms.ppo.tracking_actor import TrackingActor
from policies.algorithms.ppo.tutor import Lesson, Tutor
from policies.learning.buffers import Batch, advantages
from policies.learning.encoders import Encoders, columns, kept
from policies.learning.networks import Normalizer, mlp
from policies.learning.parallel.learners import Learners
from policies.models.controller import FeaturePolicy
from policies.models.networks.feed_forward import Mlp
from policies.models.reading import network_of
from sim.randomize import Array
from sim.spec import numbers, pictures, size, slices
from sim.tasks import Task, agents_of, initial_action, tracks_of
from sim.tasks.abilities import judged
from sim.tasks.tracking import EgoMotion
from sim.vec_env import Observation
from sim.vec_world import vector_env

if TYPE_CHECKING:
    from policies.algorithms.ppo import PpoConfig

NEAR, SHARE = 0.1, 0.3  # m, m/s: errors of what is tracked count in this, and this share of its size
PIECES = 2  # of a batch that threads share
HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


class TorchRecurrent(Parted):
    """See the module."""

    state_parts = (*Parted.state_parts, "estimator")
    actor: RecurrentActor | TrackingActor
    average: RecurrentActor | TrackingActor

    def __init__(
        self,
        task: Task,
        config: PpoConfig,
        seed: int,
        device: str = "cpu",
        practised: Task | None = None,
        lesson: Lesson | None = None,
    ) -> None:
        """`practised`: the task as it is learned, if that differs from how it is measured."""
        self.task, self.config, self.device = task, config, device
        self.lesson = lesson or Lesson()
        self.learners = Learners(config.parts or 1, config.threads, PIECES if device == "cpu" else 1)
        how = device, self.learners.parts
        self.parts = [Part(practised or task, config, own, *how) for own in self.learners.seeds(seed)]
        weights = torch.Generator().manual_seed(seed)
        self.env = env = self.parts[0].env  # as all are
        actions = env.action_size
        eyes = Encoders(pictures(task.policy), config.sight, weights)
        how_wide, tracked = (eyes, env.feature_size, config.hidden), list[int]()  # columns of what is privileged
        if config.network == "tracking_gru":
            ego, motion, tracked = tracking(task)
            self.actor = TrackingActor(*how_wide, config.head, actions, weights, ego, motion).to(device)
        else:
            self.actor = RecurrentActor(*how_wide, actions, weights).to(device)
        with torch.no_grad():  # do the initial action at first
            [*self.actor.output.parameters()][-1].fill_(math.atanh(initial_action(task)))
        self.shared = 0 if task.privileged else eyes.size  # points that the critic sees, too
        seen = env.critic_size + self.shared
        self.critic = mlp([seen, *config.critic_hidden, 1], weights, config.activation).to(device)
        self.log_std = nn.Parameter(torch.full((actions,), math.log(config.initial_std), device=device))
        self.average = copy.deepcopy(self.actor).requires_grad_(False)
        self.estimated = [env.feature_size + k for k in tracked or range(size(task.privileged))]  # for the critic
        estimates = bool(self.lesson.estimate) and not tracked
        layers = [config.hidden[1], len(self.estimated)]
        self.estimator = mlp(layers, weights).to(device) if estimates else nn.Sequential()
        own = [*self.actor.parameters(), *self.estimator.parameters(), self.log_std]
        self.groups = own, [*self.critic.parameters()]
        self.learnt = [p for group in self.groups for p in group]
        self.optimizer = torch.optim.Adam(self.learnt, lr=config.learning_rate, eps=1e-5, fused=True)
        self.actor_norm = Normalizer(env.feature_size, device, smallest_std(env))
        self.critic_norm = Normalizer(seen, device)
        self.value_norm = Normalizer(1, device, kept=config.value_memory)
        for part in self.parts:
            part.state = self.actor.initial(part.env.num_envs)
        self.iterations, self.iteration = config.iterations, 0

    def begin_with(self, policy: PolicyFile, content: bytes, own: Task) -> None:
        """Begin with the network of a policy for the task `own`: it acts on what is remembered. See `TrackingActor`.

        ValueError where it has no place.
        """
        network, actor = network_of(policy, own, content), self.actor
        if not (isinstance(network, Mlp) and network.activation == "tanh" and isinstance(actor, TrackingActor)):
            raise ValueError(f"{policy.path} is no perceptron with tanh, or the student's network is no tracking_gru")
        held = slices(numbers(self.task.policy)), slices(tuple(s for s in own.policy if s.name in actor.ego.names))
        known, columns = {name: [*range(at.start, at.stop)] for name, at in held[0].items()}, list[int]()
        at = actor.features
        for name in actor.ego.names:
            width = held[1][name].stop - held[1][name].start
            known[name], at = [*range(at, at + width)], at + width
        for signal in own.policy:
            if signal.name not in known:
                raise ValueError(f"{policy.path} sees {signal.name!r}, which the student neither senses nor tracks")
            columns += known[signal.name]
        where = slices(self.task.commands)
        actions = [k for s in own.commands for k in range(where[s.name].start, where[s.name].stop)]
        actors = [one for one in (actor, self.average) if isinstance(one, TrackingActor)]
        for each in actors:
            each.begin_with(network.layers, columns, actions)

    def hear(self, tutor: Callable[[int], Tutor]) -> None:
        """Learn from one, who is made for a number of rows."""
        for part in self.parts:
            part.tutor = tutor(part.env.num_envs)

    @property
    def tutor(self) -> Tutor | None:
        """Of the first of my parts."""
        return self.parts[0].tutor

    def _seen(self, x: Tensor) -> Tensor:
        """What the actor is given of features (..., f): normalised, and for one that tracks once more as they are."""
        seen: Tensor = self.actor_norm(x)
        return torch.cat([seen, x], -1) if isinstance(self.actor, TrackingActor) else seen

    @property
    def taught(self) -> Tensor:
        """Which actions (k,) the tutor knows of."""
        known = torch.zeros(self.env.action_size, dtype=torch.bool, device=self.device)
        if self.tutor:
            known[self.tutor.columns] = True
        return known

    @torch.no_grad()
    def evaluate(self, episodes: int, seed: int) -> dict[str, Array]:
        """The task's scores (episodes x agents,) of the policy without exploration, on starts of their own."""
        env = vector_env(judged(self.task), episodes * agents_of(self.task), seed, self.device)
        state = self.actor.initial(env.num_envs)

        def act(observation: Observation) -> Tensor:
            nonlocal state
            seen = self._seen(env.features(observation))
            action: Tensor
            action, state = self.average(seen, observation["pictures"], state)
            return action

        return env.fly(act)

    @torch.no_grad()
    def _collect(self) -> tuple[list[Batch], dict[str, float]]:
        """One rollout (T, n, .) of each of my parts, and what all say about the episodes that ended."""
        flown = [self._flown(part) for part in self.parts]
        if self.iteration == 0:  # at the start all is at rest, which tells nothing of what is usual
            self._learn_scales([(part.buffer["x"], part.buffer["c"]) for part in self.parts])
        made = [self._valued(part, *told[:-1]) for part, told in zip(self.parts, flown, strict=True)]
        known = whole(self.learners, made)
        self._rescale_value(known.target)
        metrics = known.metrics
        if self.tutor:
            apart = self.learners.all([one[-1] for one in flown]).mean()
            metrics["imitation_error"] = float(apart) / self.config.rollout_steps / len(self.tutor.columns)
        normal = [(one.data["advantage"] - known.mean) / (known.std + 1e-8) for one in made]
        return [{**one.data, "advantage": value} for one, value in zip(made, normal, strict=True)], metrics

    def _flown(self, part: Part) -> tuple[Tensor, list[Tensor], list[tuple[int, Tensor, Tensor]], Tensor]:
        """Of one part: the state before, what it says of episodes that ended, (t, rows, seen) at time limits; and the
        squared differences from its tutor, a mean over rows, summed over steps.
        """
        env, buffer, config = part.env, part.buffer, self.config
        buffer.clear()
        std, fresh, before = self.log_std.exp(), math.sqrt(1.0 - config.correlation**2), part.state
        ended: list[Tensor] = []
        bootstraps: list[tuple[int, Tensor, Tensor]] = []
        apart, taught, guided = torch.zeros((), device=self.device), self.taught, self._guided(env.num_envs)
        for _ in range(config.rollout_steps):
            x, c, shown = env.features(env.observation), self._judged(env.observation), env.observation["pictures"]
            mean, state = self._acted(x, shown, part.state)
            random = torch.randn(mean.shape, generator=part.generator, device=self.device)
            part.wander = config.correlation * part.wander + fresh * random
            action, wanted, error = mean + std * part.wander, torch.zeros_like(mean), torch.zeros(())
            if part.tutor:
                seen = {**env.observation["policy"], **env.observation["privileged"]}
                told = part.tutor.act({name: value.cpu().numpy() for name, value in seen.items()})
                wanted[:, part.tutor.columns] = torch.from_numpy(told).to(self.device)
                action = torch.where(guided[:, None] & taught, wanted + std * part.wander, action)
                error = ((mean - wanted).square() * taught).sum(-1)
                apart += error.mean()
            log_prob = _log_probs(action, mean, self.log_std)
            step = env.step(action)
            reward = step.reward - self.lesson.reward * error
            goes_on = (~step.done).float()
            part.state = state * goes_on[:, None]
            outcome = {"reward": reward, "lost": step.terminated, "done": step.done, "goes_on": goes_on}
            buffer.add(x=x, c=c, action=action, log_prob=log_prob, wanted=wanted, **outcome, **columns(shown))
            if bool(step.done.any()):
                ended.append(torch.stack((step.info["episode_return"], step.info["episode_length"]), -1)[step.done])
                rows = step.truncated.nonzero()[:, 0]
                bootstraps.append((buffer.filled - 1, rows, self._judged(step.final_observation)[rows]))
                if part.tutor:
                    part.tutor.begin(step.done.cpu().numpy())
        return before, ended, bootstraps, apart

    def _valued(
        self, part: Part, before: Tensor, ended: list[Tensor], bootstraps: list[tuple[int, Tensor, Tensor]]
    ) -> Rollout:
        """What was flown, with what the critic thinks of it."""
        env, buffer, config = part.env, part.buffer, self.config
        value = self.value(buffer["c"])
        next_value = torch.cat((value[1:], self.value(self._judged(env.observation))[None]))
        for t, rows, c in bootstraps:  # out of time is not out of value
            next_value[t, rows] = self.value(c)
        gamma, decay = config.discount(self.done), config.gae_lambda
        advantage = advantages(buffer["reward"], value, next_value, buffer["lost"], buffer["done"], gamma, decay)
        names = ("x", "c", "action", "log_prob", "wanted", "goes_on", *columns(env.observation["pictures"]))
        data = {name: buffer[name] for name in names} | {"advantage": advantage, "target": value + advantage}
        everywhere = torch.ones_like(buffer["done"])
        return Rollout({**data, "before": before[None]}, buffer["reward"], everywhere, ended)

    def _acted(self, x: Tensor, shown: Mapping[str, Tensor], before: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (n, k) without exploration, and the next state (n, .)."""
        seen, rows = self._seen(x), torch.arange(len(x), device=self.device).chunk(self.learners.pieces)

        def one(piece: int) -> tuple[Tensor, Tensor]:
            some = rows[piece]
            with torch.no_grad():
                made: tuple[Tensor, Tensor] = self.actor(
                    seen[some], {name: value[some] for name, value in shown.items()}, before[some]
                )
            return made

        actions, states = zip(*self.learners.map(one, len(rows)), strict=True)
        return torch.cat(actions), torch.cat(states)

    def _guided(self, rows: int) -> Tensor:
        """In which of so many rows (n,) the tutor acts: the first ones, fewer and fewer."""
        return torch.arange(rows, device=self.device) < round(self.lesson.guided_share(self.done) * rows)

    def _update(self, data: list[Batch]) -> dict[str, float]:
        """Several passes of minibatch gradient steps over one rollout; a minibatch are all steps of some rows."""
        config, known = self.config, [(batch["x"], batch["c"]) for batch in data]
        data = [
            {
                **batch,
                "x": self._seen(batch["x"]),
                "c": self.critic_norm(batch["c"]),
                "target": self.value_norm(batch["target"][..., None]).squeeze(-1),
            }
            for batch in data
        ]
        many = self.env.num_envs
        for _ in range(config.epochs):
            orders = [torch.randperm(many, generator=part.generator, device=self.device) for part in self.parts]
            for k in range(config.minibatches):
                if not (size := drawn([many], config.minibatches, k)[0]):
                    break
                rows = [order.chunk(config.minibatches)[k] for order in orders]
                chosen = [{name: v[:, at] for name, v in one.items()} for one, at in zip(data, rows, strict=True)]
                metrics = self._gradient_step(chosen, size)
        self.learners.agree(self.learnt)
        self._learn_scales(known)
        return {name: float(value) for name, value in metrics.items()}

    def _gradient_step(self, batches: list[Batch], size: int) -> dict[str, Tensor]:
        """On my parts of a minibatch, which has so many rows of each part."""
        pieces = torch.arange(size, device=self.device).tensor_split(self.learners.pieces)

        def loss(place: int, piece: int) -> tuple[Tensor, dict[str, Tensor]]:
            some, share = pieces[piece], len(pieces[piece]) / (size * self.learners.parts)
            if not len(some):  # one row is in one piece
                return self._loss({name: v[:, :1] for name, v in batches[place].items()}, 0.0)
            return self._loss({name: values[:, some] for name, values in batches[place].items()}, share)

        metrics = self.learners.gradient(loss, self.learnt)
        if self.done < self.lesson.held:  # what is inherited stays, while the memory learns to tell it the truth
            *inner, weight, bias = (p.grad for p in self.actor.output.parameters() if p.grad is not None)
            for gradient in inner:
                gradient.zero_()
            for gradient in (weight, bias):
                gradient[self.taught] = 0.0
        for group in self.groups:
            nn.utils.clip_grad_norm_(group, self.config.gradient_clip)
        self.optimizer.step()
        with torch.no_grad():
            self.log_std.clamp_(min=math.log(self.config.min_std))
        return {**metrics, "std": self.log_std.detach().exp().mean()}

    def _loss(self, batch: Batch, share: float) -> tuple[Tensor, dict[str, Tensor]]:
        """Of some rows, all their steps, which are that share of a minibatch; and what is shown of it."""
        config, taught = self.config, self.taught
        states = self.actor.through(batch["x"], kept(batch), batch["before"][0], batch["goes_on"])
        mean = self.actor.act(batch["x"], states)
        # While it is taught, what the tutor knows is not also learned by trial.
        tried = ~taught if self.lesson.taught(self.done) else torch.ones_like(taught)
        log_prob = _log_probs(batch["action"], mean, self.log_std)
        change = ((log_prob - batch["log_prob"]) * tried).sum(-1)
        ratio = change.exp()
        clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
        policy_loss = -torch.min(ratio * batch["advantage"], clipped * batch["advantage"]).mean()
        value_loss = (self.critic(batch["c"]).squeeze(-1) - batch["target"]).square().mean()
        # The divergence from a tutor with a fixed deviation, but for a constant.
        apart = self.lesson.weight(self.done) * ((mean - batch["wanted"]).square() * taught).sum(-1).mean()
        loss = policy_loss + value_loss + apart - config.entropy * self.log_std.sum()
        shown = {"value_loss": value_loss, "kl": (ratio - 1.0 - change).mean()}
        if self.lesson.estimate:
            shown["estimation_error"] = self._estimation_error(states, batch["c"])
            loss = loss + self.lesson.estimate * shown["estimation_error"]
        return loss * share, {name: value.detach() * share for name, value in {"loss": loss, **shown}.items()}

    def _estimation_error(self, states: Tensor, judged: Tensor) -> Tensor:
        """How wrong the memory (..., .) is about what is privileged; `judged` is what the critic sees, normalised.

        Who tracks has to know best what is near: errors count in shares of the distance, and of a tenth of a metre.
        """
        known, norm = judged[..., self.estimated], self.critic_norm
        if not isinstance(self.actor, TrackingActor):
            return functional.huber_loss(self.estimator(states), known)
        true = known * norm.std[self.estimated] + norm.shift[self.estimated]
        apart = self.actor.tracked(states) - true
        length = true.unflatten(-1, (-1, 2)).norm(dim=-1, keepdim=True).expand(*true.shape[:-1], -1, 2).flatten(-2)
        relative = apart / (NEAR + SHARE * length)
        return functional.huber_loss(relative, torch.zeros_like(relative))

    def controller(self) -> FeaturePolicy:
        """The policy without exploration, its normaliser folded into the first layer."""
        network, eyes = self.average.exported(self.actor_norm), self.average.encoders
        return FeaturePolicy.from_task(self.task, network, encoders=eyes.exported())


def tracking(task: Task) -> tuple[EgoMotion, list[int], list[int]]:
    """What can be remembered of a task: how, the columns of its features that say how it moves, and of its privileged
    signals those that are remembered. ValueError when it declares nothing.
    """
    own = tracks_of(task)
    sizes = {s.name: s.size for s in task.privileged}
    ego = EgoMotion(own.tracks, sizes, 1.0 / task.rate_hz)
    where, seen = slices(task.privileged), slices(numbers(task.policy))
    motion = [k for name in own.ego_motion for k in range(seen[name].start, seen[name].stop)]
    return ego, motion, [k for name in ego.names for k in range(where[name].start, where[name].stop)]


def _log_probs(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log density of each of the actions (..., k)."""
    z = (action - mean) * torch.exp(-log_std)
    return -0.5 * z * z - log_std - HALF_LOG_TAU
