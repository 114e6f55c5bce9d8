"""What chunks were worth: rewards, and advantages by a critic (GAE) or within a group of the same episodes (GRPO)."""

from __future__ import annotations

import torch
from torch import Tensor

from policies.learning.buffers import advantages

SMALLEST = 0.06  # deviation of advantages, below which they are not blown up
LARGEST = 4.0  # advantage, in deviations


def rewarded(
    success: Tensor, potential: Tensor, last: Tensor, weight: float, gamma: float, kept: bool = False
) -> Tensor:
    """(n,) of chunks, episode after episode: 1 with a success, and `weight` times what the potential (n,) rises.

    `success` (n,): the chunk ended its episode well; `last` (n,): it ended it, and nothing has a potential any more;
    or, `kept`, who succeeded has 1, and who did not has what his last chunk began with.
    """
    following = torch.cat([potential[1:], potential.new_zeros(1)])
    end = torch.where(success, torch.ones_like(potential), potential) if kept else torch.zeros_like(potential)
    following = torch.where(last, end, following)
    return success.float() + weight * (gamma * following - potential)


def estimated(reward: Tensor, value: Tensor, last: Tensor, gamma: float, decay: float) -> Tensor:
    """Advantages (n,) of chunks, episode after episode. Out of time is over: the critic knows what time it is."""
    following = torch.cat([value[1:], value.new_zeros(1)])
    reward, value, following, over = (part[:, None] for part in (reward, value, following, last))
    return advantages(reward, value, following, over, over, gamma, decay)[:, 0]


def grouped(success: Tensor, chunks: Tensor, group: Tensor, gamma: float) -> Tensor:
    """Advantages (episodes,) of episodes of so many chunks, each within its group (episodes,) of the same beginning.

    The score is a success's, discounted by the time it took. 0 in a group that does well, or badly, as a whole.
    A potential would cancel: all begin with the same one.
    """
    score = success.float() * gamma ** (chunks - 1).float()
    found = torch.zeros_like(score)
    for number in group.unique():
        rows = group == number
        if success[rows].any() and not success[rows].all():
            found[rows] = (score[rows] - score[rows].mean()) / (score[rows].std(unbiased=False) + SMALLEST)
    return found


def levelled(advantage: Tensor, thing: Tensor) -> Tensor:
    """Advantages (n,) with mean 0 and deviation 1 for each thing (n,) that was asked for: all count as much."""
    found = advantage.clone()
    for number in thing.unique():
        rows = thing == number
        spread = advantage[rows].std(unbiased=False).clamp_min(SMALLEST)
        found[rows] = (advantage[rows] - advantage[rows].mean()) / spread
    return found.clamp(-LARGEST, LARGEST)
