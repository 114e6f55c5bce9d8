"""How swarms are learned: settings of the algorithms."""

from __future__ import annotations

from typing import Any

APG: dict[str, Any] = {
    "algorithm.path": "fused",
    "algorithm.hidden": [48, 32],
    "algorithm.updates": 1000,
    "algorithm.num_envs": 128,
    "algorithm.episode_windows": 6,
    "algorithm.learning_rate": 8e-3,
}
PPO: dict[str, Any] = {
    "algorithm.num_envs": 256,
    "algorithm.total_steps": 20_000_000,
}
