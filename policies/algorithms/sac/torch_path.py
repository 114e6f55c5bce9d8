"""SAC: soft actor-critic (Haarnoja et al. 2018), off-policy, with an asymmetric ensemble of critics; TD3 as a setting.

The critics see the noise-free features and the privileged signals. Many critics, layer norm, a high number of updates
and prior data make it RLPD (Ball et al. 2023): give another learner's `buffer` as `sac.buffer.prior`. The buffer holds
unweighted reward terms, so that under a curriculum old experience is always judged by the current weights.

Of pictures the actor sees the points that it learns to find in them, moved at random while it learns (DrQ, Yarats et
al. 2021); the critics see these only where nothing is privileged, and do not train the encoder.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from policies.algorithms.sac.earlier import check_same, contract, digest, read
from policies.algorithms.sac.earlier_torch import replay
from policies.algorithms.sac.scales import normalizers, renormalised
from policies.learning.buffers import Batch, ReplayBuffer, weighted_reward
from policies.learning.encoders import SHARP, Encoders, PictureActor, columns, kept
from policies.learning.fused.moments import smallest_std
from policies.learning.fused.squashed import LOG_STD
from policies.learning.networks import Ensemble, Normalizer, Stateful, linear_layers, mlp, squashed_sample
from policies.learning.parallel.learners import Learners
from policies.models.controller import FeaturePolicy
from policies.models.networks import Network
from policies.models.networks.feed_forward import Mlp
from sim.randomize import Array
from sim.spec import pictures
from sim.tasks import Task, agents_of, initial_action
from sim.tasks.abilities import judged
from sim.vec_env import Observation
from sim.vec_world import vector_env

if TYPE_CHECKING:
    from policies.algorithms.sac import SacConfig

Loss = Callable[[Batch], tuple[Tensor, Batch]]
Part = tuple[Batch, float]  # of a batch, and its share of it


class TorchPath(Stateful):
    """The path through torch."""

    state_parts: tuple[str, ...] = (
        *("env", "actor", "average", "target_actor", "critic", "target_critic", "buffer"),
        *("actor_optimizer", "critic_optimizer", "alpha_optimizer"),
        *("seen_norm", "critic_norm", "action_norm", "recent_critic", "recent_action"),
    )
    state_values: tuple[str, ...] = ("iteration", "gradient_steps", "adapted", "last_noise")

    def __init__(self, task: Task, config: SacConfig, seed: int, device: str = "cpu") -> None:
        self.task, self.config, self.device = task, config, device
        self.learners = Learners(config.parts or 1)
        shortest, longest = config.lengths
        lengths, own = (shortest, longest), (config.linger, config.success_reward)
        self.env = vector_env(self.task, config.num_envs, seed, device, lengths, config.easy, *own, config.workers)
        self.generator = torch.Generator(device).manual_seed(seed)
        weights = torch.Generator().manual_seed(seed)
        self.actor, self.target_actor = self._make_actor(weights), self._make_actor(weights)
        self.shared = 0 if task.privileged else self.actor.encoders.size  # points that the critics see, too
        self.critic, self.target_critic = self._make_critic(weights), self._make_critic(weights)
        self.target_actor.load_state_dict(self.actor.state_dict())
        self.target_critic.load_state_dict(self.critic.state_dict())
        self.log_alpha = nn.Parameter(torch.tensor(math.log(config.initial_alpha), device=device))
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), config.learning_rate, fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), config.learning_rate, fused=True)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], config.learning_rate, fused=True)
        self.average = copy.deepcopy(self.actor)  # which is kept
        smallest = torch.from_numpy(smallest_std(task)).float().to(device)
        self.seen_norm = Normalizer(self.env.feature_size, device, smallest)  # fixed after the warm-up
        self.critic_norm, self.action_norm = self._normalizers()
        self.recent_critic, self.recent_action = self._normalizers()
        self.adapted = 0  # after how many steps
        self.last_noise = torch.zeros((config.num_envs, self.env.action_size), device=device)
        n = config.num_envs
        self.contract, self.earlier, prior = contract(task, config), list[str](), None
        for run in reversed(config.earlier):
            state = read(run, "torch", self.contract)
            prior = self._earlier(run, state, prior)
            self.earlier.insert(0, digest(state["data"]))
        self.buffer = ReplayBuffer(min(config.capacity, config.total_steps) // n * n, prior, config.earlier_share)
        self.iterations = config.total_steps // n
        self.iteration = 0
        self.gradient_steps = 0

    def _earlier(self, run: str, state: Mapping[str, Any], others: ReplayBuffer | None) -> ReplayBuffer:
        """See `policies.algorithms.sac.earlier_torch`."""
        return replay(run, state, others, self.task, self.env, self.device)

    def _make_actor(self, weights: torch.Generator) -> PictureActor:
        """Features to the actions before squashing and, unless deterministic, their log standard deviations."""
        config, actions = self.config, self.env.action_size
        outputs = actions if config.deterministic else 2 * actions
        eyes = Encoders(pictures(self.task.policy), config.sight, weights, SHARP)
        layers = [self.env.feature_size + eyes.size, *config.hidden, outputs]
        actor = PictureActor(eyes, mlp(layers, weights, config.activation, 0.01))
        with torch.no_grad():
            bias = list(actor.parameters())[-1]
            bias.fill_(math.log(config.initial_std))
            bias[:actions] = math.atanh(initial_action(self.task))  # fly the initial action at first
        return actor.to(self.device)

    def _make_critic(self, weights: torch.Generator) -> Ensemble:
        config = self.config
        sizes = [self.env.critic_size + self.shared + self.env.action_size, *config.critic_hidden]
        return Ensemble(config.critics, sizes, weights, config.layer_norm).to(self.device)

    def _normalizers(self) -> tuple[Normalizer, Normalizer]:
        """Of what the critics see, and of actions."""
        return normalizers(self.task, self.env, self.device)

    def _adapt(self) -> None:
        """Normalise what the critics see by what has been usual since this was done last; they say the same."""
        self.adapted, size = self.env.total_steps, self.env.critic_size
        last = self.critic.weights[0].shape[1] - self.env.action_size
        seen = slice(0, size), self.critic_norm, self.recent_critic
        done = slice(last, None), self.action_norm, self.recent_action
        renormalised((self.critic, self.target_critic), self.critic_optimizer, (seen, done))
        self.critic_norm, self.action_norm = self.recent_critic, self.recent_action
        self.recent_critic, self.recent_action = self._normalizers()

    def learn(self) -> Iterator[dict[str, float]]:
        """Train to the end of the budget; a yield every `report_every` control steps."""
        config = self.config
        metrics: dict[str, Any] = {}
        while self.learners.more(self.iteration < self.iterations):
            metrics["reward"] = self._act()
            self.iteration += 1
            if self.env.total_steps > config.warmup_steps:
                self._set_schedule()
                for _ in range(config.updates_per_step):
                    metrics |= self._update()
            follow(self.average, self.actor, config.averages(self.iteration))
            last = self.iteration == self.iterations
            if last or self.iteration % config.report_every == 0:
                self._agree()
                metrics["progress"] = self.iteration / self.iterations
                metrics |= {"env_steps": float(self.env.total_steps), **self.env.worker_metrics()}
                due = last or self.iteration % (config.evaluate_every or 10 * config.report_every) == 0
                if due and self.learners.first:
                    scores = self.evaluate(config.evaluation_episodes, seed=self.iteration)
                    metrics["success"] = float(scores["success"].mean())
                yield {name: float(value) for name, value in metrics.items()}
                metrics = {}

    def _agree(self) -> None:
        """LostLearnerError unless all learners have the same weights, and their worlds did the same."""
        usual = (self.seen_norm, self.critic_norm, self.recent_critic, self.recent_action)
        weights = *self.actor.parameters(), *self.critic.parameters(), self.log_alpha
        self.learners.agree([*weights, *(norm.mean for norm in usual)])

    def mean(self, features: Tensor, shown: Mapping[str, Tensor]) -> Tensor:
        """The actions (n, k) of the actor without exploration."""
        return torch.tanh(self.actor(self.seen_norm(features), shown)[:, : self.env.action_size])

    def kept(self, features: Tensor, shown: Mapping[str, Tensor]) -> Tensor:
        """Those of the average, which is kept."""
        return torch.tanh(self.average(self.seen_norm(features), shown)[:, : self.env.action_size])

    @torch.no_grad()
    def _judged(self, c: Tensor, shown: Mapping[str, Tensor]) -> Tensor:
        """What the critics see (b, .), beside actions."""
        seen = self.critic_norm(c)
        return torch.cat([seen, self.actor.encoders(shown)], -1) if self.shared else seen

    @torch.no_grad()
    def evaluate(self, episodes: int, seed: int) -> dict[str, Array]:
        """The task's scores (episodes x agents,) of the policy without exploration, on starts of their own."""
        env = vector_env(judged(self.task), episodes * agents_of(self.task), seed, self.device)
        return env.fly(lambda seen: self._told(x := env.features(seen), self.kept(x, seen["pictures"])))

    def _told(self, x: Tensor, action: Tensor) -> Tensor:
        """What the environment is told (n, k) when the actor, seeing x, chooses this."""
        return action

    def _noise(self, shape: torch.Size) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device)

    def _sample(self, features: Tensor, shown: Mapping[str, Tensor], noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (n, k) of the stochastic policy and their log density (n,)."""
        mean, log_std = self.actor(self.seen_norm(features), shown).chunk(2, -1)
        return squashed_sample(mean, log_std.clamp(*LOG_STD), noise)

    def _exploration(self) -> Tensor:
        """Standard normal numbers (n, k), correlated with the last ones."""
        keeps = self.config.correlation
        self.last_noise = keeps * self.last_noise + math.sqrt(1.0 - keeps**2) * self._noise(self.last_noise.shape)
        return self.last_noise

    def _valued(self, c: Tensor, action: Tensor) -> Tensor:
        """What critics take, (b, .)."""
        return torch.cat((c, self.action_norm(action)), -1)

    @torch.no_grad()
    def _act(self) -> float:
        """One control step of all environments into the buffer; returns the mean reward."""
        env, config = self.env, self.config
        x, c, shown = env.features(env.observation), env.critic_features(env.observation), env.observation["pictures"]
        if config.deterministic:
            action = self.mean(x, shown)
            action = (action + config.exploration * self._exploration()).clamp(-1.0, 1.0)
        else:
            action = self._sample(x, shown, self._exploration())[0]
        before, step = env.observation, env.step(self._told(x, action))
        final = step.final_observation
        made = {
            "x": x,
            "c": c,
            "action": action,
            "terms": torch.stack(list(step.reward_terms.values()), -1),
            "next_x": env.features(final),
            "next_c": env.critic_features(final),
            "lost": step.terminated,
            "done": step.done,
            **columns(shown),
            **columns(final["pictures"], "next_"),
        }
        self._keep(before, made)
        self._learn_scales(x, c, action)
        return float(step.reward.mean())

    def _learn_scales(self, x: Tensor, c: Tensor, action: Tensor) -> None:
        """What is usual of what actor and critics were just told, by which they normalise."""
        if self.env.total_steps <= self.config.warmup_steps or self.iteration == 0:
            self.seen_norm.update(x)
        self.recent_critic.update(c)
        self.recent_action.update(action)
        if self.env.total_steps >= 2 * self.adapted:
            self._adapt()

    def _keep(self, before: Observation, made: Batch) -> None:
        """Put into the buffer what was made of what could be seen before."""
        self.buffer.add(**made)

    def _reward(self, batch: Batch) -> Tensor:
        """What the transitions of a batch are worth now (b,)."""
        weights = self.env.reward_weights()
        return weighted_reward(
            batch["terms"], torch.tensor([weights[name] for name in self.env.term_names], device=self.device)
        )

    def _importance(self, batch: Batch) -> Tensor | float:
        """How much the transitions of a batch count in the critics' loss (b,)."""
        return 1.0

    def _critic_regulariser(self, batch: Batch, values: Tensor) -> Tensor | float:
        """What else the critics should mind, whose values (count, b) of the batch these are."""
        return 0.0

    def _actor_regulariser(self, batch: Batch) -> Tensor | float:
        """What else the actor should mind."""
        return 0.0

    def _update(self) -> dict[str, Tensor]:
        """One gradient step of the critics, now and then one of the actor; then the targets follow.

        Each learner draws the whole batch, and all random numbers for it; the gradients are of the rows of its parts.
        """
        config = self.config
        batch = self.buffer.sample(config.batch_size, self.generator, config.n_step, config.gamma)
        batch["reward"] = config.reward_scale * self._reward(batch)
        for when in ("", "next_"):
            batch |= columns(self.actor.encoders.moved(kept(batch, when), self.generator), when)
        batch["next_noise"] = self._noise(batch["action"].shape)
        some: Tensor | None = None  # of the targets; all
        if config.target_critics < config.critics:
            some = torch.randperm(config.critics, generator=self.generator, device=self.device)[: config.target_critics]
        parts = [self.learners.cut(batch, place) for place in range(len(self.learners.mine))]
        for part, _ in parts:
            for when in ("", "next_"):
                part[f"{when}c"] = self._judged(part[f"{when}c"], kept(part, when))
        metrics = self._step(self.critic_optimizer, self.critic, lambda part: self._critic_loss(part, some), parts)
        self.gradient_steps += 1
        if self.gradient_steps % config.actor_every == 0:
            metrics |= self._update_actor(parts)
        follow(self.target_critic, self.critic, config.tau)
        if config.deterministic:
            follow(self.target_actor, self.actor, config.tau)
        return metrics

    def _step(self, optimizer: torch.optim.Optimizer, network: nn.Module, loss: Loss, parts: list[Part]) -> Batch:
        """One step of all learners down the mean of that loss over a batch, of which mine are these parts."""

        def own(place: int, _: int) -> tuple[Tensor, Batch]:
            part, share = parts[place]
            value, more = loss(part)
            return value * share, {name: shown * share for name, shown in more.items()}

        told = self.learners.gradient(own, [*network.parameters()])
        optimizer.step()
        return told

    def _critic_loss(self, batch: Batch, some: Tensor | None) -> tuple[Tensor, Batch]:
        """Of the critics, whose targets are those of `some`; and what is shown of it."""
        target = batch["reward"] + batch["discount"] * (~batch["lost"]) * self._next_value(batch, some)
        values = self.critic(self._valued(batch["c"], batch["action"]))
        loss = (self._importance(batch) * (values - target).square()).mean(1).sum()
        return loss + self._critic_regulariser(batch, values), {"loss": loss.detach()}

    @torch.no_grad()
    def _next_value(self, batch: Batch, some: Tensor | None) -> Tensor:
        """What `some` targets say about the states that followed, (b,): the smallest of them; None: of all."""
        config, noise = self.config, batch["next_noise"]
        if config.deterministic:
            action = torch.tanh(self.target_actor(self.seen_norm(batch["next_x"]), kept(batch, "next_")))
            limit = 2.0 * config.smoothing
            action = (action + (config.smoothing * noise).clamp(-limit, limit)).clamp(-1.0, 1.0)
            penalty = torch.zeros(len(action), device=self.device)
        else:
            action, log_prob = self._sample(batch["next_x"], kept(batch, "next_"), noise)
            penalty = self.log_alpha.exp() * log_prob
        values = self.target_critic(self._valued(batch["next_c"], action))
        smallest: Tensor = (values if some is None else values[some]).amin(0)
        return smallest - penalty

    def _update_actor(self, parts: list[Part]) -> Batch:
        """A step up the critics' mean (TD3: the first critic), and SAC's entropy weight towards its target."""
        config = self.config
        if not config.deterministic:
            noise = self._noise(torch.Size((config.batch_size, self.env.action_size)))
            for place, (part, _) in enumerate(parts):
                part |= self.learners.cut({"noise": noise}, place)[0]
        self.critic.requires_grad_(False)
        told = self._step(self.actor_optimizer, self.actor, self._actor_loss, parts)
        self.critic.requires_grad_(True)
        if config.deterministic:
            return {}
        self.log_alpha.grad = -(told["log_prob"] + config.target_entropy * self.env.action_size)
        self.alpha_optimizer.step()
        return {"alpha": self.log_alpha.detach().exp()}

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Batch]:
        """Of the actor; and the log density of what it does."""
        if self.config.deterministic:
            action = self.mean(batch["x"], kept(batch))
            loss = -self.critic(self._valued(batch["c"], action))[0].mean()
            return loss + self._actor_regulariser(batch), {}
        action, log_prob = self._sample(batch["x"], kept(batch), batch["noise"])
        value = self.critic(self._valued(batch["c"], action)).mean(0)
        loss = (self.log_alpha.detach().exp() * log_prob - value).mean()
        return loss + self._actor_regulariser(batch), {"log_prob": log_prob.detach().mean()}

    def _set_schedule(self) -> None:
        config, done = self.config, self.iteration / self.iterations
        self.env.easy = config.easy_share(done)
        rate = config.rate(done)
        for optimizer in (self.actor_optimizer, self.critic_optimizer):
            for group in optimizer.param_groups:
                group["lr"] = rate

    def controller(self) -> FeaturePolicy:
        """The policy without exploration."""
        return self.policy_of(self.average)

    def policy_of(self, actor: PictureActor) -> FeaturePolicy:
        """The same, of one of the actors."""
        eyes, norm = actor.encoders.exported(), self.seen_norm.wider(actor.encoders.size)
        layers = linear_layers(actor.network, norm)
        weight, bias = layers[-1]
        layers[-1] = (weight[: self.env.action_size], bias[: self.env.action_size])
        return FeaturePolicy.from_task(self.task, self._network(Mlp(layers, self.config.activation)), encoders=eyes)

    def _network(self, actor: Mlp) -> Network:
        """What is exported of an actor."""
        return actor

    def dump_to(self, folder: Path) -> None:
        self.env.dump_dir = folder

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next steps depend on, the replay buffer included."""
        drawn = {"log_alpha": self.log_alpha.detach().clone(), "generator": self.generator.get_state()}
        prior, self.buffer.prior = self.buffer.prior, None  # it is where it was found
        state = super().state_dict() | drawn | {"contract": self.contract, "earlier": self.earlier}
        self.buffer.prior = prior
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of the same task and settings."""
        check_same(state["earlier"], self.earlier)
        prior = self.buffer.prior
        super().load_state_dict(state)
        self.buffer.prior = prior
        with torch.no_grad():
            self.log_alpha.copy_(torch.as_tensor(state["log_alpha"], device=self.device))
        self.generator.set_state(torch.as_tensor(state["generator"], dtype=torch.uint8).cpu())


@torch.no_grad()
def follow(target: nn.Module, source: nn.Module, share: float) -> None:
    """Move the target's parameters by `share` of the way to the source's."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), share)
