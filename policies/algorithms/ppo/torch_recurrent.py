"""PPO of an actor that remembers, with torch: gradients through the steps of a rollout. Any task, pictures included.

A tutor may say what it would do (DAgger, Ross et al. 2011): the actor is then also drawn towards that, on the states
that itself comes to.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from deploy.policy_file import PolicyFile
from policies.algorithms.ppo.recurrent_actor import RecurrentActor
from policies.algorithms.ppo.torch_path import smallest_std
from policies.algorithms.ppo.tracking_actor import TrackingActor
from policies.algorithms.ppo.tutor import Lesson, Tutor
from policies.learning.buffers import Batch, RolloutBuffer, advantages
from policies.learning.encoders import Encoders, columns, kept
from policies.learning.networks import Normalizer, Stateful, mlp
from policies.learning.parallel.threads import TorchThreads
from policies.models.controller import FeaturePolicy
from policies.models.networks.feed_forward import Mlp
from policies.models.reading import network_of
from sim.randomize import Array
from sim.spec import numbers, pictures, size, slices
from sim.tasks import Task, agents_of, initial_action, tracks_of
from sim.tasks.tracking import EgoMotion
from sim.vec_env import Observation
from sim.vec_world import vector_env

if TYPE_CHECKING:
    from policies.algorithms.ppo import PpoConfig

NEAR, SHARE = 0.1, 0.3  # m, m/s: errors of what is tracked count in this, and this share of its size
PARTS = 2  # of a batch that threads share
HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


class TorchRecurrent(Stateful):
    """See the module."""

    state_parts = (
        *("env", "actor", "average", "estimator", "critic", "optimizer"),
        *("actor_norm", "critic_norm", "value_norm"),
    )
    state_values = ("iteration",)

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
        self.tutor: Tutor | None = None
        self.lesson = lesson or Lesson()
        how = config.num_envs, seed, device, config.length_shares(0.0), config.easy
        self.env = vector_env(practised or task, *how, workers=config.workers)
        self.generator, weights = torch.Generator(device).manual_seed(seed), torch.Generator().manual_seed(seed)
        env, actions = self.env, self.env.action_size
        eyes = Encoders(pictures(task.policy), config.sight, weights)
        how_wide, tracked = (eyes, env.feature_size, config.hidden), list[int]()  # columns of what is privileged
        self.actor: RecurrentActor | TrackingActor
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
        parameters = [p for group in self.groups for p in group]
        self.optimizer = torch.optim.Adam(parameters, lr=config.learning_rate, eps=1e-5, fused=True)
        self.actor_norm = Normalizer(env.feature_size, device, smallest_std(env))
        self.critic_norm = Normalizer(seen, device)
        self.value_norm = Normalizer(1, device, kept=config.value_memory)
        self.wander = torch.zeros((config.num_envs, actions), device=device)  # what was explored last
        self.state = self.actor.initial(config.num_envs)
        self.buffer = RolloutBuffer(config.rollout_steps)
        self.threads, self.parts = TorchThreads(config.threads), PARTS if device == "cpu" else 1
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

    def _learn_scales(self, x: Tensor, c: Tensor) -> None:
        """What is usual of what actor and critic see."""
        self.actor_norm.update(x)
        self.critic_norm.update(c)

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

    @property
    def done(self) -> float:
        """The share of the training."""
        return self.iteration / self.iterations

    def learn(self) -> Iterator[dict[str, float]]:
        """Train to the end of the budget; one yield per rollout and its update."""
        every = self.config.evaluate_every
        while self.iteration < self.iterations:
            self._set_schedule()
            data, metrics = self._collect()
            metrics |= self._update(data)
            self.iteration += 1
            share = self.config.averages(self.iteration)
            torch._foreach_lerp_([*self.average.parameters()], [*self.actor.parameters()], share)
            metrics["progress"] = self.done
            metrics |= {"env_steps": float(self.env.total_steps), **self.env.worker_metrics()}
            if self.iteration == self.iterations or (every and self.iteration % every == 0):
                scores = self.evaluate(self.config.evaluation_episodes, seed=self.iteration)
                metrics["success"] = float(scores["success"].mean())
            yield metrics

    def _set_schedule(self) -> None:
        self.env.easy, self.env.lengths = self.config.easy_share(self.done), self.config.length_shares(self.done)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.rate(self.done)

    @torch.no_grad()
    def _judged(self, observation: Observation) -> Tensor:
        """What the critic sees (n, .)."""
        seen = self.env.critic_features(observation)
        return torch.cat([seen, self.actor.encoders(observation["pictures"])], -1) if self.shared else seen

    def value(self, critic_features: Tensor) -> Tensor:
        """The critic's estimate (...,) of the discounted sum of rewards."""
        return self.value_norm.invert(self.critic(self.critic_norm(critic_features))).squeeze(-1)

    @torch.no_grad()
    def evaluate(self, episodes: int, seed: int) -> dict[str, Array]:
        """The task's scores (episodes x agents,) of the policy without exploration, on starts of their own."""
        env = vector_env(self.task, episodes * agents_of(self.task), seed, self.device)
        state = self.actor.initial(env.num_envs)

        def act(observation: Observation) -> Tensor:
            nonlocal state
            seen = self._seen(env.features(observation))
            action: Tensor
            action, state = self.average(seen, observation["pictures"], state)
            return action

        return env.fly(act)

    @torch.no_grad()
    def _collect(self) -> tuple[Batch, dict[str, float]]:
        """One rollout (T, n, .), and what it says about the episodes that ended."""
        env, buffer, config = self.env, self.buffer, self.config
        buffer.clear()
        std, fresh, before = self.log_std.exp(), math.sqrt(1.0 - config.correlation**2), self.state
        ended: list[Tensor] = []
        bootstraps: list[tuple[int, Tensor, Tensor]] = []
        apart, taught = torch.zeros(()), self.taught
        for _ in range(config.rollout_steps):
            x, c, shown = env.features(env.observation), self._judged(env.observation), env.observation["pictures"]
            mean, state = self._acted(x, shown)
            drawn = torch.randn(mean.shape, generator=self.generator, device=self.device)
            self.wander = config.correlation * self.wander + fresh * drawn
            action, wanted, error = mean + std * self.wander, torch.zeros_like(mean), torch.zeros(())
            if self.tutor:
                seen = {**env.observation["policy"], **env.observation["privileged"]}
                told = self.tutor.act({name: value.cpu().numpy() for name, value in seen.items()})
                wanted[:, self.tutor.columns] = torch.from_numpy(told).to(self.device)
                action = torch.where(self._guided()[:, None] & taught, wanted + std * self.wander, action)
                error = ((mean - wanted).square() * taught).sum(-1)
                apart += error.mean()
            log_prob = _log_probs(action, mean, self.log_std)
            step = env.step(action)
            reward = step.reward - self.lesson.reward * error
            goes_on = (~step.done).float()
            self.state = state * goes_on[:, None]
            outcome = {"reward": reward, "lost": step.terminated, "done": step.done, "goes_on": goes_on}
            buffer.add(x=x, c=c, action=action, log_prob=log_prob, wanted=wanted, **outcome, **columns(shown))
            if bool(step.done.any()):
                ended.append(torch.stack((step.info["episode_return"], step.info["episode_length"]), -1)[step.done])
                rows = step.truncated.nonzero()[:, 0]
                bootstraps.append((buffer.filled - 1, rows, self._judged(step.final_observation)[rows]))
                if self.tutor:
                    self.tutor.begin(step.done.cpu().numpy())
        if self.iteration == 0:  # at the start all is at rest, which tells nothing of what is usual
            self._learn_scales(buffer["x"], buffer["c"])
        value = self.value(buffer["c"])
        next_value = torch.cat((value[1:], self.value(self._judged(env.observation))[None]))
        for t, rows, c in bootstraps:  # out of time is not out of value
            next_value[t, rows] = self.value(c)
        gamma, decay = config.discount(self.done), config.gae_lambda
        advantage = advantages(buffer["reward"], value, next_value, buffer["lost"], buffer["done"], gamma, decay)
        target = value + advantage
        self._rescale_value(target[..., None])
        normal = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        names = ("x", "c", "action", "log_prob", "wanted", "goes_on", *columns(shown))
        data = {name: buffer[name] for name in names} | {"advantage": normal, "target": target}
        metrics = {"reward": float(buffer["reward"].mean())}
        if self.tutor:
            metrics["imitation_error"] = float(apart / config.rollout_steps / len(self.tutor.columns))
        if ended:
            mean_return, mean_length = torch.cat(ended).mean(0).tolist()
            metrics |= {"episode_return": mean_return, "episode_length": mean_length}
        return {**data, "before": before[None]}, metrics

    def _acted(self, x: Tensor, shown: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Actions (n, k) without exploration, and the next state (n, .)."""
        seen, rows = self._seen(x), torch.arange(len(x), device=self.device).chunk(self.parts)

        def one(part: int) -> tuple[Tensor, Tensor]:
            some = rows[part]
            with torch.no_grad():
                made: tuple[Tensor, Tensor] = self.actor(
                    seen[some], {name: value[some] for name, value in shown.items()}, self.state[some]
                )
            return made

        actions, states = zip(*self.threads.map(one, len(rows)), strict=True)
        return torch.cat(actions), torch.cat(states)

    def _guided(self) -> Tensor:
        """In which rows (n,) the tutor acts: the first ones, fewer and fewer."""
        count = round(self.lesson.guided_share(self.done) * self.config.num_envs)
        return torch.arange(self.config.num_envs, device=self.device) < count

    @torch.no_grad()
    def _rescale_value(self, target: Tensor) -> None:
        """What is usual of the value, and the last layer so that it says the same (PopArt, van Hasselt et al. 2016)."""
        norm, (weight, bias) = self.value_norm, [*self.critic.parameters()][-2:]
        shift, std = norm.shift.clone(), norm.std.clone()
        norm.update(target)
        weight.mul_(std / norm.std)
        bias.copy_((std * bias + shift - norm.shift) / norm.std)

    def _update(self, data: Batch) -> dict[str, float]:
        """Several passes of minibatch gradient steps over one rollout; a minibatch are all steps of some rows."""
        config = self.config
        x, c = data["x"], data["c"]
        target = self.value_norm(data["target"][..., None]).squeeze(-1)
        data = {**data, "x": self._seen(x), "c": self.critic_norm(c), "target": target}
        for _ in range(config.epochs):
            order = torch.randperm(config.num_envs, generator=self.generator, device=self.device)
            for rows in order.chunk(config.minibatches):
                metrics = self._gradient_step({name: values[:, rows] for name, values in data.items()})
        self._learn_scales(x, c)
        return {name: float(value) for name, value in metrics.items()}

    def _gradient_step(self, batch: Batch) -> dict[str, Tensor]:
        rows = torch.arange(len(batch["before"][0]), device=self.device).chunk(self.parts)

        def loss(part: int) -> tuple[Tensor, dict[str, Tensor]]:
            return self._loss({name: values[:, rows[part]] for name, values in batch.items()})

        shown = self.threads.gradient(loss, [p for group in self.groups for p in group], len(rows))
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
        metrics = {name: torch.stack([part[name] for part in shown]).mean() for name in shown[0]}
        return {**metrics, "std": self.log_std.detach().exp().mean()}

    def _loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Of some rows, all their steps; and what is shown of it."""
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
        return loss, {"loss": loss.detach(), **{name: value.detach() for name, value in shown.items()}}

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

    def dump_to(self, folder: Path) -> None:
        self.env.dump_dir = folder

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next iterations depend on."""
        drawn = {"log_std": self.log_std.detach().clone(), "generator": self.generator.get_state()}
        now = {"wander": self.wander.clone(), "state": self.state.clone()}
        return super().state_dict() | drawn | now | {"tutor": self.tutor.state_dict() if self.tutor else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of the same task and settings."""
        super().load_state_dict(state)
        with torch.no_grad():
            self.log_std.copy_(torch.as_tensor(state["log_std"], device=self.device))
        self.wander = torch.as_tensor(state["wander"], device=self.device).clone()
        self.state = torch.as_tensor(state["state"], device=self.device).clone()
        if self.tutor:
            self.tutor.load_state_dict(state["tutor"])
        self.generator.set_state(torch.as_tensor(state["generator"], dtype=torch.uint8).cpu())


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
