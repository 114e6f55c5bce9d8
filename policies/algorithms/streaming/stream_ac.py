"""Stream AC(lambda) with ObGD: an actor and a critic that learn from every step as it happens, and keep none of them.

Elsayed, Vasan and Mahmood 2024, "Streaming Deep Reinforcement Learning Finally Works" (arXiv 2410.14606): sparse
initial weights, layer norm before each LeakyReLU, running normalisation of what is seen, rewards divided by the
deviation of their discounted sum, eligibility traces, and a step that is bounded so that it does not overshoot. In
numpy, with the gradients written out; `firmware/learning/streaming.h` is the same in C.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEAK = 0.01  # slope of LeakyReLU below zero
SMALLEST = 1e-5  # added to the variance in a layer norm
LEAST = 1e-8  # added to running variances


@dataclass(frozen=True)
class Rules:
    """What is decided beforehand. The defaults are the paper's, for every task there."""

    gamma: float = 0.99
    trace: float = 0.8  # lambda
    learning_rate: float = 1.0
    actor_kappa: float = 3.0
    critic_kappa: float = 2.0
    entropy: float = 0.01
    sparsity: float = 0.9  # share of the weights into a unit that begin as zero
    initial_std: float = math.log(2.0)
    still: bool = False  # the actor's last layer begins at zero: its mean, too
    bounded: bool = False  # the mean m is m / (1 + |m|)
    critic_alone: int = 0  # steps in which only the critic learns


