"""Analytic policy gradients in a task's own world, with a policy that is a module of torch; see `windows.py`."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from policies.algorithms.apg import ApgConfig
from policies.algorithms.apg.autograd import Adam, Array, host, make_policy, named
from policies.algorithms.apg.windows import Windows
from policies.models.networks import Network
from sim.spec import size, unpack
from sim.tasks import features_of, initial_action
from sim.tasks.abilities import HasRehearsal


class Worlds(Windows):
    """See the module."""

    def __init__(self, task: HasRehearsal, config: ApgConfig, seed: int) -> None:
        super().__init__(task, config, seed)
        torch.set_num_threads(1)  # small matrices: threads cost more than they bring
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        self.policy = make_policy(config, self.inputs(), size(task.commands), rng, initial_action(task))
        self.adam = Adam(self.policy.parameters())
        self.hidden = torch.zeros(config.num_envs, self.policy.state_size)

    def inputs(self) -> int:
        return sum(self.sizes[f.signal] for f in features_of(self.task))

    @torch.no_grad()
    def begin_with(self, layers: Sequence[tuple[Array, Array]]) -> None:
        for ours, theirs in zip(self.policy.pairs(), layers, strict=True):
            for tensor, values in zip(ours, theirs, strict=True):
                tensor.copy_(torch.from_numpy(values))

    def _sensed(self) -> Tensor:
        """(n, m): the policy's signals, one after the other."""
        seen = self.world.observe()
        return torch.from_numpy(np.nan_to_num(np.concatenate([seen[name] for name in self.sizes], axis=1)))

    def _act(self, sensed: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        values = named(self.sizes, sensed)
        action, after = self.policy(torch.cat([f.evaluate(values) for f in features_of(self.task)], -1), hidden)
        return action, after

    def window(self) -> tuple[Array, float]:
        config, world, hidden, tape = self.config, self.world, self.hidden, []
        for _ in range(config.window):
            inputs = self._sensed().requires_grad_(), hidden.detach().requires_grad_()
            action, hidden = self._act(*inputs)
            tape.append((*inputs, action, hidden))
            world.step(unpack(self.task.commands, self.low + (host(action) + np.float32(1.0)) * self.half))
        self.hidden = hidden.detach()
        cost, counts = world.costs()
        self._pull(tape, counts)
        return cost, float(counts.mean())

    def _pull(self, tape: Sequence[tuple[Tensor, ...]], counts: NDArray[np.bool_]) -> None:
        """Back through a window, step by step: through the world, the policy, and what it sensed."""
        world, limit, last = self.world, self.config.adjoint_clip, self.config.window - self.config.ahead
        total, remembers = max(1, int(counts[:last].sum())), self.policy.state_size > 0
        parameters = list(self.policy.parameters())
        g_hidden = torch.zeros_like(self.hidden)
        world.begin_pulling()
        for t in range(len(tape) - 1, -1, -1):
            sensed, before, action, after = tape[t]
            g_action = torch.from_numpy(np.nan_to_num(world.pull(t, limit) * self.half * counts[t][:, None]))
            inputs, outputs = [sensed, before][: 1 + remembers], [action, after][: 1 + remembers]
            learned = parameters if t < last else []
            g_in = torch.autograd.grad(outputs, [*inputs, *learned], [g_action, g_hidden][: 1 + remembers])
            world.pull_sensed(t, host(g_in[0]))
            if remembers:
                g_hidden = g_in[1]
            for parameter, gradient in zip(learned, g_in[len(inputs) :], strict=True):
                gradient = gradient / total
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def improve(self, rate: float) -> float:
        c = self.config
        return self.adam.step(rate, c.beta1, c.beta2, c.gradient_clip)

    def forget(self, rows: NDArray[np.bool_]) -> None:
        self.hidden[torch.from_numpy(rows)] = 0.0

    def network(self) -> Network:
        found: Network = self.policy.network()
        return found

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact continuation needs."""
        parts = {"policy": copy.deepcopy(dict(self.policy.state_dict())), "hidden": self.hidden.clone()}
        kept = {"adam": self.adam.state_dict(), "world": self.world.state_dict()}
        return {**parts, **kept, "update": self.update, "lost": self.lost}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there."""
        for name in ("policy", "adam", "world"):
            getattr(self, name).load_state_dict(state[name])
        self.hidden = torch.as_tensor(state["hidden"]).clone()
        self.update, self.lost = int(state["update"]), int(state["lost"])
