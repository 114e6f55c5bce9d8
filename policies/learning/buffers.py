"""Experience: rollouts for on-policy learners, and a replay buffer for all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Batch = dict[str, Tensor]


def advantages(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, done: Tensor, gamma: float, decay: float
) -> Tensor:
    """Generalised advantage estimates (T, n) (Schulman et al. 2016), all arguments (T, n).

    `next_value` is the value of the state that followed, before any reset: at a time limit that of the final
    observation. It counts unless `terminated`; sums over time stop at `done`. `decay` is GAE's lambda.
    """
    delta = reward + gamma * next_value * (~terminated) - value
    keep = gamma * decay * (~done).to(delta.dtype)
    result = torch.empty_like(delta)
    running = torch.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        running = delta[t] + keep[t] * running
        result[t] = running
    return result


class RolloutBuffer:
    """The last T steps of n environments, by name: (T, n, ...), written in order."""

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self.data: Batch = {}
        self.filled = 0

    def add(self, **values: Tensor) -> None:
        """Append one step; the first call decides names, shapes and types."""
        if not self.data:
            self.data = {
                k: torch.empty((self.horizon, *v.shape), dtype=v.dtype, device=v.device) for k, v in values.items()
            }
        if self.filled == self.horizon:
            raise IndexError(f"the rollout buffer already holds its {self.horizon} steps; call clear()")
        for name, value in values.items():
            self.data[name][self.filled] = value
        self.filled += 1

    def clear(self) -> None:
        """Start over; the memory is used again."""
        self.filled = 0

    def __getitem__(self, name: str) -> Tensor:
        return self.data[name][: self.filled]


class ReplayBuffer:
    """A ring of transitions, each name (capacity, ...).

    `prior` is experience that is never overwritten (demonstrations, another run): each transition that is drawn comes
    from there with the chance `prior_share`.
    """

    def __init__(self, capacity: int, prior: ReplayBuffer | None = None, prior_share: float = 0.5) -> None:
        if capacity < 1:
            raise ValueError(f"a replay buffer needs a capacity of at least 1, got {capacity}")
        if not 0.0 <= prior_share <= 1.0:
            raise ValueError(f"prior_share must be in 0..1, got {prior_share}")
        self.capacity, self.prior, self.prior_share = capacity, prior, prior_share
        self.data: Batch = {}
        self.size = 0
        self.next = 0
        self.added = 0  # ever: the number of the transition that is added next
        self.stride = 1  # how far apart consecutive transitions of one environment lie: what was added at once

    @property
    def whole(self) -> int:
        """Transitions, those of the prior experience included."""
        return self.size + (self.prior.whole if self.prior else 0)

    def add(self, **values: Tensor) -> None:
        """Append n transitions, each value (n, ...); the oldest are overwritten. The first call decides the names."""
        count = len(next(iter(values.values())))
        if count > self.capacity:
            return self.add(**{name: value[-self.capacity :] for name, value in values.items()})
        if not self.data:
            self.data = {
                k: torch.zeros((self.capacity, *v.shape[1:]), dtype=v.dtype, device=v.device) for k, v in values.items()
            }
        if values.keys() != self.data.keys():
            raise ValueError(f"transitions hold {', '.join(self.data)}, got {', '.join(values)}")
        self.stride = count
        first = min(count, self.capacity - self.next)
        for name, value in values.items():
            self.data[name][self.next : self.next + first] = value[:first]
            if first < count:
                self.data[name][: count - first] = value[first:]
        self.next = (self.next + count) % self.capacity
        self.size = min(self.size + count, self.capacity)
        self.added += count

    def annotate(self, serial: Tensor, **values: Tensor) -> Tensor:
        """Say more about transitions by their number (n,), each value (n, ...) under a name that they have.

        Which of them were still there, (n,) bool: the others have been overwritten.
        """
        age = self.added - serial  # 1: the newest
        there = (age >= 1) & (age <= self.size)
        place = ((self.next - age) % self.capacity)[there]
        for name, value in values.items():
            self.data[name][place] = value[there]
        return there

    def sample(self, count: int, generator: torch.Generator, steps: int = 1, gamma: float | None = None) -> Batch:
        """`count` transitions, drawn uniformly with replacement.

        With `gamma` they are of unweighted reward terms (see `weighted_reward`), and "discount" (count,) belongs to the
        value of what followed. With `steps` > 1 each then stands for up to that many consecutive ones of its
        environment, fewer where the episode or the buffer ends (then every `add` must bring one transition of each of
        the same environments): "terms" is their sum discounted by `gamma`; all "next_", "lost" and "done" are those
        of the last one.
        """
        if self.prior is None or self.prior.size == 0:
            return self._draw(count, generator, steps, gamma)
        own, prior = self._draw(count, generator, steps, gamma), self.prior.sample(count, generator, steps, gamma)
        old = torch.rand(count, generator=generator, device=generator.device) < self.prior_share
        return {name: torch.where(old.view(-1, *[1] * (v.ndim - 1)), prior[name], v) for name, v in own.items()}

    def _draw(self, count: int, generator: torch.Generator, steps: int, gamma: float | None) -> Batch:
        if self.size == 0:
            raise ValueError("cannot sample from an empty replay buffer")
        device = next(iter(self.data.values())).device
        index = torch.randint(self.size, (count,), generator=generator, device=device)
        batch = {name: values[index] for name, values in self.data.items()}
        if gamma is None:
            return batch
        batch["discount"] = torch.full((count,), gamma, device=device)
        if steps == 1:
            return batch
        age = (self.next - 1 - index) % self.capacity  # 0: the newest transition
        alive = torch.ones(count, dtype=torch.bool, device=device)
        for _ in range(steps - 1):
            alive = alive & ~self.data["done"][index] & (age >= self.stride)
            index = torch.where(alive, (index + self.stride) % self.capacity, index)
            age = torch.where(alive, age - self.stride, age)
            gained = batch["discount"][:, None] * self.data["terms"][index]
            batch["terms"] = batch["terms"] + torch.where(alive[:, None], gained, 0.0)
            batch["discount"] = torch.where(alive, batch["discount"] * gamma, batch["discount"])
        for name in self.data:
            if name.startswith("next_") or name in ("lost", "done"):
                batch[name] = self.data[name][index]
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The filled part, and the prior experience."""
        data = {name: values[: self.size].clone() for name, values in self.data.items()}
        prior = self.prior.state_dict() if self.prior else None
        counts = {name: getattr(self, name) for name in ("size", "next", "added", "stride", "prior_share")}
        return {"data": data, "prior": prior, **counts}

    def load_state_dict(self, state: Mapping[str, Any], device: str = "cpu") -> None:
        """Restore; ValueError when it holds more than the capacity."""
        size = int(state["size"])
        if size > self.capacity:
            raise ValueError(f"the saved replay buffer holds {size} transitions, this one {self.capacity}")
        self.data = {}
        for name, values in state["data"].items():
            saved = torch.as_tensor(values, device=device)
            self.data[name] = torch.zeros((self.capacity, *saved.shape[1:]), dtype=saved.dtype, device=device)
            self.data[name][:size] = saved
        self.size, self.next, self.stride = size, int(state["next"]), int(state["stride"])
        self.added = int(state.get("added", size))  # which earlier versions did not count
        self.prior_share = float(state["prior_share"])
        if state["prior"] is None:
            self.prior = None
        else:
            self.prior = self.prior or ReplayBuffer(max(1, int(state["prior"]["size"])))
            self.prior.load_state_dict(state["prior"], device)


def weighted_reward(terms: Tensor, weights: Tensor) -> Tensor:
    """Rewards (...,) from unweighted terms (..., T) and the weights (T,) that hold now."""
    return terms @ weights
