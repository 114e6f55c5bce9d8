"""How racing through gates is learned: settings of the algorithms."""

from __future__ import annotations

from typing import Any

PPO: dict[str, Any] = {
    "task.start": "anywhere",
    "task.laps": 3,
    "algorithm.total_steps": 30_000_000,
    "algorithm.num_envs": 512,
    "algorithm.rollout_steps": 32,
    "algorithm.minibatches": 8,
    "algorithm.epochs": 2,
    "algorithm.gamma": 0.99,
    "algorithm.hidden": [64, 64],
    "algorithm.critic_hidden": [64, 64],
    "algorithm.initial_std": 0.3,
    "algorithm.min_std": 0.05,
    "algorithm.correlation": 0.5,
    "algorithm.learning_rate": 2e-3,
    "algorithm.final_learning_rate": 1e-4,
    "algorithm.evaluate_every": 200,
    "algorithm.evaluation_episodes": 100,
}
APG: dict[str, Any] = {
    "task.start": "anywhere",
    "algorithm.network": "mlp",
    "algorithm.hidden": [64, 64],
    "algorithm.updates": 300,
    "algorithm.num_envs": 128,
    "algorithm.window": 96,
    "algorithm.ahead": 24,
    "algorithm.episode_windows": 5,
    "algorithm.learning_rate": 6e-3,
    "algorithm.final_learning_rate": 2e-4,
    "algorithm.gradient_clip": 0.5,
    "algorithm.adjoint_clip": 300.0,
}
