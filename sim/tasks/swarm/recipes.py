"""How swarms are learned: settings of the algorithms."""

from __future__ import annotations

from typing import Any

APG: dict[str, Any] = {
    "algorithm.path": "fused",
    "algorithm.hidden": [48, 32],
    "algorithm.solo": 600,  # who can hold a place to the centimetre has only others left to learn
    "algorithm.updates": 300,
    "algorithm.num_envs": 128,
    "algorithm.episode_windows": 8,  # as long as those that are scored, so that it learns to stay, too
    "algorithm.learning_rate": 4e-3,
    "task.crowd": 32.0,
    "task.fewest": 2,  # who has only ever met many others flies badly among few
}
PPO: dict[str, Any] = {
    "algorithm.num_envs": 256,
    "algorithm.total_steps": 20_000_000,
}
