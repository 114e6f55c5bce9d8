"""PPO with torch: any task, pictures included, any size of network, on the CPU or a GPU."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from policies.algorithms.ppo.torch_mirrors import Equivariant
from policies.algorithms.ppo.torch_parts import Part, Parted, Rollout, drawn, whole
from policies.learning.buffers import Batch, advantages
from policies.learning.encoders import SHARP, Encoders, PictureActor, columns, kept
from policies.learning.fused.symmetry import constant, task_images
from policies.learning.networks import (
    Normalizer,
    gaussian_log_prob,
    linear_layers,
    mlp,
)
from policies.learning.parallel.learners import Learners
from policies.models.controller import FeaturePolicy
from policies.models.networks.feed_forward import Mlp
from sim.randomize import Array
from sim.spec import pictures
from sim.tasks import Task, agents_of, features_of, initial_action
from sim.tasks.abilities import has_places, judged, present
from sim.vec_env import Observation, VecEnv
from sim.vec_world import WorldVecEnv, vector_env

if TYPE_CHECKING:
    from policies.algorithms.ppo import PpoConfig


def smallest_std(env: VecEnv | WorldVecEnv) -> Tensor:
    """The smallest standard deviation (feature_size,) that each feature is divided by.

    The policy's own past actions already have a natural scale, [-1, 1]. Exploration is most of their variance:
    divided by that, it would look as large as the signals.
    """
    width = {name: value.shape[-1] for name, value in env.observation["policy"].items()}
    width["history"] = env.observation["history"].shape[-1]
    sizes = [width[feature.signal] for feature in features_of(env.task)]
    floors = [0.5 if feature.signal == "history" else 1e-3 for feature in features_of(env.task)]
    counts = torch.tensor(sizes, dtype=torch.int64, device=env.device)
    return torch.tensor(floors, dtype=torch.float32, device=env.device).repeat_interleave(counts)


class TorchPath(Parted):
    """See the module."""

    actor: PictureActor
    average: PictureActor

    def __init__(self, task: Task, config: PpoConfig, seed: int, device: str = "cpu") -> None:
        self.task, self.config, self.device = task, config, device
        self.learners = Learners(config.parts or 1, config.threads)
        how = device, self.learners.parts
        self.parts = [Part(task, config, own, *how) for own in self.learners.seeds(seed)]
        weights = torch.Generator()
        weights.manual_seed(seed)
        self.env = env = self.parts[0].env  # as all are
        actions = env.action_size
        eyes = Encoders(pictures(task.policy), config.sight, weights, SHARP)
        layers = [env.feature_size + eyes.size, *config.hidden, actions]
        self.actor = PictureActor(eyes, mlp(layers, weights, config.activation, 0.01)).to(device)
        self.shared = 0 if task.privileged else eyes.size  # points that the critic sees, too
        with torch.no_grad():  # fly the initial action at first
            list(self.actor.parameters())[-1].fill_(math.atanh(initial_action(task)))
        seen = env.critic_size + self.shared
        self.critic = mlp([seen, *config.critic_hidden, 1], weights, config.activation).to(device)
        self.log_std = nn.Parameter(torch.full((actions,), math.log(config.initial_std), device=device))
        self.mirrors = self._mirrors(task)
        self.average = copy.deepcopy(self.actor).requires_grad_(False)  # of the actor, which is kept
        self.groups = [*self.actor.parameters(), self.log_std], [*self.critic.parameters()]
        self.learnt = [p for group in self.groups for p in group]
        self.optimizer = torch.optim.Adam(self.learnt, lr=config.learning_rate, eps=1e-5, fused=True)
        self.actor_norm = Normalizer(env.feature_size, device, smallest_std(env))
        self.critic_norm = Normalizer(seen, device)
        self.value_norm = Normalizer(1, device, kept=config.value_memory)
        first = [part.env.observation for part in self.parts]
        here = [self._present(o) for o in first]
        self._learn_scales(
            [(env.features(o)[rows], self._judged(o)[rows]) for o, rows in zip(first, here, strict=True)]
        )
        self.iterations = config.iterations
        self.iteration = 0

    def _mirrors(self, task: Task) -> list[Equivariant]:
        """Of actor and critic; none where there are none, or pictures."""
        found = task_images(task) if self.config.mirrors and not pictures(task.policy) else None
        if not found:
            return []
        seen, judged, actions = found
        pairs = ((self.actor.network, seen, actions), (self.critic, judged, constant(1, judged)))
        return [Equivariant(network, inputs, outputs, self.device) for network, inputs, outputs in pairs]

    def mean(self, features: Tensor, shown: Mapping[str, Tensor]) -> Tensor:
        """The actions (n, k) of the policy without exploration."""
        return torch.tanh(self.actor(self.actor_norm(features), shown))

    def kept(self, features: Tensor, shown: Mapping[str, Tensor]) -> Tensor:
        """Those of the policy that is kept."""
        return torch.tanh(self.average(self.actor_norm(features), shown))

    @torch.no_grad()
    def evaluate(self, episodes: int, seed: int) -> dict[str, Array]:
        """The task's scores (episodes x agents,) of the policy without exploration, on starts of their own."""
        env = vector_env(judged(self.task), episodes * agents_of(self.task), seed, self.device)

        def act(observation: Observation) -> Tensor:
            return self.kept(env.features(observation), observation["pictures"])

        return env.fly(act)

    @torch.no_grad()
    def _collect(self) -> tuple[list[Batch], dict[str, float]]:
        """One rollout of each of my parts, flattened to (T n, ...), and what all say about episodes that ended."""
        made = [self._rollout(part) for part in self.parts]
        known = whole(self.learners, made)
        self._rescale_value(known.target)
        self.counts = known.counts
        data = []
        for part in made:
            normal = (part.data["advantage"] - known.mean) / (known.std + 1e-8)
            named = {**part.data, "advantage": normal}
            if has_places(self.task):
                data.append({name: values[part.counted] for name, values in named.items()})
            else:  # all of them, without a copy: there may be pictures
                data.append({name: values.flatten(0, 1) for name, values in named.items()})
        return data, known.metrics

    def _rollout(self, part: Part) -> Rollout:
        """Of one part."""
        env, buffer = part.env, part.buffer
        buffer.clear()
        std, correlation = self.log_std.exp(), self.config.correlation
        fresh = math.sqrt(1.0 - correlation**2)
        ended: list[Tensor] = []
        bootstraps: list[tuple[int, Tensor, Tensor]] = []
        for t in range(self.config.rollout_steps):
            x, c, shown = env.features(env.observation), self._judged(env.observation), env.observation["pictures"]
            mean = self.mean(x, shown)
            random = torch.randn(mean.shape, generator=part.generator, device=self.device)
            part.wander = correlation * part.wander + fresh * random
            action = mean + std * part.wander
            log_prob = gaussian_log_prob(action, mean, self.log_std)
            here = self._present(env.observation)
            step = env.step(action)
            left = here & ~self._present(step.final_observation)
            done, lost = step.done | left, step.terminated | left
            outcome = {"reward": step.reward, "lost": lost, "done": done, "counted": here}
            buffer.add(x=x, c=c, action=action, log_prob=log_prob, **outcome, **columns(shown))
            if bool(done.any()):
                ended.append(torch.stack((step.info["episode_return"], step.info["episode_length"]), -1)[done])
                rows = (step.truncated & ~lost).nonzero()[:, 0]
                bootstraps.append((t, rows, self._judged(step.final_observation)[rows]))
        value = self.value(buffer["c"])
        next_value = torch.cat((value[1:], self.value(self._judged(env.observation))[None]))
        for t, rows, c in bootstraps:  # out of time is not out of value
            next_value[t, rows] = self.value(c)
        gamma, decay = self.config.discount(self.iteration / self.iterations), self.config.gae_lambda
        advantage = advantages(buffer["reward"], value, next_value, buffer["lost"], buffer["done"], gamma, decay)
        inputs = {name: buffer[name] for name in ("x", "c", "action", "log_prob", *columns(shown))}
        data = inputs | {"advantage": advantage, "target": value + advantage}
        return Rollout(data, buffer["reward"], buffer["counted"], ended)

    def _present(self, observation: Observation) -> Tensor:
        """In which rows (n,) somebody is, from whom to learn."""
        if not has_places(self.task):
            return torch.ones(self.env.num_envs, dtype=torch.bool, device=self.device)
        there = present(self.task, {name: value.cpu().numpy() for name, value in observation["privileged"].items()})
        return torch.from_numpy(there).to(self.device)

    def _update(self, data: list[Batch]) -> dict[str, float]:
        """Several passes of minibatch gradient steps over one rollout."""
        config, metrics = self.config, dict[str, Tensor]()
        seen = [(batch["x"], batch["c"]) for batch in data]
        data = [
            {
                **batch,
                "x": self.actor_norm(batch["x"]),
                "c": self.critic_norm(batch["c"]),
                "target": self.value_norm(batch["target"][:, None]).squeeze(-1),
            }
            for batch in data
        ]
        for _ in range(config.epochs):
            orders = [
                torch.randperm(len(batch["x"]), generator=part.generator, device=self.device)
                for part, batch in zip(self.parts, data, strict=True)
            ]
            for k in range(config.minibatches):
                sizes = drawn(self.counts, config.minibatches, k)
                if not sum(sizes):
                    break
                mine = [sizes[number] for number in self.learners.mine]
                begin = [k * -(-len(order) // config.minibatches) for order in orders]
                rows = [order[at : at + size] for order, at, size in zip(orders, begin, mine, strict=True)]
                chosen = [{name: v[at] for name, v in one.items()} for one, at in zip(data, rows, strict=True)]
                metrics = self._gradient_step(chosen, sum(sizes))
        self.learners.agree(self.learnt)
        self._learn_scales(seen)
        return {name: float(value) for name, value in metrics.items()}

    def _gradient_step(self, batches: list[Batch], count: int) -> dict[str, Tensor]:
        """On my parts of a minibatch, which has so many samples in all."""
        metrics = self.learners.gradient(lambda place, _: self._loss(batches[place], count), self.learnt)
        for mirror in self.mirrors:
            mirror.average()
        if self.mirrors and self.log_std.grad is not None:
            self.mirrors[0].alike(self.log_std.grad)
        for group in self.groups:
            nn.utils.clip_grad_norm_(group, self.config.gradient_clip)
        self.optimizer.step()
        with torch.no_grad():
            self.log_std.clamp_(min=math.log(self.config.min_std))
            return metrics | {"std": self.log_std.exp().mean()}

    def _loss(self, batch: Batch, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """What these samples add to the loss of a minibatch of so many, and to what is shown of it."""
        config = self.config
        log_prob = gaussian_log_prob(batch["action"], torch.tanh(self.actor(batch["x"], kept(batch))), self.log_std)
        change = log_prob - batch["log_prob"]
        ratio = change.exp()
        clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
        policy_loss = -torch.min(ratio * batch["advantage"], clipped * batch["advantage"]).sum() / count
        value_loss = (self.critic(batch["c"]).squeeze(-1) - batch["target"]).square().sum() / count
        share = len(batch["x"]) / count
        loss = policy_loss + value_loss - share * config.entropy * self.log_std.sum()
        return loss, {"loss": loss, "value_loss": value_loss, "kl": (ratio - 1.0 - change).sum() / count}

    def controller(self) -> FeaturePolicy:
        """The policy without exploration, its normaliser folded into the first layer."""
        eyes = self.average.encoders
        layers = linear_layers(self.average.network, self.actor_norm.wider(eyes.size))
        return FeaturePolicy.from_task(self.task, Mlp(layers, self.config.activation), encoders=eyes.exported())
