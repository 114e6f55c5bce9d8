"""How swarms are learned: settings of the algorithms."""

from __future__ import annotations

from typing import Any

APG: dict[str, Any] = {
    "algorithm.hidden": [48, 48],
    "algorithm.updates": 2000,
    "algorithm.num_envs": 128,
    "algorithm.window": 128,
    "algorithm.episode_windows": 6,
    "algorithm.learning_rate": 5e-3,
    "algorithm.gradient_clip": 0.3,
}
PPO: dict[str, Any] = {
    "algorithm.num_envs": 256,
    "algorithm.total_steps": 20_000_000,
}