class Perceptron:
    """Linear layers; between them a layer norm without learned scale, then LeakyReLU. One input at a time."""

    def __init__(self, sizes: Sequence[int], rng: np.random.Generator, sparsity: float) -> None:
        self.weights: list[Array] = []  # W (out, in) and b (out,), layer by layer
        for inputs, outputs in itertools.pairwise(sizes):
            limit = 1.0 / math.sqrt(inputs)
            weight = rng.uniform(-limit, limit, (outputs, inputs))
            for row in weight:
                row[rng.permutation(inputs)[: int(sparsity * inputs)]] = 0.0
            self.weights += [weight, np.zeros(outputs)]
        self.traces = [np.zeros_like(weight) for weight in self.weights]
        self._kept: list[tuple[Array, Array, float]] = []  # per hidden layer: input, normalised, 1 / deviation
        self._last = np.zeros(sizes[-2])

    def forward(self, x: Array) -> Array:
        """Outputs (out,) for an input (in,), which `backward` then refers to."""
        self._kept = []
        for weight, bias in zip(self.weights[:-2:2], self.weights[1:-2:2], strict=True):
            made = weight @ x + bias
            made -= made.mean()
            inverse = 1.0 / math.sqrt((made * made).mean() + SMALLEST)
            self._kept.append((x, made * inverse, inverse))
            x = np.where(made > 0.0, made, LEAK * made) * inverse
        self._last = x
        last: Array = self.weights[-2] @ x + self.weights[-1]
        return last

    def backward(self, change: Array) -> list[Array]:
        """The gradient of outputs . change (out,), in the order of the weights."""
        gradient = [np.outer(change, self._last), change]
        for at, (x, normal, inverse) in zip(range(len(self.weights) - 2, 0, -2), reversed(self._kept), strict=True):
            back = np.where(normal > 0.0, 1.0, LEAK) * (self.weights[at].T @ change)
            change = inverse * (back - back.mean() - normal * (back * normal).mean())
            gradient = [np.outer(change, x), change, *gradient]
        return gradient

    def remember(self, gradient: Sequence[Array], kept: float) -> None:
        """Eligibility traces: z = kept z + gradient; kept is gamma lambda."""
        for trace, new in zip(self.traces, gradient, strict=True):
            trace *= kept
            trace += new

    def forget(self) -> None:
        """Traces end with the episode."""
        for trace in self.traces:
            trace[:] = 0.0

    def step(self, error: float, rate: float, kappa: float) -> float:
        """w += step error z; the step, see `bounded_step`."""
        size = sum(float(np.abs(trace).sum()) for trace in self.traces)
        step = bounded_step(error, size, rate, kappa)
        for weight, trace in zip(self.weights, self.traces, strict=True):
            weight += step * error * trace
        return step

    def state_dict(self) -> dict[str, Any]:
        return {"weights": [w.copy() for w in self.weights], "traces": [z.copy() for z in self.traces]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for ours, theirs in ((self.weights, state["weights"]), (self.traces, state["traces"])):
            for mine, value in zip(ours, theirs, strict=True):
                mine[:] = value


def bounded_step(error: float, size: float, rate: float, kappa: float) -> float:
    """ObGD: rate / max(1, rate kappa max(|error|, 1) |z|_1), for a temporal-difference error and the traces' size."""
    return rate / max(1.0, rate * kappa * max(abs(error), 1.0) * size)


class Running:
    """Mean and variance of what was seen so far, one at a time (Welford)."""

    def __init__(self, size: int) -> None:
        self.mean, self.sum, self.count = np.zeros(size), np.zeros(size), 0

    def update(self, x: Array) -> None:
        """Another sample (size,)."""
        self.count += 1
        away = x - self.mean
        self.mean += away / self.count
        self.sum += away * (x - self.mean)

    @property
    def std(self) -> Array:
        """(size,); 1 until there are two samples."""
        variance = self.sum / (self.count - 1) if self.count > 1 else np.ones_like(self.sum)
        return np.sqrt(variance + LEAST)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean.copy(), "sum": self.sum.copy(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean[:], self.sum[:], self.count = state["mean"], state["sum"], int(state["count"])


def softplus(x: Array) -> Array:
    """log(1 + e^x), without overflow."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


class StreamAC:
    """The learner: an actor that says a Gaussian's means and deviations, a critic, and what is usual."""

    def __init__(
        self, observed: int, actions: int, hidden: Sequence[int], rng: np.random.Generator, rules: Rules | None = None
    ) -> None:
        self.actions, self.rules = actions, rules or Rules()
        self.actor = Perceptron([observed, *hidden, 2 * actions], rng, self.rules.sparsity)
        self.critic = Perceptron([observed, *hidden, 1], rng, self.rules.sparsity)
        weight, bias = self.actor.weights[-2:]
        if self.rules.still:
            weight[:] = 0.0
        bias[actions:] = math.log(math.expm1(self.rules.initial_std))
        self.seen, self.returns = Running(observed), Running(1)
        self.sum, self.steps = 0.0, 0  # of discounted rewards; updates

    def see(self, x: Array) -> Array:
        """What the networks see of an observation (observed,), which from now on counts as usual."""
        self.seen.update(x)
        seen: Array = (x - self.seen.mean) / self.seen.std
        return seen

    def _mean(self, made: Array) -> tuple[Array, Array]:
        """The means (actions,) of what the actor made, and their slopes."""
        if not self.rules.bounded:
            return made, np.ones_like(made)
        inverse = 1.0 / (1.0 + np.abs(made))
        return made * inverse, inverse * inverse

    def distribution(self, seen: Array) -> tuple[Array, Array]:
        """Means and standard deviations (actions,)."""
        mean, deviation = np.split(self.actor.forward(seen), 2)
        return self._mean(mean)[0], softplus(deviation)

    def scaled(self, reward: float, ended: bool) -> float:
        """A reward divided by the standard deviation of the discounted sums of rewards until now."""
        self.sum = self.rules.gamma * self.sum + reward
        self.returns.update(np.array([self.sum]))
        if ended:
            self.sum = 0.0
        return reward / float(self.returns.std[0])

    def learn(self, seen: Array, action: Array, reward: float, then: Array, lost: bool, ended: bool) -> float:
        """One update from one step; the temporal-difference error.

        `seen` and `then` (observed,) come from `see`, the `action` (actions,) is as drawn, before it is clipped. After
        `lost` nothing is worth anything; `ended` ends the traces, too.
        """
        rules = self.rules
        reward = self.scaled(reward, lost or ended)
        worth = 0.0 if lost else float(self.critic.forward(then)[0])
        error = reward + rules.gamma * worth - float(self.critic.forward(seen)[0])
        kept = rules.gamma * rules.trace
        self.critic.remember(self.critic.backward(np.ones(1)), kept)
        mean, deviation = np.split(self.actor.forward(seen), 2)
        mean, slope = self._mean(mean)
        std, rise = softplus(deviation), 1.0 / (1.0 + np.exp(-deviation))
        away = (action - mean) / std
        wider = (away * away - 1.0 + rules.entropy * np.sign(error)) / std * rise
        if self.steps >= rules.critic_alone:
            self.actor.remember(self.actor.backward(np.concatenate([away / std * slope, wider])), kept)
            self.actor.step(error, rules.learning_rate, rules.actor_kappa)
        self.critic.step(error, rules.learning_rate, rules.critic_kappa)
        self.steps += 1
        if lost or ended:
            self.actor.forget()
            self.critic.forget()
        return error

    def state_dict(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).state_dict() for name in ("actor", "critic", "seen", "returns")}
        return parts | {"sum": self.sum, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("actor", "critic", "seen", "returns"):
            getattr(self, name).load_state_dict(state[name])
        self.sum, self.steps = float(state["sum"]), int(state["steps"])
