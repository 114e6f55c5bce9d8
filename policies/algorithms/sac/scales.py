"""What is usual of what SAC's critics are told, by which they normalise; it changes as the policy does."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from policies.learning.fused.moments import SMALLEST, smallest_std
from policies.learning.networks import Ensemble, Normalizer
from sim.tasks import Task
from sim.vec_world import AnyVecEnv

SMALLEST_ACTION = 0.01  # standard deviation of an action that is divided by


def normalizers(task: Task, env: AnyVecEnv, device: str) -> tuple[Normalizer, Normalizer]:
    """Of what the critics see, and of actions."""
    smallest = torch.full((env.critic_size,), SMALLEST)
    smallest[: env.feature_size] = torch.from_numpy(smallest_std(task)).float()
    actions = torch.full((env.action_size,), SMALLEST_ACTION)
    of_actions = Normalizer(env.action_size, device, actions.to(device))
    return Normalizer(env.critic_size, device, smallest.to(device)), of_actions


@torch.no_grad()
def renormalised(
    critics: Sequence[Ensemble],
    optimizer: torch.optim.Optimizer,
    changes: Sequence[tuple[slice, Normalizer, Normalizer]],
) -> None:
    """Have critics say the same as before when their inputs in these rows are normalised otherwise: (rows, before,
    after). What Adam remembers follows.
    """
    for critic in critics:
        weight, bias = critic.weights[0], critic.biases[0]
        for rows, before, after in changes:
            ratio = (after.std / before.std)[:, None]
            bias += (((after.shift - before.shift) / before.std) @ weight[:, rows])[:, None]
            weight[:, rows] *= ratio
            remembered = optimizer.state.get(weight, {})
            for power, name in enumerate(("exp_avg", "exp_avg_sq") if remembered else (), 1):
                remembered[name][:, rows] /= ratio**power
